//! What the guest itself says of its size and of its kernel's kills, over the console.

use std::time::Duration;

use anyhow::{Context, Result};
use xtask::vm::{self, Vm};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// `MemTotal`, bytes.
pub(crate) fn mem_total(vm: &Vm) -> Result<u64> {
    let text = vm.sh("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo", SOON)?;
    Ok(text.trim().parse::<u64>().context("MemTotal")? * 1024)
}

/// CPUs that are online.
pub(crate) fn online_cpus(vm: &Vm) -> Result<u32> {
    vm.sh("grep -c ^processor /proc/cpuinfo", SOON)?.trim().parse().context("processors")
}

/// Processes that the kernel killed for want of memory since it booted.
pub(crate) fn oom_kills(vm: &Vm) -> Result<u64> {
    vm.sh("sed -n 's/^oom_kill //p' /proc/vmstat", SOON)?.trim().parse().context("oom_kill")
}

/// Memory blocks in this state.
pub(crate) fn memory_blocks(vm: &Vm, state: &str) -> Result<u32> {
    let script = format!("cat /sys/devices/system/memory/memory*/state | grep -c '^{state}$' || true");
    vm.sh(&script, SOON)?.trim().parse().context("memory blocks")
}

/// Onlines what is offline, as the agent is to do; memory so that it can leave again.
pub(crate) fn online_all(vm: &Vm) -> Result<()> {
    let script = "for block in /sys/devices/system/memory/memory*; do
                      [ \"$(cat $block/state)\" = offline ] && echo online_movable >$block/state
                  done
                  for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
                      [ -e $cpu/online ] && [ \"$(cat $cpu/online)\" = 0 ] && echo 1 >$cpu/online
                  done
                  true";
    vm.sh(script, SOON).map(drop)
}

pub(crate) fn wait_mem_total(vm: &Vm, what: &str, wanted: impl Fn(u64) -> bool) -> Result<u64> {
    let mut last = 0;
    vm::wait_until(&format!("MemTotal {what}"), SOON * 2, || {
        last = mem_total(vm)?;
        Ok(wanted(last))
    })
    .with_context(|| format!("MemTotal is {} MiB", last >> 20))?;
    Ok(last)
}
