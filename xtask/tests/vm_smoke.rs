//! A real VM boots, answers on its console, and its vsock device carries bytes in both directions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use informant_wire::HOST_PORT;
use informant_wire::hello::MAGIC;
use xtask::project;
use xtask::vm::{self, Vm};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_vm_boots_as_it_was_ordered() {
    let _turn = vm::turn().unwrap();
    let since = Instant::now();
    let vm = Vm::builder().memory_mib(320).cpus(2).disk_mib(16).without_agent().boot().unwrap();
    println!("booted in {:.1} s with {}", since.elapsed().as_secs_f64(), vm.accel().name());

    assert_eq!(vm.sh("nproc", SOON).unwrap().trim(), "2");
    let total: u64 =
        vm.sh("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo", SOON).unwrap().trim().parse().unwrap();
    assert!((220 * 1024..320 * 1024).contains(&total), "MemTotal is {total} KiB of 320 MiB");
    assert_eq!(vm.sh("cat /sys/block/vda/size", SOON).unwrap().trim(), (16 * 2048).to_string());
    let controllers = vm.sh("cat /sys/fs/cgroup/cgroup.subtree_control", SOON).unwrap();
    for controller in ["memory", "cpu", "io", "pids"] {
        assert!(controllers.split_whitespace().any(|name| name == controller), "{controller} is not in {controllers}");
    }
    assert!(vm.sh("cat /proc/pressure/memory", SOON).unwrap().starts_with("some avg10="));
    assert_eq!(vm.sh("pidof informant-guest || echo none", SOON).unwrap().trim(), "none");
    // Nobody but the console's own children: init reaps what is orphaned.
    vm.sh("sh -c 'sleep 0.1 & sleep 0.1 &'; sleep 1", SOON).unwrap();
    assert_eq!(vm.sh("grep -l '^State:.Z' /proc/[0-9]*/status || true", SOON).unwrap(), "");
}

#[test]
fn the_console_gives_exit_codes_and_every_byte() {
    let _turn = vm::turn().unwrap();
    let vm = Vm::builder().without_agent().file("etc/sent", "from outside\n", 0o644).unwrap().boot().unwrap();
    assert_eq!(vm.sh("cat /etc/sent", SOON).unwrap(), "from outside\n");

    let failed = vm.run("echo out; echo err >&2; exit 7", SOON).unwrap();
    assert_eq!((failed.code, failed.text().as_str()), (7, "out\nerr\n"));
    let error = vm.sh("echo sorry; false", SOON).unwrap_err().to_string();
    assert_eq!(error, "in the VM, `echo sorry; false` ended with code 1: sorry");
    assert_eq!(vm.run("if then", SOON).unwrap().code, 2, "a syntax error harms nobody");

    let large = vm.run("head -c 131072 /dev/urandom >/tmp/large; cat /tmp/large", SOON * 3).unwrap();
    assert_eq!(large.bytes.len(), 131_072);
    let sum = vm.sh("sha256sum /tmp/large", SOON).unwrap();
    assert!(sum.ends_with("  /tmp/large\n"), "{sum}");

    // A kernel message in the middle of an answer is noticed and the answer asked for again.
    let noisy = "(sleep 0.3; for i in 1 2 3 4 5; do echo \"<0>noise $i\"; done >/dev/kmsg) & head -c 60000 /tmp/large";
    assert_eq!(vm.run(noisy, SOON).unwrap().bytes, large.bytes[..60_000]);

    // A command that hangs is killed, and the console goes on.
    let hung = vm.run("echo before; sleep 100", Duration::from_secs(2)).unwrap();
    assert_eq!((hung.code, hung.text().lines().next().map(str::to_owned).as_deref()), (137, Some("before")));
    assert_eq!(vm.sh("echo on", SOON).unwrap(), "on\n");
}

#[test]
fn vsock_carries_bytes_both_ways_and_over_resets() {
    let _turn = vm::turn().unwrap();
    let vm = Vm::builder().without_agent().program("bin/vsock-cat", project::vsock_cat().unwrap()).boot().unwrap();
    for round in 0..3 {
        guest_to_host(&vm, round);
        host_to_guest(&vm);
        let before: f64 = uptime(&vm);
        vm.reset().unwrap();
        vm.wait_boot(vm::BOOT_TIMEOUT).unwrap();
        let after = uptime(&vm);
        assert!(after < before.max(30.0), "the guest did not start anew: {before} s, then {after} s");
    }
    guest_to_host(&vm, 3);
    // Back to the rule that a reboot ends the VM.
    assert!(vm.run("reboot -f", SOON).is_err());
    vm.wait_end(SOON).unwrap();
}

#[test]
fn the_agent_of_the_image_dials_and_is_started_again() {
    let _turn = vm::turn().unwrap();
    let vm = Vm::builder().start().unwrap();
    // Before the guest can dial: a listener that comes late is the agent's own tests' business.
    let listener = vm.listen(HOST_PORT).unwrap();
    vm.wait_boot(vm::BOOT_TIMEOUT).unwrap();
    greeting(&accept(&listener));
    vm.sh("kill -9 $(pidof informant-guest)", SOON).unwrap();
    greeting(&accept(&listener));
    let log = vm.sh("cat /run/informant.log", SOON).unwrap();
    assert_eq!(log.matches("init: informant-guest ended with 137").count(), 1, "{log}");
}

#[test]
fn late_modules_and_the_load_are_as_ordered() {
    let _turn = vm::turn().unwrap();
    let vm = Vm::builder().append("initramfs.modules_delay=15 initramfs.load=1").without_agent().boot().unwrap();
    assert_eq!(vm.sh("grep -c vsock /proc/modules || true", SOON).unwrap().trim(), "0");
    let usage = || -> u64 {
        let text = vm.sh("sed -n 's/^usage_usec //p' /sys/fs/cgroup/load/cpu.stat", SOON).unwrap();
        text.trim().parse().unwrap()
    };
    let before = usage();
    vm.sh("until [ -e /dev/vsock ]; do sleep 0.2; done", SOON * 3).unwrap();
    assert!(usage() > before + 100_000, "the load does nothing");
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let mut found = None;
    vm::wait_until("the agent's call", SOON * 3, || {
        found = listener.accept().ok();
        Ok(found.is_some())
    })
    .unwrap();
    let (stream, _) = found.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Length, type and the magic of a Hello.
fn greeting(mut stream: &UnixStream) {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut start = [0; 7];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(start[3..], MAGIC);
}

fn uptime(vm: &Vm) -> f64 {
    vm.sh("cut -d' ' -f1 /proc/uptime", SOON).unwrap().trim().parse().unwrap()
}

fn guest_to_host(vm: &Vm, round: u32) {
    let port = 7_000 + round;
    let listener = vm.listen(port).unwrap();
    let host = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(b"from the host").unwrap();
        hello
    });
    let heard = vm.sh(&format!("printf hello | vsock-cat connect 2 {port}"), SOON * 2).unwrap();
    assert_eq!(heard, "from the host");
    assert_eq!(&host.join().unwrap(), b"hello");
}

fn host_to_guest(vm: &Vm) {
    let refused = vm.dial(7_100, SOON).unwrap_err().to_string();
    assert!(refused.contains("refused") || refused.contains("no answer"), "{refused}");
    vm.sh("vsock-cat echo 7100 </dev/null >/dev/null 2>&1 & sleep 0.5", SOON).unwrap();
    let mut stream = vm.dial(7_100, SOON).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let sent: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    stream.write_all(&sent).unwrap();
    let mut back = vec![0; sent.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == sent);
    stream.shutdown(Shutdown::Both).unwrap();
}
