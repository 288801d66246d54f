//! Scaling as advisors and persons of this guest see it.

use super::Scaling;
use crate::local::desk::{Desk, Standing};
use crate::local::tally::Verdict;
use crate::scale::brain::Wanted;
use crate::scale::local::Source;
use informant_wire::scale::{Demand, DemandOutcome};
use informant_wire::size::Size;

/// A source beyond those that are remembered may find a place by then.
const FULL_RETRY_MS: u32 = 5000;

impl Scaling {
    /// Answers here are as old as the last look.
    fn looked_us(&self) -> u64 {
        self.last_look_us.unwrap_or_default()
    }
}

impl Desk for Scaling {
    fn take_question(&mut self) -> Option<(Size, Size)> {
        self.next_question(self.looked_us())
    }

    fn verdict(&mut self, verdict: &Verdict, _: u64) {
        self.advised(verdict.against.as_ref().map(|(reason, text)| (*reason, text.clone())));
    }

    fn local_demand(&mut self, source: u32, demand: &Demand<'_>, now_us: u64) {
        let disk = demand.disk.and_then(|disk| Some((heapless::Vec::from_slice(disk.mount).ok()?, disk.total)));
        let wanted = Wanted {
            id: demand.id,
            cpu: demand.cpu,
            memory: demand.memory,
            disk,
            urgency: demand.urgency,
            reason: demand.reason,
            expires_ms: demand.expires_ms,
        };
        if let Err(error) = self.demand_of(Source(u64::from(source)), wanted, now_us) {
            tracing::warn!("{error}");
        }
    }

    fn withdraw_local(&mut self, source: u32, now_us: u64) {
        self.withdraw(Source(u64::from(source)), now_us);
    }

    fn demand_state(&self, source: u32) -> Standing {
        match self.outcome_of(Source(u64::from(source)), self.looked_us()) {
            Some((outcome, granted, retry_after_ms)) => Standing { outcome, granted, retry_after_ms },
            None => {
                Standing { outcome: DemandOutcome::DENIED, granted: Size::default(), retry_after_ms: FULL_RETRY_MS }
            }
        }
    }
}
