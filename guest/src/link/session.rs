//! One session with a host, without I/O: bytes and times in, bytes and notices out. Does not know who dialled whom
//! beyond [`Origin`], nor what an end means for the next dial.
//!
//! ```text
//!            Hello queued
//!                 |
//!            [greeting] --Welcome--> [streaming] --close()/proof answered--> [closing] --all sent--> end
//!                 |                      |                                       |
//!   Refused, Renonce, Bye, 4 s    Bye, Renonce, no Ack for 15 s,             deadline
//!                 |               no byte taken for 10 s, bad frames             |
//!                 +----------------------+---------------------------------------+--> end
//! ```
//!
//! Sending is pulled: only when the last byte of the previous output has gone to the kernel is anything new encoded,
//! so a slow host gets the newest sample, never an old one, and a sample it misses leaves no trace in the deltas.

use crate::collect::Sensors;
use crate::outbox::Outbox;
use informant_wire::guest_to_host::{Heartbeat, Proof};
use informant_wire::hello::{Hello, RefusedCode, Role};
use informant_wire::host_to_guest::{Bye, ByeReason};
use informant_wire::id::{Challenge, SessionId};
use informant_wire::limits::{
    DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, HEARTBEAT_EVERY_S, KEY_FRAME_EVERY, MAX_BAD_FRAMES, MAX_EVENT_BODY,
    MAX_HANDSHAKE_FRAME, MAX_HOST_FRAME, MAX_WRITE, SCHEMA_EVERY_S, max_sample_body,
};
use informant_wire::sample::{Base, SampleHead};
use informant_wire::schema::SchemaWriter;
use informant_wire::{Decoder, FrameError, HostToGuest, MAX_VERSION, MIN_VERSION, bits, frame};
use nix::errno::Errno;

const SECOND_US: u64 = 1_000_000;
/// Without a byte taken by the kernel for this long the host does not read: shorter than the 15 s without an Ack, so
/// that the log tells which it was.
const STALLED_AFTER_US: u64 = 10 * SECOND_US;
/// A closing session has this long to flush.
const CLOSING_US: u64 = SECOND_US;
/// Output buffer beyond the largest sample: a heartbeat, a goodbye, an event.
const SLACK: usize = 1024;
const LEAST_OUTPUT: usize = 4096;

/// How the connection came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The agent dialled its host.
    Dialled,
    /// The host dialled, at the address of `--listen`.
    Listened,
    /// Somebody came to the control port.
    Control,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The connection was closed.
    #[error("connection closed by the host")]
    Closed,
    /// The connection broke.
    #[error("connection broken: {}", .0.desc())]
    Broken(Errno),
    /// No answer to Hello in time.
    #[error("no answer to the handshake in {HANDSHAKE_DEADLINE_S} s")]
    NoAnswer,
    /// No Ack in time.
    #[error("host acknowledged nothing for {DEAD_AFTER_S} s")]
    Silent,
    /// The host does not read.
    #[error("host took no byte for 10 s")]
    Stalled,
    /// The host does not want this session.
    #[error("refused by the host: {} ({text})", .code.name().unwrap_or("unknown reason"))]
    Refused {
        /// Why.
        code: RefusedCode,
        /// Whether asking again soon is useless.
        permanent: bool,
        /// The host's words.
        text: Box<str>,
    },
    /// The host said goodbye.
    #[error("host said goodbye: {}", .0.name().unwrap_or("unknown reason"))]
    Bye(ByeReason),
    /// The host wants another nonce and stream.
    #[error("host asks for a new identity: another guest has this one")]
    Renonce,
    /// The host has stored events of this stream that this process has not produced: the VM was set back.
    #[error("host knows later events of this stream: this VM was set back to an earlier state")]
    Ahead,
    /// The bytes can not be framed.
    #[error("host broke the protocol: {0}")]
    Framing(FrameError),
    /// Too many known frames in a row did not decode.
    #[error("host broke the protocol: {MAX_BAD_FRAMES} frames in a row that do not decode")]
    BadFrames,
    /// An answer that does not fit the question.
    #[error("host broke the protocol: chose version {0}, which was not offered")]
    Version(u16),
    /// A message of this side does not fit its frame.
    #[error("a message does not fit its frame")]
    Unencodable,
    /// This side had no room or no more use for it.
    #[error("closed by the agent")]
    Done,
}

/// What the session's owner must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The handshake is over.
    Welcomed {
        /// The last event of the stream that the host has stored.
        last_event: u64,
    },
    /// The host has what was sent up to here.
    Acknowledged {
        /// The highest stored event.
        event: u64,
        /// The first of this session: it is ready.
        first: bool,
    },
    /// On a control connection: is this session the agent's?
    Prove(SessionId),
}

/// What a session takes its output from.
#[derive(Debug)]
pub struct Feed<'a> {
    /// Schema and newest row.
    pub sensors: &'a Sensors,
    /// The newest sample; `None` before the first.
    pub head: Option<SampleHead>,
    /// Events.
    pub outbox: &'a Outbox,
    /// `CLOCK_BOOTTIME`, microseconds.
    pub now_us: u64,
    /// `CLOCK_REALTIME`, microseconds.
    pub wall_us: u64,
    /// CPU time of the newest sample, microseconds.
    pub sample_cost_us: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Streaming,
    Closing,
}

/// Bytes on their way to the kernel.
#[derive(Debug, Default)]
struct Output {
    buffer: Vec<u8>,
    filled: usize,
    sent: usize,
}

impl Output {
    fn is_empty(&self) -> bool {
        self.sent == self.filled
    }

    /// Room behind what is filled.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.filled..).unwrap_or_default()
    }

    /// Grows or shrinks while nothing is in it. Never called between two schemas.
    fn resize(&mut self, bytes: usize) {
        if self.is_empty() {
            self.buffer = vec![0; bytes];
            (self.filled, self.sent) = (0, 0);
        }
    }
}

/// The schema that goes over this connection.
#[derive(Debug)]
struct SchemaState {
    generation: u32,
    writer: SchemaWriter,
    written: usize,
    complete: bool,
    begun_us: u64,
}

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    origin: Origin,
    phase: Phase,
    decoder: Decoder<[u8; MAX_HOST_FRAME]>,
    output: Output,
    /// When the handshake began, and from Welcome on when the host last acknowledged.
    heard_us: u64,
    /// When the kernel last took a byte, or there was nothing to take.
    moved_us: u64,
    closing_us: u64,
    heartbeat_us: u64,
    lag_us: u32,
    bad_frames: u32,
    skipped_frames: u64,
    ready: bool,
    said_bye: Option<ByeReason>,
    /// Welcome's: which session, and its challenge.
    id: SessionId,
    challenge: Challenge,
    role: Role,
    peer_name: heapless::String<{ informant_wire::limits::MAX_PEER_NAME }>,
    /// The next event to send.
    cursor: u64,
    schema: Option<SchemaState>,
    base_values: Vec<u64>,
    base_present: Vec<u8>,
    /// Samples sent under this schema.
    samples: u64,
    last_sample: u64,
}

impl Session {
    /// Begins with Hello.
    #[must_use]
    pub fn new(origin: Origin, hello: &Hello<'_>, now_us: u64) -> Self {
        let mut output = Output::default();
        output.resize(MAX_HANDSHAKE_FRAME);
        output.filled = hello.encode(&mut output.buffer).unwrap_or_default();
        Self {
            origin,
            phase: Phase::Greeting,
            decoder: Decoder::new([0; MAX_HOST_FRAME]),
            output,
            heard_us: now_us,
            moved_us: now_us,
            closing_us: 0,
            heartbeat_us: now_us,
            lag_us: 0,
            bad_frames: 0,
            skipped_frames: 0,
            ready: false,
            said_bye: None,
            id: SessionId::default(),
            challenge: Challenge::default(),
            role: Role::OBSERVER,
            peer_name: heapless::String::new(),
            cursor: 0,
            schema: None,
            base_values: Vec::new(),
            base_present: Vec::new(),
            samples: 0,
            last_sample: 0,
        }
    }

    /// How the connection came to be.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether the handshake is still under way.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        self.phase == Phase::Greeting
    }

    /// Whether it is in use: welcomed and not yet closing.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.phase == Phase::Streaming
    }

    /// Whether a schema has begun and is not whole yet: its subjects must stay as they are.
    #[must_use]
    pub fn is_amid_schema(&self) -> bool {
        self.is_streaming() && self.schema.as_ref().is_some_and(|schema| !schema.complete)
    }

    /// When the last schema began, microseconds of boot time.
    #[must_use]
    pub fn schema_begun_us(&self) -> Option<u64> {
        self.schema.as_ref().map(|schema| schema.begun_us)
    }

    /// The host's name for people.
    #[must_use]
    pub fn peer_name(&self) -> &str {
        &self.peer_name
    }

    /// The session's role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The challenge, if this is the live session of that id.
    #[must_use]
    pub fn challenge_of(&self, id: SessionId) -> Option<Challenge> {
        (self.is_streaming() && self.id == id).then_some(self.challenge)
    }

    /// Whether the newest sample has been encoded for this host.
    #[must_use]
    pub fn has_sent(&self, sequence: u64) -> bool {
        self.last_sample >= sequence
    }

    /// Frames of the host that were skipped since the last call.
    pub fn take_skipped_frames(&mut self) -> u64 {
        std::mem::take(&mut self.skipped_frames)
    }

    /// The loop woke this late.
    pub fn note_lag(&mut self, lag_us: u32) {
        self.lag_us = self.lag_us.max(lag_us);
    }

    /// Takes received bytes up to the next thing the owner must know; `Ok(None)` when they are used up.
    pub fn receive(&mut self, input: &mut &[u8], now_us: u64) -> Result<Option<Notice>, End> {
        loop {
            let Some(frame) = self.decoder.next(input).map_err(End::Framing)? else { return Ok(None) };
            let message = match HostToGuest::decode(frame) {
                Ok(HostToGuest::Unknown(_)) => {
                    self.skipped_frames += 1;
                    continue;
                }
                Ok(message) => message,
                Err(_) => {
                    self.skipped_frames += 1;
                    self.bad_frames += 1;
                    if self.bad_frames >= MAX_BAD_FRAMES {
                        return Err(End::BadFrames);
                    }
                    continue;
                }
            };
            self.bad_frames = 0;
            match (self.phase, message) {
                (_, HostToGuest::Bye(bye)) => return Err(End::Bye(bye.reason)),
                (_, HostToGuest::Renonce) => return Err(End::Renonce),
                (_, HostToGuest::Refused(refused)) => {
                    return Err(End::Refused {
                        code: refused.code,
                        permanent: refused.permanent,
                        text: refused.text.into(),
                    });
                }
                (Phase::Greeting, HostToGuest::Welcome(welcome)) => {
                    if !(MIN_VERSION..=MAX_VERSION).contains(&welcome.version) {
                        return Err(End::Version(welcome.version));
                    }
                    self.phase = Phase::Streaming;
                    (self.heard_us, self.heartbeat_us) = (now_us, now_us);
                    (self.id, self.challenge, self.role) = (welcome.session, welcome.challenge, welcome.role);
                    self.peer_name = welcome.controller_name.try_into().unwrap_or_default();
                    self.cursor = welcome.last_event.saturating_add(1);
                    return Ok(Some(Notice::Welcomed { last_event: welcome.last_event }));
                }
                (Phase::Greeting, HostToGuest::Prove(prove)) if self.origin == Origin::Control => {
                    return Ok(Some(Notice::Prove(prove.session)));
                }
                (Phase::Streaming | Phase::Closing, HostToGuest::Ack(ack)) => {
                    self.heard_us = now_us;
                    let first = !std::mem::replace(&mut self.ready, true);
                    return Ok(Some(Notice::Acknowledged { event: ack.event, first }));
                }
                // Known, but not at this time: skipped like an unknown one.
                _ => self.skipped_frames += 1,
            }
        }
    }

    /// Answers [`Notice::Prove`] and closes.
    pub fn answer_proof(&mut self, challenge: Option<Challenge>, now_us: u64) {
        // Hello has gone before the host could ask, unless it asked unseen: then the answer follows Hello.
        if self.output.is_empty() {
            (self.output.filled, self.output.sent) = (0, 0);
        }
        let room = self.output.room();
        let answer = match challenge {
            Some(challenge) => Proof { challenge }.encode(room),
            None => frame::encode(room, frame::kind::NOT_MINE, &()),
        };
        self.output.filled += answer.unwrap_or_default();
        self.enter_closing(now_us);
    }

    /// Says goodbye behind what is already on its way, and closes.
    pub fn close(&mut self, reason: ByeReason, now_us: u64) {
        if self.phase != Phase::Closing {
            self.said_bye = Some(reason);
            self.enter_closing(now_us);
        }
    }

    fn enter_closing(&mut self, now_us: u64) {
        self.phase = Phase::Closing;
        self.closing_us = now_us;
    }

    /// Encodes what is due, if everything before has gone to the kernel.
    pub fn fill(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        if !self.output.is_empty() {
            return Ok(());
        }
        (self.output.filled, self.output.sent) = (0, 0);
        self.moved_us = feed.now_us;
        match self.phase {
            Phase::Greeting => {}
            Phase::Streaming => {
                self.fill_schema(feed)?;
                self.fill_heartbeat(feed)?;
                self.fill_sample(feed)?;
                self.fill_events(feed)?;
            }
            Phase::Closing => {
                let Some(reason) = self.said_bye.take() else { return Err(End::Done) };
                let room = self.output.room();
                self.output.filled = Bye { reason }.encode(room).map_err(|_| End::Unencodable)?;
            }
        }
        Ok(())
    }

    fn fill_heartbeat(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        if feed.now_us < self.heartbeat_us {
            return Ok(());
        }
        let heartbeat = Heartbeat {
            boot_time_us: feed.now_us,
            wall_time_us: feed.wall_us,
            loop_lag_us: std::mem::take(&mut self.lag_us),
            sample_cost_us: feed.sample_cost_us,
        };
        // Beside a large part of a schema there may be no room: then it goes with the next output.
        if let Ok(bytes) = heartbeat.encode(self.output.room()) {
            self.output.filled += bytes;
            self.heartbeat_us = feed.now_us + HEARTBEAT_EVERY_S * SECOND_US;
        }
        Ok(())
    }

    fn fill_schema(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let generation = feed.sensors.generation();
        if self.schema.as_ref().is_none_or(|schema| schema.generation != generation) {
            let too_soon = |schema: &SchemaState| feed.now_us < schema.begun_us + SCHEMA_EVERY_S * SECOND_US;
            if feed.head.is_none_or(|head| head.generation != generation) || self.schema.as_ref().is_some_and(too_soon)
            {
                return Ok(());
            }
            self.begin_schema(generation, feed);
        }
        let Some(schema) = self.schema.as_mut().filter(|schema| !schema.complete) else { return Ok(()) };
        let mut subjects = feed.sensors.subjects().skip(schema.written).peekable();
        while subjects.peek().is_some() {
            let room = self.output.buffer.get_mut(self.output.filled..).unwrap_or_default();
            match schema.writer.part(room, subjects.by_ref()) {
                Ok((bytes, taken)) => {
                    self.output.filled += bytes;
                    schema.written += taken;
                    // The writer has looked at one subject more than it took.
                    subjects = feed.sensors.subjects().skip(schema.written).peekable();
                }
                Err(_) if self.output.filled > 0 => return Ok(()),
                Err(_) => return Err(End::Unencodable),
            }
        }
        drop(subjects);
        if let Ok(bytes) = schema.writer.end(self.output.room()) {
            self.output.filled += bytes;
            schema.complete = true;
        }
        Ok(())
    }

    /// The one place where a session allocates.
    fn begin_schema(&mut self, generation: u32, feed: &Feed<'_>) {
        let series = feed.sensors.row().values.len();
        self.output.resize((3 + max_sample_body(series) + SLACK).max(LEAST_OUTPUT));
        self.base_values.clear();
        self.base_values.resize(series, 0);
        self.base_values.shrink_to_fit();
        self.base_present.clear();
        self.base_present.resize(bits::bytes_for(series), 0);
        self.samples = 0;
        self.schema = Some(SchemaState {
            generation,
            writer: SchemaWriter::new(generation),
            written: 0,
            complete: false,
            begun_us: feed.now_us,
        });
    }

    fn fill_sample(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let Some(head) = feed.head.filter(|head| head.sequence > self.last_sample) else { return Ok(()) };
        let whole = |schema: &SchemaState| schema.complete && schema.generation == head.generation;
        if !self.schema.as_ref().is_some_and(whole) {
            return Ok(());
        }
        let largest = 3 + max_sample_body(self.base_values.len());
        let room = self.output.buffer.get_mut(self.output.filled..).unwrap_or_default();
        if room.len() < largest {
            // Behind the last part of a schema: the sample is the next output.
            return Ok(());
        }
        let mut base = Base { values: &mut self.base_values, present: &mut self.base_present };
        let key = self.samples.is_multiple_of(KEY_FRAME_EVERY);
        let bytes = informant_wire::sample::encode(room, head, key, feed.sensors.row(), &mut base)
            .map_err(|_| End::Unencodable)?;
        self.output.filled += bytes;
        self.samples += 1;
        self.last_sample = head.sequence;
        Ok(())
    }

    fn fill_events(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let mut body = [0; MAX_EVENT_BODY];
        while let Some(event) = feed.outbox.read(self.cursor, &mut body) {
            let Ok(bytes) = event.encode(self.output.room()) else {
                // Full: the rest follows. Nothing before it and still no room would be for ever.
                return if self.output.filled > 0 { Ok(()) } else { Err(End::Unencodable) };
            };
            self.output.filled += bytes;
            self.cursor = event.sequence + 1;
        }
        Ok(())
    }

    /// What the kernel should take next, at most 32 KiB.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        let pending = self.output.buffer.get(self.output.sent..self.output.filled).unwrap_or_default();
        pending.get(..MAX_WRITE).unwrap_or(pending)
    }

    /// The kernel took this many bytes.
    pub fn sent(&mut self, bytes: usize, now_us: u64) {
        self.output.sent = (self.output.sent + bytes).min(self.output.filled);
        self.moved_us = now_us;
    }

    /// Ends the session whose deadline has passed.
    pub fn check_deadlines(&self, now_us: u64) -> Result<(), End> {
        let passed = |since: u64, limit: u64| now_us >= since + limit;
        match self.phase {
            Phase::Greeting if passed(self.heard_us, HANDSHAKE_DEADLINE_S * SECOND_US) => Err(End::NoAnswer),
            Phase::Closing if passed(self.closing_us, CLOSING_US) => Err(End::Done),
            Phase::Streaming if !self.output.is_empty() && passed(self.moved_us, STALLED_AFTER_US) => Err(End::Stalled),
            Phase::Streaming if passed(self.heard_us, DEAD_AFTER_S * SECOND_US) => Err(End::Silent),
            _ => Ok(()),
        }
    }

    /// When something has to be looked at again at the latest.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        match self.phase {
            Phase::Greeting => self.heard_us + HANDSHAKE_DEADLINE_S * SECOND_US,
            Phase::Closing => self.closing_us + CLOSING_US,
            Phase::Streaming => {
                let dead = self.heard_us + DEAD_AFTER_S * SECOND_US;
                let next = if self.output.is_empty() { self.heartbeat_us } else { self.moved_us + STALLED_AFTER_US };
                dead.min(next)
            }
        }
    }
}
