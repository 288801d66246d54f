//! What the guest says and what is said to it.

use super::{Desk, ListRequest, OpenDemand, Phase, QUESTION_MS, TRAVEL_US, Turn};
use crate::model::{Now, SECOND_US};
use crate::publish::scaling;
use informant_wire::frame::EncodeError;
use informant_wire::hello::Role;
use informant_wire::id::SessionId;
use informant_wire::limits::{DEMAND_EXPIRES_MS, RESUME_DEADLINE_S};
use informant_wire::scale::{
    Applied, AppliedOutcome, Controllers, Demand, DemandAnswer, DemandOutcome, Downscale, DownscaleAnswer,
    DownscaleOutcome, DownscaleReason, ListControllers, RequestId, Resized, Resume, RoleAnswer, Seen, Stale, Suspend,
    Unregistered,
};
use informant_wire::size::Size;
use tokio::sync::oneshot;

/// A guest that is at its maximum should not ask again sooner.
const AT_MAXIMUM_RETRY_MS: u32 = 5000;
/// What this host can not give at all.
const UNSUPPORTED_RETRY_MS: u32 = 60_000;
/// Something is under way or not known yet, as whether the session is proven.
const BUSY_RETRY_MS: u32 = 1000;
/// Demands that live longer than this unless renewed are cut to it, whatever the guest says.
const LONGEST_DEMAND_MS: u64 = DEMAND_EXPIRES_MS;
/// Questions for the controllers that wait for one answer.
const MAX_LISTS: usize = 8;

/// What a guest says about scaling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// See the wire's.
    Suspend(Suspend),
    /// See the wire's.
    Resume(Resume),
    /// See the wire's.
    Demand(Demand<'a>),
    /// See the wire's.
    Applied(Applied),
    /// See the wire's.
    DownscaleAnswer(DownscaleAnswer<'a>),
    /// See the wire's.
    Stale(Stale),
    /// See the wire's.
    Controllers(Controllers<'a>),
    /// See the wire's.
    Unregistered(Unregistered),
}

/// What is said to a guest about scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// See the wire's.
    RoleAnswer(RoleAnswer),
    /// See the wire's.
    DemandAnswer(DemandAnswer),
    /// See the wire's.
    Resized(Resized),
    /// See the wire's.
    Downscale(Downscale),
    /// See the wire's.
    ListControllers(ListControllers),
}

impl Message {
    /// Writes the frame.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        match self {
            Self::RoleAnswer(message) => message.encode(out),
            Self::DemandAnswer(message) => message.encode(out),
            Self::Resized(message) => message.encode(out),
            Self::Downscale(message) => message.encode(out),
            Self::ListControllers(message) => message.encode(out),
        }
    }
}

impl Desk {
    /// A session that takes part in the conversation has begun.
    pub fn opened(&mut self, session: SessionId) {
        self.sessions.push((session, RequestId::FIRST_OF_HOST));
    }

    /// A session is over: what was asked on it is void, what the guest wants is not.
    pub fn closed(&mut self, session: SessionId, now: Now) {
        self.sessions.retain(|(other, _)| *other != session);
        if self.draining.is_some_and(|(draining, _)| draining == session) {
            self.draining = None;
        }
        self.list = self.list.take().filter(|list| list.session != session);
        if self.turn.is_some_and(|turn| turn.session == session) {
            self.end_turn(now);
        }
    }

    /// What was asked in the turn is void, and what was decided in it is not done any more: another host may decide by
    /// now. Only a call to the VMM that is under way can not be taken back, and what a person forces goes on.
    fn end_turn(&mut self, now: Now) {
        self.turn = None;
        self.changed = true;
        match self.phase {
            Phase::Asking { .. } => {
                self.counters.message("downscale", "void");
                self.enter(Phase::Idle, now);
            }
            Phase::Resizing { .. } if !self.is_telling() && !self.is_forced() => self.enter(Phase::Idle, now),
            Phase::Settling { wanted, was, told, until_us, .. } => {
                if told.is_some() {
                    self.counters.message("resized", "void");
                }
                self.owes_guest = true;
                let goes_on = Phase::Settling { wanted, was, told: None, guest: None, until_us };
                self.enter(if self.is_forced() { goes_on } else { Phase::Idle }, now);
            }
            Phase::Idle | Phase::Resizing { .. } => {}
        }
    }

    pub(super) fn say(&mut self, session: SessionId, message: Message) {
        self.says.push((session, message));
    }

    /// The next request id on a session.
    pub(super) fn request(&mut self, session: SessionId) -> Option<RequestId> {
        let (_, next) = self.sessions.iter_mut().find(|(other, _)| *other == session)?;
        let request = *next;
        *next = request.next();
        Some(request)
    }

    /// The guest said something. `trusted`: root in the guest is proven to speak on this session.
    pub fn heard(&mut self, session: SessionId, trusted: bool, said: &Said<'_>, now: Now) {
        if !self.sessions.iter().any(|(known, _)| *known == session) {
            return;
        }
        self.trusted = trusted;
        match said {
            Said::Resume(resume) => self.resume(session, resume, now),
            Said::Suspend(suspend) => {
                self.draining = Some((session, suspend.request));
                self.changed = true;
            }
            Said::Demand(demand) => self.demand(session, demand, now),
            Said::Applied(applied) if trusted && self.is_turn(session) => self.applied(applied, now),
            Said::DownscaleAnswer(answer) if trusted && self.is_turn(session) => self.answered(answer, now),
            Said::Stale(stale) => self.stale(session, stale, now),
            Said::Controllers(list) => self.listed(session, list),
            // This host leaves with its Bye, and waits for nothing.
            Said::Unregistered(_) => {}
            // Also of who is not proven to speak for the VM.
            Said::Applied(_) | Said::DownscaleAnswer(_) => self.counters.message("late", "ignored"),
        }
        self.advance(now);
    }

    fn is_turn(&self, session: SessionId) -> bool {
        self.turn.is_some_and(|turn| turn.session == session)
    }

    fn resume(&mut self, session: SessionId, resume: &Resume, now: Now) {
        if self.draining.is_some_and(|(draining, _)| draining == session) {
            self.draining = None;
        }
        self.end_turn(now);
        self.turn = Some(Turn { session, epoch: resume.epoch });
        self.counters.message("resume", "accepted");
        self.say(session, Message::RoleAnswer(RoleAnswer { request: resume.request, accepted: true }));
        // What this host believes of the guest may be of another life: it is told what the VMM is to give, once it is
        // proven.
        self.owes_guest = true;
        self.settle_again_us = now.mono_us;
    }

    /// Answers that the turn is over, once nothing is under way that could change the VM behind it.
    pub(super) fn drain(&mut self, now: Now) {
        let Some((session, request)) = self.draining else { return };
        if self.is_telling() {
            return;
        }
        self.draining = None;
        if self.is_turn(session) {
            self.end_turn(now);
        }
        self.counters.message("suspend", "drained");
        self.say(session, Message::RoleAnswer(RoleAnswer { request, accepted: true }));
    }

    fn demand(&mut self, session: SessionId, demand: &Demand<'_>, now: Now) {
        let answer = |desk: &mut Self, outcome: DemandOutcome, granted, retry_after_ms| {
            desk.counters.message("demand", outcome.name().unwrap_or("other"));
            desk.say(
                session,
                Message::DemandAnswer(DemandAnswer { request: demand.request, outcome, granted, retry_after_ms }),
            );
        };
        let wish = self.promised(now);
        if !self.trusted || !self.is_turn(session) {
            return answer(self, DemandOutcome::DENIED, wish.unwrap_or_default(), BUSY_RETRY_MS);
        }
        if demand.is_withdrawal() {
            self.demand = None;
            self.changed = true;
            self.counters.message("demand", "withdrawn");
            let granted = wish.unwrap_or_default();
            let answer =
                DemandAnswer { request: demand.request, outcome: DemandOutcome::GRANTED, granted, retry_after_ms: 0 };
            return self.say(session, Message::DemandAnswer(answer));
        }
        self.remember(demand, now);
        self.advance(now);
        let (outcome, granted, retry_after_ms) = self.outcome(wish, now);
        if let Some(open) = &mut self.demand {
            open.answer = Some(outcome);
        }
        answer(self, outcome, granted, retry_after_ms);
    }

    fn remember(&mut self, demand: &Demand<'_>, now: Now) {
        let expires_us = now.mono_us.saturating_add(u64::from(demand.expires_ms).min(LONGEST_DEMAND_MS) * 1000);
        let before = self.demand.take().filter(|open| open.id == demand.id);
        let wanted = Size { cpu: demand.cpu.unwrap_or_default(), memory: demand.memory.unwrap_or_default() };
        let lacks = before.as_ref().and_then(|open| open.lacks).unwrap_or(now);
        let asked =
            if self.is_telling() { self.promised(now) } else { self.reported(now).map(|reported| reported.wish) };
        self.demand = Some(OpenDemand {
            id: demand.id,
            cpu: demand.cpu,
            memory: demand.memory,
            disk: demand.disk.map(|disk| (disk.mount.escape_ascii().to_string(), disk.total)),
            urgency: demand.urgency,
            reason: demand.reason,
            first: before.as_ref().map_or(now, |open| open.first),
            renewed: now,
            expires_us,
            answer: before.as_ref().and_then(|open| open.answer),
            lacks: asked.is_none_or(|asked| !asked.covers(wanted)).then_some(lacks),
        });
        self.changed = true;
    }

    /// What the VMM was asked to give, or is about to be.
    fn promised(&self, now: Now) -> Option<Size> {
        let wish = self.reported(now)?.wish;
        Some(match self.phase {
            Phase::Resizing { wanted, .. } => wanted,
            _ => wish,
        })
    }

    /// What becomes of the open demand. `before`: what the VMM was asked to give when it came.
    fn outcome(&self, before: Option<Size>, now: Now) -> (DemandOutcome, Size, u32) {
        let nothing = Size::default();
        let Some(demand) = &self.demand else { return (DemandOutcome::DENIED, nothing, BUSY_RETRY_MS) };
        let Some(settings) = &self.settings else { return (DemandOutcome::UNSUPPORTED, nothing, UNSUPPORTED_RETRY_MS) };
        let (Some(before), Some(reported)) = (before, self.reported(now)) else {
            return (DemandOutcome::DENIED, nothing, BUSY_RETRY_MS);
        };
        let granted = self.promised(now).unwrap_or(reported.wish);
        let wanted = Size { cpu: demand.cpu.unwrap_or_default(), memory: demand.memory.unwrap_or_default() };
        if demand.cpu.is_none() && demand.memory.is_none() {
            return (DemandOutcome::UNSUPPORTED, granted, UNSUPPORTED_RETRY_MS);
        }
        let can = reported.can;
        let most = can.clamp(settings.bounds.max);
        // What is lacking: can it never be had, not now for it is at its most, or later?
        let lacking = [
            (wanted.cpu > granted.cpu, can.cpu.is_fixed(), granted.cpu >= most.cpu),
            (wanted.memory > granted.memory, can.memory.is_fixed(), granted.memory >= most.memory),
        ];
        let mut lacking = lacking.into_iter().filter(|(lacks, ..)| *lacks);
        let fixed = lacking.clone().all(|(_, fixed, _)| fixed);
        let at_maximum = lacking.all(|(_, fixed, most)| fixed || most);
        if granted.covers(wanted) {
            (DemandOutcome::GRANTED, granted, 0)
        } else if granted != before && granted.covers(before) {
            (DemandOutcome::PARTIAL, granted, if at_maximum { AT_MAXIMUM_RETRY_MS } else { BUSY_RETRY_MS })
        } else if fixed || settings.policy.is_none() {
            (DemandOutcome::UNSUPPORTED, granted, UNSUPPORTED_RETRY_MS)
        } else if at_maximum {
            (DemandOutcome::AT_MAXIMUM, granted, AT_MAXIMUM_RETRY_MS)
        } else {
            (DemandOutcome::DENIED, granted, BUSY_RETRY_MS)
        }
    }

    /// Asks the guest whether it may become smaller.
    pub(super) fn ask(&mut self, was: Size, wanted: Size, forced: bool, now: Now) {
        let Some(turn) = self.turn else { return };
        let Some(request) = self.request(turn.session) else { return };
        let question = Downscale { request, epoch: turn.epoch, present: was, wanted, forced, within_ms: QUESTION_MS };
        self.counters.message("downscale", "asked");
        self.say(turn.session, Message::Downscale(question));
        let until_us = now.mono_us + u64::from(QUESTION_MS) * 1000 + SECOND_US;
        self.enter(Phase::Asking { request, wanted, was, forced, until_us }, now);
        self.leg = now;
    }

    fn answered(&mut self, answer: &DownscaleAnswer<'_>, now: Now) {
        let Phase::Asking { request, wanted, was, forced, .. } = self.phase else {
            return self.counters.message("late", "ignored");
        };
        if request != answer.request {
            return self.counters.message("late", "ignored");
        }
        self.counters.question.took(now.since_us(self.leg));
        self.counters.message("downscale", answer.outcome.name().unwrap_or("other"));
        let why = explain(answer);
        if answer.outcome == DownscaleOutcome::APPROVED || forced {
            self.counters.approved.count(was, wanted);
            self.narrate(
                if answer.outcome == DownscaleOutcome::APPROVED {
                    format!("the guest agrees: {why}")
                } else {
                    format!("the guest is against it ({why}); forced")
                },
                now,
            );
            return self.begin_resizing(was, wanted, now);
        }
        let retry_us = u64::from(answer.retry_after_ms.clamp(500, 60_000)) * 1000;
        self.enter(Phase::Idle, now);
        if answer.outcome == DownscaleOutcome::DENIED {
            self.counters.denied.count(was, wanted);
            self.denied = Some((now, wanted, why.clone()));
        } else {
            self.not_before_us = now.mono_us + retry_us;
        }
        let said = match answer.outcome {
            DownscaleOutcome::DENIED => "the guest refuses",
            DownscaleOutcome::NOT_READY => "the guest is not ready to say",
            _ => "the guest can not say",
        };
        self.finish_command(false, format!("{said}: {why}"), now);
    }

    /// Tells the guest what the VMM gives.
    pub(super) fn tell(&mut self, was: Size, wanted: Size, now: Now) -> Option<RequestId> {
        let turn = self.turn?;
        let request = self.request(turn.session)?;
        let until_us = match self.phase {
            Phase::Settling { until_us, .. } => until_us,
            _ => now.mono_us,
        };
        let within_us = until_us.saturating_sub(now.mono_us).saturating_sub(TRAVEL_US).max(SECOND_US);
        let within_ms = u32::try_from(within_us / 1000).unwrap_or(u32::MAX);
        self.counters.message("resized", "told");
        self.say(turn.session, Message::Resized(Resized { request, epoch: turn.epoch, was, now: wanted, within_ms }));
        Some(request)
    }

    fn applied(&mut self, applied: &Applied, now: Now) {
        self.guest = Some(applied.seen);
        self.changed = true;
        let Phase::Settling { told, guest, .. } = &mut self.phase else {
            return self.counters.message("late", "ignored");
        };
        if *told != Some(applied.request) {
            return self.counters.message("late", "ignored");
        }
        self.counters.message("resized", applied.outcome.name().unwrap_or("other"));
        match applied.outcome {
            AppliedOutcome::APPLIED => {
                *guest = Some(applied.seen);
                self.counters.vmm_to_applied.took(now.since_us(self.leg));
                self.narrate(format!("the guest has it: {}", shown(applied.seen)), now);
            }
            outcome => {
                let cause = applied.cause.name().unwrap_or("unknown").replace('_', " ");
                let cause = format!("the guest has {}: {cause}", shown(applied.seen));
                if outcome == AppliedOutcome::FAILED {
                    self.end_stuck("guest_failed", cause, now);
                } else {
                    self.cause = Some(cause);
                }
            }
        }
    }

    fn stale(&mut self, session: SessionId, stale: &Stale, now: Now) {
        self.counters.message("stale", "received");
        // Another host decides: what was asked is void.
        if self.turn.is_some_and(|turn| turn.session == session && turn.epoch != stale.current) {
            self.end_turn(now);
        }
    }

    /// Asks the agent which hosts it has. `false`: there is no session that could be asked.
    pub fn list(&mut self, answer: oneshot::Sender<Vec<scaling::Controller>>, now: Now) -> bool {
        if let Some(list) = self.list.as_mut().filter(|list| now.mono_us < list.until_us) {
            if list.lists.len() < MAX_LISTS {
                list.lists.push(answer);
            }
            return true;
        }
        let Some((session, _)) = self.sessions.last().copied() else { return false };
        let Some(request) = self.request(session) else { return false };
        self.say(session, Message::ListControllers(ListControllers { request }));
        let until_us = now.mono_us + RESUME_DEADLINE_S * SECOND_US;
        self.list = Some(ListRequest { session, request, lists: vec![answer], until_us });
        true
    }

    fn listed(&mut self, session: SessionId, said: &Controllers<'_>) {
        let asked = self.list.take_if(|list| list.session == session && list.request == said.request);
        let Some(asked) = asked else { return self.counters.message("late", "ignored") };
        let role = |role| match role {
            Role::CONTROLLER => "controller".to_owned(),
            Role::OBSERVER => "observer".to_owned(),
            Role(other) => format!("unknown({other})"),
        };
        let list: Vec<_> = said
            .list
            .iter()
            .map(|c| scaling::Controller {
                id: c.id.to_string(),
                role: role(c.role),
                name: c.name.to_owned(),
                current: c.current,
                epoch: c.epoch.0,
                heard_ms: c.heard_ms,
            })
            .collect();
        for waiting in asked.lists {
            let _gone = waiting.send(list.clone());
        }
    }
}

/// What the guest's kernel has, for people.
pub(super) fn shown(seen: Seen) -> String {
    let cpus = if seen.cpus == 1 { "" } else { "s" };
    format!("{} CPU{cpus} online, MemTotal {}", seen.cpus, seen.memory_total)
}

fn explain(answer: &DownscaleAnswer<'_>) -> String {
    let numbers = || format!("{} in use and {} to spare", answer.usage, answer.headroom);
    match answer.reason {
        DownscaleReason::ROOM => format!("{} fit into {}", numbers(), answer.limit),
        DownscaleReason::MEMORY_IN_USE => format!("{} do not fit into {}", numbers(), answer.limit),
        DownscaleReason::ADVISOR => format!("an advisor: {}", answer.text.escape_debug()),
        DownscaleReason::TOO_FEW_SAMPLES => "it has not looked often enough yet".into(),
        DownscaleReason::NO_SAMPLES => "its sensors are dead".into(),
        DownscaleReason::NO_MEMORY_TAKEN => "no memory is taken".into(),
        DownscaleReason::FORCED => format!("forced, with {}", numbers()),
        DownscaleReason::DEMAND_OPEN => "it wants more itself".into(),
        DownscaleReason::ADVISOR_SILENT => "an advisor was silent".into(),
        other => format!("unknown({}), {}", other.0, answer.text.escape_debug()),
    }
}
