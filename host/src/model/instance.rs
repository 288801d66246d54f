//! One instance: who has a session, who speaks for the VM, and the states the world sees. Pure: the caller brings the
//! time, delivers the orders to the sessions and writes the notes to the log.
//!
//! One agent session is *current* and feeds the values. A newcomer takes its place at once, unless the current one is
//! proven (or its proof is under way) and the newcomer is not: then the newcomer is *held*, without being read, until
//! its own proof is in. Reporters only say events.
//!
//! Whoever answers at the control port is root there, and its Hello tells its nonce, which no other process in the guest
//! knows: a newcomer with that nonce is *awaited*, and finds a place and its turn whoever else wants them.

mod admission;
mod facts;

pub use facts::{Admission, Facts, Note, Order, Speaker, Standing, Tracked};

use super::budget::Budget;
use super::cursors::{Cursors, Rank, Verdict};
use super::layout::{Layout, LayoutBuilder};
use super::series::{SampleError, Series};
use super::{Now, SECOND_US};
use crate::publish::status::{Agent, Counters, Data, Link};
use crate::session::Ending;
use informant_wire::event::Event;
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::PeerKind;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{BootId, Nonce, SessionId, StreamId};
use informant_wire::sample::SampleBody;
use informant_wire::schema::{SchemaEnd, SchemaError, SchemaPart};

/// How long after a failed write of the event log the guests are asked for the events again.
const STORE_AGAIN_AFTER_US: u64 = 10 * SECOND_US;

/// Data stays fresh no longer than this beyond the interval at which samples have come, whatever the guest says.
const FRESH_BEYOND_ARRIVAL_US: u64 = 15 * SECOND_US;

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

    /// Whether the speaker's boot has been seen on another instance too.
    #[must_use]
    pub fn is_clone(&self) -> bool {
        self.speaker.as_ref().is_some_and(|speaker| self.cloned == Some(speaker.facts.boot))
    }

    fn current(&self) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.role == Role::Current)
    }

    /// Whether a session speaks for the VM.
    #[must_use]
    pub fn is_current(&self, session: SessionId) -> bool {
        self.current().is_some_and(|peer| peer.session == session)
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

    /// Whether who speaks for the VM is proven to be root there.
    #[must_use]
    pub fn has_trusted(&self) -> bool {
        self.current().is_some_and(|peer| peer.standing == Standing::Proven)
    }

    /// The boot and process that speak now, for finding clones.
    #[must_use]
    pub fn identity(&self) -> Option<(BootId, Nonce)> {
        self.current().map(|peer| (peer.facts.boot, peer.facts.nonce))
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
