//! A question about becoming smaller, from its coming to its answer: the numbers first, then the advisors, then the
//! numbers again, because time went by.

use super::Scaling;
use crate::scale::decide::{Approved, Decision, Facts, Question, decide};
use informant_wire::limits::{ADVISOR_DEADLINE_S, MAX_SCALE_TEXT};
use informant_wire::scale::{Downscale, DownscaleAnswer, DownscaleOutcome, DownscaleReason};
use informant_wire::size::Size;

/// Of the time that the host gives, this much is for the answer to travel, ms.
const TRAVEL_MS: u32 = 100;
/// Advice comes within its deadline; so much later the loop has heard it.
const LATE_US: u64 = 300_000;
/// An advisor's mind changes no sooner, ms.
const ADVISOR_AGAIN_MS: u32 = 4_000;

/// Who is against it, and a line for people.
pub(super) type Against = (DownscaleReason, heapless::String<MAX_SCALE_TEXT>);

#[derive(Debug)]
pub(super) struct Pending {
    question: Downscale,
    /// When advisors that did not answer are silent.
    deadline_us: u64,
    is_asked: bool,
    /// What the advisors said: who is against it, if anybody.
    verdict: Option<Option<Against>>,
}

impl Scaling {
    /// Whether somebody of the guest is to be asked about becoming smaller.
    pub fn set_advisors(&mut self, any: bool) {
        self.has_advisors = any;
    }

    /// What the advisors are to be asked: present and proposed size. Once for each question.
    pub(super) fn next_question(&mut self, now_us: u64) -> Option<(Size, Size)> {
        let is_open = self.has_advisors
            && self.pending.as_ref().is_some_and(|pending| !pending.is_asked && !pending.question.forced);
        // What the numbers forbid needs no advice.
        if !is_open || self.decision(now_us)?.outcome != DownscaleOutcome::APPROVED {
            return None;
        }
        let pending = self.pending.as_mut()?;
        pending.is_asked = true;
        Some((pending.question.present, pending.question.wanted))
    }

    /// What all advisors together say of the question that was taken. Of one that is answered by now it has no effect.
    pub(super) fn advised(&mut self, against: Option<Against>) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.is_asked) {
            pending.verdict = Some(against);
        }
    }

    /// When the question must be answered; `u64::MAX`: there is none.
    #[must_use]
    pub fn answer_due_us(&self) -> u64 {
        self.pending.as_ref().map_or(u64::MAX, |pending| pending.deadline_us)
    }

    pub(super) fn ask_downscale(&mut self, question: &Downscale, now_us: u64) {
        let within_ms = question.within_ms.saturating_sub(TRAVEL_MS.min(question.within_ms / 4));
        let within_us = (u64::from(within_ms) * 1000).min(ADVISOR_DEADLINE_S * 1_000_000 + LATE_US);
        // With nothing on its way, what the host says it gives is what the VM has.
        if self.approved.is_none()
            && !self.arrival.is_open()
            && let Some(look) = self.history.newest()
        {
            self.learn_reserve(question.present.memory.0, look.total);
        }
        let deadline_us = now_us.saturating_add(within_us);
        self.pending = Some(Pending { question: *question, deadline_us, is_asked: false, verdict: None });
    }

    fn decision(&self, now_us: u64) -> Option<Decision> {
        let pending = self.pending.as_ref()?;
        let wanted = self.asking.wanted();
        let open = Size {
            cpu: wanted.and_then(|wanted| wanted.cpu).unwrap_or_default(),
            memory: wanted.and_then(|wanted| wanted.memory).unwrap_or_default(),
        };
        let facts = Facts {
            usage: self.history.usage(now_us),
            total: self.history.newest().map_or(0, |look| look.total),
            approved: self.approved,
            demanded: open.max(self.sources.kept()),
        };
        let Downscale { present, wanted, forced, .. } = pending.question;
        Some(decide(&facts, &Question { present, wanted, forced }))
    }

    pub(super) fn answer_downscale(&mut self, now_us: u64) -> Option<DownscaleAnswer<'_>> {
        let mut decision = self.decision(now_us)?;
        let pending = self.pending.as_mut()?;
        self.text.clear();
        if decision.outcome == DownscaleOutcome::APPROVED && !pending.question.forced && self.has_advisors {
            let against = match pending.verdict.take() {
                None if now_us < pending.deadline_us => return None,
                None => Some((DownscaleReason::ADVISOR_SILENT, heapless::String::new())),
                Some(against) => against,
            };
            if let Some((reason, text)) = against {
                (decision.outcome, decision.reason) = (DownscaleOutcome::DENIED, reason);
                decision.retry_after_ms = ADVISOR_AGAIN_MS;
                self.text = text;
            }
        }
        let question = self.pending.take()?.question;
        if decision.outcome == DownscaleOutcome::APPROVED {
            self.arrival.shrinks();
            if question.wanted.memory < question.present.memory && decision.usable_after > 0 {
                // On record before anybody hears of it.
                self.approve(Some(Approved {
                    at_us: now_us,
                    memory: question.wanted.memory.0,
                    total: decision.usable_after,
                }));
            }
        }
        Some(DownscaleAnswer {
            request: question.request,
            outcome: decision.outcome,
            reason: decision.reason,
            usage: decision.usage,
            headroom: decision.headroom,
            limit: decision.limit,
            retry_after_ms: decision.retry_after_ms,
            text: &self.text,
        })
    }
}
