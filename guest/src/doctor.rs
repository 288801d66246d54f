//! `informant-guest doctor`: what this image lacks, in words an image builder can act on. Opens no socket, changes
//! nothing.
//!
//! One finding a line: `ok`, `note`, `warn` or `fail`, what was found, and what to do about it. With `--root` only the
//! tree is looked at; what belongs to the running process is looked at on a live root alone.

mod kernel;
mod process;
mod reading;

use crate::kfile::Files;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// Writes one finding a line. True when none of them is a failure.
pub fn run(root: &Path, out: &mut impl Write) -> io::Result<bool> {
    let mut findings = Findings { out, failed: false, error: None };
    let mut files = Files::new(root);
    if files.stat(b"").is_err() {
        findings
            .fail(format_args!("{}: no such directory", root.display()), "give --root a directory with proc and sys");
    } else {
        let reading = reading::Reading::new(root);
        reading.sources(&mut files, &mut findings);
        kernel::vsock(&mut files, &mut findings);
        kernel::cgroups(&mut files, &reading, &mut findings);
        kernel::pressure(&mut files, &reading, &mut findings);
        kernel::hotplug(&mut files, &mut findings);
        kernel::clock(&mut files, &mut findings);
        if files.is_live() {
            process::privileges(&mut files, &mut findings);
        }
        process::state_directory(&files, &mut findings);
        reading.faults(&files, &mut findings);
        reading.series(&mut findings);
    }
    let failed = findings.failed;
    match findings.error {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => findings.out.flush().or(Ok(())).map(|()| !failed),
    }
}

/// Where findings go.
struct Findings<'a> {
    out: &'a mut dyn Write,
    failed: bool,
    error: Option<io::Error>,
}

impl Findings<'_> {
    /// As it should be.
    fn ok(&mut self, what: fmt::Arguments<'_>) {
        self.line("ok", what, "");
    }

    /// Worth knowing; nothing is lost.
    fn note(&mut self, what: fmt::Arguments<'_>, what_to_do: &str) {
        self.line("note", what, what_to_do);
    }

    /// Something will be missing.
    fn warn(&mut self, what: fmt::Arguments<'_>, what_to_do: &str) {
        self.line("warn", what, what_to_do);
    }

    /// The agent can not do its work.
    fn fail(&mut self, what: fmt::Arguments<'_>, what_to_do: &str) {
        self.failed = true;
        self.line("fail", what, what_to_do);
    }

    /// As [`Self::fail`] where it is needed, else as [`Self::warn`].
    fn lack(&mut self, is_needed: bool, what: fmt::Arguments<'_>, what_to_do: &str) {
        if is_needed { self.fail(what, what_to_do) } else { self.warn(what, what_to_do) }
    }

    fn line(&mut self, grade: &str, what: fmt::Arguments<'_>, what_to_do: &str) {
        if self.error.is_none() {
            let separator = if what_to_do.is_empty() { "" } else { "; " };
            self.error = writeln!(self.out, "{grade}: {what}{separator}{what_to_do}").err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::{Uid, geteuid, setfsuid};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn put(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn findings(root: &Path) -> (bool, String) {
        let mut out = Vec::new();
        let fine = run(root, &mut out).unwrap();
        (fine, String::from_utf8(out).unwrap())
    }

    fn line<'a>(text: &'a str, word: &str) -> &'a str {
        text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("no {word} in:\n{text}"))
    }

    fn good_image() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (file, content) in [
            ("stat", "cpu  1 1 1 1\ncpu0 1 1 1 1\n"),
            ("meminfo", "MemTotal: 1000 kB\n"),
            ("vmstat", "pgfault 1\n"),
            ("loadavg", "0.10 0.20 0.30 1/1 1\n"),
            ("uptime", "10.00 9.00\n"),
            ("diskstats", ""),
            ("net/dev", "    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"),
        ] {
            put(root, &format!("proc/{file}"), content);
        }
        put(root, "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        for file in ["cpu", "io", "memory"] {
            put(root, &format!("proc/pressure/{file}"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        }
        put(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
        put(root, "sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu io memory pids\n");
        put(root, "sys/class/misc/vsock/dev", "10:120\n");
        put(root, "sys/bus/virtio/devices/virtio3/device", "0x0013\n");
        put(root, "sys/bus/virtio/devices/virtio3/driver/bind", "");
        put(root, "sys/devices/system/memory/auto_online_blocks", "online\n");
        put(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock\n");
        fs::create_dir(root.join("run")).unwrap();
        dir
    }

    #[test]
    fn a_good_image_has_nothing_to_complain_about() {
        let root = good_image();
        let (fine, text) = findings(root.path());
        assert!(fine, "{text}");
        assert!(text.lines().all(|line| line.starts_with("ok: ")), "{text}");
        assert!(line(&text, "vsock").contains("virtio3"));
        assert!(line(&text, "cgroup").contains("/sys/fs/cgroup"));
    }

    #[test]
    fn an_empty_image_fails_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let (fine, text) = findings(root.path());
        assert!(!fine);
        assert!(line(&text, "proc/stat").starts_with("fail: "));
        assert!(line(&text, "proc/stat").contains("mount -t proc"));
        assert!(line(&text, "vsock").contains("modprobe vsock"));
        assert!(line(&text, "cgroup2").contains("mount -t cgroup2"));
        assert!(line(&text, "pressure").contains("CONFIG_PSI"));
        let (fine, text) = findings(&root.path().join("gone"));
        assert!(!fine && text.starts_with("fail: "), "{text}");
    }

    #[test]
    fn each_lack_has_its_line() {
        let dir = good_image();
        let root = dir.path();
        fs::remove_dir_all(root.join("sys/bus/virtio/devices/virtio3/driver")).unwrap();
        let (fine, text) = findings(root);
        assert!(!fine && line(&text, "virtio3").contains("modprobe vmw_vsock_virtio_transport"), "{text}");
        put(root, "sys/bus/virtio/devices/virtio3/driver/bind", "");

        put(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids\n");
        put(root, "sys/fs/cgroup/cgroup.subtree_control", "\n");
        let (fine, text) = findings(root);
        assert!(fine && line(&text, "no memory, io").starts_with("warn: "), "{text}");
        assert!(line(&text, "subtree_control").starts_with("note: "), "{text}");

        let hybrid = "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        put(root, "proc/self/mountinfo", hybrid);
        put(root, "sys/fs/cgroup/unified/cgroup.controllers", "\n");
        let (_, text) = findings(root);
        assert!(line(&text, "hybrid").contains("systemd.unified_cgroup_hierarchy=1"), "{text}");
        put(root, "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        let (_, text) = findings(root);
        assert!(line(&text, "cgroup v1").starts_with("warn: "), "{text}");

        put(root, "sys/devices/system/memory/auto_online_blocks", "offline\n");
        put(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "jiffies\n");
        let (_, text) = findings(root);
        assert!(line(&text, "plugged memory").contains("memhp_default_state=online_movable"), "{text}");
        assert!(line(&text, "jiffies").starts_with("warn: "), "{text}");
    }

    /// Puts something else in a file's place.
    fn replace(root: &Path, path: &str, make: impl FnOnce(&Path)) {
        let path = root.join(path);
        fs::remove_file(&path).unwrap();
        make(&path);
    }

    fn pipe(path: &Path) {
        nix::unistd::mkfifo(path, Mode::S_IRUSR).unwrap();
    }

    #[test]
    fn what_is_there_and_is_no_file_of_the_kernel_is_named_with_what_it_costs() {
        let dir = good_image();
        let root = dir.path();
        replace(root, "proc/stat", pipe);
        replace(root, "proc/pressure/cpu", |path| fs::create_dir(path).unwrap());
        put(root, "proc/pressure/io", "");
        replace(root, "proc/diskstats", |path| std::os::unix::fs::symlink("diskstats", path).unwrap());
        put(root, "proc/loadavg", "\0\0\0\0");
        let (fine, text) = findings(root);
        assert!(!fine, "{text}");
        for (word, expected) in [
            ("/proc/stat", "fail: /proc/stat: it is a pipe or a terminal, not a file: no CPU times; "),
            ("/proc/pressure/cpu", "warn: /proc/pressure/cpu: Is a directory: no pressure on CPUs; "),
            ("/proc/pressure/io", "warn: /proc/pressure/io is empty: no pressure on disks; "),
            ("/proc/diskstats", "warn: /proc/diskstats: Too many symbolic links encountered: no disks; "),
            ("/proc/loadavg", "warn: /proc/loadavg is not as the kernel prints it: no load averages; "),
        ] {
            assert!(line(&text, word).starts_with(expected), "{text}");
        }
        assert!(!text.contains("information is on") && !text.contains("has every file"), "{text}");
        assert_eq!(text.lines().filter(|line| !line.starts_with("ok: ")).count(), 5, "{text}");
    }

    #[test]
    fn what_this_user_may_not_read_is_named_and_files_of_cgroups_share_a_line() {
        let dir = good_image();
        let root = dir.path();
        for (i, file) in ["memory.current", "memory.max", "cpu.stat"].into_iter().enumerate() {
            put(root, &format!("sys/fs/cgroup/g{i}/{file}"), "usage_usec 1\n");
        }
        put(root, "sys/fs/cgroup/g3/pids.current", "many\n");
        let close = |path: &str, mode| fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
        close("", 0o755);
        close("proc/meminfo", 0);
        close("proc/loadavg", 0);
        for path in ["g0/memory.current", "g1/memory.max", "g2/cpu.stat"] {
            close(&format!("sys/fs/cgroup/{path}"), 0);
        }
        // Of this thread alone: root may read everything.
        setfsuid(Uid::from_raw(65_534));
        let (fine, text) = findings(root);
        setfsuid(geteuid());
        assert!(!fine, "{text}");
        assert!(line(&text, "meminfo").starts_with("fail: /proc/meminfo: Permission denied: no memory; "), "{text}");
        assert!(line(&text, "loadavg").starts_with("warn: /proc/loadavg: Permission denied: no load averages; "));
        let shared = "warn: /sys/fs/cgroup/g0/memory.current and 2 more: Permission denied: some figures of cgroups";
        assert!(line(&text, "and 2 more").starts_with(shared), "{text}");
        assert!(line(&text, "pids.current").contains("not as the kernel prints it"), "{text}");
    }
}
