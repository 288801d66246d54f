//! Every connection to a host: the dialled one and those that came through a door. Moves bytes between sockets and
//! sessions and carries out what sessions report. At most four sessions and four handshakes at a time.

mod converse;

use crate::clock;
use crate::collect::Sensors;
use crate::link::dialler::Dialler;
use crate::link::session::{End, Feed, Notice, Origin, Session};
use crate::link::stream::Stream;
use crate::outbox::Outbox;
use crate::own::Own;
use crate::random;
use crate::scale::asking::Asking;
use crate::scale::brain::Brain;
use crate::scale::controllers::{Key, Registry};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::limits::MAX_HOST_SESSIONS;
use informant_wire::sample::SampleHead;
use informant_wire::scale::Epoch;
use informant_wire::{MAX_VERSION, MIN_VERSION};
use nix::errno::Errno;
use std::task::{self, Poll};

/// Sessions through the control door; one more is kept for the agent's own host.
const MAX_CONTROL_SESSIONS: usize = MAX_HOST_SESSIONS - 1;
/// Handshakes under way. A proof connection is one all its short life.
const MAX_GREETINGS: usize = 4;
/// Reads and writes of one connection in one wake-up; what is left waits for the next.
const TURNS_PER_WAKE: u32 = 8;
const RECEIVE_BYTES: usize = 2048;

/// Who this agent says it is.
#[derive(Debug)]
pub struct Identity {
    /// This boot.
    pub boot: BootId,
    /// This process, until a host asks for another.
    pub nonce: Nonce,
    /// A name for people.
    pub name: String,
    /// `USER_HZ`.
    pub ticks_per_second: u32,
}

/// What the connections work with during one wake-up.
#[derive(Debug)]
pub struct Context<'a> {
    /// Schema and newest row.
    pub sensors: &'a Sensors,
    /// The newest sample.
    pub newest: Option<SampleHead>,
    /// Undelivered events.
    pub outbox: &'a mut Outbox,
    /// Counts.
    pub own: &'a mut Own,
    /// To be told of acknowledgements and ends.
    pub dialler: Option<&'a mut Dialler>,
    /// What this guest wants, and says to hosts that decide.
    pub brain: &'a mut dyn Brain,
    /// Boot time, microseconds.
    pub now_us: u64,
    /// Set when something is left to send on a connection that was served already.
    pub serve_again: bool,
}

#[derive(Debug)]
struct Host {
    key: Key,
    stream: Stream,
    session: Session,
}

/// See the module.
#[derive(Debug)]
pub struct Hosts {
    identity: Identity,
    hosts: Vec<Host>,
    received: Vec<u8>,
    next_key: Key,
    /// Which of them decides.
    registry: Registry,
    asking: Asking,
    /// A demand is not looked for before, unless something else wakes the loop.
    demand_from_us: u64,
    /// Whose turn it was when that was last looked at.
    turn: Option<(Key, Epoch)>,
    /// Whether the control door is open: Hello says so.
    pub listens: bool,
}

impl Hosts {
    /// No connections yet.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        let hosts = Vec::with_capacity(MAX_HOST_SESSIONS + MAX_GREETINGS);
        Self {
            identity,
            hosts,
            received: vec![0; RECEIVE_BYTES],
            next_key: Key::default(),
            registry: Registry::new(),
            asking: Asking::default(),
            demand_from_us: 0,
            turn: None,
            listens: false,
        }
    }

    /// Takes a new connection and greets it; one that is too many is closed.
    pub fn add(&mut self, stream: Stream, origin: Origin, outbox: &Outbox, now_us: u64) {
        let greetings =
            self.hosts.iter().filter(|host| host.session.is_greeting() && host.session.origin() != Origin::Dialled);
        if origin != Origin::Dialled && greetings.count() >= MAX_GREETINGS {
            tracing::warn!("closed a connection: {MAX_GREETINGS} handshakes are under way already");
            return;
        }
        let control = if self.listens { Capabilities::CONTROL.0 } else { 0 };
        let capabilities = Capabilities(Capabilities::SAMPLES.0 | Capabilities::SCALING.0 | control);
        let hello = Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::AGENT,
            name: &self.identity.name,
            boot_id: self.identity.boot,
            nonce: self.identity.nonce,
            stream: outbox.stream(),
            next_event: outbox.first_pending(),
            ticks_per_second: self.identity.ticks_per_second,
            capabilities,
            version: env!("CARGO_PKG_VERSION"),
        };
        let key = self.next_key;
        self.next_key = Key(key.0.wrapping_add(1));
        self.hosts.push(Host { key, stream, session: Session::new(origin, &hello, now_us) });
    }

    /// Whether no connection is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether the agent's own host has a session.
    #[must_use]
    pub fn has_primary(&self) -> bool {
        self.primary().is_some()
    }

    /// Whether the agent's own host was sent that sample.
    #[must_use]
    pub fn primary_has(&self, sequence: u64) -> bool {
        self.primary().is_some_and(|session| session.has_sent(sequence))
    }

    /// When the schema of the agent's own host was begun.
    #[must_use]
    pub fn primary_schema_us(&self) -> Option<u64> {
        self.primary()?.schema_begun_us()
    }

    fn primary(&self) -> Option<&Session> {
        let own = |session: &&Session| session.origin() != Origin::Control && session.is_streaming();
        self.hosts.iter().map(|host| &host.session).find(own)
    }

    /// Whether a host is in the middle of a schema.
    #[must_use]
    pub fn is_amid_schema(&self) -> bool {
        self.hosts.iter().any(|host| host.session.is_amid_schema())
    }

    /// The loop woke this late.
    pub fn note_lag(&mut self, lag_us: u32) {
        for host in &mut self.hosts {
            host.session.note_lag(lag_us);
        }
    }

    /// Says goodbye to all; false when that was done before. The goodbyes go out at the next poll.
    pub fn close_all(&mut self, reason: ByeReason, now_us: u64) -> bool {
        let registry = &mut self.registry;
        self.hosts.iter_mut().fold(false, |any, host| {
            registry.ended(host.key, now_us);
            host.session.close(reason, now_us) | any
        })
    }

    /// When to poll at the latest.
    #[must_use]
    pub fn deadline_us(&self, brain: &dyn Brain) -> Option<u64> {
        let sessions = self.hosts.iter().map(|host| host.session.deadline_us());
        let demand = self.asking.may_ask(&self.registry).map(|_| brain.demand_due_us().max(self.demand_from_us));
        sessions.chain(self.registry.deadline_us()).chain(self.asking.deadline_us()).chain(demand).min()
    }

    /// Serves every connection.
    pub fn poll(&mut self, cx: &mut task::Context<'_>, context: &mut Context<'_>) {
        let mut at = 0;
        while at < self.hosts.len() {
            let end = match self.serve(at, cx, context) {
                Ok(()) => {
                    at += 1;
                    continue;
                }
                Err(end) => end,
            };
            // The last one moves here and is served next.
            let mut host = self.hosts.swap_remove(at);
            take_counts(&mut host.session, context.own);
            let end = host.session.end_or(end);
            self.registry.ended(host.key, context.now_us);
            self.ended(&host.session, &end, context);
        }
        self.converse(context);
        if std::mem::take(&mut context.serve_again) {
            cx.waker().wake_by_ref();
        }
    }

    fn serve(&mut self, at: usize, cx: &mut task::Context<'_>, context: &mut Context<'_>) -> Result<(), End> {
        self.receive(at, cx, context)?;
        let Some(Host { stream, session, .. }) = self.hosts.get_mut(at) else { return Ok(()) };
        take_counts(session, context.own);
        session.check_deadlines(context.now_us)?;
        let feed = Feed {
            sensors: context.sensors,
            head: context.newest,
            outbox: context.outbox,
            registry: &self.registry,
            now_us: context.now_us,
            wall_us: clock::wall_us(),
            sample_cost_us: u32::try_from(context.own.sample_cost_us).unwrap_or(u32::MAX),
        };
        for _ in 0..TURNS_PER_WAKE {
            session.fill(&feed)?;
            if session.output().is_empty() {
                return Ok(());
            }
            match stream.poll_send(cx, session.output()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(bytes)) => {
                    session.sent(bytes, context.now_us);
                    context.own.sent_bytes += bytes as u64;
                }
                Poll::Ready(Err(error)) => return Err(broken(&error)),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn receive(&mut self, at: usize, cx: &mut task::Context<'_>, context: &mut Context<'_>) -> Result<(), End> {
        for _ in 0..TURNS_PER_WAKE {
            let Some(host) = self.hosts.get_mut(at) else { return Ok(()) };
            let count = match host.stream.poll_recv(cx, &mut self.received) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(End::Closed),
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => return Err(broken(&error)),
            };
            self.registry.heard(host.key, context.now_us);
            let received = std::mem::take(&mut self.received);
            let mut input = received.get(..count).unwrap_or_default();
            let result = self.take_notices(at, &mut input, context);
            self.received = received;
            result?;
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn take_notices(&mut self, at: usize, input: &mut &[u8], context: &mut Context<'_>) -> Result<(), End> {
        while let Some(host) = self.hosts.get_mut(at) {
            let Some(notice) = host.session.receive(input, context.now_us)? else { return Ok(()) };
            let is_primary = host.session.origin() != Origin::Control;
            match notice {
                Notice::Welcomed { last_event } => self.welcomed(at, last_event, context)?,
                Notice::Acknowledged { event, first } => {
                    if first {
                        tracing::info!("host '{}' has acknowledged: ready", host.session.peer_name());
                    }
                    if is_primary {
                        context.outbox.acknowledge(event);
                        if let Some(dialler) = &mut context.dialler {
                            dialler.acknowledged();
                        }
                    }
                }
                Notice::Prove(session) => {
                    // Only a session that this agent dialled: its challenge came from where the agent chose to dial.
                    let dialled = self.hosts.iter().filter(|host| host.session.origin() == Origin::Dialled);
                    let challenge = dialled.map(|host| &host.session).find_map(|own| own.challenge_of(session));
                    if let Some(host) = self.hosts.get_mut(at) {
                        host.session.answer_proof(challenge, context.now_us);
                    }
                }
                notice => self.talked(at, &notice, context),
            }
        }
        Ok(())
    }

    fn welcomed(&mut self, at: usize, last_event: u64, context: &mut Context<'_>) -> Result<(), End> {
        context.own.connects += 1;
        let Some(origin) = self.hosts.get(at).map(|host| host.session.origin()) else { return Ok(()) };
        if origin == Origin::Control {
            let streaming = |host: &&Host| host.session.origin() == Origin::Control && host.session.is_streaming();
            if self.hosts.iter().filter(streaming).count() > MAX_CONTROL_SESSIONS
                && let Some(host) = self.hosts.get_mut(at)
            {
                tracing::warn!("turned away host '{}': too many sessions", host.session.peer_name());
                host.session.close(ByeReason::TOO_MANY, context.now_us);
                return Ok(());
            }
            self.register(at, context);
            return Ok(());
        }
        if last_event >= context.outbox.next_sequence() {
            return Err(End::Ahead);
        }
        context.outbox.acknowledge(last_event);
        for (i, host) in self.hosts.iter_mut().enumerate() {
            if i == at {
                tracing::debug!("session with host '{}'", host.session.peer_name());
            } else if host.session.origin() == origin && host.session.is_streaming() {
                // Only after the newcomer's handshake: an unfinished one replaces nobody.
                context.serve_again |= host.session.close(ByeReason::REPLACED, context.now_us);
                self.registry.ended(host.key, context.now_us);
            }
        }
        self.register(at, context);
        Ok(())
    }

    fn ended(&mut self, session: &Session, end: &End, context: &mut Context<'_>) {
        match session.origin() {
            Origin::Dialled => {
                if let Some(dialler) = &mut context.dialler {
                    dialler.ended(end, context.now_us);
                }
            }
            Origin::Listened => tracing::info!("session with host '{}' ended: {end}", session.peer_name()),
            Origin::Control => tracing::debug!("control session with '{}' ended: {end}", session.peer_name()),
        }
        if matches!(end, End::Renonce | End::Ahead) {
            self.renew(context);
        }
    }

    /// Becomes another process of another stream; what is unsent moves there. All sessions know the old identity and
    /// end.
    fn renew(&mut self, context: &mut Context<'_>) {
        self.identity.nonce = Nonce(random::bytes());
        context.outbox.move_to(StreamId(random::bits()));
        while let Some(host) = self.hosts.pop() {
            self.registry.ended(host.key, context.now_us);
            if host.session.origin() == Origin::Dialled
                && let Some(dialler) = &mut context.dialler
            {
                dialler.ended(&End::Renonce, context.now_us);
            }
        }
    }
}

fn take_counts(session: &mut Session, own: &mut Own) {
    own.unknown_frames += session.take_skipped_frames();
    own.scaling.late_answers += session.take_late_answers();
}

fn broken(error: &std::io::Error) -> End {
    End::Broken(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)))
}
