//! What tests of policies begin with.

use super::{Bounds, ComputeUnit, Inputs, Policy, Sample, Trend};
use informant_wire::size::{Bytes, MilliCpu, Size};

/// So many published compute units.
pub(super) fn units(units: u32) -> Size {
    ComputeUnit::published().goal.times(units)
}

pub(super) fn size(cpu_milli: u32, memory_gib: u64) -> Size {
    Size { cpu: MilliCpu(cpu_milli), memory: Bytes::gib(memory_gib) }
}

/// Of a VM with 64 GiB, taken at 0, with the same load over one and five minutes.
pub(super) fn sample(load: f64, used: Bytes) -> Sample {
    Sample {
        taken_us: 0,
        load1: load,
        load5: load,
        cpus_online: 1,
        memory_total: Bytes::gib(64),
        memory_available: Bytes::gib(64).saturating_sub(used),
        cached: None,
        psi_memory_some_avg10: None,
        psi_memory_full_avg10: None,
        psi_cpu_some_avg10: None,
    }
}

pub(super) fn inputs(present: Size, sample: Option<Sample>) -> Inputs {
    Inputs {
        now_us: 0,
        sample,
        present,
        bounds: Bounds { min: units(1), max: units(4) },
        demand: None,
        denied: None,
        cache: None,
        trend: Trend::default(),
    }
}

/// With which the published state tests were run.
pub(super) fn half() -> ComputeUnit {
    let mut policy = ComputeUnit::published();
    policy.goal.load_fraction = 0.5;
    policy.goal.memory_fraction = 0.5;
    policy
}

pub(super) fn wanted(policy: &ComputeUnit, inputs: &Inputs) -> Option<Size> {
    Policy::ComputeUnit(*policy).decide(inputs).map(|decision| decision.wanted)
}

pub(super) fn target(policy: &ComputeUnit, inputs: &Inputs) -> Option<Size> {
    Policy::ComputeUnit(*policy).decide(inputs).map(|decision| decision.target)
}
