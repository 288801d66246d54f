//! What a policy looks at, and what it answers. Values of a guest are not trusted to make sense: what does not is taken
//! as missing.

use super::trend::Trend;
use informant_wire::size::{Bytes, MilliCpu, Size};
use std::fmt;

/// Between which sizes a VM may be. What it has now may lie outside; a `max` below `min` counts as `min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least.
    pub min: Size,
    /// At most.
    pub max: Size,
}

impl Bounds {
    /// No bounds.
    pub const NONE: Self = Self {
        min: Size { cpu: MilliCpu(0), memory: Bytes(0) },
        max: Size { cpu: MilliCpu(u32::MAX), memory: Bytes(u64::MAX) },
    };
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, Size { cpu, memory }) = (self.min, self.max);
        let cpu = if cpu == Self::NONE.max.cpu { "any CPU".to_owned() } else { cpu.to_string() };
        let memory = if memory == Self::NONE.max.memory { "any memory".to_owned() } else { memory.to_string() };
        match (min == Self::NONE.min, self.max == Self::NONE.max) {
            (true, true) => write!(f, "any size"),
            (true, false) => write!(f, "at most {cpu}, {memory}"),
            (false, true) => write!(f, "at least {min}"),
            (false, false) => write!(f, "between {min} and {cpu}, {memory}"),
        }
    }
}

/// What the guest measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When, on the clock of [`Inputs::now_us`].
    pub taken_us: u64,
    /// Load average of one minute.
    pub load1: f64,
    /// Load average of five minutes.
    pub load5: f64,
    /// CPUs that are online.
    pub cpus_online: u32,
    /// MemTotal.
    pub memory_total: Bytes,
    /// MemAvailable: page cache that can be given up is part of it.
    pub memory_available: Bytes,
    /// Page cache.
    pub cached: Option<Bytes>,
    /// Share of the last 10 s in which some task waited for memory, 0 to 1.
    pub psi_memory_some_avg10: Option<f64>,
    /// The same of all tasks at once.
    pub psi_memory_full_avg10: Option<f64>,
    /// Share of the last 10 s in which some task waited for a CPU, 0 to 1.
    pub psi_cpu_some_avg10: Option<f64>,
}

/// Larger than any load average that is one.
const MAX_LOAD: f64 = 1e6;

impl Sample {
    /// Load averages of one and of five minutes, if they are.
    #[must_use]
    pub fn loads(&self) -> Option<(f64, f64)> {
        let fits = |load: f64| (0.0..=MAX_LOAD).contains(&load);
        (fits(self.load1) && fits(self.load5)).then_some((self.load1, self.load5))
    }

    /// MemTotal less MemAvailable, if both make sense.
    #[must_use]
    pub fn used(&self) -> Option<Bytes> {
        let fits = self.memory_total.0 > 0 && self.memory_available <= self.memory_total;
        fits.then(|| self.memory_total.saturating_sub(self.memory_available))
    }

    /// Memory pressure `(some, full)`; 0 where the kernel does not tell.
    #[must_use]
    pub fn memory_pressure(&self) -> (f64, f64) {
        (share(self.psi_memory_some_avg10), share(self.psi_memory_full_avg10))
    }

    /// CPU pressure; 0 where the kernel does not tell.
    #[must_use]
    pub fn cpu_pressure(&self) -> f64 {
        share(self.psi_cpu_some_avg10)
    }
}

fn share(value: Option<f64>) -> f64 {
    value.filter(|value| value.is_finite()).unwrap_or(0.0).clamp(0.0, 1.0)
}

/// The open demand of a guest: totals, so that repeating it is harmless.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// CPU in all; `None`: as it is.
    pub cpu: Option<MilliCpu>,
    /// Memory in all; `None`: as it is.
    pub memory: Option<Bytes>,
    /// From 0 (would be good) to 100 (it fails without).
    pub urgency: u8,
    /// When it was made or renewed last.
    pub at_us: u64,
    /// Only for a demand that names no amount, just "more": what the VM had when it was made. At least one step above
    /// that is wanted, however often it is repeated.
    pub base: Option<Size>,
}

/// The guest could not do with less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// When it said so.
    pub at_us: u64,
    /// What it was asked to do with.
    pub size: Size,
}

/// What is known of a VM at one moment.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Now, on a monotonic clock, microseconds.
    pub now_us: u64,
    /// The newest sample; one older than [`super::Rules::stale_s`] counts as missing.
    pub sample: Option<Sample>,
    /// What the VMM was asked to give last.
    pub present: Size,
    /// Between which sizes it may be.
    pub bounds: Bounds,
    /// The open demand.
    pub demand: Option<Wanted>,
    /// The newest denial.
    pub denied: Option<Denied>,
    /// How big the working set of a workload's own cache is, as [`super::working_set::bytes`] estimates it.
    pub cache: Option<Bytes>,
    /// What went before.
    pub trend: Trend,
}

/// How large a VM should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to go for now: all of the way up, but at most one unit down. Within the bounds, unless a denial holds it above
    /// or the VM is above already and comes down step by step.
    pub wanted: Size,
    /// Where that leads, if nothing changes.
    pub target: Size,
    /// What it would be without bounds.
    pub unbounded: Size,
    /// Why.
    pub reason: super::Reason,
}
