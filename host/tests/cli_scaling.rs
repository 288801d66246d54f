//! `resize`, `controllers` and the scaling part of `show` beside a real daemon whose VMM is a program.

#[expect(dead_code, reason = "shared; nothing is watched or signalled here")]
mod cli;

use cli::{command, run, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A VMM in a file: 1 CPU and 1 GiB until it is told another size.
const VMM: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ "$1" = resize ] && echo "\"cpu_milli\":$3,\"memory_bytes\":$5" > "$here/size"
[ -e "$here/size" ] || echo '"cpu_milli":1000,"memory_bytes":1073741824' > "$here/size"
echo "{$(cat "$here/size"),\"max_cpu_milli\":4000,\"min_memory_bytes\":536870912,\"max_memory_bytes\":4294967296,\"block_bytes\":134217728}"
"#;

struct Daemon {
    dir: TempDir,
    child: Child,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let vmm = path.join("vmm");
        fs::write(&vmm, VMM).unwrap();
        fs::set_permissions(&vmm, fs::Permissions::from_mode(0o755)).unwrap();
        let at = path.display();
        for (name, more) in [
            ("vm", format!("actuator.command = ['{at}/vmm']\nscaling.policy = 'none'\nscaling.max = {{ cpu = 2 }}\n")),
            ("plain", String::new()),
        ] {
            fs::create_dir(path.join(name)).unwrap();
            fs::write(path.join(name).join("instance.toml"), format!("unix = '{at}/{name}.sock'\n{more}")).unwrap();
        }
        let child = command(path, &["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Self { dir, child };
        until("the VMM's size", || {
            let (_, text, _) = run(daemon.path(), &["show", "vm"]);
            text.contains("the VMM gives 1 CPU, 1 GiB").then_some(())
        });
        daemon
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_resize_prints_its_steps_and_says_what_is_missing() {
    let daemon = Daemon::start();
    let (code, text, error) = run(daemon.path(), &["resize", "vm", "--cpu", "2", "--memory", "1536MiB", "--force"]);
    let steps: Vec<_> = text.lines().filter_map(|line| line.split_once(" s  ")).map(|(_, step)| step).collect();
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    assert_eq!(steps[0], "the VMM gives 1 CPU, 1 GiB, asked for 1 CPU, 1 GiB; wanted 2 CPUs, 1536 MiB");
    assert_eq!(steps[1], "telling the VMM: 1 CPU, 1 GiB becomes 2 CPUs, 1536 MiB");
    assert_eq!(*steps.last().unwrap(), "done: the VMM gives 2 CPUs, 1536 MiB; no agent says what came of it");
    let (_, text, _) = run(daemon.path(), &["show", "vm"]);
    assert!(text.contains("command, policy none; this host does not decide now"), "{text}");
    assert!(text.contains("at most 2 CPUs, any memory"), "{text}");
    assert!(text.contains("1 CPU, 1 GiB to 2 CPUs, 1536 MiB: a person asked for it"), "{text}");

    for (arguments, code, what) in [
        (&["resize", "vm", "--memory", "1GiB"][..], 1, "vm is not resized: no agent that could agree is connected"),
        (
            &["resize", "vm", "--cpu", "3"],
            1,
            "3 CPUs is beyond the bounds of this instance (at most 2 CPUs, any memory); --force",
        ),
        (&["resize", "plain", "--cpu", "1"], 1, "plain is not resized: this instance has no [actuator]"),
        (&["resize", "other", "--cpu", "1"], 1, "no instance other"),
        (&["resize", "vm"], 2, "<--cpu <CPUS>|--memory <SIZE>>"),
        (&["resize", "vm", "--cpu", "two"], 2, "no number of CPUs: write 2, 1.5 or 500m"),
        (&["resize", "vm", "--memory", "2GB"], 2, "write 2GiB, 1536MiB or a number of bytes"),
        (&["controllers", "vm"], 1, "no agent that takes part in scaling has a session"),
        (&["controllers", "other"], 1, "no instance other"),
    ] {
        let (got, _, error) = run(daemon.path(), arguments);
        assert_eq!(got, Some(code), "{arguments:?}: {error}");
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
}

#[test]
fn without_a_daemon_nothing_is_resized() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["resize", "vm", "--cpu", "1"][..], &["controllers", "vm"]] {
        let (code, _, error) = run(dir.path(), arguments);
        assert!(code == Some(1) && error.contains("no daemon answers at"), "{error}");
    }
}
