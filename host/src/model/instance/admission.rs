//! Who gets a session, who speaks for the VM, and whose turn it is to prove itself.

use super::{Admission, Facts, Instance, Note, Order, Peer, Role, Speaker, Standing};
use crate::model::Now;
use crate::model::layout::LayoutBuilder;
use crate::model::series::Series;
use crate::publish::status::{Agent, Link};
use informant_wire::hello::{Capabilities, PeerKind, RefusedCode};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{Nonce, SessionId};
use informant_wire::limits::{MAX_SESSIONS, MAX_UNPROVEN_SESSIONS};

/// Held newcomers at a time; each waits for its proof, one of them at a time. One more when it is awaited.
const MAX_HELD: usize = 4;
/// Sessions at a time, those included that have been told to end and whose connections are still there.
const MAX_WITH_LEAVING: usize = 2 * MAX_SESSIONS;

impl Instance {
    /// Sessions open, and how many of them are not proven.
    #[must_use]
    pub fn sessions(&self) -> (usize, usize) {
        let stays = || self.peers.iter().filter(|peer| peer.role != Role::Leaving);
        (stays().count(), stays().filter(|peer| peer.standing != Standing::Proven).count())
    }

    /// Why there is no place for one more. `succeeds`: it takes the place of the current one.
    fn lacks_place(&self, succeeds: bool, standing: Standing) -> Option<&'static str> {
        let (mut all, mut unproven) = self.sessions();
        if let Some(current) = self.current().filter(|_| succeeds) {
            all -= 1;
            unproven -= usize::from(current.standing != Standing::Proven);
        }
        if all >= MAX_SESSIONS {
            Some("32 sessions are open")
        } else if standing != Standing::Proven && unproven >= MAX_UNPROVEN_SESSIONS {
            Some("16 unproven sessions are open")
        } else {
            None
        }
    }

    /// Ends a session; it stays in the list, without a part in anything, until its connection has ended.
    fn end(&mut self, session: SessionId, reason: ByeReason) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.session == session) {
            peer.role = Role::Leaving;
            self.orders.push((session, Order::End(reason)));
        }
    }

    /// Reporters' sessions: unproven ones first, the oldest first.
    #[must_use]
    pub fn reporters(&self) -> Vec<SessionId> {
        let mut reporters: Vec<_> = self.peers.iter().filter(|peer| peer.role == Role::Reporter).collect();
        reporters.sort_by_key(|peer| peer.standing == Standing::Proven);
        reporters.iter().map(|peer| peer.session).collect()
    }

    /// A valid Hello came: whether it gets a session. `standing`: what the transport says.
    pub fn hello(&mut self, session: SessionId, facts: &Facts, standing: Standing, now: Now) -> Admission {
        let admission = self.admit(facts, standing);
        match admission {
            Admission::Refuse { code, .. } => self.refused(code, now),
            Admission::Open { held, agent, .. } => {
                self.counters.sessions += 1;
                if self.lacks_place(agent && !held, standing).is_some()
                    && let Some(reporter) = self.reporters().first()
                {
                    self.end(*reporter, ByeReason::TOO_MANY);
                }
                let role = if agent { Role::Held } else { Role::Reporter };
                let facts = facts.clone();
                self.peers.push(Peer { session, role, standing, facts, since: now, heard: now, left_alone: false });
                if agent && !held {
                    self.make_current(session, now);
                }
            }
        }
        admission
    }

    fn admit(&self, facts: &Facts, standing: Standing) -> Admission {
        let refuse = |code, permanent, text| Admission::Refuse { code, permanent, text };
        let agent = match facts.kind {
            PeerKind::AGENT => true,
            PeerKind::REPORTER => false,
            _ => return refuse(RefusedCode::KIND, true, "this host takes agents and reporters"),
        };
        let mut held = false;
        if let Some(current) = self.current().filter(|_| agent) {
            let guarded = current.standing == Standing::Proven || current.standing == Standing::Pending;
            if current.standing == Standing::Proven && standing == Standing::Unproven {
                return refuse(RefusedCode::AGENT_PRESENT, false, "a proven agent speaks for this VM");
            }
            held = guarded && standing != Standing::Proven;
            let places = MAX_HELD + usize::from(self.is_awaited(facts));
            if held && self.peers.iter().filter(|peer| peer.role == Role::Held).count() >= places {
                return refuse(RefusedCode::AGENT_PRESENT, false, "others wait for their proof");
            }
        }
        // For an agent a reporter makes way: root must find its place whoever else is there.
        let makes_way = agent && self.peers.iter().any(|peer| peer.role == Role::Reporter);
        match self.lacks_place(agent && !held, standing) {
            Some(text) if !makes_way => return refuse(RefusedCode::TOO_MANY, false, text),
            _ if self.peers.len() >= MAX_WITH_LEAVING => {
                return refuse(RefusedCode::TOO_MANY, false, "too many sessions are about to end");
            }
            _ => {}
        }
        let last_event = self.cursors.last(facts.boot, facts.stream);
        Admission::Open { last_event, held, agent }
    }

    /// Somebody answered at the control port and said Hello.
    pub fn listener(&mut self, nonce: Nonce) {
        self.listener = Some(nonce);
    }

    fn is_awaited(&self, facts: &Facts) -> bool {
        self.listener == Some(facts.nonce)
    }

    /// A handshake was refused, here or before it came here.
    pub fn refused(&mut self, code: RefusedCode, now: Now) {
        self.counters.refused += 1;
        if self.current().is_none() {
            let why = code.name().map_or_else(|| format!("unknown({})", code.0), Into::into);
            // Another reason is no other state: whoever connects again and again could change it without end.
            self.changed |= self.agent.state != Agent::Refused;
            self.agent.set(Agent::Refused, now, Some(why));
        }
    }

    fn make_current(&mut self, session: SessionId, now: Now) {
        let before = self.current().map(|peer| peer.session);
        if let Some(before) = before {
            self.end(before, ByeReason::REPLACED);
        }
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.session == session) else { return };
        peer.role = Role::Current;
        let continues = self.speaker.as_ref().is_some_and(|speaker| {
            // What a process without proof said must not become part of what a proven one says.
            let trusted = speaker.standing == Standing::Proven
                || peer.standing == Standing::Unproven
                || speaker.facts.nonce == peer.facts.nonce;
            speaker.facts.boot == peer.facts.boot && trusted
        });
        if let Some(speaker) = self.speaker.as_ref().filter(|_| self.series.has_sample()) {
            self.last_sample = Some((speaker.facts.nonce, self.series.sequence()));
        }
        if !continues {
            self.series = Series::default();
        }
        self.series.reconnect(peer.facts.ticks_per_second);
        self.builder = LayoutBuilder::default();
        self.first_sample = true;
        let ready = !peer.facts.capabilities.has(Capabilities::SAMPLES);
        self.speaker = Some(Speaker {
            session,
            facts: peer.facts.clone(),
            standing: peer.standing,
            connected: peer.since,
            heartbeat: None,
        });
        self.heard = Some(now);
        self.link.set(Link::Up, now, None);
        self.agent.set(if ready { Agent::Ready } else { Agent::Starting }, now, None);
        self.changed = true;
        let detail = before.map(|_| "in the place of a session that was open".into());
        self.notes.push(Note { kind: "connected", detail });
    }

    /// The session whose proof should be asked for next: an awaited one, else in turn behind `last`, the oldest first.
    #[must_use]
    pub fn wants_proof(&self, last: Option<SessionId>) -> Option<SessionId> {
        let behind = self.peers.iter().position(|peer| Some(peer.session) == last).map_or(0, |at| at + 1);
        let (before, after) = self.peers.split_at(behind.min(self.peers.len()));
        let asks = |peer: &&Peer| peer.standing == Standing::Pending && peer.role != Role::Leaving;
        let pending = || after.iter().chain(before).filter(asks);
        pending().find(|peer| self.is_awaited(&peer.facts)).or_else(|| pending().next()).map(|peer| peer.session)
    }

    /// A proof came out.
    pub fn proof(&mut self, session: SessionId, proven: bool, now: Now) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.session == session) else { return };
        if peer.standing != Standing::Pending {
            return;
        }
        peer.standing = if proven { Standing::Proven } else { Standing::Unproven };
        if proven {
            self.cursors.prove(peer.facts.boot, peer.facts.stream);
            self.proven_lately = true;
            if std::mem::take(&mut peer.left_alone) {
                self.orders.push((session, Order::End(ByeReason::STOPPING)));
            }
        }
        let (role, standing) = (peer.role, peer.standing);
        self.changed = true;
        if let Some(speaker) = self.speaker.as_mut().filter(|_| role == Role::Current) {
            speaker.standing = standing;
        }
        match (role, proven) {
            (Role::Held, true) => self.promote(session, now),
            (Role::Held, false) => {
                let guarded = self.current().is_some_and(|current| current.standing != Standing::Unproven);
                if guarded {
                    self.end(session, ByeReason::REPLACED);
                } else {
                    self.promote(session, now);
                }
            }
            (Role::Current, false) => {
                // Nobody is proven: the newest speaks, as it would have without waiting.
                let newest = self.peers.iter().rev().find(|peer| peer.role == Role::Held).map(|peer| peer.session);
                if let Some(newest) = newest {
                    self.promote(newest, now);
                }
            }
            (Role::Current, true) | (Role::Reporter | Role::Leaving, _) => {}
        }
        if proven {
            self.end_hopeless();
        }
    }

    /// Under a proven agent nobody waits who can not be proven.
    fn end_hopeless(&mut self) {
        if self.current().is_none_or(|current| current.standing != Standing::Proven) {
            return;
        }
        let hopeless = |peer: &&Peer| peer.role == Role::Held && peer.standing == Standing::Unproven;
        let hopeless: Vec<_> = self.peers.iter().filter(hopeless).map(|peer| peer.session).collect();
        for session in hopeless {
            self.end(session, ByeReason::REPLACED);
        }
    }

    pub(super) fn promote(&mut self, session: SessionId, now: Now) {
        self.make_current(session, now);
        self.orders.push((session, Order::Resume));
    }
}
