//! Signs that more memory will be needed before usage says so: growth, and tasks that wait for memory.

use super::{Inputs, Reason, Sample, number};
use informant_wire::size::Bytes;
use serde::Deserialize;

/// How far ahead is looked. With `growth_s` 0 growth does not count, with `pressure` false pressure does not.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ahead {
    /// Used memory is taken to grow on for so many seconds: longer than a resize takes.
    pub growth_s: u32,
    /// Whether pressure counts.
    pub pressure: bool,
    /// Share of time in which some task waits for memory that is too much.
    pub memory_some: f64,
    /// Share of time in which all tasks wait for memory that is too much.
    pub memory_full: f64,
    /// Tasks of a cgroup with a limit of its own wait while the VM has memory: below this share in use that is not the
    /// VM's lack.
    pub in_use: f64,
    /// Pressure is an average of 10 s: after the VM grew, it is not looked at for so many seconds.
    pub wait_s: u32,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { growth_s: 10, pressure: true, memory_some: 0.1, memory_full: 0.03, in_use: 0.5, wait_s: 10 }
    }
}

/// What used memory will be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outlook {
    /// Beyond what is used now.
    pub(super) more: Bytes,
    /// `None`: it does not grow.
    pub(super) growth: Option<Reason>,
    /// Tasks wait for memory.
    pub(super) pressed: Option<Reason>,
    /// They do, but what was given for it has hardly arrived.
    pub(super) relieved: bool,
}

impl Ahead {
    /// Nothing is looked at.
    #[must_use]
    pub fn off() -> Self {
        Self { growth_s: 0, pressure: false, ..Self::default() }
    }

    pub(super) fn look(&self, inputs: &Inputs, sample: &Sample, used: Bytes) -> Outlook {
        let rate = inputs.trend.growth(inputs.now_us).unwrap_or_default();
        let more = Bytes(rate.0.saturating_mul(u64::from(self.growth_s)));
        // Less than a fiftieth is noise.
        let grows = more.0 > sample.memory_total.0 / 50;
        let (some, full) = sample.memory_pressure();
        let lacks = number::real(used.0) >= self.in_use * number::real(sample.memory_total.0);
        let pressed = self.pressure && lacks && (some >= self.memory_some || full >= self.memory_full);
        let relieved = pressed && inputs.trend.rose_within(self.wait_s, inputs.now_us);
        Outlook {
            more: if grows { more } else { Bytes(0) },
            growth: grows.then_some(Reason::Growth { used, per_second: rate, seconds: self.growth_s }),
            pressed: pressed.then_some(Reason::MemoryPressure { some, full }),
            relieved,
        }
    }
}
