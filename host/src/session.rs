//! One connection's protocol, without I/O: bytes and times in, what they mean out. Knows no socket, no clock, no
//! instance: admission is the caller's.
//!
//! ```text
//! Greeting --Hello--> Greeted --open()--> Open <--hold()/open()--> Held
//!    |  4 s, bad frame   |                 |  15 s of silence, broken schema or sample,
//!    v                   v                 v  ten undecodable frames in a row, Bye
//!   over               over              over
//! ```
//! Greeting waits for the first frame. Greeted waits for the caller's decision; a guest that sends on before it has
//! its Welcome breaks the protocol. Held is a session that may not speak yet: its bytes stay in the socket.

use crate::model::{Now, SECOND_US};
use informant_wire::event::Event;
use informant_wire::frame::{Frame, kind};
use informant_wire::guest_to_host::{GuestToHost, Heartbeat};
use informant_wire::hello::{Hello, RefusedCode};
use informant_wire::host_to_guest::{Ack, ByeReason};
use informant_wire::limits::{
    DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, MAX_BAD_FRAMES, MAX_BODY, MAX_HANDSHAKE_FRAME, MAX_REFUSED_TEXT,
};
use informant_wire::sample::SampleBody;
use informant_wire::schema::{SchemaEnd, SchemaPart};
use std::fmt;

/// Acks go out this long after the last one when nothing asks for one sooner: under the 5 s of the protocol by the
/// time that a busy host may need.
const ACK_EVERY_US: u64 = 4 * SECOND_US;
/// And never sooner than this.
const ACK_AT_MOST_EVERY_US: u64 = SECOND_US;
/// Largest body of frames other than schemas and samples. The largest of them, an event, has about 540 bytes.
const MAX_SMALL_BODY: usize = MAX_HANDSHAKE_FRAME;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest closed the connection.
    Closed,
    /// The connection failed.
    Failed(String),
    /// No complete Hello within 4 s.
    NoHello,
    /// Nothing arrived for 15 s.
    Silent,
    /// The guest did not read for 15 s.
    NotReading,
    /// The guest said Bye.
    Bye(ByeReason),
    /// The guest broke the protocol, and how.
    Broken(String),
    /// It was refused.
    Refused(RefusedCode),
    /// The host ended it, and why.
    Ended(ByeReason),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |reason: &ByeReason| reason.name().map_or_else(|| format!("unknown({})", reason.0), Into::into);
        match self {
            Self::Closed => write!(f, "closed by the guest"),
            Self::Failed(error) => write!(f, "connection failed: {error}"),
            Self::NoHello => write!(f, "no hello within {HANDSHAKE_DEADLINE_S} s"),
            Self::Silent => write!(f, "nothing arrived for {DEAD_AFTER_S} s"),
            Self::NotReading => write!(f, "the guest did not read for {DEAD_AFTER_S} s"),
            Self::Bye(why) => write!(f, "the guest said goodbye: {}", reason(why)),
            Self::Broken(how) => write!(f, "protocol error: {how}"),
            Self::Refused(code) => {
                write!(f, "refused: {}", code.name().map_or_else(|| format!("unknown({})", code.0), Into::into))
            }
            Self::Ended(why) => write!(f, "ended by the host: {}", reason(why)),
        }
    }
}

/// What some bytes mean.
#[derive(Debug, PartialEq)]
pub enum Heard<'a> {
    /// The first frame, valid, with the version that both sides speak. Answer with [`Session::open`] or by closing.
    Hello(Hello<'a>, u16),
    /// Answer with Refused and close.
    Refuse {
        /// Why.
        code: RefusedCode,
        /// Asking again soon does not help.
        permanent: bool,
        /// For people.
        text: String,
    },
    /// Some subjects, and the body they came in.
    SchemaPart(SchemaPart<'a>, &'a [u8]),
    /// The schema is whole.
    SchemaEnd(SchemaEnd),
    /// A row of values.
    Sample(SampleBody<'a>),
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// Something happened.
    Event(Event<'a>),
    /// A frame that was skipped: a type unknown here.
    Unknown(u8),
    /// A frame that was skipped: it does not decode.
    Bad(u8),
    /// The session is over.
    Over(Ending),
}

/// What time asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send this.
    Ack(Ack),
    /// The session is over.
    Over(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Greeted,
    Held,
    Open,
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    inbox: Inbox,
    /// It may send schemas and samples.
    agent: bool,
    bad_in_a_row: u32,
    began: Now,
    heard: Now,
    acked: Option<Now>,
    last_ack: Ack,
    next_ack: Ack,
}

impl Session {
    /// A connection that has just come.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            phase: Phase::Greeting,
            inbox: Inbox::default(),
            agent: false,
            bad_in_a_row: 0,
            began: now,
            heard: now,
            acked: None,
            last_ack: Ack::default(),
            next_ack: Ack::default(),
        }
    }

    /// The caller has sent Welcome. `last_event`: what it said there. `held`: nothing of it is read for now.
    pub fn open(&mut self, now: Now, agent: bool, last_event: u64, held: bool) {
        self.phase = if held { Phase::Held } else { Phase::Open };
        self.agent = agent;
        self.heard = now;
        self.acked = Some(now);
        self.last_ack = Ack { sample: 0, event: last_event };
        self.next_ack = self.last_ack;
    }

    /// A held session may speak.
    pub fn resume(&mut self, now: Now) {
        if self.phase == Phase::Held {
            self.phase = Phase::Open;
            self.heard = now;
        }
    }

    /// The caller ends it.
    pub fn end(&mut self) {
        self.phase = Phase::Over;
    }

    /// Whether bytes should be read from the connection.
    #[must_use]
    pub const fn wants_bytes(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::Open)
    }

    /// Whether it is open or held.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Held)
    }

    /// A sample was taken: the next Ack says so, and the first of a session at once.
    pub fn sample_taken(&mut self, sequence: u64) {
        self.next_ack.sample = self.next_ack.sample.max(sequence);
    }

    /// Events up to this one are in the file: the next Ack says so, soon.
    pub fn event_stored(&mut self, sequence: u64) {
        self.next_ack.event = self.next_ack.event.max(sequence);
    }

    /// What the bytes of `input` behind the first `used` mean; `used` moves on. `None`: all was taken. Call it until
    /// then, and not again after [`Heard::Over`] or [`Heard::Refuse`].
    pub fn next<'a>(&'a mut self, now: Now, input: &'a [u8], used: &mut usize) -> Option<Heard<'a>> {
        let mut rest = input.get(*used..).unwrap_or_default();
        let heard = self.advance(now, &mut rest);
        *used = input.len() - rest.len();
        heard
    }

    fn advance<'a>(&'a mut self, now: Now, input: &mut &'a [u8]) -> Option<Heard<'a>> {
        if input.is_empty() {
            return None;
        }
        self.heard = now;
        match self.phase {
            Phase::Greeting => self.greet(input),
            Phase::Open => self.listen(input),
            Phase::Held => None,
            Phase::Greeted => {
                self.phase = Phase::Over;
                let text = "frames before Welcome".into();
                Some(Heard::Refuse { code: RefusedCode::MALFORMED, permanent: true, text })
            }
            Phase::Over => {
                *input = &[];
                None
            }
        }
    }

    fn greet<'a>(&'a mut self, input: &mut &'a [u8]) -> Option<Heard<'a>> {
        let refuse = |code, permanent, text: String| Some(Heard::Refuse { code, permanent, text });
        let taken = self.inbox.next(input, |kind| (kind == kind::HELLO).then_some(MAX_HANDSHAKE_FRAME))?;
        self.phase = Phase::Over;
        let hello = match taken {
            Taken::Frame(frame) => match Hello::decode(frame.body) {
                Ok(hello) => hello,
                Err(error) => return refuse(RefusedCode::MALFORMED, true, format!("hello: {error}")),
            },
            Taken::Skipped(kind::HELLO) => {
                let text = format!("hello of over {MAX_HANDSHAKE_FRAME} bytes");
                return refuse(RefusedCode::MALFORMED, true, text);
            }
            Taken::Skipped(other) => {
                return refuse(RefusedCode::MALFORMED, true, format!("first frame of type {other:#04x}, not hello"));
            }
            Taken::Empty => return refuse(RefusedCode::MALFORMED, true, "frame of length 0".into()),
        };
        let Some(version) = hello.agreed_version() else {
            let text = format!(
                "guest speaks {} to {}, this host {} to {}",
                hello.min_version,
                hello.max_version,
                informant_wire::MIN_VERSION,
                informant_wire::MAX_VERSION
            );
            return refuse(RefusedCode::VERSION, true, text);
        };
        self.phase = Phase::Greeted;
        Some(Heard::Hello(hello, version))
    }

    fn listen<'a>(&'a mut self, input: &mut &'a [u8]) -> Option<Heard<'a>> {
        let agent = self.agent;
        let taken = self.inbox.next(input, |kind| match kind {
            kind::SCHEMA_PART | kind::SAMPLE if agent => Some(MAX_BODY),
            kind::SCHEMA_END if agent => Some(MAX_SMALL_BODY),
            kind::HEARTBEAT | kind::EVENT | kind::BYE => Some(MAX_SMALL_BODY),
            _ => None,
        })?;
        let heard = match taken {
            Taken::Empty => Heard::Over(Ending::Broken("frame of length 0".into())),
            Taken::Skipped(kind @ (kind::HEARTBEAT | kind::EVENT | kind::BYE)) => bad(&mut self.bad_in_a_row, kind),
            Taken::Skipped(kind::SCHEMA_END) if agent => {
                Heard::Over(Ending::Broken(format!("schema end of over {MAX_SMALL_BODY} bytes")))
            }
            Taken::Skipped(kind) => Heard::Unknown(kind),
            Taken::Frame(frame) => match GuestToHost::decode(frame) {
                Err(error) if matches!(frame.kind, kind::SCHEMA_PART | kind::SCHEMA_END | kind::SAMPLE) => {
                    Heard::Over(Ending::Broken(format!("frame of type {:#04x}: {error}", frame.kind)))
                }
                Err(_) => bad(&mut self.bad_in_a_row, frame.kind),
                Ok(message) => {
                    self.bad_in_a_row = 0;
                    match message {
                        GuestToHost::SchemaPart(part) => Heard::SchemaPart(part, frame.body),
                        GuestToHost::SchemaEnd(end) => Heard::SchemaEnd(end),
                        GuestToHost::Sample(sample) => Heard::Sample(sample),
                        GuestToHost::Heartbeat(heartbeat) => Heard::Heartbeat(heartbeat),
                        GuestToHost::Event(event) => Heard::Event(event),
                        GuestToHost::Bye(bye) => Heard::Over(Ending::Bye(bye.reason)),
                        GuestToHost::Hello(_) | GuestToHost::Proof(_) | GuestToHost::NotMine => {
                            Heard::Unknown(frame.kind)
                        }
                        GuestToHost::Unknown(kind) => Heard::Unknown(kind),
                    }
                }
            },
        };
        if matches!(heard, Heard::Over(_)) {
            self.phase = Phase::Over;
        }
        Some(heard)
    }

    /// When [`Self::due`] has something to say at the latest, microseconds of [`Now::mono_us`].
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        let dead = self.heard.mono_us.saturating_add(DEAD_AFTER_S * SECOND_US);
        match self.phase {
            Phase::Greeting | Phase::Greeted => self.began.mono_us.saturating_add(HANDSHAKE_DEADLINE_S * SECOND_US),
            Phase::Open => dead.min(self.ack_at_us()),
            Phase::Held => self.ack_at_us(),
            Phase::Over => u64::MAX,
        }
    }

    /// What time asks for now, if anything.
    pub fn due(&mut self, now: Now) -> Option<Due> {
        let over = match self.phase {
            Phase::Greeting | Phase::Greeted => {
                (now.since_us(self.began) >= HANDSHAKE_DEADLINE_S * SECOND_US).then_some(Ending::NoHello)
            }
            Phase::Open => (now.since_us(self.heard) >= DEAD_AFTER_S * SECOND_US).then_some(Ending::Silent),
            Phase::Held | Phase::Over => None,
        };
        if let Some(ending) = over {
            self.phase = Phase::Over;
            return Some(Due::Over(ending));
        }
        (self.is_open() && now.mono_us >= self.ack_at_us()).then(|| {
            self.acked = Some(now);
            self.last_ack = self.next_ack;
            Due::Ack(self.next_ack)
        })
    }

    fn ack_at_us(&self) -> u64 {
        let Some(acked) = self.acked else { return u64::MAX };
        let urgent =
            self.next_ack.event > self.last_ack.event || (self.last_ack.sample == 0 && self.next_ack.sample > 0);
        acked.mono_us.saturating_add(if urgent { ACK_AT_MOST_EVERY_US } else { ACK_EVERY_US })
    }
}

fn bad<'a>(in_a_row: &mut u32, kind: u8) -> Heard<'a> {
    *in_a_row += 1;
    if *in_a_row >= MAX_BAD_FRAMES {
        return Heard::Over(Ending::Broken(format!("{MAX_BAD_FRAMES} frames in a row do not decode")));
    }
    Heard::Bad(kind)
}

/// `text` as it fits a Refused.
#[must_use]
pub fn refused_text(text: &str) -> &str {
    let mut end = text.len().min(MAX_REFUSED_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// What stood at the start of some bytes.
#[derive(Debug)]
enum Taken<'a> {
    Frame(Frame<'a>),
    /// A frame that is not looked at: unwanted, or longer than its type may be. Its bytes are never held.
    Skipped(u8),
    /// A frame of length 0: the stream can not be framed any further.
    Empty,
}

/// Makes frames of pieces. Unlike the wire's decoder it holds no more than what has arrived of a frame that somebody
/// wants: thousands of sessions share the memory.
#[derive(Debug, Default)]
struct Inbox {
    held: Vec<u8>,
    /// Bytes of an unwanted frame still to come.
    skip: usize,
    /// `held` is a frame that was handed out.
    spent: bool,
}

impl Inbox {
    /// `limit`: the longest body wanted of a type; `None` for a type that is not wanted.
    fn next<'a>(&'a mut self, input: &mut &'a [u8], limit: impl Fn(u8) -> Option<usize>) -> Option<Taken<'a>> {
        if self.spent {
            self.spent = false;
            if self.held.capacity() > MAX_SMALL_BODY {
                self.held = Vec::new();
            }
            self.held.clear();
        }
        let skipped = self.skip.min(input.len());
        self.skip -= skipped;
        *input = input.get(skipped..).unwrap_or_default();
        let fits = |kind, body| limit(kind).is_some_and(|limit| body <= limit);
        if self.held.is_empty() {
            let bytes: &'a [u8] = input;
            if let [low, high, kind, rest @ ..] = bytes {
                let body = usize::from(u16::from_le_bytes([*low, *high])).checked_sub(1);
                let whole = body.filter(|body| fits(*kind, *body)).and_then(|body| rest.split_at_checked(body));
                if let Some((body, behind)) = whole {
                    *input = behind;
                    return Some(Taken::Frame(Frame { kind: *kind, body }));
                }
            }
        }
        loop {
            let wanted = match self.held.as_slice() {
                [low, high, kind, ..] => {
                    let (length, kind) = (usize::from(u16::from_le_bytes([*low, *high])), *kind);
                    let Some(body) = length.checked_sub(1) else { return Some(Taken::Empty) };
                    if !fits(kind, body) {
                        self.held.clear();
                        let here = input.len().min(body);
                        self.skip = body - here;
                        *input = input.get(here..).unwrap_or_default();
                        return Some(Taken::Skipped(kind));
                    }
                    2 + length
                }
                // A length of 0 has no type behind it to wait for.
                [0, 0] => return Some(Taken::Empty),
                _ => {
                    if self.held.len() < 2 {
                        2
                    } else {
                        3
                    }
                }
            };
            let missing = wanted.saturating_sub(self.held.len());
            if missing == 0 {
                break;
            }
            let (piece, rest) = input.split_at(missing.min(input.len()));
            if piece.is_empty() {
                return None;
            }
            self.held.extend_from_slice(piece);
            *input = rest;
        }
        self.spent = true;
        match self.held.as_slice() {
            [_, _, kind, body @ ..] => Some(Taken::Frame(Frame { kind: *kind, body })),
            _ => None,
        }
    }
}
