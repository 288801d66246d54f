//! What to do next: the step from what is known to the one thing that is begun.

use super::{
    AFTER_FAILURE_US, Act, Desk, OBSERVE_EVERY_US, OBSERVE_SETTLING_US, OBSERVE_UNKNOWN_US, Phase, RESIZE_EVERY_US,
    SETTLE_US, STUCK_US,
};
use crate::model::Now;
use crate::scale::policy::{self, Inputs};
use crate::vmm::Reported;
use informant_wire::size::Size;

impl Desk {
    /// Time goes by. `sample`: the newest values of the guest, if they are fresh; `trusted`: whether who sent them is
    /// proven to speak for the VM.
    pub fn tick(&mut self, sample: Option<policy::Sample>, trusted: bool, now: Now) {
        self.sample = sample.filter(|_| trusted);
        self.trusted = trusted;
        if let Some(reported) = self.reported(now) {
            self.trend.saw(now.mono_us, self.sample.as_ref(), reported.wish);
        }
        self.advance(now);
    }

    /// When [`Self::tick`] is due at the latest, microseconds of [`Now::mono_us`].
    #[must_use]
    pub fn deadline_us(&self, now: Now) -> u64 {
        let next = match self.phase {
            Phase::Idle => self.observe_at_us,
            Phase::Asking { until_us, .. } | Phase::Settling { until_us, .. } => until_us.min(self.observe_at_us),
            // It is not asked what is true before it was told.
            Phase::Resizing { not_before_us, .. } => not_before_us,
        };
        next.clamp(now.mono_us + 20_000, now.mono_us + 1_000_000)
    }

    /// What is to be asked of the VMM next; the answer comes with [`Self::observed`] or [`Self::resized`].
    pub fn take_act(&mut self, now: Now) -> Option<Act> {
        if self.settings.is_none() || self.acting.is_some() {
            return None;
        }
        let act = match self.phase {
            Phase::Resizing { wanted, not_before_us, .. } if now.mono_us >= not_before_us => Act::Resize(wanted),
            Phase::Resizing { .. } => return None,
            _ if now.mono_us >= self.observe_at_us => Act::Observe,
            _ => return None,
        };
        if act == Act::Observe {
            self.observed_us = now.mono_us;
        } else {
            self.resized_us = Some(now.mono_us);
            if let Phase::Resizing { wanted, was, .. } = self.phase
                && wanted.max(was) != was
                && let Some(since) = self.demand.as_mut().and_then(|demand| demand.lacks.take())
            {
                self.counters.demand_to_vmm.took(now.since_us(since));
            }
            self.leg = now;
        }
        self.acting = Some((act, now));
        Some(act)
    }

    /// Does what is due.
    pub(super) fn advance(&mut self, now: Now) {
        self.expire(now);
        self.drain(now);
        if self.settings.is_none() || self.is_telling() {
            return;
        }
        let Some(reported) = self.reported(now) else {
            // Where there is an agent there is a VMM: its first answer is what demands wait for.
            let every_us = if self.turn.is_some() { OBSERVE_UNKNOWN_US } else { OBSERVE_EVERY_US };
            self.observe_at_us = self.observe_at_us.min(self.observed_us.saturating_add(every_us)).max(now.mono_us);
            return;
        };
        match self.phase {
            Phase::Idle => self.choose(&reported, now),
            Phase::Asking { wanted, was, forced, until_us, .. } => {
                if self.goal(&reported, now).is_some_and(|(goal, _)| goal.max(was) != was) {
                    // Something needs more by now: the question is void, and its answer will be late.
                    self.counters.message("downscale", "void");
                    self.enter(Phase::Idle, now);
                    self.choose(&reported, now);
                } else if now.mono_us >= until_us {
                    self.counters.message("downscale", "timeout");
                    if forced {
                        self.narrate("the guest does not answer; forced".into(), now);
                        self.begin_resizing(was, wanted, now);
                    } else {
                        self.not_before_us = now.mono_us + AFTER_FAILURE_US;
                        self.enter(Phase::Idle, now);
                        self.finish_command(false, "the guest does not answer".into(), now);
                    }
                }
            }
            // Told to nobody yet: what is needed by now is more than what was decided.
            Phase::Resizing { wanted, .. } => {
                if self.goal(&reported, now).is_some_and(|(goal, _)| goal.max(wanted) != wanted) {
                    self.enter(Phase::Idle, now);
                    self.choose(&reported, now);
                }
            }
            Phase::Settling { was, wanted, .. } => self.settle(was, wanted, &reported, now),
        }
    }

    /// Whether the VMM is being told a size.
    pub(super) fn is_telling(&self) -> bool {
        self.acting.is_some_and(|(act, _)| act != Act::Observe)
    }

    fn expire(&mut self, now: Now) {
        if self.demand.as_ref().is_some_and(|demand| now.mono_us >= demand.expires_us) {
            self.demand = None;
            self.changed = true;
        }
        if self.held.is_some_and(|(_, until)| now.mono_us >= until.mono_us) {
            self.held = None;
            self.changed = true;
        }
        if self.list.as_ref().is_some_and(|list| now.mono_us >= list.until_us) {
            self.list = None;
        }
        self.expire_command(now);
    }

    /// What the VM should have, and why; `None`: as it is.
    fn goal(&self, reported: &Reported, now: Now) -> Option<(Size, String)> {
        let settings = self.settings.as_ref()?;
        if let Some(command) = &self.command {
            return Some((command.target(reported.wish), "a person asked for it".into()));
        }
        if !self.decides() {
            return None;
        }
        let most = reported.can.clamp(settings.bounds.max);
        let bounds = policy::Bounds { min: reported.can.clamp(settings.bounds.min), max: most };
        let demand = self.demand.as_ref().map(|demand| policy::Wanted {
            cpu: demand.cpu,
            memory: demand.memory,
            urgency: demand.urgency,
            at_us: demand.renewed.mono_us,
            base: None,
        });
        if let Some((held, _)) = self.held {
            let wanted = demand.map_or(held, |demand| Size {
                cpu: demand.cpu.unwrap_or_default().max(held.cpu),
                memory: demand.memory.unwrap_or_default().max(held.memory),
            });
            return Some((wanted.min(most).max(held), "held where a person put it".into()));
        }
        let policy = settings.policy.as_ref()?;
        let decision = policy.decide(&Inputs {
            now_us: now.mono_us,
            sample: self.sample.clone(),
            present: reported.wish,
            bounds,
            demand,
            denied: self.denied.as_ref().map(|(at, size, _)| policy::Denied { at_us: at.mono_us, size: *size }),
            cache: None,
            trend: self.trend.clone(),
        })?;
        Some((reported.can.clamp(decision.wanted), decision.reason.to_string()))
    }

    fn choose(&mut self, reported: &Reported, now: Now) {
        let wish = reported.wish;
        let goal = self.goal(reported, now);
        if let Some((goal, reason)) = &goal
            && goal.max(wish) != wish
            && now.mono_us >= self.retry_at_us(goal.max(wish), now)
            && (now.mono_us >= self.failed_until_us || self.command.is_some())
        {
            if self.turn.is_none() && !self.sessions.is_empty() && self.command.is_some() && !self.is_forced() {
                return self.finish_command(false, self.why_nobody_agrees().into(), now);
            }
            let up = goal.max(wish);
            self.counters.requested.count(wish, up);
            self.counters.approved.count(wish, up);
            self.last = Some((now, wish, up, reason.clone()));
            return self.begin_resizing(wish, up, now);
        }
        // What has not arrived is looked after before anything is taken away.
        if (!reported.is_settled() || self.owes_guest) && self.decides() && now.mono_us >= self.settle_again_us {
            return self.begin_settling(reported, now);
        }
        let Some((goal, reason)) = goal else { return };
        if goal.max(wish) != wish || goal == wish {
            if goal == wish && reported.is_settled() {
                let done = if self.decides() {
                    format!("it has {wish}")
                } else {
                    format!("the VMM gives {wish}; no agent says what came of it")
                };
                self.finish_command(true, done, now);
            }
            return;
        }
        let forced = self.is_forced();
        if !self.decides() {
            if forced {
                self.narrate("no agent that is proven to speak for the VM is asked: forced".into(), now);
                self.last = Some((now, wish, goal, reason));
                return self.begin_resizing(wish, goal, now);
            }
            return self.finish_command(false, self.why_nobody_agrees().into(), now);
        }
        if now.mono_us < self.not_before_us && self.command.is_none() {
            return;
        }
        if now.mono_us < self.retry_at_us(goal, now) {
            return;
        }
        self.counters.requested.count(wish, goal);
        self.last = Some((now, wish, goal, reason));
        self.narrate(format!("asking the guest whether it can do with {goal}"), now);
        self.ask(wish, goal, forced, now);
    }

    /// Where this host does not decide.
    fn why_nobody_agrees(&self) -> &'static str {
        if self.sessions.is_empty() {
            "no agent that could agree is connected; --force does without"
        } else if self.turn.is_none() || self.draining.is_some() {
            "another host decides about this VM (`controllers` tells which); --force does it all the same"
        } else {
            "the agent is not proven to speak for the VM yet; --force does without"
        }
    }

    fn retry_at_us(&self, wanted: Size, now: Now) -> u64 {
        now.mono_us.saturating_add(self.retry.wait_us(wanted, now))
    }

    pub(super) fn begin_resizing(&mut self, was: Size, wanted: Size, now: Now) {
        self.narrate(format!("telling the VMM: {was} becomes {wanted}"), now);
        let not_before_us =
            self.resized_us.map_or(0, |told_us| told_us.saturating_add(RESIZE_EVERY_US)).max(now.mono_us);
        self.enter(Phase::Resizing { wanted, was, not_before_us, tries: 0 }, now);
    }

    /// Waits until VMM and guest have what the VMM was asked to give; told to the guest again.
    fn begin_settling(&mut self, reported: &Reported, now: Now) {
        self.owes_guest = false;
        let until_us = now.mono_us + SETTLE_US;
        let (was, wanted) = (reported.has, reported.wish);
        self.enter(Phase::Settling { wanted, was, told: None, guest: None, until_us }, now);
        self.leg = now;
        // A guest that begins turn after turn does not set how often the VMM is asked.
        self.observe_at_us = now.mono_us.max(self.observed_us.saturating_add(OBSERVE_SETTLING_US));
        self.settle(was, wanted, reported, now);
    }

    fn settle(&mut self, was: Size, wanted: Size, reported: &Reported, now: Now) {
        let Phase::Settling { told, guest, until_us, .. } = self.phase else { return };
        if !self.decides() && self.command.is_none() {
            // The VMM was told in a turn that has ended meanwhile: who decides then looks after it.
            self.owes_guest = true;
            return self.enter(Phase::Idle, now);
        }
        if let Some((goal, _)) = self.goal(reported, now)
            && goal.max(wanted) != wanted
        {
            // More is wanted before this has arrived.
            self.enter(Phase::Idle, now);
            return self.choose(reported, now);
        }
        // Of less the guest is told when it is gone: while the VMM takes it, what the guest sees changes.
        let shrinks = was.max(wanted) != wanted;
        let failed = if shrinks { "vmm_did_not_take" } else { "vmm_did_not_give" };
        if reported.wish != wanted {
            let what = format!("the VMM was asked for {wanted} and is to be {} now", reported.wish);
            self.end_stuck(failed, what, now);
            self.settle_again_us = now.mono_us;
            return;
        }
        let arrived = reported.is_settled();
        if told.is_none() && self.decides() && (arrived || !shrinks) {
            let request = self.tell(was, wanted, now);
            if let Phase::Settling { told, .. } = &mut self.phase {
                *told = request;
            }
        } else if arrived && guest.is_some() {
            if let Some(from) = self.uncounted.take() {
                self.counters.applied.count(from, wanted);
            }
            self.stuck = None;
            self.enter(Phase::Idle, now);
            return self.choose(reported, now);
        } else if arrived && !self.decides() {
            // A person wanted it without anybody in the guest who could say more.
            self.owes_guest = true;
            self.enter(Phase::Idle, now);
            return self.choose(reported, now);
        }
        if now.mono_us < until_us {
            return;
        }
        if told.is_some() && guest.is_none() {
            self.counters.message("resized", "timeout");
        }
        if arrived {
            let cause = self.cause.take().map(|cause| format!(" ({cause})")).unwrap_or_default();
            let what = format!("the VMM gives {wanted}, and the guest does not say that it has it{cause}");
            self.end_stuck("guest_silent", what, now);
        } else {
            self.end_stuck(failed, format!("the VMM was asked for {wanted} and gives {}", reported.has), now);
            if shrinks && self.decides() {
                self.take_back(reported, now);
            }
        }
    }

    /// The wish becomes what the VM has kept. Else its memory would go at any later moment at which it happens to be
    /// free, though nobody has asked the guest again.
    fn take_back(&mut self, reported: &Reported, now: Now) {
        let kept = reported.has.max(reported.wish);
        if let Ok(kept) = reported.can.target(kept)
            && kept != reported.wish
        {
            self.not_before_us = now.mono_us + STUCK_US;
            self.begin_resizing(reported.wish, kept, now);
        }
    }

    /// A change has not come to its end; it is looked after again later.
    pub(super) fn end_stuck(&mut self, reason: &str, what: String, now: Now) {
        self.counters.stuck(reason);
        self.settle_again_us = now.mono_us + STUCK_US;
        self.owes_guest = true;
        self.enter(Phase::Idle, now);
        self.finish_command(false, format!("stuck: {what}"), now);
        self.stuck = Some(what);
    }

    /// When the VMM is asked again.
    pub(super) fn observe_later(&mut self, now: Now) {
        let every_us =
            if matches!(self.phase, Phase::Settling { .. }) { OBSERVE_SETTLING_US } else { OBSERVE_EVERY_US };
        self.observe_at_us = now.mono_us + every_us;
    }
}
