//! A real VM whose memory and CPUs come and go: the rig by itself, then the whole conversation from the guest's need to
//! the VMM and back.

mod scale_support;

use std::time::Duration;

use anyhow::{Context, Result};
use scale_support::guest::{self, SOON};
use scale_support::{BOOT_MIB, MIB, Rig, kills, scaling_toml, scenarios};
use xtask::project;
use xtask::vm::{self, Hold, Hotplug, Qmp, Resize, Tap, Vm};

/// Without agent and daemon: the rig by itself.
fn bare_vm(memory_mib: u32) -> Result<Vm> {
    let builder = Vm::builder().memory_mib(memory_mib).hotplug(Hotplug::default()).without_agent();
    builder.program("bin/workload", project::workload()?).boot()
}

#[test]
fn what_is_plugged_through_the_tap_is_there_once_the_guest_onlines_it_and_leaves_again() -> Result<()> {
    let _turn = vm::turn()?;
    let vm = bare_vm(512)?;
    let tap = Tap::start(&vm.dir().join("tap.sock"), &vm.actuator_socket())?;
    let mut actuator = Qmp::connect(tap.path())?;
    let (total, cpus) = (guest::mem_total(&vm)?, guest::online_cpus(&vm)?);
    assert_eq!((cpus, vm.with_qmp(Qmp::cpus)?), (1, 1));

    // The guest takes what it is given, and does not use it by itself.
    actuator.request_memory(512 * MIB)?;
    vm::wait_until("512 MiB taken", SOON, || Ok(vm.with_qmp(Qmp::plugged_memory)?.size == 512 * MIB))?;
    assert!(guest::memory_blocks(&vm, "offline")? >= 4, "the kernel onlines by itself");
    assert!(guest::mem_total(&vm)? <= total, "MemTotal rose without onlining");
    actuator.plug_cpu("cpu1")?;
    assert_eq!(vm.with_qmp(Qmp::cpus)?, 2);
    vm::wait_until("a CPU that is not online", SOON, || {
        Ok(vm.sh("cat /sys/devices/system/cpu/cpu1/online 2>/dev/null || true", SOON)?.trim() == "0")
    })?;

    guest::online_all(&vm)?;
    let grown = guest::wait_mem_total(&vm, "grows by 512 MiB", |now| now >= total + 500 * MIB)?;
    assert_eq!(guest::online_cpus(&vm)?, 2);

    // The next client is served once the one before is gone.
    drop(actuator);
    let mut actuator = Qmp::connect(tap.path())?;
    assert_eq!(actuator.plugged_memory()?.requested, 512 * MIB);

    // Both leave again, memory in two steps.
    actuator.request_memory(256 * MIB)?;
    guest::wait_mem_total(&vm, "shrinks", |now| now <= grown - 250 * MIB)?;
    actuator.request_memory(0)?;
    guest::wait_mem_total(&vm, "is what it was", |now| now <= total)?;
    actuator.unplug_cpu("cpu1")?;
    vm::wait_until("one CPU", SOON, || Ok(vm.with_qmp(Qmp::cpus)? == 1))?;
    assert_eq!(guest::online_cpus(&vm)?, 1);

    let resizes: Vec<Resize> = tap.resizes()?.into_iter().map(|(_, resize)| resize).collect();
    let (plug, unplug) = (Resize::PlugCpu("cpu1".to_owned()), Resize::UnplugCpu("cpu1".to_owned()));
    assert_eq!(resizes, [Resize::Memory(512 * MIB), plug, Resize::Memory(256 * MIB), Resize::Memory(0), unplug]);
    tap.check_no_repeats()?;
    let mark = tap.mark();
    actuator.request_memory(0)?;
    tap.wait("the repeated size", mark, SOON, |line| line.resize() == Some(Resize::Memory(0)))?;
    tap.check_no_repeats().expect_err("a size twice in a row");
    let told = tap.wait("an event", 0, SOON, |line| line.event() == Some("MEMORY_DEVICE_SIZE_CHANGE"))?;
    let asked = tap.wait("the first size", 0, SOON, |line| line.resize().is_some())?;
    println!("the guest took the first of it {:?} after it was asked", told.at.duration_since(asked.at));
    Ok(())
}

#[test]
fn workloads_take_what_they_say_and_the_kernel_counts_whom_it_kills() -> Result<()> {
    let _turn = vm::turn()?;
    let vm = bare_vm(256)?;
    let current = |cgroup: &str| -> Result<u64> {
        vm.sh(&format!("cat /sys/fs/cgroup{cgroup}/memory.current"), SOON)?.trim().parse().context("memory.current")
    };

    let memory = vm.workload("memory", "memory --mib 64 --rate 32", Hold::Released)?;
    memory.wait_holding(SOON)?;
    assert_eq!(memory.taken_mib()?, 64);
    assert!((64 * MIB..80 * MIB).contains(&current(&memory.cgroup())?), "{}", current("/memory")?);
    memory.release()?;
    memory.wait_finished(SOON)?;
    memory.wait_gone(SOON)?;
    assert!(current(&memory.cgroup())? < 8 * MIB);

    vm.sh("mkdir /mnt/files && mount -t tmpfs -o size=1g files /mnt/files", SOON)?;
    let files = vm.workload("files", "files --mib 40 --rate 0 --dir /mnt/files", Hold::Released)?;
    files.wait_holding(SOON)?;
    assert!((40 * MIB..56 * MIB).contains(&current(&files.cgroup())?), "{}", current("/files")?);
    files.release()?;
    files.wait_finished(SOON)?;
    assert_eq!(vm.sh("ls /mnt/files", SOON)?, "", "files are left");

    let cpu = vm.workload("cpu", "cpu --threads 3", Hold::Released)?;
    cpu.wait_holding(SOON)?;
    vm::wait_until("three runnable threads", SOON, || {
        Ok(vm.sh("sed -n 's/^procs_running //p' /proc/stat", SOON)?.trim().parse::<u32>()? >= 3)
    })?;
    cpu.release()?;
    cpu.wait_finished(SOON)?;

    assert_eq!(guest::oom_kills(&vm)?, 0);
    let greedy = vm.workload("greedy", "memory --mib 400 --rate 0", Hold::Released)?;
    greedy.wait_gone(SOON * 3)?;
    assert!(!greedy.has_finished()?, "400 MiB in a VM of 256 MiB");
    assert_eq!(guest::oom_kills(&vm)?, 1);
    let error = greedy.wait_finished(Duration::from_secs(5)).unwrap_err().to_string();
    assert!(error.contains("is dead"), "{error}");
    Ok(())
}

#[test]
fn a_second_host_reads_through_the_control_port_while_the_first_one_s_session_lives() -> Result<()> {
    let rig = Rig::boot(|_| String::new())?;
    scenarios::a_second_host_reads(&rig)
}

/// One VM for both: each part leaves it as small as it was.
#[test]
fn a_vm_gets_the_memory_it_needs_and_gives_it_back() -> Result<()> {
    let rig = Rig::boot(|tap| scaling_toml(tap, 1, 2048))?;
    scenarios::memory_comes_and_goes(&rig, "anon", "memory")?;
    rig.vm.sh("mkdir /mnt/files && mount -t tmpfs -o size=2g files /mnt/files", SOON)?;
    scenarios::memory_comes_and_goes(&rig, "tmpfs", "files --dir /mnt/files")?;
    scenarios::a_second_host_takes_over_and_leaves(&rig)
}

#[test]
fn whoever_is_killed_at_whatever_step_the_other_two_are_of_one_mind_again() -> Result<()> {
    let mut rig = Rig::boot(|tap| scaling_toml(tap, 1, 2048))?;
    kills::every_kill_is_survived(&mut rig)
}

/// In a VM of its own: QEMU 7.2 without KVM dies when a CPU comes after another has left.
#[test]
fn a_vm_gets_a_second_cpu_and_gives_it_back() -> Result<()> {
    let rig = Rig::boot(|tap| scaling_toml(tap, 2, BOOT_MIB))?;
    scenarios::cpus_come_and_go(&rig)
}

#[test]
fn at_the_maximum_the_guest_is_told_so_and_asks_once_a_second_at_most() -> Result<()> {
    let rig = Rig::boot(|tap| scaling_toml(tap, 1, 640))?;
    // Of 532 MiB usable, with some 30 MiB of the system's own: over 0.85, and 60 MiB are left.
    scenarios::at_the_maximum_the_guest_is_told(&rig, 440)?;
    scenarios::a_person_resizes_it(&rig, 640)
}
