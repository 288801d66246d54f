//! Plays a trace of what a workload needs against a model of a VM that a policy resizes: no clock, no chance, the same
//! for every policy. For comparing policies, not for sizing anything: the model knows one guest, and no neighbours.

pub mod trace;
mod vm;

use super::{Bounds, Denied, Inputs, Policy, Trend};
use informant_wire::size::{Bytes, MilliCpu, Size};
use std::collections::VecDeque;
use std::fmt;
use trace::Second;
use vm::Vm;

/// In which all policies are played.
pub const BOUNDS: Bounds = Bounds {
    min: Size { cpu: MilliCpu(1000), memory: Bytes::gib(1) },
    max: Size { cpu: MilliCpu(8000), memory: Bytes::gib(16) },
};
/// A resize has its effect so many seconds after it was decided on: the VMM, the hot-plug, the guest's onlining.
const UP_S: u64 = 3;
/// The same for less: the question, the answer, and the way.
const DOWN_S: u64 = 4;

/// What a policy made of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Times the workload was killed for lack of memory.
    pub oom_kills: u32,
    /// Memory that the VM had, times hours.
    pub gib_hours: f64,
    /// CPUs that the VM had, times hours.
    pub cpu_hours: f64,
    /// Times its size changed.
    pub resizes: u32,
    /// Questions for less that the guest denied.
    pub denials: u32,
    /// Seconds in which the average task waited for memory.
    pub memory_wait_s: f64,
    /// Seconds that tasks waited for a CPU, in all.
    pub cpu_wait_s: f64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oom_kills, gib_hours, cpu_hours, resizes, denials, memory_wait_s, cpu_wait_s } = self;
        write!(
            f,
            "{oom_kills} OOM kills, {gib_hours:.2} GiB-hours, {cpu_hours:.2} CPU-hours, {resizes} resizes, \
             {denials} denials, waited {memory_wait_s:.0} s for memory and {cpu_wait_s:.0} s for CPUs"
        )
    }
}

/// Plays `trace` from the least size on. The policy is asked once a second, with a sample of the second before.
#[must_use]
pub fn play(policy: &Policy, trace: &[Second]) -> Outcome {
    let mut vm = Vm::new(BOUNDS.min);
    let mut outcome = Outcome::default();
    let mut trend = Trend::default();
    let mut denied = None;
    // What the VMM was asked for last, and what of that is on its way, and until when.
    let (mut wish, mut due): (Size, VecDeque<(u64, Size)>) = (BOUNDS.min, VecDeque::new());
    for (second, load) in (1_u64..).zip(trace) {
        while let Some((_, size)) = due.front().copied().filter(|(at, _)| *at <= second) {
            due.pop_front();
            outcome.resizes += 1;
            if !vm.resize(size) {
                // Memory that is in use by now does not come out.
                wish = wish.max(vm.size());
            }
        }
        vm.live(load, &mut outcome);
        let now_us = second * 1_000_000;
        let sample = vm.sample(now_us);
        trend.saw(now_us, Some(&sample), wish);
        let inputs = Inputs {
            now_us,
            sample: Some(sample),
            present: wish,
            bounds: BOUNDS,
            demand: None,
            denied,
            cache: None,
            trend: trend.clone(),
        };
        let Some(decision) = policy.decide(&inputs) else { continue };
        let wanted = whole(decision.wanted);
        let more = wanted.max(wish);
        if more != wish {
            wish = more;
            due.push_back((second + UP_S, wish));
        } else if wanted != wish && due.is_empty() {
            if vm.agrees(wish, wanted) {
                wish = wanted;
                due.push_back((second + DOWN_S, wish));
            } else {
                outcome.denials += 1;
                denied = Some(Denied { at_us: now_us, size: wanted });
            }
        }
    }
    outcome
}

/// What a VMM gives: whole CPUs, blocks of 128 MiB.
fn whole(size: Size) -> Size {
    let block = 128 * Bytes::MIB;
    Size {
        cpu: MilliCpu::from_cpus(size.cpu.cpus()),
        memory: Bytes(size.memory.0.div_ceil(block).saturating_mul(block)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ComputeUnit, Pressure, Rules};
    use super::*;

    fn compute_unit() -> Policy {
        // As published, but for whole CPUs: the model has no others.
        let published = ComputeUnit::published();
        let rules = Rules { cpu_step: MilliCpu::from_cpus(1), ..published.rules };
        Policy::ComputeUnit(ComputeUnit { rules, ..published })
    }

    fn committed(name: &str) -> Vec<Second> {
        let path = format!("{}/tests/traces/{name}.csv", env!("CARGO_MANIFEST_DIR"));
        trace::parse(&std::fs::read_to_string(&path).unwrap()).unwrap()
    }

    #[test]
    fn pressure_kills_no_more_and_takes_less_than_the_compute_unit() {
        for name in trace::NAMES {
            let trace = committed(name);
            let (theirs, ours) = (play(&compute_unit(), &trace), play(&Policy::Pressure(Pressure::default()), &trace));
            println!("{name}\n  compute-unit: {theirs}\n  pressure:     {ours}");
            assert!(ours.oom_kills <= theirs.oom_kills, "{name}: {ours}; {theirs}");
            assert!(ours.gib_hours < theirs.gib_hours, "{name}: {ours}; {theirs}");
        }
    }

    #[test]
    fn looking_ahead_kills_no_more_than_the_formulas_alone() {
        for name in trace::NAMES {
            let trace = committed(name);
            let (alone, ahead) = (play(&compute_unit(), &trace), play(&Policy::default(), &trace));
            println!("{name}: {ahead}");
            assert!(ahead.oom_kills <= alone.oom_kills, "{name}: {ahead}; {alone}");
        }
    }

    #[test]
    fn the_model_punishes_what_is_too_small_and_takes_nothing_away_that_is_used() {
        // Nobody resizes: a policy that is never told anything new.
        let mut blind = Pressure::default();
        blind.rules.stale_s = 0;
        let burst = committed("burst");
        let outcome = play(&Policy::Pressure(blind), &burst);
        assert!(outcome.oom_kills > 0 && outcome.resizes == 0, "{outcome}");
        assert!(outcome.memory_wait_s > 0.0, "{outcome}");
        assert_eq!(play(&compute_unit(), &burst), play(&compute_unit(), &burst));
    }

    #[test]
    fn a_guest_that_could_not_do_with_less_says_so_and_lives() {
        // Sizes for what is used and nothing beside: less than the guest agrees to.
        let greedy = Pressure { slack: 0.85, headroom: Bytes(0), kernel: Bytes(0), ..Pressure::default() };
        let outcome = play(&Policy::Pressure(greedy), &committed("burst"));
        assert!(outcome.denials > 0, "{outcome}");
        assert_eq!(outcome.oom_kills, 0, "{outcome}");
    }

    #[test]
    fn looking_ahead_survives_bursts_that_the_formulas_alone_do_not() {
        // A job on one CPU, whose load says nothing of its memory.
        let trace = |rate: u64| -> Vec<Second> {
            let job = |at: u64| if at < 120 { 0 } else { ((at - 120) * rate).min(4000) };
            let second = |second: u64| Second {
                anon: Bytes::mib(800 + job(second % 300)),
                cache: Bytes::mib(300),
                runnable: if job(second % 300) > 0 { 1.0 } else { 0.3 },
            };
            (1..1800).map(second).collect()
        };
        for rate in [60, 120, 160, 200, 240] {
            for policy in [Policy::default(), Policy::Pressure(Pressure::default())] {
                let outcome = play(&policy, &trace(rate));
                assert_eq!(outcome.oom_kills, 0, "{} at {rate} MiB/s: {outcome}", policy.name());
            }
        }
        assert!(play(&compute_unit(), &trace(240)).oom_kills > 0);
    }
}
