//! One simulated agent: the protocol as `informant-guest run` speaks it, over whatever socket it is given.
//!
//! It keeps the rules that cost or spare the daemon something: a sample is encoded only when the frame before it has
//! wholly gone, the first of a schema and every 60th is a key frame, back-off starts over only at an Ack.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::Result;
use informant_wire::event::{AgentStarted, Event, EventKind};
use informant_wire::guest_to_host::{Heartbeat, Proof};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{BootId, Challenge, Nonce, SessionId, StreamId};
use informant_wire::limits::{
    DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, HEARTBEAT_EVERY_S, KEY_FRAME_EVERY, MAX_FRAME, MAX_HOST_FRAME, REDIAL_REFUSED_S,
};
use informant_wire::sample::{self, Base, Row, SampleHead};
use informant_wire::schema::SchemaWriter;
use informant_wire::{Decoder, HostToGuest, MAX_VERSION, MIN_VERSION, frame};

use super::series::{Layout, Random};
use super::tally::{Tally, unix_ms};

const FIRST_PAUSE_US: u64 = 50_000;
const LONGEST_PAUSE_US: u64 = 2_000_000;
const SECOND_US: u64 = 1_000_000;

/// When to dial again, from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redial {
    AtOnce,
    BackOff,
    Refused,
}

/// What the socket's end or a frame brought.
pub(super) enum Ready {
    /// Go on.
    Open,
    /// The session is over.
    Over(Redial),
}

/// A connection and what holds for it alone.
#[derive(Debug)]
pub(super) struct Session {
    stream: UnixStream,
    decoder: Decoder<Vec<u8>>,
    unsent: Vec<u8>,
    welcomed: Option<(SessionId, Challenge)>,
    acked: bool,
    samples: u64,
    opened_us: u64,
    heard_us: u64,
    heartbeat_us: u64,
}

#[derive(Debug)]
pub(super) struct Agent {
    name: String,
    boot_id: BootId,
    nonce: Nonce,
    stream: StreamId,
    random: Random,
    busy: bool,
    values: Vec<u64>,
    present: Vec<u8>,
    base_values: Vec<u64>,
    base_present: Vec<u8>,
    sequence: u64,
    pause_us: u64,
    started_stored: bool,
    pub(super) session: Option<Session>,
}

impl Agent {
    /// One in four is busy.
    pub(super) fn new(index: u64, name: String, layout: &Layout) -> Self {
        // Mixed with the time, so that a simulator that is started again is not its own clone.
        let mut random = Random::new(index ^ (unix_ms() << 20));
        let (values, present) = layout.first(&mut random);
        Self {
            name,
            boot_id: BootId(random.id128()),
            nonce: Nonce(random.id128()),
            stream: StreamId(random.next()),
            busy: index.is_multiple_of(4),
            base_values: vec![0; values.len()],
            base_present: vec![0; present.len()],
            values,
            present,
            random,
            sequence: 0,
            pause_us: FIRST_PAUSE_US,
            started_stored: false,
            session: None,
        }
    }

    /// The pause before a dial: half fixed, half random.
    pub(super) fn pause_us(&mut self, redial: Redial) -> u64 {
        match redial {
            Redial::AtOnce => 0,
            Redial::Refused => REDIAL_REFUSED_S * SECOND_US,
            Redial::BackOff => {
                let half = self.pause_us / 2;
                self.pause_us = (self.pause_us * 2).min(LONGEST_PAUSE_US);
                half + self.random.next() % (half + 1)
            }
        }
    }

    pub(super) fn hello<'a>(&self, name: &'a str) -> Hello<'a> {
        Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::AGENT,
            name,
            boot_id: self.boot_id,
            nonce: self.nonce,
            stream: self.stream,
            next_event: if self.started_stored { 2 } else { 1 },
            ticks_per_second: 100,
            capabilities: Capabilities(Capabilities::SAMPLES.0 | Capabilities::CONTROL.0),
            version: "simulated",
        }
    }

    /// Takes a new connection in place of any other and says Hello on it.
    pub(super) fn open(&mut self, stream: UnixStream, now_us: u64) -> Result<()> {
        let mut unsent = vec![0; MAX_HOST_FRAME];
        let name = self.name.clone();
        let end = self.hello(&name).encode(&mut unsent)?;
        unsent.truncate(end);
        let mut session = Session {
            stream,
            decoder: Decoder::new(vec![0; 2 + MAX_HOST_FRAME]),
            unsent,
            welcomed: None,
            acked: false,
            samples: 0,
            opened_us: now_us,
            heard_us: now_us,
            heartbeat_us: now_us,
        };
        session.flush()?;
        self.session = Some(session);
        Ok(())
    }

    pub(super) fn close(&mut self, tally: &mut Tally) {
        if let Some(session) = self.session.take()
            && session.welcomed.is_some()
        {
            tally.lost(session.acked);
        }
    }

    /// What a proof connection is to be told.
    pub(super) fn prove(&self, asked: SessionId, out: &mut [u8]) -> Result<usize> {
        match self.session.as_ref().and_then(|session| session.welcomed) {
            Some((session, challenge)) if session == asked => Ok(Proof { challenge }.encode(out)?),
            _ => Ok(frame::encode(out, frame::kind::NOT_MINE, &())?),
        }
    }

    /// The socket has something to read.
    pub(super) fn ready(&mut self, layout: &Layout, tally: &mut Tally, now_us: u64) -> Result<Ready> {
        let mut buffer = [0; 4096];
        loop {
            let Some(session) = &mut self.session else { return Ok(Ready::Open) };
            if session.flush().is_err() {
                return Ok(Ready::Over(Redial::BackOff));
            }
            let read = match session.stream.read(&mut buffer) {
                Ok(0) => return Ok(Ready::Over(Redial::BackOff)),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Ready::Open),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Ok(Ready::Over(Redial::BackOff)),
            };
            session.heard_us = now_us;
            if let Ready::Over(redial) = self.take(&buffer[..read], layout, tally, now_us)? {
                return Ok(Ready::Over(redial));
            }
            if read < buffer.len() {
                return Ok(Ready::Open);
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], layout: &Layout, tally: &mut Tally, now_us: u64) -> Result<Ready> {
        loop {
            let Some(session) = &mut self.session else { return Ok(Ready::Open) };
            let Ok(taken) = session.decoder.next(&mut bytes) else { return Ok(Ready::Over(Redial::BackOff)) };
            let Some(frame) = taken else { return Ok(Ready::Open) };
            match HostToGuest::decode(frame) {
                Ok(HostToGuest::Welcome(welcome)) => {
                    session.welcomed = Some((welcome.session, welcome.challenge));
                    tally.welcomed();
                    let last_event = welcome.last_event;
                    self.begin(layout, last_event, now_us)?;
                }
                Ok(HostToGuest::Refused(refused)) => {
                    tally.counts.refused += 1;
                    if tally.counts.refused <= 5 {
                        eprintln!("== {} refused: {} ({})", self.name, refused.text, refused.code.0);
                    }
                    return Ok(Ready::Over(if refused.permanent { Redial::Refused } else { Redial::BackOff }));
                }
                Ok(HostToGuest::Ack(ack)) => {
                    self.started_stored |= ack.event > 0;
                    self.pause_us = FIRST_PAUSE_US;
                    if ack.sample > 0 && !std::mem::replace(&mut session.acked, true) {
                        tally.acked()?;
                    }
                }
                Ok(HostToGuest::Bye(bye)) => {
                    let moved = bye.reason == ByeReason::MOVED;
                    return Ok(Ready::Over(if moved { Redial::AtOnce } else { Redial::BackOff }));
                }
                Ok(HostToGuest::Renonce) => {
                    self.nonce = Nonce(self.random.id128());
                    self.stream = StreamId(self.random.next());
                    self.started_stored = false;
                    return Ok(Ready::Over(Redial::AtOnce));
                }
                // Its VMs are never resized, and have no control port.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// After Welcome: the event that is not stored yet, and the schema.
    fn begin(&mut self, layout: &Layout, last_event: u64, now_us: u64) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let mut out = vec![0; MAX_FRAME];
        self.started_stored |= last_event > 0;
        if !self.started_stored {
            let mut body = [0; 64];
            let started = AgentStarted { pid: 1, continued: false, version: "simulated" };
            let length = frame::encode(&mut body, 0, &started)?;
            // The helper writes a whole frame; an event's body is what stands behind its head.
            let body = &body[3..length];
            let event = Event { sequence: 1, boot_time_us: now_us, kind: EventKind::AGENT_STARTED, body };
            let end = event.encode(&mut out)?;
            session.unsent.extend_from_slice(&out[..end]);
        }
        let mut writer = SchemaWriter::new(1);
        let subjects: Vec<_> = layout.subjects().collect();
        let mut rest = subjects.as_slice();
        while !rest.is_empty() {
            let (end, taken) = writer.part(&mut out, rest.iter().cloned())?;
            session.unsent.extend_from_slice(&out[..end]);
            rest = &rest[taken..];
        }
        let end = writer.end(&mut out)?;
        session.unsent.extend_from_slice(&out[..end]);
        self.base_present.fill(0);
        self.base_values.fill(0);
        Ok(())
    }

    /// The sample of this second, on a session or not; `out` is scratch for the largest sample.
    pub(super) fn tick(&mut self, layout: &Layout, tally: &mut Tally, now_us: u64, out: &mut [u8]) -> Result<Ready> {
        layout.step(&mut self.values, self.busy, &mut self.random);
        self.sequence += 1;
        let Some(session) = &mut self.session else { return Ok(Ready::Open) };
        let greeting = session.welcomed.is_none();
        if (greeting && now_us > session.opened_us + HANDSHAKE_DEADLINE_S * SECOND_US)
            || now_us > session.heard_us + DEAD_AFTER_S * SECOND_US
        {
            return Ok(Ready::Over(Redial::BackOff));
        }
        if greeting {
            return Ok(Ready::Open);
        }
        if session.flush().is_err() {
            return Ok(Ready::Over(Redial::BackOff));
        }
        if !session.unsent.is_empty() {
            tally.counts.unsent += 1;
            return Ok(Ready::Open);
        }
        if now_us >= session.heartbeat_us + HEARTBEAT_EVERY_S * SECOND_US {
            session.heartbeat_us = now_us;
            let heartbeat = Heartbeat {
                boot_time_us: now_us,
                wall_time_us: unix_ms() * 1000,
                loop_lag_us: 80,
                sample_cost_us: 300,
            };
            let end = heartbeat.encode(out)?;
            session.unsent.extend_from_slice(&out[..end]);
        }
        let key = session.samples.is_multiple_of(KEY_FRAME_EVERY);
        let head = SampleHead { generation: 1, sequence: self.sequence, boot_time_us: now_us };
        let row = Row { values: &self.values, present: &self.present };
        let mut base = Base { values: &mut self.base_values, present: &mut self.base_present };
        let end = sample::encode(out, head, key, row, &mut base)?;
        session.samples += 1;
        session.unsent.extend_from_slice(&out[..end]);
        tally.counts.samples += 1;
        tally.counts.sample_bytes += u64::try_from(end)?;
        Ok(if session.flush().is_err() { Ready::Over(Redial::BackOff) } else { Ready::Open })
    }
}

impl Session {
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
