//! One connection: moves bytes between a socket and its [`Session`], and what they mean into the instance. Reads are
//! paused while the instance is over its budget; nothing here waits for a guest without a deadline.

use super::descriptors::Place;
use super::prove;
use super::shared::Shared;
use super::slot::{Slot, Wake};
use crate::model::instance::{Admission, Facts, Order, Standing};
use crate::model::{Now, SECOND_US};
use crate::session::{Due, Ending, Heard, Session, refused_text};
use informant_wire::frame::{EncodeError, encode, kind};
use informant_wire::hello::{Capabilities, Refused, RefusedCode, Role, Welcome};
use informant_wire::host_to_guest::{Bye, ByeReason};
use informant_wire::id::{BootId, Challenge, Nonce, SessionId};
use informant_wire::limits::{DEAD_AFTER_S, MAX_HOST_FRAME};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};

/// Bytes read at a time, into one buffer for all connections of the thread.
const READ: usize = 64 * 1024;
/// Bytes that may wait for a guest that does not read. Acks are left out beyond; they repeat what they say.
const MAX_OUT: usize = 4 * MAX_HOST_FRAME;
/// How long a silent guest's connection stays open: longer than a slow boot. A host that closes (or sends) while the
/// guest's driver is down stops vhost-device-vsock 0.3 for good.
const PARKED: Duration = Duration::from_secs(60);

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

struct Connection {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    stream: UnixStream,
    session: Session,
    id: SessionId,
    challenge: Challenge,
    wake: Arc<Wake>,
    peer_port: Option<u32>,
    out: Vec<u8>,
    blocked_since: Option<Now>,
    read_after_us: u64,
    greeting: bool,
    identity: Option<(BootId, Nonce)>,
}

/// What some bytes led to.
enum Pumped {
    /// Nothing, or time and orders have their turn.
    Empty,
    /// All that was there at this time was taken.
    Taken(Now),
    /// There may be more.
    More,
    /// The handshake's turn.
    Hello(Box<Facts>),
    Over(Ending),
}

/// Serves a connection until it is over. `peer_port`: of an AF_VSOCK peer.
pub(super) async fn serve(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    stream: UnixStream,
    peer_port: Option<u32>,
    _place: Place,
) {
    let now = shared.now();
    slot.with(&shared, |core| core.instance.counters.connections += 1);
    let (mut session, mut challenge) = ([0; 8], [0; 16]);
    if let Err(error) = getrandom::fill(&mut session).and_then(|()| getrandom::fill(&mut challenge)) {
        slot.say(&shared, tracing::Level::WARN, format_args!("no random numbers: {error}; a connection was closed"));
        return;
    }
    let mut connection = Connection {
        session: Session::new(now),
        id: SessionId(u64::from_le_bytes(session)),
        challenge: Challenge(challenge),
        wake: Arc::default(),
        shared,
        slot,
        stream,
        peer_port,
        out: Vec::new(),
        blocked_since: None,
        read_after_us: 0,
        greeting: true,
        identity: None,
    };
    let (id, wake) = (connection.id, Arc::clone(&connection.wake));
    connection.slot.with(&connection.shared, |core| core.greet(id, wake));
    let ending = connection.run().await;
    connection.close(&ending);
    if ending == Ending::Silent {
        connection.park().await;
    }
}

impl Connection {
    async fn run(&mut self) -> Ending {
        let mut timer = std::pin::pin!(sleep_until(Instant::now()));
        let mut armed_us = 0;
        let wake = Arc::clone(&self.wake);
        let mut woken = std::pin::pin!(wake.notify.notified());
        let mut now = self.shared.now();
        loop {
            if let Some(ending) = self.turn(now) {
                return ending;
            }
            let paused = now.mono_us < self.read_after_us;
            let mut deadline_us = self.session.deadline_us();
            if paused {
                deadline_us = deadline_us.min(self.read_after_us);
            }
            if let Some(since) = self.blocked_since {
                deadline_us = deadline_us.min(since.mono_us + DEAD_AFTER_S * SECOND_US);
            }
            // A timer that is early is left alone: re-arming it for every frame would cost more than one vain turn.
            if deadline_us < armed_us || armed_us <= now.mono_us {
                armed_us = deadline_us;
                timer.as_mut().reset(self.shared.instant(deadline_us));
            }
            let reads = self.session.wants_bytes() && !paused;
            // What woke it is most often bytes; time and orders have their turn above, however many come.
            let pumped = tokio::select! {
                biased;
                pumped = poll_fn(|cx| self.poll(cx, reads)) => pumped,
                () = woken.as_mut() => {
                    woken.set(wake.notify.notified());
                    Pumped::Empty
                }
                () = timer.as_mut() => Pumped::Empty,
            };
            match pumped {
                Pumped::Taken(at) => {
                    now = at;
                    continue;
                }
                Pumped::Empty => {}
                Pumped::More => tokio::task::yield_now().await,
                Pumped::Over(ending) => return ending,
                Pumped::Hello(facts) => {
                    if let Some(ending) = self.admit(&facts).await {
                        return ending;
                    }
                }
            }
            now = self.shared.now();
        }
    }

    /// What is due: orders, time, and bytes that wait to be written.
    fn turn(&mut self, now: Now) -> Option<Ending> {
        for order in self.wake.take() {
            match order {
                Order::Resume => self.session.resume(now),
                Order::Stored(sequence) => self.session.event_stored(sequence),
                Order::Renonce => {
                    let _full = self.send(|out| encode(out, kind::RENONCE, &()));
                }
                // Beyond the limit the guest does not read: it will ask again.
                Order::Say(message) if self.out.len() < MAX_OUT => {
                    let _full = self.send(|out| message.encode(out));
                }
                Order::Say(_) => {}
                Order::End(reason) => return Some(Ending::Ended(reason)),
            }
        }
        match self.session.due(now) {
            Some(Due::Over(ending)) => return Some(ending),
            Some(Due::Ack(ack)) if self.out.len() < MAX_OUT => {
                let _full = self.send(|out| ack.encode(out));
            }
            Some(Due::Ack(_)) | None => {}
        }
        if let Err(error) = self.flush(now) {
            return Some(Ending::Failed(error.to_string()));
        }
        let stuck = self.blocked_since.is_some_and(|since| now.since_us(since) >= DEAD_AFTER_S * SECOND_US);
        stuck.then_some(Ending::NotReading)
    }

    fn send(&mut self, frame: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>) -> Result<(), EncodeError> {
        let mut buffer = [0; MAX_HOST_FRAME];
        let length = frame(&mut buffer)?;
        self.out.extend_from_slice(buffer.get(..length).unwrap_or_default());
        Ok(())
    }

    fn flush(&mut self, now: Now) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.stream.try_write(&self.out) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.out.drain(..written);
                    self.blocked_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked_since.get_or_insert(now);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once and takes what came; ready too when what waits to be written can be.
    fn poll(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<Pumped> {
        if reads {
            // tokio knows from a short read that the socket is empty: one call a sample, not two.
            let read = BUFFER.with_borrow_mut(|buffer| {
                let mut space = ReadBuf::new(buffer);
                Pin::new(&mut self.stream).poll_read(cx, &mut space).map(|result| match result {
                    Ok(()) if space.filled().is_empty() => Pumped::Over(Ending::Closed),
                    Ok(()) => {
                        let full = space.remaining() == 0;
                        let pumped = self.take(space.filled());
                        if full && matches!(pumped, Pumped::Taken(_)) { Pumped::More } else { pumped }
                    }
                    Err(error) => Pumped::Over(Ending::Failed(error.to_string())),
                })
            });
            if read.is_ready() {
                return read;
            }
        }
        if !self.out.is_empty() && self.stream.poll_write_ready(cx).is_ready() {
            return Poll::Ready(Pumped::Empty);
        }
        Poll::Pending
    }

    fn take(&mut self, bytes: &[u8]) -> Pumped {
        let now = self.shared.now();
        let (id, session, slot, shared) = (self.id, &mut self.session, &self.slot, &self.shared);
        let mut refused = None;
        let mut hello = None;
        let mut bad: Option<String> = None;
        let mut ending = None;
        let mut used = 0;
        let mut taken_sample = None;
        let pause_us = slot.with(shared, |core| {
            core.budget.bytes(bytes.len(), now);
            core.instance.bytes(id, bytes.len(), now);
            while ending.is_none() && refused.is_none() {
                let Some(heard) = session.next(now, bytes, &mut used) else { break };
                core.budget.frame(now);
                core.instance.counters.frames += 1;
                match heard {
                    Heard::Hello(said, version) => hello = Some(Box::new(Facts::new(&said, version))),
                    Heard::Refuse { code, permanent, text } => {
                        core.instance.refused(code, now);
                        refused = Some((code, permanent, text));
                    }
                    Heard::SchemaPart(part, body) => {
                        if let Err(error) = core.instance.schema_part(id, &part, body) {
                            ending = Some(Ending::Broken(error.to_string()));
                        }
                    }
                    Heard::SchemaEnd(end) => {
                        core.budget.schema(now);
                        if let Err(error) = core.instance.schema_end(id, &end) {
                            ending = Some(Ending::Broken(error.to_string()));
                        }
                    }
                    Heard::Sample(sample) => match core.instance.sample(id, &sample, now) {
                        Ok(()) => taken_sample = Some(sample.head.sequence),
                        Err(error) => ending = Some(Ending::Broken(error.to_string())),
                    },
                    Heard::Heartbeat(heartbeat) => core.instance.heartbeat(id, heartbeat, now),
                    Heard::Event(event) => core.event(shared, slot, id, &event, now),
                    Heard::Scaling(said) => core.scaling(id, &said, now),
                    Heard::Unknown(_) => core.instance.counters.frames_unknown += 1,
                    Heard::Bad(why) => {
                        core.instance.counters.frames_bad += 1;
                        bad = bad.take().or(why);
                    }
                    Heard::Over(over) => ending = Some(over),
                }
            }
            if let Some(sequence) = taken_sample {
                session.sample_taken(sequence);
            }
            let pause_us = core.pause_us();
            core.instance.counters.throttled += u64::from(pause_us > 0);
            pause_us
        });
        if let Some(why) = bad {
            let what = format_args!("session {:016x} sends frames that do not decode and are skipped: {why}", id.0);
            slot.say(shared, tracing::Level::WARN, what);
        }
        if pause_us > 0 {
            self.read_after_us = now.mono_us + pause_us.min(SECOND_US);
            let slot = Arc::clone(&self.slot);
            slot.say(&self.shared, tracing::Level::WARN, format_args!("sends more than its share: reading is paused"));
        }
        if let Some((code, permanent, text)) = refused {
            return Pumped::Over(self.refuse(code, permanent, &text));
        }
        match (ending, hello) {
            (Some(ending), _) => Pumped::Over(ending),
            (None, Some(facts)) => Pumped::Hello(facts),
            (None, None) => Pumped::Taken(now),
        }
    }

    fn refuse(&mut self, code: RefusedCode, permanent: bool, text: &str) -> Ending {
        let refused = Refused { code, permanent, text: refused_text(text) };
        let _full = self.send(|out| refused.encode(out));
        Ending::Refused(code)
    }

    /// Answers a valid Hello.
    async fn admit(&mut self, facts: &Facts) -> Option<Ending> {
        if self.shared.is_stopping() {
            return Some(self.refuse(RefusedCode::SHUTTING_DOWN, false, "the daemon is stopping"));
        }
        // Which events are stored is known only once the log was read back.
        let deadline = self.shared.instant(self.session.deadline_us());
        if tokio::time::timeout_at(deadline, self.slot.wait_loaded(&self.shared)).await.is_err() {
            return Some(self.refuse(RefusedCode::SHUTTING_DOWN, false, "the event log is not read back yet"));
        }
        let now = self.shared.now();
        let (id, wake, challenge, port) = (self.id, Arc::clone(&self.wake), self.challenge, self.peer_port);
        let (admission, standing, pause_us) = self.slot.with(&self.shared, |core| {
            core.greeted(id);
            let standing = core.standing(facts, port);
            let admission = core.instance.hello(id, facts, standing, now);
            if let Admission::Open { agent, .. } = admission {
                core.enter(id, wake, challenge);
                if agent && facts.capabilities.has(Capabilities::SCALING) {
                    core.desk.opened(id);
                }
            }
            (admission, standing, core.pause_us())
        });
        // A new session of an instance that has had too much is no way to go on with it.
        self.read_after_us = now.mono_us + pause_us.min(SECOND_US);
        self.greeting = false;
        let (last_event, held, agent) = match admission {
            Admission::Refuse { code, permanent, text } => return Some(self.refuse(code, permanent, text)),
            Admission::Open { last_event, held, agent } => (last_event, held, agent),
        };
        self.shared.sessions.fetch_add(1, Ordering::Relaxed);
        self.session.open(now, agent, last_event, held);
        let welcome = Welcome {
            version: facts.protocol,
            session: id,
            challenge,
            role: Role::CONTROLLER,
            controller: self.shared.controller,
            controller_name: "informant-host",
            last_event,
        };
        if self.send(|out| welcome.encode(out)).is_err() {
            return Some(Ending::Failed("welcome does not fit its frame".into()));
        }
        if agent {
            self.find_clones(facts);
        }
        if standing == Standing::Pending {
            prove::start(&self.shared, &self.slot);
        }
        None
    }

    fn find_clones(&mut self, facts: &Facts) {
        let key = (facts.boot, facts.nonce);
        self.identity = Some(key);
        for other in self.shared.identify(key, &self.slot, self.id) {
            other.with(&self.shared, |core| core.instance.clone_seen(facts.boot, &self.slot.name, None));
            let id = self.id;
            self.slot.with(&self.shared, |core| core.instance.clone_seen(facts.boot, &other.name, Some(id)));
        }
    }

    /// Keeps the connection of a silent guest open for a while, one an instance, until it says something: a guest that
    /// is booting again must not be disturbed, see [`PARKED`].
    async fn park(&mut self) {
        if !self.slot.with(&self.shared, |core| std::mem::replace(&mut core.parked, true)) {
            let _spoke = tokio::time::timeout(PARKED, self.stream.readable()).await;
            self.slot.with(&self.shared, |core| core.parked = false);
        }
    }

    /// Says why, takes what is still in the socket (a VMM may not tell its guest otherwise), and leaves.
    fn close(&mut self, ending: &Ending) {
        let bye = match ending {
            Ending::Ended(reason) => Some(*reason),
            Ending::Broken(_) | Ending::NotReading => Some(ByeReason::PROTOCOL),
            _ => None,
        };
        if let Some(reason) = bye.filter(|_| self.session.is_open() || matches!(ending, Ending::Broken(_))) {
            let _full = self.send(|out| Bye { reason }.encode(out));
        }
        let now = self.shared.now();
        let _peer_gone = self.flush(now);
        BUFFER.with_borrow_mut(|buffer| {
            for _ in 0..8 {
                if !self.stream.try_read(buffer).is_ok_and(|read| read > 0) {
                    break;
                }
            }
        });
        if let Some(key) = self.identity {
            self.shared.forget(key, self.id);
        }
        let (id, greeting) = (self.id, self.greeting);
        self.slot.with(&self.shared, |core| {
            core.greeted(id);
            core.leave(id);
            core.desk.closed(id, now);
            core.instance.closed(id, ending, now);
        });
        if greeting && matches!(ending, Ending::Closed) {
            return;
        }
        if !greeting && !matches!(ending, Ending::Refused(_)) {
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        let level = if matches!(ending, Ending::Broken(_) | Ending::Refused(_)) {
            tracing::Level::WARN
        } else {
            tracing::Level::INFO
        };
        self.slot.say(&self.shared, level, format_args!("session {:016x} is over: {ending}", id.0));
    }
}
