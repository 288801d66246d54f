//! The second policy: CPU and memory each by itself, in the smallest steps. It grows ahead of need, by growth and
//! pressure, and keeps less to spare while nothing moves. Page cache that can be given up is not in use.

use super::ahead::Ahead;
use super::reason::Amount;
use super::rules::{Aim, Rules};
use super::{Decision, Inputs, Reason, Sample, number};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pressure {
    /// Share of usable memory in use beyond which more is given. At most what the guest agrees to when it is asked for
    /// memory (0.85): else it denies what the policy thinks is enough.
    pub tight: f64,
    /// Share of usable memory that should be in use after a change.
    pub slack: f64,
    /// Memory in use is taken to be so much more: the guest's own headroom.
    #[serde(deserialize_with = "super::config::bytes")]
    pub headroom: Bytes,
    /// At least so much is free after a change, however little is in use.
    #[serde(deserialize_with = "super::config::bytes")]
    pub spare: Bytes,
    /// The same after a burst of growth: what it takes in so many seconds, but no more than is in use. A resize is no
    /// quicker, and bursts come again.
    pub burst_s: u32,
    /// What the kernel of the guest keeps of the memory that it is given, beside a sixty-fourth for its page tables.
    #[serde(deserialize_with = "super::config::bytes")]
    pub kernel: Bytes,
    /// Load that each CPU should have.
    pub load_fraction: f64,
    /// Share of time in which some task waits for a CPU that is too much.
    pub cpu_pressure: f64,
    /// No CPU is taken away while tasks wait for longer than this share.
    pub cpu_calm: f64,
    /// The most CPU that is taken away at a time, and given for pressure.
    #[serde(deserialize_with = "super::config::cpu")]
    pub step_cpu: MilliCpu,
    /// The same for memory.
    #[serde(deserialize_with = "super::config::bytes")]
    pub step_memory: Bytes,
    /// What is seen ahead.
    pub ahead: Ahead,
    /// What holds for every policy.
    pub rules: Rules,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            tight: 0.85,
            slack: 0.8,
            headroom: Bytes::mib(100),
            spare: Bytes::mib(512),
            burst_s: 5,
            kernel: Bytes::mib(64),
            load_fraction: 0.9,
            cpu_pressure: 0.4,
            cpu_calm: 0.1,
            step_cpu: MilliCpu(1000),
            step_memory: Bytes::gib(1),
            ahead: Ahead::default(),
            rules: Rules { hold_s: 15, ..Rules::default() },
        }
    }
}

impl Pressure {
    pub(super) fn decide(&self, inputs: &Inputs) -> Option<Decision> {
        let present = inputs.present;
        let sample = self.rules.fresh(inputs);
        let loads = sample.and_then(Sample::loads);
        let memory = sample.and_then(|sample| Some((sample, sample.used()?)));
        let missing = [("load", loads.is_none()), ("memory", memory.is_none())];
        let mut aim = Aim {
            size: (loads.is_some() || memory.is_some()).then(Size::default),
            reason: Reason::Enough { present },
            missing: missing.into_iter().find_map(|(what, is)| is.then_some(what)),
            unit: Size { cpu: self.step_cpu, memory: self.step_memory },
            present,
        };
        if let (Some((load1, _)), Some(sample)) = (loads, sample) {
            self.aim_cpu(inputs, load1, sample.cpu_pressure(), &mut aim);
        }
        if let Some((sample, used)) = memory {
            self.aim_memory(inputs, sample, used, &mut aim);
        }
        let step = aim.unit;
        self.rules.decide(inputs, aim, |size| Size {
            cpu: MilliCpu(size.cpu.0.saturating_add(step.cpu.0)),
            memory: size.memory.saturating_add(step.memory),
        })
    }

    fn aim_cpu(&self, inputs: &Inputs, load: f64, waits: f64, aim: &mut Aim) {
        let present = inputs.present.cpu;
        let only = |cpu: MilliCpu| Size { cpu, memory: Bytes(0) };
        let needs = number::milli(number::whole((load / self.load_fraction * 1000.0).ceil()));
        if needs > present {
            aim.raise(only(needs), Reason::Load { load, needs: Amount::Cpu(needs) });
        } else if waits > self.cpu_calm || needs.0.saturating_add(self.rules.cpu_step.0) > present.0 {
            // A load a little below the next step comes back.
            aim.keep(only(present));
        } else {
            aim.raise(only(needs), Reason::Load { load, needs: Amount::Cpu(needs) });
        }
        // The average of a minute is late; what waits now is not. The next look is after that has had its effect.
        if waits >= self.cpu_pressure && !inputs.trend.rose_within(self.ahead.wait_s, inputs.now_us) {
            let more = MilliCpu(present.0.saturating_add(self.step_cpu.0));
            aim.raise(only(more), Reason::CpuPressure { some: waits });
        }
    }

    fn aim_memory(&self, inputs: &Inputs, sample: &Sample, used: Bytes, aim: &mut Aim) {
        let present = inputs.present.memory;
        let only = |memory: Bytes| Size { memory, cpu: MilliCpu(0) };
        let outlook = self.ahead.look(inputs, sample, used);
        // What comes and goes within seconds comes again.
        let peak = inputs.trend.peak(inputs.now_us).unwrap_or_default().max(used);
        let burst = Bytes(inputs.trend.burst(inputs.now_us).0.saturating_mul(u64::from(self.burst_s)));
        let spare = burst.min(used).max(self.spare);
        let least = self.size_for(peak, self.tight).max(self.whole(peak.saturating_add(Bytes(spare.0 / 2))));
        let good = self.size_for(peak, self.slack).max(self.whole(peak.saturating_add(spare)));
        if least > present || good.saturating_add(self.rules.memory_step) <= present {
            aim.raise(
                only(good),
                Reason::Memory { used: peak, total: sample.memory_total, needs: Amount::Memory(good) },
            );
        } else {
            aim.keep(only(present));
        }
        if let Some(growth) = outlook.growth
            && self.size_for(used.saturating_add(outlook.more), self.tight) > present
        {
            // Twice as far as is needed now: else it would be resized every second.
            let far = used.saturating_add(outlook.more).saturating_add(outlook.more);
            aim.raise(only(self.size_for(far, self.slack)), growth);
        }
        if let Some(pressed) = outlook.pressed {
            let more = if outlook.relieved { Bytes(0) } else { self.step_memory };
            aim.raise(only(present.saturating_add(more)), pressed);
        }
    }

    /// How large the VM must be for so much in use to be that share of what is usable.
    fn size_for(&self, used: Bytes, share: f64) -> Bytes {
        self.whole(number::times(used.saturating_add(self.headroom), 1.0 / share))
    }

    /// How large the VM must be for so much to be usable.
    const fn whole(&self, usable: Bytes) -> Bytes {
        usable.saturating_add(Bytes(usable.0 / 63)).saturating_add(self.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{inputs, sample};
    use super::super::{Bounds, Policy};
    use super::*;

    fn size(cpus: u32, mib: u64) -> Size {
        Size { cpu: MilliCpu::from_cpus(cpus), memory: Bytes::mib(mib) }
    }

    /// A VM whose kernel sees all that it is given but 100 MiB.
    fn vm(present: Size, load: f64, used_mib: u64) -> Inputs {
        let total = present.memory.saturating_sub(Bytes::mib(100));
        let memory_available = total.saturating_sub(Bytes::mib(used_mib));
        let sample = Sample { memory_total: total, memory_available, ..sample(load, Bytes(0)) };
        let mut inputs = inputs(present, Some(sample));
        inputs.bounds = Bounds { min: size(1, 512), max: size(8, 16 * 1024) };
        inputs
    }

    fn decide(inputs: &Inputs) -> (Size, String) {
        let decision = Policy::Pressure(Pressure::default()).decide(inputs).unwrap();
        (decision.wanted, decision.reason.to_string())
    }

    fn pressed(inputs: &mut Inputs, change: impl FnOnce(&mut Sample)) {
        change(inputs.sample.as_mut().unwrap());
    }

    #[test]
    fn what_is_enough_stays_and_what_is_too_much_goes_step_by_step() {
        assert_eq!(
            decide(&vm(size(2, 2048), 1.5, 1400)),
            (size(2, 2048), "2 CPUs, 2 GiB is enough, and not too much".into())
        );
        let (wanted, reason) = decide(&vm(size(1, 2048), 0.5, 1800));
        assert_eq!((wanted, reason.as_str()), (size(1, 2560), "memory 1800 MiB used of 1948 MiB: 2477 MiB"));
        let (wanted, _) = decide(&vm(size(4, 8192), 0.5, 1300));
        assert_eq!(wanted, size(3, 7168), "one CPU and one GiB at a time");
    }

    #[test]
    fn page_cache_that_can_be_given_up_is_not_in_use() {
        let mut vm = vm(size(1, 2048), 0.5, 1300);
        let before = decide(&vm);
        pressed(&mut vm, |sample| sample.cached = Some(Bytes::mib(600)));
        assert_eq!(decide(&vm), before);
    }

    #[test]
    fn tasks_that_wait_get_more_once_in_a_while() {
        let mut vm = vm(size(1, 2048), 0.5, 1400);
        pressed(&mut vm, |sample| sample.psi_memory_some_avg10 = Some(0.2));
        let reason = "tasks waited for memory in 20 % of the time, all of them in 0 %";
        assert_eq!(decide(&vm), (size(1, 3072), reason.into()));
        // What was given has hardly arrived: the average still tells of before.
        vm.trend.saw(0, None, size(1, 1024));
        vm.trend.saw(0, None, vm.present);
        assert_eq!(decide(&vm).0, size(1, 2048));
        vm.now_us = 9_000_000;
        assert_eq!(decide(&vm).0, size(1, 2048));
        // A cgroup with a limit of its own lacks memory, the VM does not.
        let mut idle = self::vm(size(1, 2048), 0.5, 800);
        pressed(&mut idle, |sample| sample.psi_memory_full_avg10 = Some(0.9));
        assert!(decide(&idle).0.memory <= Bytes::mib(2048));
        let mut busy = self::vm(size(1, 2048), 0.5, 1400);
        pressed(&mut busy, |sample| sample.psi_cpu_some_avg10 = Some(0.5));
        assert_eq!(decide(&busy), (size(2, 2048), "tasks waited for a CPU in 50 % of the time".into()));
    }

    #[test]
    fn what_grows_gets_more_before_it_needs_it() {
        let mut vm = vm(size(1, 2048), 0.5, 1400);
        for second in 0..4 {
            let used = Bytes::mib(1100 + 100 * second);
            let sample = Sample { taken_us: second * 1_000_000, ..sample(0.5, used) };
            vm.trend.saw(second * 1_000_000, Some(&sample), vm.present);
        }
        vm.now_us = 3_000_000;
        let (wanted, reason) = decide(&vm);
        assert_eq!(reason, "memory 1400 MiB used, growing by 100 MiB a second: ready for 10 s more of that");
        assert!(wanted.memory > Bytes::mib(1400 + 10 * 100), "{wanted}");
        assert_eq!(wanted.cpu, MilliCpu::from_cpus(1));
    }

    #[test]
    fn a_denial_keeps_what_there_is_and_gives_no_more() {
        let mut vm = vm(size(2, 4096), 0.5, 1300);
        vm.denied = Some(super::super::Denied { at_us: 0, size: size(2, 3072) });
        assert_eq!(decide(&vm).0, size(2, 4096));
        vm.now_us = 5_000_000;
        assert_eq!(decide(&vm).0, size(1, 3072));
    }
}
