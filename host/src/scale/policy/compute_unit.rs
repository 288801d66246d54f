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
