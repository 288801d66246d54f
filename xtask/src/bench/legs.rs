//! The legs of the way from a need in a guest to memory that is online.
//!
//! Natively: a real agent over a `/proc` of ours behind a fake VMM, and a daemon whose actuator is a program that writes
//! down when it was called; the event is the rewriting of `meminfo`. In a VM: what the daemon counted of demands made by
//! hand, QEMU with virtio-mem.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Bench;
use super::row::Row;
use crate::system::{System, wait_for};
use crate::vm::{self, Accel, Hotplug, Vm};
use crate::{initramfs, project};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// What the kernel keeps of the native VM's memory.
const RESERVE_MIB: u64 = 64;
const FIRST_MIB: u64 = 512;

/// A VMM that keeps its size in a file, and when it was told.
const VMM: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ "$1" = resize ] && { date +%s%N >> "$here/told"; echo "\"cpu_milli\":$3,\"memory_bytes\":$5" > "$here/size"; }
echo "{$(cat "$here/size"),\"max_cpu_milli\":1000,\"min_memory_bytes\":536870912,\"max_memory_bytes\":1099511627776,\"block_bytes\":134217728}"
"#;

pub(super) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = native(if bench.quick { 3 } else { 12 })?;
    rows.extend(in_vm(if bench.quick { 2 } else { 6 })?);
    Ok(rows)
}

fn native(rounds: u32) -> Result<Vec<Row>> {
    let mut system = System::new()?;
    let root = system.vm_dir("root")?;
    fs::create_dir_all(root.join("proc"))?;
    let told = root.join("told");
    fs::write(root.join("vmm"), VMM)?;
    fs::set_permissions(root.join("vmm"), fs::Permissions::from_mode(0o755))?;
    fs::write(root.join("size"), format!("\"cpu_milli\":1000,\"memory_bytes\":{}", FIRST_MIB * MIB))?;
    fs::write(root.join("proc/loadavg"), "0.00 0.00 0.00 1/80 100\n")?;
    meminfo(&root, FIRST_MIB, 50)?;
    system.start_daemon()?;
    let vmm = root.join("vmm");
    let mut vm = system.add_vm("vm", &format!("trust = \"any\"\nactuator.command = [{vmm:?}]\n[scaling]\n"))?;
    vm.start_agent(&["--root", root.to_str().context("a path in UTF-8")?])?;
    system.wait_ready("vm")?;
    system.wait_status("vm", "idle", |status| status["scaling"]["state"] == "idle")?;
    let (mut waits_ms, mut size_mib) = (Vec::new(), FIRST_MIB);
    for round in 1..=rounds {
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?;
        meminfo(&root, size_mib, 5)?;
        let at = wait_for("a call to the VMM", || {
            let told = fs::read_to_string(&told).unwrap_or_default();
            told.lines().nth(usize::try_from(round).ok()? - 1)?.parse::<u64>().ok()
        })?;
        waits_ms.push(Duration::from_nanos(at).saturating_sub(began).as_secs_f64() * 1e3);
        // Plugged and half free: the need is gone, and the daemon settles.
        let status = system.wait_status("vm", "more", |status| memory_mib(status, "vmm_has") > Some(size_mib))?;
        size_mib = memory_mib(&status, "vmm_has").context("the VMM's size")?;
        meminfo(&root, size_mib, 50)?;
        system.wait_status("vm", "nothing more wanted", |status| {
            status["scaling"]["state"] == "idle" && status["scaling"]["demand"].is_null()
        })?;
    }
    waits_ms.sort_by(f64::total_cmp);
    let status = system.wait_ready("vm")?;
    let legs = &status["scaling"]["counters"];
    let median = waits_ms.get(waits_ms.len() / 2).copied().unwrap_or_default();
    let slowest = waits_ms.last().copied().unwrap_or_default();
    Ok(vec![
        Row::shown(
            format!("memory in use rises above 0.85 to the call to the VMM, native, median and slowest of {rounds}"),
            format!("{median:.0} ms, {slowest:.0} ms"),
        )
        .beside("looks are 100 ms apart, and averaged over 500 ms"),
        leg("a demand's arrival to the call to the VMM, native", &legs["demand_to_vmm"]),
    ])
}

fn memory_mib(status: &Value, what: &str) -> Option<u64> {
    status["scaling"][what]["memory_bytes"].as_u64().map(|bytes| bytes / MIB)
}

/// Replaces the file at once: the agent reads it at any moment.
fn meminfo(root: &Path, size_mib: u64, free_percent: u64) -> Result<()> {
    let total = (size_mib - RESERVE_MIB) * 1024;
    let available = total * free_percent / 100;
    let text = format!("MemTotal: {total} kB\nMemFree: {available} kB\nMemAvailable: {available} kB\n");
    fs::write(root.join("proc/meminfo.new"), text)?;
    Ok(fs::rename(root.join("proc/meminfo.new"), root.join("proc/meminfo"))?)
}

fn in_vm(rounds: u32) -> Result<Vec<Row>> {
    initramfs::build(false)?;
    project::guest()?;
    let _turn = vm::turn()?;
    let mut system = System::new()?;
    system.start_daemon()?;
    let dir = system.vm_dir("vm")?;
    let actuator = dir.join(vm::ACTUATOR_SOCKET);
    let more = format!(
        "[actuator]\nqemu = {actuator:?}\n[scaling]\nmin.memory = \"{FIRST_MIB}MiB\"\n\
                        compute-unit.goal.unit_memory = \"128MiB\"\ncompute-unit.goal.unit_cpu = \"1\"\n"
    );
    system.add_instance("vm", &format!("uds = {:?}\n{more}", dir.join("v.sock")))?;
    let port = dir.join("v.sock_5252");
    wait_for("the daemon's socket", || port.exists().then_some(()))?;
    let memory_mib = u32::try_from(FIRST_MIB)?;
    let vm = Vm::builder().dir(&dir).memory_mib(memory_mib).hotplug(Hotplug::default()).boot()?;
    system.wait_ready("vm")?;
    system.wait_status("vm", "idle", |status| status["scaling"]["state"] == "idle")?;
    for round in 1..=rounds {
        let wanted = FIRST_MIB + u64::from(round) * 128;
        vm.sh(&format!("informant-guest demand --memory {wanted}MiB --wait"), SOON)?;
    }
    let status = system.wait_status("vm", "idle", |status| status["scaling"]["state"] == "idle")?;
    let legs = &status["scaling"]["counters"];
    let cpu = if vm.accel() == Accel::Kvm { "" } else { ", emulated CPU" };
    Ok(vec![
        leg(&format!("a demand's arrival to the call to QMP, in a VM{cpu}"), &legs["demand_to_vmm"]),
        leg(&format!("the call to QMP to its answer, in a VM{cpu}"), &legs["vmm_answer"]),
        leg(&format!("QMP's answer to the guest's \"applied\" of 128 MiB, in a VM{cpu}"), &legs["vmm_to_applied"]),
    ])
}

fn leg(what: &str, leg: &Value) -> Row {
    let ms = |key: &str| leg[key].as_f64().unwrap_or_default() / 1e3;
    let count = leg["count"].as_f64().unwrap_or_default();
    let mean = if count > 0.0 { ms("sum_us") / count } else { 0.0 };
    Row::shown(format!("{what}, mean and slowest of {count}"), format!("{mean:.1} ms, {:.1} ms", ms("max_us")))
}
