//! The default policy: CPU and memory in whole compute units, the published formulas of [`super::goal`], and beside
//! them what is seen ahead.

use super::ahead::Ahead;
use super::goal::{Goal, Parts};
use super::reason::Amount;
use super::rules::{Aim, Rules};
use super::{Decision, Inputs, Reason, Sample, number};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeUnit {
    /// The formulas.
    pub goal: Goal,
    /// What they do not see.
    pub ahead: Ahead,
    /// What holds for every policy.
    pub rules: Rules,
}

impl ComputeUnit {
    /// As published: nothing but the formulas, sizes in whole units, and no demand is worth more than it says.
    #[must_use]
    pub fn published() -> Self {
        let goal = Goal::default();
        let rules = Rules {
            cpu_step: goal.unit_cpu,
            memory_step: goal.unit_memory,
            denied_grows: true,
            urgent: u8::MAX,
            hold_s: 0,
            ..Rules::default()
        };
        Self { goal, ahead: Ahead::off(), rules }
    }

    pub(super) fn decide(&self, inputs: &Inputs) -> Option<Decision> {
        let Self { goal, ahead, rules } = self;
        let sample = rules.fresh(inputs);
        let loads = sample.and_then(Sample::loads);
        let memory = sample.and_then(|sample| Some((sample, sample.used()?)));
        let cache = inputs.cache.filter(|_| goal.cache);
        let cached = |sample: &Sample| cache.zip(sample.cached);
        let parts = Parts {
            cpu: loads.map(|loads| goal.cpu(loads)),
            memory: memory.map(|(sample, used)| goal.memory(used, cached(sample))),
            cache: cache.map(|working_set| goal.cache(working_set)),
        };
        let mut aim = Aim {
            size: parts.units().map(|units| goal.times(units)),
            reason: Self::reason(parts, loads.map(|(load1, load5)| goal.load(load1, load5)), memory, cache),
            missing: [
                ("load", loads.is_none()),
                ("memory", memory.is_none()),
                ("cache", goal.cache && cache.is_none()),
            ]
            .into_iter()
            .find_map(|(what, is)| is.then_some(what)),
            unit: goal.unit(),
            present: inputs.present,
        };
        if let Some((sample, used)) = memory {
            let outlook = ahead.look(inputs, sample, used);
            if let Some(growth) = outlook.growth {
                let units = goal.memory(used.saturating_add(outlook.more), cached(sample)).ceil();
                let units = u32::try_from(number::whole(units)).unwrap_or(u32::MAX);
                aim.raise(Size { memory: goal.times(units).memory, cpu: MilliCpu(0) }, growth);
            }
            if let Some(pressed) = outlook.pressed {
                let more = if outlook.relieved { Bytes(0) } else { goal.unit_memory };
                aim.raise(Size { memory: inputs.present.memory.saturating_add(more), cpu: MilliCpu(0) }, pressed);
            }
        }
        rules.decide(inputs, aim, |size| goal.times(goal.more_than(size)))
    }

    /// The part that needs most.
    fn reason(parts: Parts, load: Option<f64>, memory: Option<(&Sample, Bytes)>, cache: Option<Bytes>) -> Reason {
        let needs = Amount::Units(parts.units().unwrap_or_default());
        let [cpu, of_memory, of_cache] = [parts.cpu.map(f64::round), parts.memory, parts.cache];
        match (load, memory, cache) {
            (Some(load), _, _) if cpu >= of_memory && cpu >= of_cache => Reason::Load { load, needs },
            (_, Some((sample, used)), _) if of_memory >= of_cache => {
                Reason::Memory { used, total: sample.memory_total, needs }
            }
            (_, _, Some(working_set)) => Reason::Cache { working_set, needs },
            _ => Reason::Missing { what: "samples" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{inputs, sample, units};
    use super::super::{Denied, Policy, Wanted};
    use super::*;

    fn decide(inputs: &Inputs) -> Decision {
        Policy::default().decide(inputs).unwrap()
    }

    #[test]
    fn reasons_name_the_part_that_needs_most() {
        let of = |load, used| {
            let decision = decide(&inputs(units(1), Some(sample(load, used))));
            (decision.unbounded, decision.reason.to_string())
        };
        assert_eq!(of(0.5, Bytes::mib(100)), (units(2), "load 0.50: 2 compute units".into()));
        assert_eq!(of(0.5, Bytes::mib(1536)), (units(3), "memory 1536 MiB used of 64 GiB: 3 compute units".into()));
        let mut missing = inputs(units(3), Some(sample(f64::NAN, Bytes::mib(100))));
        assert_eq!(decide(&missing).reason.to_string(), "load missing: nothing is taken away");
        missing.denied = Some(Denied { at_us: 0, size: units(2) });
        assert_eq!(decide(&missing).wanted, Size { cpu: MilliCpu(750), memory: Bytes::gib(3) });
    }

    #[test]
    fn pressure_and_growth_give_memory_and_no_cpu() {
        let mut pressed = inputs(units(2), Some(sample(0.0, Bytes::gib(1))));
        let sample = pressed.sample.as_mut().unwrap();
        (sample.memory_total, sample.memory_available) = (Bytes::mib(1900), Bytes::mib(800));
        let before = decide(&pressed).wanted;
        pressed.sample.as_mut().unwrap().psi_memory_full_avg10 = Some(0.5);
        let decision = decide(&pressed);
        assert!(matches!(decision.reason, Reason::MemoryPressure { .. }));
        assert_eq!((before.memory, decision.wanted.memory), (Bytes::gib(2), Bytes::gib(3)));
        assert_eq!(decision.wanted.cpu, before.cpu);
        for second in 0..4 {
            let used = Bytes::mib(800 + 100 * second);
            let sample = Sample { taken_us: second * 1_000_000, ..super::super::fixture::sample(0.0, used) };
            pressed.trend.saw(second * 1_000_000, Some(&sample), pressed.present);
        }
        let sample = pressed.sample.as_mut().unwrap();
        sample.psi_memory_full_avg10 = None;
        let decision = decide(&pressed);
        assert!(matches!(decision.reason, Reason::Growth { seconds: 10, .. }), "{decision:?}");
        assert_eq!(decision.wanted.memory, Bytes::gib(3));
    }

    #[test]
    fn an_urgent_demand_gets_a_unit_more() {
        let mut inputs = inputs(units(1), None);
        let demand = Wanted { cpu: None, memory: Some(Bytes::mib(1500)), urgency: 79, at_us: 0, base: None };
        inputs.demand = Some(demand);
        assert_eq!(decide(&inputs).wanted.memory, Bytes::mib(1536), "in blocks of memory");
        inputs.demand = Some(Wanted { urgency: 80, ..demand });
        assert_eq!(decide(&inputs).wanted.memory, Bytes::mib(2560));
    }

    #[test]
    fn whole_cpus_come_down_too() {
        // A unit has a quarter of a CPU, which a VMM can not take: a step is a whole one.
        let mut inputs = inputs(Size { cpu: MilliCpu(3000), memory: Bytes::gib(4) }, Some(sample(0.1, Bytes(0))));
        inputs.bounds.max.cpu = MilliCpu(4000);
        inputs.bounds.min.cpu = MilliCpu(1000);
        assert_eq!(decide(&inputs).wanted, Size { cpu: MilliCpu(2000), memory: Bytes::gib(3) });
    }
}
