//! The QEMU actuator against a real QEMU whose guest never gets as far as a driver: what is asked for is accepted, and
//! must not be believed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use xtask::child::{self, Child};
use xtask::{host, vm};

const MIB: u64 = 1 << 20;

/// The actuator of one VM, as a program that takes lines.
struct Actuate {
    process: std::process::Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Actuate {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Actuate {
    fn ask(&mut self, line: &str) -> Value {
        writeln!(self.stdin, "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        println!("{line} -> {}", answer.trim_end());
        serde_json::from_str(&answer).unwrap()
    }

    fn resize(&mut self, cpus: u32, mib: u64) -> Value {
        self.ask(&format!("resize {} {}", cpus * 1000, mib * MIB))
    }
}

/// A QEMU with these devices beside its 256 MiB and 1 of 4 CPUs.
struct Qemu {
    dir: tempfile::TempDir,
    /// Held: dropping ends it.
    _child: Child,
}

impl Qemu {
    fn start(devices: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = child::command("qemu-system-x86_64");
        command.args(["-nodefaults", "-display", "none", "-machine", "q35,accel=tcg", "-m", "256M,maxmem=2G"]);
        command.args(["-smp", "1,maxcpus=4,sockets=4"]).args(devices);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", dir.path().join("qmp.sock").display()));
        child::log_to(&mut command, &dir.path().join("log")).unwrap();
        let mut child = Child::spawn("QEMU", command).unwrap();
        vm::wait_until("QEMU's socket", Duration::from_secs(20), || {
            assert!(child.ended()?.is_none(), "{}", std::fs::read_to_string(dir.path().join("log"))?);
            Ok(dir.path().join("qmp.sock").exists())
        })
        .unwrap();
        Self { dir, _child: child }
    }

    fn actuate(&self) -> Actuate {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| host::build_example("actuate").unwrap());
        let mut command = child::command(program);
        command.arg(format!("qemu = '{}'", self.dir.path().join("qmp.sock").display()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Actuate { process, stdin, stdout }
    }
}

const VIRTIO_MEM: [&str; 4] = [
    "-object",
    "memory-backend-memfd,id=more,size=1G,share=on",
    "-device",
    "virtio-mem-pci,id=vm0,memdev=more,requested-size=0",
];

#[test]
fn memory_is_wished_and_not_there_and_cpus_are_there() {
    let qemu = Qemu::start(&VIRTIO_MEM);
    let mut vmm = qemu.actuate();
    let seen = vmm.ask("observe");
    assert_eq!((&seen["has"], &seen["wish"]), (&json!([1000, 256 * MIB]), &json!([1000, 256 * MIB])));
    assert_eq!((&seen["min"], &seen["max"]), (&json!([1000, 256 * MIB]), &json!([4000, 1280 * MIB])));
    assert_eq!((&seen["running"], &seen["balloon"]), (&json!(true), &json!(false)));

    let grown = vmm.resize(3, 511);
    assert_eq!(
        (&grown["has"], &grown["wish"]),
        (&json!([3000, 256 * MIB]), &json!([3000, 512 * MIB])),
        "in blocks of 2 MiB"
    );
    assert_eq!(vmm.resize(3, 512), grown);
    assert_eq!(qemu.actuate().ask("observe"), grown, "QEMU itself remembers the wish");
    assert_eq!(vmm.resize(3, 256)["wish"], json!([3000, 256 * MIB]));

    // No guest has taken over CPU hot-plug yet: what QEMU calls not supported is not yet.
    assert_eq!(vmm.resize(2, 256)["error"], "not_yet");
    assert_eq!(vmm.ask("observe")["has"][0], 3000);
    assert_eq!(vmm.resize(5, 256)["error"], "refused");
    assert_eq!(vmm.resize(3, 1281)["error"], "refused");
    assert_eq!(vmm.resize(3, 255)["error"], "refused");
    let full = vmm.resize(4, 1280);
    assert_eq!((&full["has"], &full["wish"]), (&json!([4000, 256 * MIB]), &json!([4000, 1280 * MIB])));
}

#[test]
fn a_balloon_without_virtio_mem_and_nothing_without_either() {
    let qemu = Qemu::start(&["-device", "virtio-balloon-pci"]);
    let mut vmm = qemu.actuate();
    assert_eq!(vmm.ask("observe")["balloon"], true);
    let seen = vmm.resize(1, 200);
    assert_eq!((&seen["has"], &seen["wish"]), (&json!([1000, 256 * MIB]), &json!([1000, 200 * MIB])));
    assert_eq!(vmm.resize(1, 257)["error"], "refused");

    let qemu = Qemu::start(&[]);
    assert_eq!(qemu.actuate().resize(1, 512)["error"], "unsupported");
    drop(qemu);
}
