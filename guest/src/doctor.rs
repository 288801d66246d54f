//! `informant-guest doctor`: what this image lacks, in words an image builder can act on. Opens no socket, changes
//! nothing.
//!
//! One finding a line: `ok`, `note`, `warn` or `fail`, what was found, and what to do about it. With `--root` only the
//! tree is looked at; what belongs to the running process is looked at on a live root alone.

mod kernel;
mod process;

use crate::collect::{Config, OwnFigures, Sensors};
use crate::kfile::Files;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Writes one finding a line. True when none of them is a failure.
pub fn run(root: &Path, out: &mut impl Write) -> io::Result<bool> {
    let mut findings = Findings { out, failed: false, error: None };
    let mut files = Files::new(root);
    if files.stat(b"").is_err() {
        findings
            .fail(format_args!("{}: no such directory", root.display()), "give --root a directory with proc and sys");
    } else {
        kernel::sources(&mut files, &mut findings);
        kernel::vsock(&mut files, &mut findings);
        kernel::cgroups(&mut files, &mut findings);
        kernel::pressure(&mut files, &mut findings);
        kernel::hotplug(&mut files, &mut findings);
        kernel::clock(&mut files, &mut findings);
        if files.is_live() {
            process::privileges(&mut files, &mut findings);
        }
        process::state_directory(&files, &mut findings);
        series(root, &mut findings);
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

    fn line(&mut self, grade: &str, what: fmt::Arguments<'_>, what_to_do: &str) {
        if self.error.is_none() {
            let separator = if what_to_do.is_empty() { "" } else { "; " };
            self.error = writeln!(self.out, "{grade}: {what}{separator}{what_to_do}").err();
        }
    }
}

/// The outcome: what `sample` and `run` will report.
fn series(root: &Path, findings: &mut Findings<'_>) {
    let mut sensors = Sensors::new(&Config { root: root.to_owned(), cgroup: None, all_fresh: true });
    for _ in 0..3 {
        sensors.sample(&OwnFigures::default());
        sensors.settle(Duration::from_millis(200));
        sensors.reschema();
    }
    let (series, subjects, dropped) = (sensors.series(), sensors.subjects().count(), sensors.series_dropped());
    if dropped > 0 {
        findings.warn(
            format_args!("{series} series of {subjects} subjects, {dropped} more are over the limit and cut"),
            "have fewer cgroups, mounts or interfaces, or watch one cgroup with --cgroup",
        );
    } else {
        findings.ok(format_args!("{series} series of {subjects} subjects"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        for file in ["stat", "meminfo", "vmstat", "loadavg", "uptime", "diskstats", "net/dev"] {
            put(root, &format!("proc/{file}"), "x\n");
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
}
