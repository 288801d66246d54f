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
        let (least, good) = (self.size_for(peak, self.tight), self.size_for(peak, self.slack));
        if least > present || good.saturating_add(self.rules.memory_step) <= present {
            aim.raise(only(good), Reason::Memory { used, total: sample.memory_total, needs: Amount::Memory(good) });
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
        let usable = number::times(used.saturating_add(self.headroom), 1.0 / share);
        usable.saturating_add(Bytes(usable.0 / 63)).saturating_add(self.kernel)
    }
}
