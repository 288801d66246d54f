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

use crate::inbox::{Inbox, Taken};
use crate::model::{Now, SECOND_US};
use crate::scale::desk::Said;
use informant_wire::event::Event;
use informant_wire::frame::kind;
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
/// A routine Ack is sent this long after the last byte at the latest; later, it waits for the next byte.
const ACK_ANSWERS_US: u64 = SECOND_US / 10;
/// And never sooner than this.
const ACK_AT_MOST_EVERY_US: u64 = SECOND_US;
/// Largest body of a Hello: the limit is of the whole frame.
const MAX_HELLO_BODY: usize = MAX_HANDSHAKE_FRAME - 3;
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
    /// Something about scaling.
    Scaling(Said<'a>),
    /// A frame that was skipped: a type unknown here.
    Unknown(u8),
    /// A frame that was skipped: it does not decode. Why, where it is the first of the session.
    Bad(Option<String>),
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
    /// A bad frame has been told of.
    bad_told: bool,
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
            bad_told: false,
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
        let taken = self.inbox.next(input, |kind| (kind == kind::HELLO).then_some(MAX_HELLO_BODY))?;
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
            kind::SUSPEND..=kind::UNREGISTERED if agent => Some(MAX_SMALL_BODY),
            _ => None,
        })?;
        let heard = match taken {
            Taken::Empty => Heard::Over(Ending::Broken("frame of length 0".into())),
            Taken::Skipped(kind @ (kind::HEARTBEAT | kind::EVENT | kind::BYE | kind::SUSPEND..=kind::UNREGISTERED))
                if agent || kind <= kind::BYE =>
            {
                self.bad_in_a_row += 1;
                bad(self.bad_in_a_row, &mut self.bad_told, kind, &format_args!("over {MAX_SMALL_BODY} bytes"))
            }
            Taken::Skipped(kind::SCHEMA_END) if agent => {
                Heard::Over(Ending::Broken(format!("schema end of over {MAX_SMALL_BODY} bytes")))
            }
            Taken::Skipped(kind) => Heard::Unknown(kind),
            Taken::Frame(frame) => match GuestToHost::decode(frame) {
                Err(error) if matches!(frame.kind, kind::SCHEMA_PART | kind::SCHEMA_END | kind::SAMPLE) => {
                    Heard::Over(Ending::Broken(format!("frame of type {:#04x}: {error}", frame.kind)))
                }
                Err(error) => {
                    self.bad_in_a_row += 1;
                    bad(self.bad_in_a_row, &mut self.bad_told, frame.kind, &error)
                }
                Ok(message) => {
                    self.bad_in_a_row = 0;
                    match message {
                        GuestToHost::SchemaPart(part) => Heard::SchemaPart(part, frame.body),
                        GuestToHost::SchemaEnd(end) => Heard::SchemaEnd(end),
                        GuestToHost::Sample(sample) => Heard::Sample(sample),
                        GuestToHost::Heartbeat(heartbeat) => Heard::Heartbeat(heartbeat),
                        GuestToHost::Event(event) => Heard::Event(event),
                        GuestToHost::Bye(bye) => Heard::Over(Ending::Bye(bye.reason)),
                        GuestToHost::Suspend(said) => Heard::Scaling(Said::Suspend(said)),
                        GuestToHost::Resume(said) => Heard::Scaling(Said::Resume(said)),
                        GuestToHost::Demand(said) => Heard::Scaling(Said::Demand(said)),
                        GuestToHost::Applied(said) => Heard::Scaling(Said::Applied(said)),
                        GuestToHost::DownscaleAnswer(said) => Heard::Scaling(Said::DownscaleAnswer(said)),
                        GuestToHost::Stale(said) => Heard::Scaling(Said::Stale(said)),
                        GuestToHost::Controllers(said) => Heard::Scaling(Said::Controllers(said)),
                        GuestToHost::Unregistered(said) => Heard::Scaling(Said::Unregistered(said)),
                        GuestToHost::Hello(_)
                        | GuestToHost::Proof(_)
                        | GuestToHost::NotMine
                        | GuestToHost::Unknown(_) => Heard::Unknown(frame.kind),
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

    /// `u64::MAX`: not before the guest says something. What is sent to a guest that is being reset kills the vsock
    /// device of vhost-device-vsock 0.3, so an Ack answers what was just heard, and a silent guest is sent nothing.
    fn ack_at_us(&self) -> u64 {
        let Some(acked) = self.acked else { return u64::MAX };
        let urgent =
            self.next_ack.event > self.last_ack.event || (self.last_ack.sample == 0 && self.next_ack.sample > 0);
        let (after_us, answers_us) =
            if urgent { (ACK_AT_MOST_EVERY_US, SECOND_US) } else { (ACK_EVERY_US, ACK_ANSWERS_US) };
        let at_us = acked.mono_us.saturating_add(after_us);
        let answers = at_us <= self.heard.mono_us.saturating_add(answers_us);
        if answers || self.phase == Phase::Held { at_us } else { u64::MAX }
    }
}

fn bad<'a>(in_a_row: u32, told: &mut bool, kind: u8, why: &dyn fmt::Display) -> Heard<'a> {
    if in_a_row >= MAX_BAD_FRAMES {
        return Heard::Over(Ending::Broken(format!("{MAX_BAD_FRAMES} frames in a row do not decode")));
    }
    let first = !std::mem::replace(told, true);
    Heard::Bad(first.then(|| format!("frame of type {kind:#04x}: {why}")))
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

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
