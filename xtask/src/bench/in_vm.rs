//! The agent inside a real VM, where cgroup v2 has all its controllers: memory, kernel slab, CPU, cost of a sample.
//!
//! Under emulation CPU times are many times those of a real processor; ratios hold, shares are upper bounds.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::agent::kib;
use super::cost::Cost;
use super::process::{nanoseconds, status_bytes};
use super::receiver::Receiver;
use super::row::Row;
use crate::vm::{self, Accel, Vm};
use crate::{guest, initramfs};

const SOON: Duration = Duration::from_secs(20);
/// The agent's memory is made by now: schema, buffers, file systems.
const SETTLED: usize = 12;

pub(super) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    initramfs::build(false)?;
    let example = guest::build_example("sample_cost")?;
    let _turn = vm::turn()?;
    let vm = Vm::builder()
        .memory_mib(256)
        .cpus(2)
        .disk_mib(16)
        .without_agent()
        .program("bin/sample-cost", example)
        .boot()?;
    let receiver = Receiver::listen(&vm.uds_port(informant_wire::HOST_PORT))?;
    let emulated = if vm.accel() == Accel::Kvm { "" } else { ", emulated CPU" };
    let mut rows = Vec::new();
    for (count, from, goal) in [(8, 0, 0.1), (64, 8, 0.25)] {
        make_cgroups(&vm, from, count)?;
        let (slab, mut status) = (slab(&vm)?, String::new());
        receiver.forget();
        vm.sh("informant-guest run </dev/null >/run/informant.log 2>&1 & echo $! >/run/agent.pid", SOON)?;
        receiver.wait(SETTLED, Duration::from_secs(120)).with_context(|| {
            vm.sh("cat /run/informant.log", SOON).unwrap_or_else(|_| "no log of the agent".to_owned())
        })?;
        let time = Duration::from_secs(if bench.quick { 30 } else { 120 });
        let (before, up) = (cpu_ns(&vm)?, uptime(&vm)?);
        thread::sleep(time);
        let percent = (cpu_ns(&vm)? - before) as f64 / 1e7 / (uptime(&vm)? - up);
        status.push_str(&vm.sh("cat /proc/$(cat /run/agent.pid)/status", SOON)?);
        let grown = kib(self::slab(&vm)?.saturating_sub(slab));
        let series = receiver.samples().last().map_or(0, |sample| sample.present);
        vm.sh("kill $(cat /run/agent.pid); sleep 1", SOON)?;

        rows.push(
            Row::at_most(
                format!("agent's resident memory, locked, in a VM with {count} cgroups ({series} series)"),
                kib(status_bytes(&status, "VmRSS")?),
                1024.0,
                |kib| format!("{kib:.0} KiB"),
            )
            .beside(format!("kernel slab in the VM grew by {grown:.0} KiB")),
        );
        let what =
            format!("idle agent over {} s, in a VM with {count} cgroups, share of a core{emulated}", time.as_secs());
        let shown = |percent: f64| format!("{percent:.3} %");
        // The goal is of a real processor; an emulated one says only what it can not be more than.
        rows.push(if vm.accel() == Accel::Kvm {
            Row::at_most(what, percent, goal, shown)
        } else {
            Row::shown(what, shown(percent))
        });
        let cost = vm.sh("sample-cost", Duration::from_secs(300))?;
        rows.push(Cost::parse(&cost)?.row(&format!("in a VM with {count} cgroups{emulated}")));
    }
    Ok(rows)
}

fn make_cgroups(vm: &Vm, from: u32, to: u32) -> Result<()> {
    vm.sh(&format!("n={from}; while [ $n -lt {to} ]; do mkdir /sys/fs/cgroup/unit-$n; n=$((n + 1)); done"), SOON)
        .map(drop)
}

fn cpu_ns(vm: &Vm) -> Result<u64> {
    let text =
        vm.sh("cat /proc/$(cat /run/agent.pid)/task/*/schedstat", SOON).context("the agent in the VM is gone")?;
    text.lines().map(nanoseconds).sum()
}

fn uptime(vm: &Vm) -> Result<f64> {
    Ok(vm.sh("cut -d' ' -f1 /proc/uptime", SOON)?.trim().parse()?)
}

fn slab(vm: &Vm) -> Result<u64> {
    status_bytes(&vm.sh("cat /proc/meminfo", SOON)?, "Slab")
}
