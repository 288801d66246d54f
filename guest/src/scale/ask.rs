//! When a demand is asked: at most once a second, again before it is forgotten, and later where the host said so. Pure.
//!
//! It outlives connections: what was asked of a controller that went is asked of the next one under the same id.

use super::brain::Wanted;
use informant_wire::limits::{DEMAND_EVERY_MS, DEMAND_EXPIRES_MS};
use informant_wire::scale::{DemandAnswer, DemandId, DemandOutcome, DemandReason};
use informant_wire::size::Size;

const EVERY_US: u64 = DEMAND_EVERY_MS * 1000;
/// A demand that was granted comes again after half of its life.
const RENEW_US: u64 = DEMAND_EXPIRES_MS * 1000 / 2;
/// What a host can not give at all is asked for no sooner.
const UNSUPPORTED_US: u64 = 60_000_000;
/// A host says "later", not "never".
const LATEST_US: u64 = 600_000_000;
/// So much more urgency is worth asking again before the time that was told.
const MORE_URGENT: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Demand,
    Withdrawal,
}

/// What became of the last asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When it was asked.
    pub asked_us: u64,
    /// What becomes of it.
    pub outcome: DemandOutcome,
    /// The size that the VM is to have.
    pub granted: Size,
    /// When asking again may help.
    pub again_us: u64,
}

/// The one demand of the VM.
#[derive(Debug)]
pub struct Asking {
    next_id: u64,
    /// What is wanted now; its id lasts as long as the need.
    wanted: Option<Wanted>,
    /// What was asked last, and when.
    asked: Option<(Wanted, u64)>,
    asked_us: Option<u64>,
    flight: Option<Flight>,
    /// Taken back, and not told yet.
    withdrawn: Option<DemandId>,
    outcome: Option<Outcome>,
    due_us: u64,
}

impl Asking {
    /// Nothing is wanted. `seed`: random, so that an agent that was started anew is not taken for its predecessor.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            next_id: seed,
            wanted: None,
            asked: None,
            asked_us: None,
            flight: None,
            withdrawn: None,
            outcome: None,
            due_us: u64::MAX,
        }
    }

    /// What is wanted by now.
    pub fn want(&mut self, wanted: Option<Wanted>, now_us: u64) {
        let soonest_us = self.asked_us.map_or(now_us, |asked_us| asked_us.saturating_add(EVERY_US)).max(now_us);
        match (wanted, &mut self.wanted) {
            (None, None) => {}
            (None, Some(before)) => {
                if self.asked.take().is_some() {
                    self.withdrawn = Some(before.id);
                }
                (self.wanted, self.outcome) = (None, None);
                self.due_us = if self.withdrawn.is_some() { soonest_us } else { u64::MAX };
            }
            (Some(mut wanted), None) => {
                // Taken back, but nobody was told: the need goes on.
                wanted.id = self.withdrawn.take().unwrap_or_else(|| {
                    self.next_id = self.next_id.wrapping_add(1);
                    DemandId(self.next_id)
                });
                self.wanted = Some(wanted);
                self.due_us = soonest_us;
            }
            (Some(mut wanted), Some(before)) => {
                wanted.id = before.id;
                let is_more = |asked: &Wanted| {
                    let disk = |wanted: &Wanted| wanted.disk.as_ref().map(|(_, total)| *total);
                    wanted.cpu > asked.cpu || wanted.memory > asked.memory || disk(&wanted) > disk(asked)
                };
                let is_other = |asked: &Wanted| {
                    wanted.cpu.is_some() && asked.cpu.is_none()
                        || wanted.memory.is_some() && asked.memory.is_none()
                        || wanted.disk.is_some() && asked.disk.is_none()
                };
                // To one who gave nothing, more is no news; that it burns is, and so is what was never asked: a host
                // without disks may have memory.
                let gave_all = self.outcome.is_none_or(|outcome| outcome.outcome == DemandOutcome::GRANTED);
                let is_news = self.asked.as_ref().is_none_or(|(asked, _)| {
                    gave_all && is_more(asked)
                        || is_other(asked)
                        || wanted.urgency >= asked.urgency.saturating_add(MORE_URGENT)
                });
                self.wanted = Some(wanted);
                if is_news {
                    self.due_us = self.due_us.min(soonest_us);
                }
            }
        }
    }

    /// What to ask now.
    pub fn next(&mut self, now_us: u64) -> Option<Wanted> {
        if now_us < self.due_us() {
            return None;
        }
        let asked = if let Some(wanted) = &self.wanted {
            self.asked = Some((wanted.clone(), now_us));
            self.flight = Some(Flight::Demand);
            wanted.clone()
        } else {
            let id = self.withdrawn.take()?;
            self.flight = Some(Flight::Withdrawal);
            Wanted {
                id,
                cpu: None,
                memory: None,
                disk: None,
                urgency: 0,
                reason: DemandReason::WITHDRAWN,
                expires_ms: u32::try_from(DEMAND_EXPIRES_MS).unwrap_or(u32::MAX),
            }
        };
        self.asked_us = Some(now_us);
        self.due_us = if self.wanted.is_some() { now_us.saturating_add(EVERY_US) } else { u64::MAX };
        Some(asked)
    }

    /// When [`Self::next`] has something; not while an answer is waited for.
    #[must_use]
    pub fn due_us(&self) -> u64 {
        if self.flight.is_some() { u64::MAX } else { self.due_us }
    }

    /// It was answered. Whether that was waited for, and the need is still there.
    pub fn answered(&mut self, answer: &DemandAnswer, now_us: u64) -> bool {
        if self.flight.take() != Some(Flight::Demand) {
            return false;
        }
        // Of a need that is over meanwhile, or of one before.
        let (Some(wanted), Some((asked, asked_us))) = (&self.wanted, &self.asked) else { return false };
        if wanted.id != asked.id {
            return false;
        }
        let told_us = u64::from(answer.retry_after_ms) * 1000;
        let after_us = match answer.outcome {
            DemandOutcome::GRANTED => RENEW_US,
            DemandOutcome::UNSUPPORTED => UNSUPPORTED_US.max(told_us),
            _ => EVERY_US.max(told_us),
        };
        self.due_us = now_us.saturating_add(after_us.min(LATEST_US));
        self.outcome = Some(Outcome {
            asked_us: *asked_us,
            outcome: answer.outcome,
            granted: answer.granted,
            again_us: self.due_us,
        });
        true
    }

    /// It was not answered, or the controller is gone: the next is asked, a second after the last asking.
    pub fn unanswered(&mut self, now_us: u64) {
        (self.flight, self.outcome) = (None, None);
        if self.wanted.is_some() {
            self.due_us = self.asked_us.map_or(now_us, |asked_us| asked_us.saturating_add(EVERY_US)).max(now_us);
        }
    }

    /// What is wanted, asked or not.
    #[must_use]
    pub const fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// What became of the last asking, as far as it answers who wants this since then; none while that is waited for. That
    /// there is no more, or nothing of that kind, holds for whoever comes later too, for as long as the host is not to
    /// be asked again.
    #[must_use]
    pub fn outcome_for(&self, wanted: &Wanted, since_us: u64, now_us: u64) -> Option<Outcome> {
        let (outcome, (asked, _)) = (self.outcome?, self.asked.as_ref()?);
        let stands = matches!(outcome.outcome, DemandOutcome::UNSUPPORTED | DemandOutcome::AT_MAXIMUM)
            && now_us < outcome.again_us
            && (wanted.cpu.is_none() || asked.cpu.is_some())
            && (wanted.memory.is_none() || asked.memory.is_some())
            && (wanted.disk.is_none() || asked.disk.is_some());
        (stands || outcome.asked_us >= since_us).then_some(outcome)
    }
}

#[cfg(test)]
mod tests;
