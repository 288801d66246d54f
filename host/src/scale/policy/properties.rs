//! What holds for any numbers.

use super::goal::Goal;
use super::{Ahead, Bounds, ComputeUnit, Denied, Inputs, Policy, Pressure, Sample, Trend, Wanted};
use informant_wire::size::{Bytes, MilliCpu, Size};
use proptest::option;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => (0..200_000_u64).prop_map(Bytes::mib),
        1 => any::<u64>().prop_map(Bytes),
        1 => prop_oneof![Just(0), Just(1), Just(u64::MAX)].prop_map(Bytes),
    ]
}

fn cpu() -> impl Strategy<Value = MilliCpu> {
    prop_oneof![4 => 0..64_000_u32, 1 => any::<u32>(), 1 => Just(u32::MAX)].prop_map(MilliCpu)
}

fn size() -> impl Strategy<Value = Size> {
    (cpu(), bytes()).prop_map(|(cpu, memory)| Size { cpu, memory })
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..64.0_f64,
        1 => any::<f64>(),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(f64::MAX), Just(-0.0)],
    ]
}

fn moment() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..40_000_000_u64, 1 => any::<u64>()]
}

prop_compose! {
    fn sample()(
        taken_us in moment(), loads in (number(), number()), cpus_online in any::<u32>(),
        memory_total in bytes(), memory_available in bytes(), cached in option::of(bytes()),
        psi in (option::of(number()), option::of(number()), option::of(number())),
    ) -> Sample {
        Sample {
            taken_us, load1: loads.0, load5: loads.1, cpus_online, memory_total, memory_available, cached,
            psi_memory_some_avg10: psi.0, psi_memory_full_avg10: psi.1, psi_cpu_some_avg10: psi.2,
        }
    }
}

prop_compose! {
    fn demand()(
        cpu in option::of(cpu()), memory in option::of(bytes()), urgency in any::<u8>(), at_us in moment(),
        base in option::of(size()),
    ) -> Wanted {
        Wanted { cpu, memory, urgency, at_us, base }
    }
}

prop_compose! {
    fn inputs()(
        now_us in moment(), sample in option::of(sample()), present in size(), min in size(), max in size(),
        demand in option::of(demand()), denied in option::of((moment(), size())), cache in option::of(bytes()),
        before in prop::collection::vec((moment(), option::of(sample()), size()), 0..12),
    ) -> Inputs {
        let mut trend = Trend::default();
        for (now_us, sample, present) in &before {
            trend.saw(*now_us, sample.as_ref(), *present);
        }
        Inputs {
            now_us, sample, present, bounds: Bounds { min, max }, demand,
            denied: denied.map(|(at_us, size)| Denied { at_us, size }), cache, trend,
        }
    }
}

/// With numbers that a table may have, and with such that it may not: nothing may panic for either.
fn policy() -> impl Strategy<Value = Policy> {
    let cache = ComputeUnit { goal: Goal { cache: true, ..Goal::default() }, ..ComputeUnit::default() };
    prop_oneof![
        Just(Policy::ComputeUnit(ComputeUnit::default())),
        Just(Policy::ComputeUnit(ComputeUnit::published())),
        Just(Policy::ComputeUnit(cache)),
        Just(Policy::Pressure(Pressure::default())),
    ]
}

fn rules(policy: &Policy) -> &super::Rules {
    match policy {
        Policy::ComputeUnit(policy) => &policy.rules,
        Policy::Pressure(policy) => &policy.rules,
    }
}

/// The most that a step down may take.
fn most_down(policy: &Policy) -> Size {
    let step = Size { cpu: rules(policy).cpu_step, memory: rules(policy).memory_step };
    step.max(match policy {
        Policy::ComputeUnit(policy) => policy.goal.unit(),
        Policy::Pressure(policy) => Size { cpu: policy.step_cpu, memory: policy.step_memory },
    })
}

fn is_denied(policy: &Policy, inputs: &Inputs) -> bool {
    let seconds = u64::from(rules(policy).denied_s);
    inputs.denied.is_some_and(|denied| inputs.now_us.saturating_sub(denied.at_us) < seconds * 1_000_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_bounds_hold_unless_a_denial_does(policy in policy(), inputs in inputs()) {
        let Some(decision) = policy.decide(&inputs) else { return Ok(()) };
        prop_assert!(!decision.reason.to_string().is_empty());
        let Bounds { min, max } = inputs.bounds;
        let max = max.max(min);
        prop_assert!(decision.target.covers(min), "{decision:?} below {min}");
        prop_assert!(decision.wanted.covers(decision.target));
        if !is_denied(&policy, &inputs) {
            prop_assert!(max.covers(decision.target), "{decision:?} above {max}");
            prop_assert!(max.max(inputs.present).covers(decision.wanted), "{decision:?} above {max}");
        }
    }

    #[test]
    fn a_step_down_is_at_most_one_unit(policy in policy(), inputs in inputs()) {
        let Some(decision) = policy.decide(&inputs) else { return Ok(()) };
        let (present, most) = (inputs.present, most_down(&policy));
        prop_assert!(decision.wanted.cpu.0.saturating_add(most.cpu.0) >= present.cpu.0, "{decision:?}");
        prop_assert!(decision.wanted.memory.saturating_add(most.memory) >= present.memory, "{decision:?}");
    }

    #[test]
    fn who_demands_more_gets_no_less(policy in policy(), mut inputs in inputs(), less in demand(), more in size()) {
        let of = |inputs: &Inputs| policy.decide(inputs).map_or(inputs.present, |decision| decision.wanted);
        inputs.demand = Some(Wanted { at_us: inputs.now_us, base: None, ..less });
        let before = of(&inputs);
        inputs.demand = inputs.demand.map(|demand| Wanted {
            cpu: Some(demand.cpu.unwrap_or_default().max(more.cpu)),
            memory: Some(demand.memory.unwrap_or_default().max(more.memory)),
            ..demand
        });
        prop_assert!(of(&inputs).covers(before), "{} after {before}", of(&inputs));
        // Bounds are met in whole steps.
        let (due, step) = (more.min(inputs.bounds.max.max(inputs.bounds.min)), rules(&policy));
        let got = of(&inputs);
        let enough = Size {
            cpu: MilliCpu(got.cpu.0.saturating_add(step.cpu_step.0)),
            memory: got.memory.saturating_add(step.memory_step),
        };
        prop_assert!(enough.covers(due), "{got} where {due} is demanded");
    }

    #[test]
    fn a_stale_sample_alone_decides_nothing(policy in policy(), mut inputs in inputs(), age_s in 10..100_000_u64) {
        inputs.now_us = inputs.now_us.max(age_s * 1_000_000);
        let taken_us = inputs.now_us - age_s * 1_000_000;
        let Some(sample) = &mut inputs.sample else { return Ok(()) };
        sample.taken_us = taken_us;
        (inputs.demand, inputs.denied, inputs.cache) = (None, None, None);
        inputs.bounds = Bounds { min: inputs.present, max: inputs.present };
        prop_assert_eq!(policy.decide(&inputs), None);
    }

    #[test]
    fn without_metrics_nothing_is_taken_away(policy in policy(), mut inputs in inputs()) {
        inputs.sample = None;
        inputs.bounds.max = inputs.bounds.max.max(inputs.present);
        let Some(decision) = policy.decide(&inputs) else { return Ok(()) };
        prop_assert!(decision.wanted.covers(inputs.present), "{decision:?}");
    }

    #[test]
    fn no_numbers_of_a_configuration_panic(
        inputs in inputs(), shares in prop::collection::vec(number(), 9), unit in size(), step in size(),
        seconds in any::<u32>(),
    ) {
        let rules = super::Rules {
            cpu_step: step.cpu, memory_step: step.memory, demand_s: seconds, denied_s: seconds, stale_s: seconds,
            hold_s: seconds, ..super::Rules::default()
        };
        let ahead = Ahead { growth_s: seconds, memory_some: shares[0], in_use: shares[1], wait_s: seconds, ..Ahead::default() };
        let goal = Goal {
            unit_cpu: unit.cpu, unit_memory: unit.memory, load_fraction: shares[2], memory_fraction: shares[3],
            memory_total_fraction: shares[4], stable_zone: shares[5], mixed_zone: shares[6], cache: true,
            cache_fraction: shares[7], ..Goal::default()
        };
        let _ = Policy::ComputeUnit(ComputeUnit { goal, ahead, rules }).decide(&inputs);
        let pressure = Pressure {
            tight: shares[2], slack: shares[3], load_fraction: shares[4], cpu_pressure: shares[5], cpu_calm: shares[6],
            step_cpu: unit.cpu, step_memory: unit.memory, ahead, rules, ..Pressure::default()
        };
        let _ = Policy::Pressure(pressure).decide(&inputs);
        let series: Vec<f64> = shares.iter().copied().cycle().take(60).collect();
        let _ = super::working_set::bytes(&series, &goal);
    }
}
