//! One instance: who has a session, who speaks for the VM, and the states the world sees. Pure: the caller brings the
//! time, delivers the orders to the sessions and writes the notes to the log.
//!
//! One agent session is *current* and feeds the values. A newcomer takes its place at once, unless the current one is
//! proven (or its proof is under way) and the newcomer is not: then the newcomer is *held*, without being read, until
//! its own proof is in. Reporters only say events.
//!
//! Whoever answers at the control port is root there, and its Hello tells its nonce, which no other process in the guest
//! knows: a newcomer with that nonce is *awaited*, and finds a place and its turn whoever else wants them.

use super::budget::Budget;
use super::cursors::{Cursors, Rank, Verdict};
use super::layout::{Layout, LayoutBuilder};
use super::series::{SampleError, Series};
use super::{Now, SECOND_US};
use crate::publish::status::{Agent, Counters, Data, Link};
use crate::session::Ending;
use informant_wire::event::Event;
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Hello, PeerKind, RefusedCode};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{BootId, Nonce, SessionId, StreamId};
use informant_wire::limits::{MAX_SESSIONS, MAX_UNPROVEN_SESSIONS};
use informant_wire::sample::SampleBody;
use informant_wire::schema::{SchemaEnd, SchemaError, SchemaPart};

/// Held newcomers at a time; each waits for its proof, one of them at a time. One more when it is awaited.
const MAX_HELD: usize = 4;
/// Sessions at a time, those included that have been told to end and whose connections are still there.
const MAX_WITH_LEAVING: usize = 2 * MAX_SESSIONS;

/// How long after a failed write of the event log the guests are asked for the events again.
const STORE_AGAIN_AFTER_US: u64 = 10 * SECOND_US;

/// Data stays fresh no longer than this beyond the interval at which samples have come, whatever the guest says.
const FRESH_BEYOND_ARRIVAL_US: u64 = 15 * SECOND_US;

/// What is known of a session's privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Root in the guest, by the transport or by a proof; or nobody asks (`trust = "any"`).
    Proven,
    /// A proof is under way or queued.
    Pending,
    /// Not proven, and will not be.
    Unproven,
}

/// The facts of a valid Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What kind of process.
    pub kind: PeerKind,
    /// Its name for itself; the guest's own words.
    pub name: Box<str>,
    /// Its version; the guest's own words.
    pub version: Box<str>,
    /// The boot.
    pub boot: BootId,
    /// The process.
    pub nonce: Nonce,
    /// Its event stream.
    pub stream: StreamId,
    /// The first event it will send.
    pub next_event: u64,
    /// `USER_HZ`.
    pub ticks_per_second: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The protocol version agreed.
    pub protocol: u16,
}

impl Facts {
    /// Of a Hello.
    #[must_use]
    pub fn new(hello: &Hello<'_>, protocol: u16) -> Self {
        Self {
            kind: hello.kind,
            name: hello.name.into(),
            version: hello.version.into(),
            boot: hello.boot_id,
            nonce: hello.nonce,
            stream: hello.stream,
            next_event: hello.next_event,
            ticks_per_second: hello.ticks_per_second,
            capabilities: hello.capabilities,
            protocol,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Current,
    Held,
    Reporter,
    /// It was told to end, and counts no more.
    Leaving,
}

#[derive(Debug)]
struct Peer {
    session: SessionId,
    role: Role,
    standing: Standing,
    facts: Facts,
    since: Now,
    heard: Now,
    /// An event was over the budget: it and what follows has to come again, on a new session.
    left_alone: bool,
}

/// What a session is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Say Bye and close.
    End(ByeReason),
    /// Go on: it was held.
    Resume,
    /// Events up to this one are in the file.
    Stored(u64),
    /// Say that it must draw a new nonce and stream.
    Renonce,
}

/// Something the daemon saw, for the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// As in `events.log`.
    pub kind: &'static str,
    /// More of it.
    pub detail: Option<String>,
}

/// The answer to a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Send Welcome.
    Open {
        /// The last stored event of its stream.
        last_event: u64,
        /// It may not speak until [`Order::Resume`].
        held: bool,
        /// It may send schemas and samples.
        agent: bool,
    },
    /// Send Refused.
    Refuse {
        /// Why.
        code: RefusedCode,
        /// Asking again soon does not help.
        permanent: bool,
        /// For people.
        text: &'static str,
    },
}

/// A state and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked<S> {
    /// Which.
    pub state: S,
    /// Since when.
    pub since: Now,
    /// Why, for people.
    pub detail: Option<String>,
}

impl<S: PartialEq> Tracked<S> {
    fn set(&mut self, state: S, since: Now, detail: Option<String>) -> bool {
        let changed = self.state != state;
        if changed {
            self.since = since;
        }
        let changed = changed || self.detail != detail;
        self.state = state;
        self.detail = detail;
        changed
    }
}

/// The agent that speaks for the VM, or did last.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Its session.
    pub session: SessionId,
    /// What its Hello said.
    pub facts: Facts,
    /// What is known of its privileges.
    pub standing: Standing,
    /// When its session began.
    pub connected: Now,
    /// Its newest heartbeat, and when it came.
    pub heartbeat: Option<(Heartbeat, Now)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Instance {
    peers: Vec<Peer>,
    /// The agent that speaks for the VM, or did last.
    pub speaker: Option<Speaker>,
    /// The boot in which a clone of this VM was seen.
    cloned: Option<BootId>,
    /// The newest values.
    pub series: Series,
    builder: LayoutBuilder,
    /// No sample of the current session has come yet.
    first_sample: bool,
    /// The process and sequence of the newest sample of the session before.
    last_sample: Option<(Nonce, u64)>,
    /// When the newest sample came.
    pub sampled: Option<Now>,
    /// Since when the data has been fresh, if it is.
    fresh_since: Now,
    /// Host time between the arrivals of the two newest samples of one session.
    arrival_us: Option<u64>,
    /// When the newest bytes came.
    pub heard: Option<Now>,
    /// The connection.
    pub link: Tracked<Link>,
    /// The agent.
    pub agent: Tracked<Agent>,
    /// The process that answered last at the control port.
    listener: Option<Nonce>,
    /// A proof has come out well since the newest event of a session that waits for its own.
    proven_lately: bool,
    /// How far events are stored.
    pub cursors: Cursors,
    /// Counts.
    pub counters: Counters,
    /// The event log could not be written: until then events are left alone.
    no_events_until_us: Option<u64>,
    orders: Vec<(SessionId, Order)>,
    notes: Vec<Note>,
    changed: bool,
}

impl Instance {
    /// Orders to deliver, notes to write; whether a state changed. Empty afterwards.
    pub fn take_effects(&mut self) -> (Vec<(SessionId, Order)>, Vec<Note>, bool) {
        (std::mem::take(&mut self.orders), std::mem::take(&mut self.notes), std::mem::take(&mut self.changed))
    }

    /// Sets the connection's state while nobody has a session: off, waiting, listening.
    pub fn set_link(&mut self, state: Link, detail: Option<String>, now: Now) {
        let keep = state == Link::Listening && matches!(self.link.state, Link::Silent | Link::Down);
        if !keep && self.current().is_none() {
            self.changed |= self.link.set(state, now, detail);
        }
    }

    /// The instance is reached in another way, or not at all any more; its sessions are being ended.
    pub fn reconfigured(&mut self, state: Link, detail: Option<String>, now: Now) {
        self.link.set(state, now, detail);
        self.changed = true;
    }

    /// It is another VM from now on: only the event streams are remembered.
    pub fn forget(&mut self) {
        self.series = Series::default();
        self.speaker = None;
        self.cloned = None;
        self.listener = None;
        self.last_sample = None;
        self.sampled = None;
        self.heard = None;
        self.agent = Tracked::default();
    }

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

    /// Whether the speaker's boot has been seen on another instance too.
    #[must_use]
    pub fn is_clone(&self) -> bool {
        self.speaker.as_ref().is_some_and(|speaker| self.cloned == Some(speaker.facts.boot))
    }

    fn current(&self) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.role == Role::Current)
    }

    fn is_current(&self, session: SessionId) -> bool {
        self.current().is_some_and(|peer| peer.session == session)
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

    /// Another instance has a live session with the same boot id and nonce. `newer`: this one's session is the newer.
    pub fn clone_seen(&mut self, boot: BootId, other: &str, newer: Option<SessionId>) {
        if self.cloned != Some(boot) {
            self.cloned = Some(boot);
            self.changed = true;
            self.notes.push(Note { kind: "clone_seen", detail: Some(format!("same boot and process as {other}")) });
        }
        if let Some(session) = newer {
            self.orders.push((session, Order::Renonce));
        }
    }

    /// The boot and process that speak now, for finding clones.
    #[must_use]
    pub fn identity(&self) -> Option<(BootId, Nonce)> {
        self.current().map(|peer| (peer.facts.boot, peer.facts.nonce))
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

    fn promote(&mut self, session: SessionId, now: Now) {
        self.make_current(session, now);
        self.orders.push((session, Order::Resume));
    }

    /// Bytes of a session arrived.
    pub fn bytes(&mut self, session: SessionId, bytes: usize, now: Now) {
        self.counters.bytes += bytes as u64;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.session == session) {
            peer.heard = now;
            if peer.role == Role::Current {
                self.heard = Some(now);
            }
        }
    }

    /// Whether a session may feed values.
    fn feeds(&self, session: SessionId) -> bool {
        self.is_current(session)
    }

    /// A part of a schema.
    pub fn schema_part(&mut self, session: SessionId, part: &SchemaPart<'_>, body: &[u8]) -> Result<(), SchemaError> {
        if self.feeds(session) { self.builder.part(part, body) } else { Ok(()) }
    }

    /// A schema is whole.
    pub fn schema_end(&mut self, session: SessionId, end: &SchemaEnd) -> Result<(), SchemaError> {
        if !self.feeds(session) {
            return Ok(());
        }
        let layout: Layout = self.builder.end(end)?;
        self.counters.schemas += 1;
        self.counters.series_unknown = layout.unknown() as u64;
        self.series.set_layout(layout);
        Ok(())
    }

    /// A sample.
    pub fn sample(&mut self, session: SessionId, sample: &SampleBody<'_>, now: Now) -> Result<(), SampleError> {
        if !self.feeds(session) {
            return Ok(());
        }
        let nonce = self.speaker.as_ref().map(|speaker| speaker.facts.nonce);
        let after = self.last_sample.filter(|(of, _)| Some(*of) == nonce).map(|(_, sequence)| sequence);
        let taken = self.series.take(sample, self.first_sample, after)?;
        if self.data(now).0 != Data::Fresh {
            self.fresh_since = now;
        }
        self.arrival_us = self.sampled.filter(|_| !self.first_sample).map(|before| now.since_us(before));
        self.first_sample = false;
        self.counters.samples += 1;
        self.counters.samples_missed = self.counters.samples_missed.saturating_add(taken.missed);
        self.counters.mismatches += taken.mismatches;
        self.counters.counters_back += taken.back;
        self.sampled = Some(now);
        if self.agent.state != Agent::Ready {
            self.changed |= self.agent.set(Agent::Ready, now, None);
        }
        Ok(())
    }

    /// A heartbeat.
    pub fn heartbeat(&mut self, session: SessionId, heartbeat: Heartbeat, now: Now) {
        if let Some(speaker) = self.speaker.as_mut().filter(|speaker| speaker.session == session) {
            speaker.heartbeat = Some((heartbeat, now));
        }
    }

    /// An event: the facts of who says it and its rank, when it is to be stored. `room`: whether it can be kept until
    /// it is.
    pub fn event(
        &mut self,
        session: SessionId,
        event: &Event<'_>,
        budget: &mut Budget,
        room: bool,
        now: Now,
    ) -> Option<(&Facts, Rank)> {
        let peer = self.peers.iter_mut().find(|peer| peer.session == session)?;
        let facts = &peer.facts;
        let rank = Rank::new(facts.kind == PeerKind::AGENT, peer.standing == Standing::Proven);
        match peer.standing {
            Standing::Proven => peer.left_alone = peer.left_alone || !budget.event(event.body.len(), now),
            Standing::Pending => {
                if std::mem::take(&mut self.proven_lately) {
                    budget.refill_pending(now);
                }
                peer.left_alone = peer.left_alone || !budget.pending_event(event.body.len(), now);
            }
            Standing::Unproven => {
                budget.unproven_bytes();
                peer.left_alone = peer.left_alone || !budget.unproven_event(event.body.len(), now);
            }
        }
        peer.left_alone |= !room;
        if peer.left_alone || self.no_events_until_us.is_some() {
            return None;
        }
        match self.cursors.take(facts.boot, facts.stream, rank, facts.next_event, event.sequence) {
            Verdict::Repeated => {
                self.counters.events_repeated += 1;
                // It may have been stored for a session before this one: say so again.
                let stored = self.cursors.last(facts.boot, facts.stream);
                self.orders.push((session, Order::Stored(stored)));
                None
            }
            Verdict::Store { missed } => {
                self.counters.events_missed = self.counters.events_missed.saturating_add(missed);
                Some((facts, rank))
            }
        }
    }

    /// Events of a stream are in the file up to `sequence`.
    pub fn stored(&mut self, boot: BootId, stream: StreamId, sequence: u64, count: u64) {
        self.cursors.stored(boot, stream, sequence);
        self.counters.events += count;
        for peer in self.peers.iter().filter(|peer| (peer.facts.boot, peer.facts.stream) == (boot, stream)) {
            self.orders.push((peer.session, Order::Stored(sequence)));
        }
    }

    /// The event log could not be written. What was handed out will have to come again: events are left alone for a
    /// while, without an ack, and then the sessions end, so that the guests send them on new ones.
    pub fn not_stored(&mut self, now: Now) {
        self.cursors.failed();
        self.no_events_until_us = Some(now.mono_us + STORE_AGAIN_AFTER_US);
    }

    /// Whether [`Self::store_again`] has something to wait for.
    #[must_use]
    pub fn waits_to_store(&self) -> bool {
        self.no_events_until_us.is_some() || self.peers.iter().any(|peer| peer.left_alone)
    }

    /// Ends the sessions whose events were left alone, when they can be stored: they come again on new ones.
    pub fn store_again(&mut self, budget: &mut Budget, now: Now) {
        for peer in self.peers.iter_mut().filter(|peer| peer.left_alone) {
            let fits = match peer.standing {
                Standing::Proven => budget.has_event_burst(now),
                Standing::Pending | Standing::Unproven => budget.has_unproven_burst(now),
            };
            if fits {
                peer.left_alone = false;
                self.orders.push((peer.session, Order::End(ByeReason::STOPPING)));
            }
        }
        if self.no_events_until_us.is_some_and(|until| now.mono_us >= until) {
            self.no_events_until_us = None;
            self.end_all(ByeReason::STOPPING);
        }
    }

    /// All sessions are to end.
    pub fn end_all(&mut self, reason: ByeReason) {
        self.orders.extend(self.peers.iter().map(|peer| (peer.session, Order::End(reason))));
    }

    /// A session is over.
    pub fn closed(&mut self, session: SessionId, ending: &Ending, now: Now) {
        if matches!(ending, Ending::Broken(_)) {
            self.counters.protocol_errors += 1;
        }
        let Some(at) = self.peers.iter().position(|peer| peer.session == session) else { return };
        let peer = self.peers.remove(at);
        if peer.role != Role::Current {
            return;
        }
        if self.series.has_sample() {
            self.last_sample = Some((peer.facts.nonce, self.series.sequence()));
        }
        let why = ending.to_string();
        let (link, agent) = match ending {
            Ending::Silent | Ending::NotReading => (Link::Silent, Agent::Lost),
            Ending::Bye(ByeReason::STOPPING) => (Link::Down, Agent::Stopped),
            _ => (Link::Down, Agent::Lost),
        };
        let since = if link == Link::Silent { peer.heard } else { now };
        self.link.set(link, since, Some(why.clone()));
        self.agent.set(agent, since, Some(why.clone()));
        self.changed = true;
        let kind = if link == Link::Silent { "silent" } else { "disconnected" };
        self.notes.push(Note { kind, detail: Some(why) });
        let newest = self.peers.iter().rev().find(|peer| peer.role == Role::Held).map(|peer| peer.session);
        if let Some(newest) = newest {
            self.promote(newest, now);
        }
    }

    /// How old the newest sample may be and still be fresh: three intervals, at least 5 s. The interval is the shorter
    /// one of what the guest's clock says and what was seen here, since the guest's may say anything.
    fn fresh_us(&self) -> u64 {
        let intervals = [self.series.interval_us(), self.arrival_us];
        let shorter_us = intervals.into_iter().flatten().min().unwrap_or(0);
        let longest_us = self.arrival_us.unwrap_or(0).saturating_add(FRESH_BEYOND_ARRIVAL_US);
        shorter_us.saturating_mul(3).min(longest_us).max(5 * SECOND_US)
    }

    /// The data's state: fresh while the newest sample is at most three intervals, and at least 5 s, old.
    #[must_use]
    pub fn data(&self, now: Now) -> (Data, Now) {
        let Some(sampled) = self.sampled else { return (Data::None, Now::default()) };
        let fresh_us = self.fresh_us();
        if now.since_us(sampled) <= fresh_us {
            return (Data::Fresh, self.fresh_since);
        }
        let since = Now { mono_us: sampled.mono_us + fresh_us, wall_ms: sampled.wall_ms + fresh_us / 1000 };
        (Data::Stale, since)
    }
}

#[cfg(test)]
#[path = "instance_tests.rs"]
mod tests;
