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

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::event::EventKind;
    use informant_wire::hello::{Capabilities, MAGIC, PeerKind};
    use informant_wire::id::{BootId, Nonce, StreamId};
    use proptest::prelude::*;

    fn at(ms: u64) -> Now {
        Now { mono_us: ms * 1000, wall_ms: ms }
    }

    fn hello() -> Vec<u8> {
        let hello = Hello {
            magic: MAGIC,
            min_version: 1,
            max_version: 1,
            kind: PeerKind::AGENT,
            name: "vm",
            boot_id: BootId([1; 16]),
            nonce: Nonce([2; 16]),
            stream: StreamId(3),
            next_event: 1,
            ticks_per_second: 100,
            capabilities: Capabilities::SAMPLES,
            version: "0.1.0",
        };
        let mut out = vec![0; 1024];
        let length = hello.encode(&mut out).unwrap();
        out.truncate(length);
        out
    }

    /// What a stream means when it comes in pieces, as text.
    fn heard(session: &mut Session, now: Now, pieces: &[&[u8]]) -> Vec<String> {
        let mut all = Vec::new();
        for piece in pieces {
            let mut used = 0;
            while let Some(heard) = session.next(now, piece, &mut used) {
                let over = matches!(heard, Heard::Over(_) | Heard::Refuse { .. });
                all.push(format!("{heard:?}"));
                if over {
                    return all;
                }
            }
        }
        all
    }

    fn open(agent: bool) -> Session {
        let mut session = Session::new(at(0));
        assert_eq!(heard(&mut session, at(0), &[&hello()]).len(), 1);
        session.open(at(0), agent, 0, false);
        session
    }

    fn event(sequence: u64) -> Vec<u8> {
        let mut out = vec![0; 600];
        let event = Event { sequence, boot_time_us: 1, kind: EventKind(999), body: &[7; 40] };
        let length = event.encode(&mut out).unwrap();
        out.truncate(length);
        out
    }

    #[test]
    fn the_first_frame_must_be_a_hello_and_nothing_may_follow_before_welcome() {
        let mut too_long = vec![0xff, 0xff, kind::HELLO];
        too_long.resize(2000, 0);
        let mut early = hello();
        early.extend(event(1));
        for (bytes, what) in [
            (event(1), "first frame of type 0x09, not hello"),
            (too_long, "hello of over 1024 bytes"),
            (vec![0, 0], "frame of length 0"),
            (vec![3, 0, kind::HELLO, 1, 2], "hello: body does not decode"),
            (early, "frames before Welcome"),
        ] {
            let heard = heard(&mut Session::new(at(0)), at(0), &[&bytes]);
            assert!(heard.last().is_some_and(|heard| heard.starts_with("Refuse") && heard.contains(what)), "{heard:?}");
        }
    }

    #[test]
    fn ten_undecodable_frames_in_a_row_end_it_and_nine_do_not() {
        let bad = [2, 0, kind::HEARTBEAT, 0xff];
        let mut session = open(true);
        for _ in 0..9 {
            assert_eq!(heard(&mut session, at(0), &[&bad]), ["Bad(8)"]);
        }
        assert_eq!(heard(&mut session, at(0), &[&event(1)]).len(), 1);
        for _ in 0..9 {
            assert_eq!(heard(&mut session, at(0), &[&bad]), ["Bad(8)"]);
        }
        assert!(heard(&mut session, at(0), &[&bad])[0].contains("in a row"));
    }

    #[test]
    fn a_broken_schema_or_sample_ends_it_at_once_and_a_reporters_is_not_looked_at() {
        for kind in [kind::SCHEMA_PART, kind::SCHEMA_END, kind::SAMPLE] {
            let broken = [2, 0, kind, 0xff];
            assert!(heard(&mut open(true), at(0), &[&broken])[0].starts_with("Over(Broken"));
            assert_eq!(heard(&mut open(false), at(0), &[&broken]), [format!("Unknown({kind})")]);
        }
    }

    #[test]
    fn acks_come_at_least_every_5_s_at_most_once_a_second_and_never_before_the_file() {
        let mut session = open(true);
        assert_eq!(session.due(at(3_900)), None);
        assert_eq!(session.due(at(4_000)), Some(Due::Ack(Ack { sample: 0, event: 0 })));
        session.sample_taken(1);
        heard(&mut session, at(4_100), &[&event(1)]);
        assert_eq!(session.due(at(4_900)), None, "not within a second");
        assert_eq!(session.due(at(5_000)), Some(Due::Ack(Ack { sample: 1, event: 0 })), "the first sample at once");
        session.event_stored(1);
        assert_eq!(session.deadline_us(), 6_000_000);
        assert_eq!(session.due(at(6_000)), Some(Due::Ack(Ack { sample: 1, event: 1 })));
        session.sample_taken(2);
        assert_eq!(session.due(at(9_999)), None, "nothing urgent");
        assert_eq!(session.due(at(10_000)), Some(Due::Ack(Ack { sample: 2, event: 1 })));
    }

    #[test]
    fn silence_and_unfinished_handshakes_have_an_end() {
        let mut session = Session::new(at(0));
        heard(&mut session, at(3_000), &[&hello()[..20]]);
        assert_eq!(session.deadline_us(), 4_000_000, "half a hello is no reprieve");
        assert_eq!(session.due(at(4_000)), Some(Due::Over(Ending::NoHello)));
        let mut session = open(true);
        heard(&mut session, at(10_000), &[&event(1)[..5]]);
        for second in 10..25 {
            assert_ne!(session.due(at(second * 1000)), Some(Due::Over(Ending::Silent)));
        }
        assert_eq!(session.due(at(25_000)), Some(Due::Over(Ending::Silent)));
    }

    #[test]
    fn a_held_session_is_not_read_but_gets_acks() {
        let mut session = Session::new(at(0));
        heard(&mut session, at(0), &[&hello()]);
        session.open(at(0), true, 0, true);
        assert!(!session.wants_bytes());
        assert!(matches!(session.due(at(4_000)), Some(Due::Ack(_))));
        session.resume(at(20_000));
        assert!(session.wants_bytes());
        assert_ne!(session.due(at(21_000)), Some(Due::Over(Ending::Silent)), "silence counts from then");
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_mean_the_same(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut bytes = Vec::new();
            for (kind, body) in &frames {
                bytes.extend(u16::try_from(body.len() + 1).unwrap().to_le_bytes());
                // Mostly types that have a meaning.
                bytes.push(if *kind < 200 { *kind % 16 } else { *kind });
                bytes.extend(body);
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let (mut whole, mut cut) = (open(true), open(true));
            prop_assert_eq!(heard(&mut whole, at(0), &[&bytes]), heard(&mut cut, at(0), &pieces));
        }

        #[test]
        fn arbitrary_bytes_neither_panic_nor_pile_up(
            greeted: bool,
            agent: bool,
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..40),
        ) {
            let mut session = if greeted { open(agent) } else { Session::new(at(0)) };
            let limit = if greeted && agent { 2 * MAX_BODY } else { 2 * MAX_SMALL_BODY };
            for piece in &pieces {
                heard(&mut session, at(0), &[piece]);
                prop_assert!(session.inbox.held.capacity() <= limit);
            }
        }
    }
}
