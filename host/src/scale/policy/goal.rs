//! How many compute units a VM needs, from load, memory in use and the working set of a cache: the published formulas of
//! an autoscaler that runs a large fleet. CPU rounds to the nearest unit, the rest rounds up.

use super::number;
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;

/// Numbers of the formulas; the defaults are the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Goal {
    /// CPU of a compute unit.
    #[serde(deserialize_with = "super::config::cpu")]
    pub unit_cpu: MilliCpu,
    /// Memory of a compute unit.
    #[serde(deserialize_with = "super::config::bytes")]
    pub unit_memory: Bytes,
    /// Load that each CPU should have: above 0, below 2.
    pub load_fraction: f64,
    /// Share of memory that should be in use: above 0, below 1.
    pub memory_fraction: f64,
    /// Share of memory that use and the needed cache together should take: above 0, at most 1.
    pub memory_total_fraction: f64,
    /// Loads of one and five minutes that differ by less than this share of the latter are the latter.
    pub stable_zone: f64,
    /// From there on the former comes in by and by, over this share of the latter.
    pub mixed_zone: f64,
    /// Memory that the kernel keeps, and that counts as used.
    #[serde(deserialize_with = "super::config::bytes")]
    pub kernel: Bytes,
    /// The workload has a cache of its own whose working set is told: without it nothing is taken away.
    pub cache: bool,
    /// Share of memory that such a cache may take: above 0, at most 1.
    pub cache_fraction: f64,
    /// Points of a window of its series.
    pub cache_window_minutes: u32,
    /// Minutes before the working set may fall.
    pub cache_wait_minutes: u32,
    /// No plateau is looked for: the longest window counts.
    pub cache_largest_window: bool,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            unit_cpu: MilliCpu(250),
            unit_memory: Bytes::gib(1),
            load_fraction: 0.9,
            memory_fraction: 0.75,
            memory_total_fraction: 0.9,
            stable_zone: 0.0,
            mixed_zone: 0.0,
            kernel: Bytes::mib(100),
            cache: false,
            cache_fraction: 0.75,
            cache_window_minutes: 5,
            cache_wait_minutes: 5,
            cache_largest_window: false,
        }
    }
}

/// What a VM needs, in compute units; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// For its load.
    pub cpu: Option<f64>,
    /// For its memory.
    pub memory: Option<f64>,
    /// For the cache of its workload.
    pub cache: Option<f64>,
}

impl Parts {
    /// Whole units that are enough for each part; `None`: nothing is known.
    #[must_use]
    pub fn units(self) -> Option<u32> {
        let most = [self.cpu.map(f64::round), self.memory, self.cache].into_iter().flatten().reduce(f64::max)?;
        Some(u32::try_from(number::whole(most.ceil())).unwrap_or(u32::MAX))
    }
}

impl Goal {
    /// A compute unit.
    #[must_use]
    pub const fn unit(&self) -> Size {
        Size { cpu: self.unit_cpu, memory: self.unit_memory }
    }

    /// So many units.
    #[must_use]
    pub fn times(&self, units: u32) -> Size {
        Size {
            cpu: MilliCpu(self.unit_cpu.0.saturating_mul(units)),
            memory: Bytes(self.unit_memory.0.saturating_mul(u64::from(units))),
        }
    }

    /// The least units that are more than `size`, in CPU as in memory.
    #[must_use]
    pub fn more_than(&self, size: Size) -> u32 {
        let cpu = size.cpu.0 / self.unit_cpu.0.max(1);
        let memory = u32::try_from(size.memory.0 / self.unit_memory.0.max(1)).unwrap_or(u32::MAX);
        cpu.max(memory).saturating_add(1)
    }

    /// The load that counts, of one and of five minutes.
    #[must_use]
    pub fn load(&self, load1: f64, load5: f64) -> f64 {
        let stable = self.stable_zone * load5;
        let mixed = stable + self.mixed_zone * load5;
        let apart = (load1 - load5).abs();
        let weight = if apart <= stable {
            0.0
        } else if apart >= mixed {
            1.0
        } else {
            (apart - stable) / (mixed - stable + 1e-6)
        };
        weight * load1 + (1.0 - weight) * load5
    }

    /// Units for loads of one and of five minutes.
    #[must_use]
    pub fn cpu(&self, (load1, load5): (f64, f64)) -> f64 {
        self.load(load1, load5) / self.load_fraction / (f64::from(self.unit_cpu.0) / 1000.0)
    }

    /// Units for memory in use (MemTotal less MemAvailable), and beside it what page cache there is of the `cache` that
    /// the workload needs.
    #[must_use]
    pub fn memory(&self, used: Bytes, cache: Option<(Bytes, Bytes)>) -> f64 {
        let unit = number::real(self.unit_memory.0);
        let used = number::real(used.saturating_add(self.kernel).0);
        let plain = (used / self.memory_fraction).round() / unit;
        let both = cache.map_or(0.0, |(working_set, cached)| {
            (number::real(working_set.min(cached).0) + used) / self.memory_total_fraction / unit
        });
        plain.max(both)
    }

    /// Units for a cache whose working set is that large.
    #[must_use]
    pub fn cache(&self, working_set: Bytes) -> f64 {
        number::real(working_set.0) / self.cache_fraction / number::real(self.unit_memory.0)
    }
}
