//! What advisors need of the part of the agent that scales: where questions come from, and where demands go.

use super::tally::Verdict;
use informant_wire::scale::{Demand, DemandOutcome};
use informant_wire::size::Size;
use std::fmt;

/// How a demand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What the host said last; [`DemandOutcome::PENDING`] before that, [`DemandOutcome::APPLIED`] once the VM has it.
    pub outcome: DemandOutcome,
    /// The size that the VM has, or is to have.
    pub granted: Size,
    /// Asking sooner does not help.
    pub retry_after_ms: u32,
}

impl Standing {
    /// Passed on, not answered yet.
    pub const PENDING: Self = Self::of(DemandOutcome::PENDING, 0);

    pub(super) const fn of(outcome: DemandOutcome, retry_after_ms: u32) -> Self {
        let granted = Size { cpu: informant_wire::size::MilliCpu(0), memory: informant_wire::size::Bytes(0) };
        Self { outcome, granted, retry_after_ms }
    }
}

/// The part that scales, as advisors see it. No call may block.
pub trait Desk {
    /// A question that waits for advice: what the VM has and what it is to have. Each is handed out once.
    fn take_question(&mut self) -> Option<(Size, Size)>;

    /// The answer to the last question that was taken; comes within 2 s.
    fn verdict(&mut self, verdict: &Verdict, now_us: u64);

    /// A process of this guest wants this, or still wants it. `source` stands for its connection; a later demand of a
    /// source takes the place of the one before.
    fn local_demand(&mut self, source: u32, demand: &Demand<'_>, now_us: u64);

    /// A source wants nothing any more: it said so, or its demand has expired.
    fn withdraw_local(&mut self, source: u32, now_us: u64);

    /// How the demand of a source stands.
    fn demand_state(&self, source: u32) -> Standing;
}

/// By hand: as a part of the trait it would bring the text of all that it knows into the program.
impl fmt::Debug for dyn Desk + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}
