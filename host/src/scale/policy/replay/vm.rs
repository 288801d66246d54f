//! The model of a VM and of the workload in it, in steps of a second.

use super::super::{Sample, number};
use super::Outcome;
use super::trace::Second;
use informant_wire::size::{Bytes, Size};

/// What a kernel keeps of the memory that a VM is given, beside a sixty-fourth of it for page tables.
const KERNEL: Bytes = Bytes::mib(64);
/// Used by everything but the workload.
const SYSTEM: Bytes = Bytes::mib(80);
/// Below that share of free and reclaimable memory tasks begin to wait for it.
const SCARCE: f64 = 0.1;
/// A workload does not touch more new memory than that in a second.
const FILLS: Bytes = Bytes::mib(256);
/// A workload that was killed is back after so many seconds.
const RESTART_S: u32 = 10;

#[derive(Debug)]
pub(super) struct Vm {
    size: Size,
    anon: Bytes,
    cache: Bytes,
    /// Seconds until the workload is back.
    dead_s: u32,
    load1: f64,
    load5: f64,
    some: f64,
    full: f64,
    cpu_some: f64,
}

/// The average of `seconds`, one second later: without `exp`, whose last bit depends on who compiles.
fn average(before: f64, now: f64, seconds: f64) -> f64 {
    before + (now - before) / seconds
}

/// MemTotal of a VM of that size.
fn usable(size: Size) -> Bytes {
    size.memory.saturating_sub(KERNEL).saturating_sub(Bytes(size.memory.0 / 64))
}

impl Vm {
    pub(super) fn new(size: Size) -> Self {
        let (anon, cache) = (Bytes(0), Bytes(0));
        Self { size, anon, cache, dead_s: 0, load1: 0.0, load5: 0.0, some: 0.0, full: 0.0, cpu_some: 0.0 }
    }

    pub(super) const fn size(&self) -> Size {
        self.size
    }

    fn used(&self) -> Bytes {
        self.anon.saturating_add(SYSTEM)
    }

    /// Whether it could: memory in use does not come out.
    pub(super) fn resize(&mut self, size: Size) -> bool {
        let fits = usable(size) >= self.used();
        self.size = if fits { size } else { Size { cpu: size.cpu, ..self.size } };
        fits
    }

    /// The guest's answer to the question whether it can do with less: use and a headroom fit into 0.85 of what would be
    /// usable.
    pub(super) fn agrees(&self, present: Size, wanted: Size) -> bool {
        let after = usable(self.size).saturating_sub(present.memory.saturating_sub(wanted.memory));
        let headroom = Bytes((wanted.memory.0 / 10).clamp(Bytes::mib(16).0, Bytes::mib(100).0));
        number::real(self.used().saturating_add(headroom).0) <= 0.85 * number::real(after.0)
    }

    /// A second goes by.
    pub(super) fn live(&mut self, load: &Second, outcome: &mut Outcome) {
        let usable = usable(self.size);
        self.dead_s = self.dead_s.saturating_sub(1);
        let (anon, wants_cache, runnable) =
            if self.dead_s > 0 { (Bytes(0), Bytes(0), 0.0) } else { (load.anon, load.cache, load.runnable) };
        self.anon = anon.min(self.anon.saturating_add(FILLS));
        let mut runnable = runnable;
        if self.used() > usable {
            outcome.oom_kills += 1;
            (self.anon, self.dead_s, runnable) = (Bytes(0), RESTART_S, 0.0);
        }
        self.cache = wants_cache.min(usable.saturating_sub(self.used()));
        let free = number::real(usable.saturating_sub(self.used()).0) / number::real(usable.0.max(1));
        let stall = if runnable > 0.0 { ((SCARCE - free) / SCARCE).clamp(0.0, 1.0) } else { 0.0 };
        let cpus = f64::from(self.size.cpu.0) / 1000.0;
        let waiting = (runnable - cpus).max(0.0);
        self.load1 = average(self.load1, runnable, 60.0);
        self.load5 = average(self.load5, runnable, 300.0);
        self.some = average(self.some, stall, 10.0);
        self.full = average(self.full, (2.0 * stall - 1.0).max(0.0), 10.0);
        self.cpu_some = average(self.cpu_some, (waiting / runnable.max(1.0)).min(1.0), 10.0);
        outcome.memory_wait_s += stall;
        outcome.cpu_wait_s += waiting;
        outcome.gib_hours += number::real(self.size.memory.0) / number::real(Bytes::GIB) / 3600.0;
        outcome.cpu_hours += cpus / 3600.0;
    }

    pub(super) fn sample(&self, now_us: u64) -> Sample {
        let total = usable(self.size);
        Sample {
            taken_us: now_us,
            load1: self.load1,
            load5: self.load5,
            cpus_online: self.size.cpu.cpus(),
            memory_total: total,
            memory_available: total.saturating_sub(self.used()),
            cached: Some(self.cache),
            psi_memory_some_avg10: Some(self.some),
            psi_memory_full_avg10: Some(self.full),
            psi_cpu_some_avg10: Some(self.cpu_some),
        }
    }
}
