//! What holds for every policy, in this order: its own aim; the guest's open demand; a denial; nothing is taken away
//! while something is not known, or just after growing; the steps in which a VM can be resized; its bounds, which only a
//! denial exceeds; and one unit at a time down.

use super::number::{round_down, round_up};
use super::{Decision, Denied, Inputs, Reason, Sample, number};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;

/// Their numbers. Seconds are at most 3600.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// CPU comes in multiples of this: most VMMs plug whole ones.
    #[serde(deserialize_with = "super::config::cpu")]
    pub cpu_step: MilliCpu,
    /// Memory comes in multiples of this: Linux plugs blocks of 128 MiB.
    #[serde(deserialize_with = "super::config::bytes")]
    pub memory_step: Bytes,
    /// A demand counts for so long unless it is renewed.
    pub demand_s: u32,
    /// After a denial less than what would be more than it is not asked for, so long.
    pub denied_s: u32,
    /// A sample that is older counts as missing.
    pub stale_s: u32,
    /// After the VM grew nothing is taken away, so long. The published rules know no such pause.
    pub hold_s: u32,
    /// Whether a denial can make a VM grow, as published: CPU and memory are one there, and the other one of what was
    /// denied follows. Else it keeps at most what there is.
    pub denied_grows: bool,
    /// A demand that is at least so urgent gets one unit of memory more than it says; above 100: none does.
    pub urgent: u8,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            cpu_step: MilliCpu(1000),
            memory_step: Bytes::mib(128),
            demand_s: 10,
            denied_s: 5,
            stale_s: 10,
            hold_s: 10,
            denied_grows: false,
            urgent: 80,
        }
    }
}

/// What a policy would like by itself.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    /// `None`: it knows nothing.
    pub(super) size: Option<Size>,
    pub(super) reason: Reason,
    /// What it had to do without.
    pub(super) missing: Option<&'static str>,
    /// The most that is taken away at a time, unless a step is more.
    pub(super) unit: Size,
    /// What there is.
    pub(super) present: Size,
}

impl Aim {
    /// At least that. Why it grows is told before why it does not shrink.
    pub(super) fn raise(&mut self, least: Size, reason: Reason) {
        let before = self.size.unwrap_or_default();
        if self.size.is_none() || !before.covers(least) {
            self.size = Some(before.max(least));
            if !self.present.covers(least) || self.present.covers(before) {
                self.reason = reason;
            }
        }
    }

    /// At least that, which is no news.
    pub(super) fn keep(&mut self, least: Size) {
        self.size = Some(self.size.unwrap_or_default().max(least));
    }
}

impl Rules {
    /// The sample, if it is not too old.
    pub(super) fn fresh<'a>(&self, inputs: &'a Inputs) -> Option<&'a Sample> {
        inputs.sample.as_ref().filter(|sample| within(inputs.now_us, sample.taken_us, self.stale_s))
    }

    /// `more`: the least that is more than a size. `None`: there is nothing to go by.
    pub(super) fn decide(&self, inputs: &Inputs, mut aim: Aim, more: impl Fn(Size) -> Size) -> Option<Decision> {
        let Inputs { now_us, present, .. } = *inputs;
        let blind = aim.size.is_none();
        if let Some(demand) = inputs.demand.filter(|demand| within(now_us, demand.at_us, self.demand_s)) {
            let extra = if demand.urgency >= self.urgent { aim.unit.memory } else { Bytes(0) };
            let memory = demand.memory.map(|memory| memory.saturating_add(extra));
            let named = Size { cpu: demand.cpu.unwrap_or_default(), memory: memory.unwrap_or_default() };
            let unnamed = demand.cpu.is_none() && demand.memory.is_none();
            let least = demand.base.filter(|_| unnamed).map_or(named, &more);
            aim.raise(least, Reason::Demand { cpu: demand.cpu, memory: demand.memory });
        }
        let denied = inputs.denied.filter(|denied| within(now_us, denied.at_us, self.denied_s));
        let kept = denied.map(|Denied { size, .. }| {
            let kept = more(size);
            if self.denied_grows { kept } else { kept.min(present) }
        });
        if let (Some(kept), Some(denied)) = (kept, denied) {
            aim.raise(kept, Reason::Denied { size: denied.size });
        }
        if blind && aim.size.is_none() {
            aim.size = Some(present);
        }
        if let Some(what) = aim.missing {
            aim.raise(present, Reason::Missing { what });
        }
        if inputs.trend.rose_within(self.hold_s, now_us) {
            aim.raise(present, Reason::Held { seconds: self.hold_s });
        }
        let unbounded = aim.size?;
        let target = self.within_bounds(unbounded, inputs);
        let target = kept.map_or(target, |kept| target.max(kept.min(present)));
        let wanted = target.max(self.one_down(present, aim.unit));
        if blind && inputs.demand.is_none() && denied.is_none() && wanted == present {
            return None;
        }
        let reason = if target != present && unbounded == present { Reason::Bounds { present } } else { aim.reason };
        Some(Decision { wanted, target, unbounded, reason })
    }

    fn within_bounds(&self, size: Size, inputs: &Inputs) -> Size {
        let Inputs { present, bounds, .. } = inputs;
        let fit = |size: u64, present: u64, step: u64, min: u64, max: u64| {
            Fit { present, step: step.max(1), min, max: max.max(min) }.of(size)
        };
        let [size_cpu, present_cpu, step, min, max] =
            [size.cpu, present.cpu, self.cpu_step, bounds.min.cpu, bounds.max.cpu].map(|cpu| u64::from(cpu.0));
        let cpu = number::milli(fit(size_cpu, present_cpu, step, min, max));
        let (step, min, max) = (self.memory_step, bounds.min.memory, bounds.max.memory);
        let memory = Bytes(fit(size.memory.0, present.memory.0, step.0, min.0, max.0));
        Size { cpu, memory }
    }

    /// The least that the next step down may lead to.
    fn one_down(&self, present: Size, unit: Size) -> Size {
        let down =
            |present: u64, unit: u64, step: u64| round_up(present.saturating_sub(unit.max(step)), step).min(present);
        let [present_cpu, unit_cpu, step] = [present.cpu, unit.cpu, self.cpu_step].map(|cpu| u64::from(cpu.0));
        Size {
            cpu: number::milli(down(present_cpu, unit_cpu, step)),
            memory: Bytes(down(present.memory.0, unit.memory.0, self.memory_step.0)),
        }
    }
}

/// Whether less than so many seconds have gone by.
const fn within(now_us: u64, at_us: u64, seconds: u32) -> bool {
    now_us.saturating_sub(at_us) < seconds as u64 * 1_000_000
}

/// Amounts in steps and bounds. What a VM has now may be between two steps, and is not changed for that alone.
#[derive(Clone, Copy, Debug)]
struct Fit {
    present: u64,
    step: u64,
    min: u64,
    max: u64,
}

impl Fit {
    fn of(self, size: u64) -> u64 {
        let Self { present, step, min, max } = self;
        let up = round_up(size, step);
        let stays = (min..=max).contains(&present);
        let least = match round_up(min, step) {
            least if stays && present < least => present,
            least if least <= max => least,
            _ => min,
        };
        let most = match round_down(max, step) {
            most if stays && present > most => present,
            most if most >= min => most,
            _ => max,
        };
        let near = if size <= present && up > present { present } else { up };
        near.min(most).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_fit_steps_and_bounds() {
        let of = |size, present, step, min, max| Fit { present, step, min, max }.of(size);
        assert_eq!(of(1250, 1000, 1000, 1000, 4000), 2000, "rounded up");
        assert_eq!(of(1400, 1500, 1000, 1000, 4000), 1500, "what is between two steps stays");
        assert_eq!(of(1600, 1500, 1000, 1000, 4000), 2000);
        assert_eq!(of(9000, 1000, 1000, 1000, 3500), 3000, "the bound is met in whole steps");
        assert_eq!(of(9000, 3500, 1000, 1000, 3500), 3500);
        assert_eq!(of(0, 1000, 1000, 1500, 1800), 1500, "no step lies within: the bounds win");
        assert_eq!(of(9000, 1000, 1000, 1500, 1800), 1800);
        assert_eq!(of(u64::MAX, 0, 3, 0, u64::MAX), u64::MAX / 3 * 3);
    }
}
