//! The scaling conversation across all sessions: carries words between them, the registry that says who decides, and
//! the brain that knows what this guest wants.

use super::{Context, Host, Hosts};
use crate::link::session::{Notice, Session};
use crate::scale::controllers::Key;
use informant_wire::scale::{Epoch, RequestId};

/// The brain does not make the loop look for a demand more often.
const DEMAND_LOOK_US: u64 = 10_000;

impl Hosts {
    /// A session began and may stay.
    pub(super) fn register(&mut self, at: usize, context: &mut Context<'_>) {
        let Some(Host { key, session, .. }) = self.hosts.get(at) else { return };
        let (role, id) = (session.role(), session.controller());
        // There is room: no more sessions than the registry holds may stay.
        self.registry.welcomed(*key, role, id, session.peer_name(), context.now_us);
    }

    /// A session took something that is of this conversation.
    pub(super) fn talked(&mut self, at: usize, notice: &Notice, context: &mut Context<'_>) {
        let Some(Host { key, session, .. }) = self.hosts.get_mut(at) else { return };
        let (key, now_us) = (*key, context.now_us);
        match notice {
            Notice::Role { step, epoch, accepted } => {
                // A session that was told of a turn in time and answers when it is over has nothing to say any more.
                if !self.registry.answered(key, *step, *epoch, *accepted, now_us) {
                    session.note_late_answer();
                }
            }
            Notice::Demand(answer) => {
                if !self.asking.answered(key, &self.registry) {
                    return session.note_late_answer();
                }
                let counts = &mut context.own.scaling.demands_answered;
                let known = usize::from(answer.outcome.0) < counts.len();
                if let Some(count) = counts.get_mut(if known { usize::from(answer.outcome.0) } else { 0 }) {
                    *count += 1;
                }
                context.brain.demand_answered(answer, now_us);
            }
            Notice::Resized(told) => {
                if self.may_command(at, told.request, told.epoch, context) {
                    context.brain.resized(told, now_us);
                }
            }
            Notice::Downscale(question) => {
                if self.may_command(at, question.request, question.epoch, context) {
                    context.brain.downscale(question, now_us);
                }
            }
            Notice::Bye => {
                let was_current = self.registry.bye(key, now_us);
                session.unregister(was_current, now_us);
            }
            Notice::Welcomed { .. } | Notice::Acknowledged { .. } | Notice::Prove(_) => {}
        }
    }

    fn may_command(&mut self, at: usize, request: RequestId, epoch: Epoch, context: &mut Context<'_>) -> bool {
        let Some(Host { key, session, .. }) = self.hosts.get_mut(at) else { return false };
        match self.registry.may_command(*key, epoch) {
            Ok(()) => {
                context.own.scaling.commands += 1;
                session.commanded(request);
                true
            }
            Err(current) => {
                context.own.scaling.stale_commands += 1;
                session.stale(request, current);
                false
            }
        }
    }

    /// Goes on with what time, sessions and the brain have brought. What is to be sent then goes out in the next
    /// wake-up, which follows at once.
    pub(super) fn converse(&mut self, context: &mut Context<'_>) {
        let now_us = context.now_us;
        self.registry.check(now_us);
        self.note_turn(context);
        while let Some(action) = self.registry.next_action() {
            if let Some(session) = session_of(&mut self.hosts, action.key) {
                session.tell(action.step, action.epoch);
                context.serve_again = true;
            }
        }
        if let Some(key) = self.asking.check(&self.registry, now_us) {
            if let Some(session) = session_of(&mut self.hosts, key) {
                session.unask();
            }
            context.own.scaling.demands_unanswered += 1;
            context.brain.demand_unanswered(now_us);
        }
        if let Some(key) = self.asking.may_ask(&self.registry)
            && let Some(session) = session_of(&mut self.hosts, key)
        {
            if let Some(wanted) = context.brain.demand(now_us) {
                session.ask(wanted);
                self.asking.asked(&self.registry, now_us);
                context.serve_again = true;
            }
            self.demand_from_us = now_us + DEMAND_LOOK_US;
        }
        if let Some((key, _)) = self.registry.holder()
            && let Some(session) = session_of(&mut self.hosts, key)
        {
            if let Some(applied) = context.brain.applied(now_us) {
                context.serve_again |= session.applied(&applied);
            }
            if let Some(answer) = context.brain.downscale_answer(now_us) {
                context.serve_again |= session.answer(&answer);
            }
        }
    }

    /// Tells the brain, the old session and the log of a turn that ended or began.
    fn note_turn(&mut self, context: &mut Context<'_>) {
        let counts = &mut context.own.scaling;
        counts.switches = self.registry.switches();
        if let Some((key, failure)) = self.registry.take_failure() {
            counts.failed_switches += 1;
            let name = session_of(&mut self.hosts, key).map_or("", |session| session.peer_name());
            // Not louder: a host of a version that knows nothing of this is silent for ever.
            tracing::debug!("host '{name}' does not decide: {failure}");
        }
        let turn = self.registry.holder();
        if turn == self.turn {
            return;
        }
        if let Some((key, _)) = self.turn {
            context.brain.current_gone(context.now_us);
            if let Some(session) = session_of(&mut self.hosts, key) {
                session.void();
            }
        }
        self.turn = turn;
        if let Some((key, epoch)) = turn {
            let name = session_of(&mut self.hosts, key).map_or("", |session| session.peer_name());
            tracing::info!("host '{name}' decides about this guest's size (turn {})", epoch.0);
        }
    }
}

fn session_of(hosts: &mut [Host], key: Key) -> Option<&mut Session> {
    hosts.iter_mut().find(|host| host.key == key).map(|host| &mut host.session)
}
