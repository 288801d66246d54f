//! What the conversation with hosts needs of whoever knows what this guest wants: demands, and answers to what hosts
//! ask. It knows no session; the one that decides is chosen by [`super::controllers`], and a question or an order is
//! void with its turn.

use informant_wire::limits::MAX_NAME;
use informant_wire::scale::{
    Applied, AppliedCause, AppliedOutcome, DemandAnswer, DemandId, DemandReason, Downscale, DownscaleAnswer,
    DownscaleOutcome, DownscaleReason, Resized, Seen,
};
use informant_wire::size::{Bytes, MilliCpu};

/// What the guest wants to have, in all. Nothing wanted: what was wanted before is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The same wherever and however often it is asked.
    pub id: DemandId,
    /// CPU; none: as it is.
    pub cpu: Option<MilliCpu>,
    /// Memory of the VM; none: as it is.
    pub memory: Option<Bytes>,
    /// A mount point and how large its file system should be; none: as they are.
    pub disk: Option<(heapless::Vec<u8, MAX_NAME>, Bytes)>,
    /// From 0 to 100; what is over counts as 100.
    pub urgency: u8,
    /// Why.
    pub reason: DemandReason,
    /// Milliseconds that it lives unless it is asked again.
    pub expires_ms: u32,
}

/// See the module. Times are boot time, microseconds. No call blocks or allocates.
pub trait Brain: std::fmt::Debug {
    /// What should be asked now: asked of the host that decides, and not called again before it is resolved by one of
    /// the next two. Gives the same demand again when it is time to repeat it, at most once a second.
    fn demand(&mut self, now_us: u64) -> Option<Wanted>;
    /// When [`Self::demand`] may have something.
    fn demand_due_us(&self) -> u64;
    /// The host that decides has answered.
    fn demand_answered(&mut self, answer: &DemandAnswer, now_us: u64);
    /// No answer: time is over, or the host decides no more. The next one is to be asked.
    fn demand_unanswered(&mut self, now_us: u64);
    /// The host that decides asks; an earlier question is void.
    fn downscale(&mut self, question: &Downscale, now_us: u64);
    /// The answer, once, when it is known.
    fn downscale_answer(&mut self, now_us: u64) -> Option<DownscaleAnswer<'_>>;
    /// The host that decides tells another size; an earlier one is void.
    fn resized(&mut self, told: &Resized, now_us: u64);
    /// Whether it has arrived, when that is to be said: "not yet" again and again, then another outcome, the last.
    fn applied(&mut self, now_us: u64) -> Option<Applied>;
    /// That host decides no more: what it asked and told needs no answer.
    fn current_gone(&mut self, now_us: u64);
}

/// A guest without sensors: wants nothing, and says that it can not tell.
#[derive(Debug, Default)]
pub struct Senseless {
    question: Option<Downscale>,
    told: Option<Resized>,
}

impl Brain for Senseless {
    fn demand(&mut self, _: u64) -> Option<Wanted> {
        None
    }

    fn demand_due_us(&self) -> u64 {
        u64::MAX
    }

    fn demand_answered(&mut self, _: &DemandAnswer, _: u64) {}

    fn demand_unanswered(&mut self, _: u64) {}

    fn downscale(&mut self, question: &Downscale, _: u64) {
        self.question = Some(*question);
    }

    fn downscale_answer(&mut self, _: u64) -> Option<DownscaleAnswer<'_>> {
        let question = self.question.take()?;
        Some(DownscaleAnswer {
            request: question.request,
            outcome: DownscaleOutcome::FAILED,
            reason: DownscaleReason::NO_SAMPLES,
            usage: Bytes(0),
            headroom: Bytes(0),
            limit: Bytes(0),
            retry_after_ms: 1000,
            text: "",
        })
    }

    fn resized(&mut self, told: &Resized, _: u64) {
        self.told = Some(*told);
    }

    fn applied(&mut self, _: u64) -> Option<Applied> {
        let told = self.told.take()?;
        let (outcome, cause) = (AppliedOutcome::FAILED, AppliedCause::NOT_PLUGGED);
        Some(Applied { request: told.request, outcome, cause, seen: Seen::default() })
    }

    fn current_gone(&mut self, _: u64) {
        *self = Self::default();
    }
}
