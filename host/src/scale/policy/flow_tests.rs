//! The published flows, as far as they are the policy's: what it wants at each moment, with a clock that only the test
//! moves. What they tell of messages and retries is the desk's.

use super::fixture::{half, inputs, sample, target, units, wanted};
use super::{ComputeUnit, Denied, Inputs, Policy, Reason, Sample, Wanted};
use informant_wire::size::{Bytes, MilliCpu, Size};

struct Flow {
    policy: ComputeUnit,
    inputs: Inputs,
}

impl Flow {
    fn new(present: u32, most: u32) -> Self {
        let mut inputs = inputs(units(present), None);
        inputs.bounds.max = units(most);
        Self { policy: half(), inputs }
    }

    fn metrics(&mut self, load: f64) -> &mut Self {
        self.inputs.sample = Some(Sample { taken_us: self.inputs.now_us, ..sample(load, Bytes(0)) });
        self
    }

    /// Tenths of a second go by; samples keep coming.
    fn wait(&mut self, tenths: u64) -> &mut Self {
        self.inputs.now_us += tenths * 100_000;
        if let Some(sample) = &mut self.inputs.sample {
            sample.taken_us = self.inputs.now_us;
        }
        self
    }

    fn become_units(&mut self, present: u32) -> &mut Self {
        self.inputs.present = units(present);
        self
    }

    fn deny(&mut self, denied: u32) -> &mut Self {
        self.inputs.denied = Some(Denied { at_us: self.inputs.now_us, size: units(denied) });
        self
    }

    fn wants(&self, next: u32, in_the_end: u32) {
        let now = self.inputs.now_us;
        assert_eq!(wanted(&self.policy, &self.inputs), Some(units(next)), "next, at {now} us");
        assert_eq!(target(&self.policy, &self.inputs), Some(units(in_the_end)), "in the end, at {now} us");
    }
}

#[test]
fn test_basic_scale_up_and_down_flow() {
    let mut flow = Flow::new(1, 4);
    assert_eq!(wanted(&flow.policy, &flow.inputs), None, "without metrics nothing moves");
    flow.wait(2).metrics(0.3).wants(2, 2);
    flow.wait(2).wants(2, 2);
    flow.become_units(2).wants(2, 2);
    flow.wait(2).metrics(0.0).wants(1, 1);
    flow.wait(2).become_units(1).wants(1, 1);
}

#[test]
fn test_denied_downscaling_increase_and_retry() {
    let mut flow = Flow::new(6, 8);
    flow.policy.rules.denied_s = 4;
    flow.wait(2).metrics(0.0);
    flow.wants(5, 1);
    // Each denial makes the next question a larger one, until there is none.
    for denied in 1..5 {
        flow.deny(denied).wait(1).wants(5, denied + 1);
    }
    flow.deny(5).wait(39).wants(6, 6);
    flow.wait(1).wants(5, 1);
    // Agreed to 5, 4 and 3, one at a time; to less it is not.
    flow.become_units(5).wants(4, 1);
    flow.become_units(4).wants(3, 1);
    flow.become_units(3).wants(2, 1);
    flow.deny(2).wants(3, 3);
    flow.wait(39).wants(3, 3);
    flow.wait(1).wants(2, 1);
    flow.become_units(2).wants(1, 1);
    flow.become_units(1).wants(1, 1);
}

#[test]
fn test_requested_upscale() {
    let mut flow = Flow::new(1, 4);
    flow.policy.rules.demand_s = 6;
    flow.wait(2).metrics(0.0).wants(1, 1);
    let at_us = flow.inputs.now_us;
    flow.inputs.demand = Some(Wanted { cpu: None, memory: None, urgency: 50, at_us, base: Some(units(1)) });
    flow.wants(2, 2);
    flow.become_units(2).wait(3).wants(2, 2);
    flow.wait(56).wants(2, 2);
    flow.wait(1).wants(1, 1);
    // With totals: repeating them is harmless, and renewing them counts.
    let at_us = flow.inputs.now_us;
    let memory = Some(Bytes::mib(2500));
    flow.inputs.demand = Some(Wanted { cpu: None, memory, urgency: 50, at_us, base: None });
    let more = Size { cpu: MilliCpu(250), memory: Bytes::gib(3) };
    assert_eq!(wanted(&flow.policy, &flow.inputs), Some(more), "the demand is for memory alone");
    flow.inputs.present = more;
    assert_eq!(wanted(&flow.policy, &flow.inputs), Some(more));
}

#[test]
fn test_downscale_pivot_back() {
    // Whatever was under way when metrics change: the policy wants to be back at once.
    for gone in [2, 1] {
        let mut flow = Flow::new(2, 3);
        flow.wait(2).metrics(0.0).wants(1, 1);
        flow.become_units(gone).wait(1).metrics(0.3).wants(2, 2);
    }
}

#[test]
fn test_bounds_change_requires_downscale_and_upscale() {
    let mut flow = Flow::new(2, 3);
    flow.metrics(0.3).wants(2, 2);
    flow.inputs.bounds.max = units(1);
    flow.wants(1, 1);
    assert!(matches!(Policy::ComputeUnit(flow.policy).decide(&flow.inputs).unwrap().reason, Reason::Bounds { .. }));
    // The guest may say no: rather a little above the bound than without memory.
    flow.deny(1).wants(2, 2);
    flow.wait(50).become_units(1);
    (flow.inputs.bounds.min, flow.inputs.bounds.max) = (units(3), units(4));
    flow.metrics(0.0).wants(3, 3);
    flow.inputs.sample = None;
    flow.wants(3, 3);
    flow.become_units(3);
    assert_eq!(wanted(&flow.policy, &flow.inputs), None);
    // Far above the bounds it comes down in steps, also without metrics.
    flow.become_units(8).wants(7, 4);
}

#[test]
fn test_metrics_concurrent_updated_during_downscale() {
    // as#560: metrics that change while the VM shrinks; memory as it was measured there.
    let mut flow = Flow::new(2, 3);
    let measured = |load| Sample { taken_us: 0, ..sample(load, Bytes(150_589_570)) };
    flow.inputs.sample = Some(measured(0.0));
    flow.wants(1, 1);
    flow.inputs.sample = Some(measured(0.3));
    flow.become_units(1).wants(2, 2);
    flow.inputs.sample = Some(measured(0.0));
    flow.wants(1, 1);
}

#[test]
fn test_partial_upscale_then_full() {
    // 3 of 4 granted: it goes on wanting the fourth, and nothing more.
    let mut flow = Flow::new(1, 4);
    flow.metrics(0.5).wants(4, 4);
    flow.become_units(3).wants(4, 4);
    flow.wait(20).wants(4, 4);
    flow.become_units(4).wants(4, 4);
}

#[test]
fn test_failed_request_retry() {
    // as#573: a request that failed leaves no trace in the policy: the same is wanted for as long as it takes.
    let mut flow = Flow::new(2, 2);
    flow.metrics(0.0);
    for _ in 0..600 {
        flow.wait(10).wants(1, 1);
    }
}

#[test]
fn a_stale_sample_decides_nothing_and_a_demand_still_counts() {
    let mut flow = Flow::new(2, 4);
    flow.metrics(9.0).wants(4, 4);
    flow.inputs.now_us += 9_999_999;
    flow.wants(4, 4);
    flow.inputs.now_us += 1;
    assert_eq!(wanted(&flow.policy, &flow.inputs), None);
    let at_us = flow.inputs.now_us;
    flow.inputs.demand = Some(Wanted { cpu: None, memory: None, urgency: 0, at_us, base: Some(units(2)) });
    flow.wants(3, 3);
    flow.inputs.demand = Some(Wanted { cpu: None, memory: Some(Bytes::gib(1)), urgency: 0, at_us, base: None });
    flow.wants(2, 2);
}
