//! One session with a host, without I/O: bytes and times in, bytes and notices out. Does not know who dialled whom
//! beyond [`Origin`], nor what an end means for the next dial.
//!
//! ```text
//!            Hello queued
//!                 |
//!            [greeting] --Welcome--> [streaming] --close()/proof answered--> [closing] --all sent--> end
//!                 |                      |                                       |
//!   Refused, Renonce, Bye, 4 s    Bye (a controller's is answered first),    deadline
//!                 |               Renonce, no Ack for 15 s,                      |
//!                 |               no byte taken for 10 s, bad frames             |
//!                 +----------------------+---------------------------------------+--> end
//! ```
//!
//! Sending is pulled: only when the last byte of the previous output has gone to the kernel is anything new encoded,
//! so a slow host gets the newest sample, never an old one, and a sample it misses leaves no trace in the deltas.

mod end;
mod output;
mod talk;

pub use end::End;
pub use output::Feed;

use crate::scale::brain::Wanted;
use crate::scale::controllers::Step;
use informant_wire::guest_to_host::Proof;
use informant_wire::hello::{Hello, Role};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{Challenge, ControllerId, SessionId};
use informant_wire::limits::{
    DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, MAX_BAD_FRAMES, MAX_HANDSHAKE_FRAME, MAX_HOST_FRAME, MAX_HOST_FRAMES_PER_S,
    MAX_WRITE,
};
use informant_wire::scale::{Applied, DemandAnswer, Downscale, DownscaleAnswer, Epoch, RequestId, Resized};
use informant_wire::{Decoder, HostToGuest, MAX_VERSION, MIN_VERSION, frame};
use output::{Output, SchemaState};
use talk::{Skipped, Talk};

const SECOND_US: u64 = 1_000_000;
/// Without a byte taken by the kernel for this long the host does not read: shorter than the 15 s without an Ack, so
/// that the log tells which it was.
const STALLED_AFTER_US: u64 = 10 * SECOND_US;
/// A closing session has this long to flush.
const CLOSING_US: u64 = SECOND_US;

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
    /// The answer to what was told of a turn, the only one.
    Role {
        /// What was told.
        step: Step,
        /// Of which turn.
        epoch: Epoch,
        /// False: it can not.
        accepted: bool,
    },
    /// The answer to the demand that was asked, the only one.
    Demand(DemandAnswer),
    /// A command: another size. Not checked for its turn.
    Resized(Resized),
    /// A command: may the VM become smaller? Not checked for its turn.
    Downscale(Downscale),
    /// A controller says goodbye: [`Session::unregister`] is to be called.
    Bye,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Streaming,
    Closing,
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
    /// Frames of the host since then.
    frames: u32,
    frames_since_us: u64,
    bad_frames: u32,
    skipped_frames: u64,
    ready: bool,
    said_bye: Option<ByeReason>,
    /// A controller's, which is answered before the end.
    heard_bye: Option<ByeReason>,
    talk: Talk,
    /// Welcome's: which session, and its challenge.
    id: SessionId,
    challenge: Challenge,
    role: Role,
    controller: ControllerId,
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
            frames: 0,
            frames_since_us: now_us,
            bad_frames: 0,
            skipped_frames: 0,
            ready: false,
            said_bye: None,
            heard_bye: None,
            talk: Talk::new(),
            id: SessionId::default(),
            challenge: Challenge::default(),
            role: Role::OBSERVER,
            controller: ControllerId::default(),
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

    /// The host's process.
    #[must_use]
    pub fn controller(&self) -> ControllerId {
        self.controller
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
            if now_us.saturating_sub(self.frames_since_us) >= SECOND_US {
                (self.frames, self.frames_since_us) = (0, now_us);
            }
            self.frames += 1;
            if self.frames > MAX_HOST_FRAMES_PER_S {
                return Err(End::Flooding);
            }
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
                (Phase::Streaming, HostToGuest::Bye(bye)) if self.role == Role::CONTROLLER => {
                    self.heard_bye = Some(bye.reason);
                    return Ok(Some(Notice::Bye));
                }
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
                    self.controller = welcome.controller;
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
                    // What was not sent here can not have arrived.
                    let event = ack.event.min(self.cursor.saturating_sub(1));
                    return Ok(Some(Notice::Acknowledged { event, first }));
                }
                (Phase::Streaming, message) => match self.talk.take(&message) {
                    Ok(Some(notice)) => return Ok(Some(notice)),
                    Ok(None) => {}
                    Err(Skipped) => self.skipped_frames += 1,
                },
                // Known, but not at this time: skipped like an unknown one.
                _ => self.skipped_frames += 1,
            }
        }
    }

    /// Tells of a turn. One that was not sent yet is not sent any more.
    pub fn tell(&mut self, step: Step, epoch: Epoch) {
        self.talk.tell(step, epoch);
    }

    /// Asks for it.
    pub fn ask(&mut self, wanted: Wanted) {
        self.talk.ask(wanted);
    }

    /// Waits no more for the answer to what was asked.
    pub fn unask(&mut self) {
        self.talk.unask();
    }

    /// A command of the host is carried out: the one before it gets no answer any more.
    pub fn commanded(&mut self, request: RequestId) {
        self.talk.commanded(request);
    }

    /// A command of the host is not carried out: it is not of the turn of now.
    pub fn stale(&mut self, request: RequestId, current: Epoch) {
        self.talk.stale(request, current);
    }

    /// The host's turn is over: its command gets no answer any more.
    pub fn void(&mut self) {
        self.talk.void();
    }

    /// Whether what was told has arrived. False: the host waits for no such answer.
    pub fn applied(&mut self, applied: &Applied) -> bool {
        self.talk.applied(applied)
    }

    /// The answer to the host's question. False: it waits for no such answer.
    pub fn answer(&mut self, answer: &DownscaleAnswer<'_>) -> bool {
        self.talk.answer(answer)
    }

    /// An answer of the host came too late to have an effect.
    pub fn note_late_answer(&mut self) {
        self.talk.note_late();
    }

    /// Answers since the last call that nobody waited for.
    pub fn take_late_answers(&mut self) -> u64 {
        self.talk.take_late()
    }

    /// Answers [`Notice::Bye`], and closes behind what is already on its way, within 1 s.
    pub fn unregister(&mut self, was_current: bool, now_us: u64) {
        self.talk.unregistered(was_current);
        self.enter_closing(now_us);
    }

    /// Why it ended, if not for what the host has said before: `end`.
    #[must_use]
    pub fn end_or(&self, end: End) -> End {
        self.heard_bye.map_or(end, End::Bye)
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

    /// Says goodbye behind what is already on its way, and closes; false if it is closing already.
    pub fn close(&mut self, reason: ByeReason, now_us: u64) -> bool {
        let open = self.phase != Phase::Closing;
        if open {
            self.said_bye = Some(reason);
            self.enter_closing(now_us);
        }
        open
    }

    fn enter_closing(&mut self, now_us: u64) {
        self.phase = Phase::Closing;
        self.closing_us = now_us;
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

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::frame::kind;
    use informant_wire::hello::{Capabilities, MAGIC, PeerKind, Welcome};
    use informant_wire::host_to_guest::Ack;
    use informant_wire::id::{BootId, ControllerId, Nonce, StreamId};
    use proptest::prelude::*;

    fn session(origin: Origin) -> Session {
        let hello = Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::AGENT,
            name: "vm",
            boot_id: BootId([1; 16]),
            nonce: Nonce([2; 16]),
            stream: StreamId(3),
            next_event: 1,
            ticks_per_second: 100,
            capabilities: Capabilities::SAMPLES,
            version: "0",
        };
        Session::new(origin, &hello, 0)
    }

    fn welcome(version: u16) -> Vec<u8> {
        let welcome = Welcome {
            version,
            session: SessionId(9),
            challenge: Challenge([8; 16]),
            role: Role::OBSERVER,
            controller: ControllerId([7; 16]),
            controller_name: "host",
            last_event: 4,
        };
        let mut out = vec![0; 256];
        let count = welcome.encode(&mut out).unwrap();
        out.truncate(count);
        out
    }

    #[test]
    fn a_version_that_was_not_offered_ends_the_session() {
        assert_eq!(session(Origin::Dialled).receive(&mut &welcome(2)[..], 1), Err(End::Version(2)));
        assert_eq!(session(Origin::Dialled).receive(&mut &welcome(0)[..], 1), Err(End::Version(0)));
    }

    #[test]
    fn the_challenge_is_known_only_while_the_session_lives() {
        let mut session = session(Origin::Dialled);
        assert_eq!(session.challenge_of(SessionId::default()), None);
        session.receive(&mut &welcome(1)[..], 1).unwrap();
        assert_eq!(session.challenge_of(SessionId(9)), Some(Challenge([8; 16])));
        assert!(session.close(ByeReason::STOPPING, 2));
        assert_eq!(session.challenge_of(SessionId(9)), None);
    }

    #[test]
    fn an_ack_counts_only_for_what_was_sent() {
        let mut session = session(Origin::Dialled);
        session.receive(&mut &welcome(1)[..], 1).unwrap();
        let mut out = [0; 32];
        let count = Ack { sample: 0, event: u64::MAX }.encode(&mut out).unwrap();
        let notice = session.receive(&mut &out[..count], 2);
        assert_eq!(notice, Ok(Some(Notice::Acknowledged { event: 4, first: true })));
    }

    #[test]
    fn each_phase_has_its_deadline() {
        let mut session = session(Origin::Dialled);
        let deadline_us = session.deadline_us();
        assert_eq!(session.check_deadlines(deadline_us - 1), Ok(()));
        assert_eq!(session.check_deadlines(deadline_us), Err(End::NoAnswer));
        session.receive(&mut &welcome(1)[..], deadline_us - 1).unwrap();
        // Hello is still not taken by the kernel: the host does not read.
        assert_eq!(session.check_deadlines(session.deadline_us()), Err(End::Stalled));
        session.sent(usize::MAX / 2, 20 * SECOND_US);
        assert_eq!(session.check_deadlines(20 * SECOND_US), Err(End::Silent));
        session.close(ByeReason::STOPPING, 20 * SECOND_US);
        assert_eq!(session.check_deadlines(session.deadline_us()), Err(End::Done));
    }

    #[test]
    fn two_hundred_frames_a_second_are_taken_and_no_more() {
        let mut session = session(Origin::Dialled);
        session.receive(&mut &welcome(1)[..], 1).unwrap();
        let unknown = [1, 0, 0x5f].repeat(199);
        assert_eq!(session.receive(&mut &unknown[..], 2), Ok(None));
        assert_eq!(session.receive(&mut &unknown[..], 2 + SECOND_US), Ok(None));
        assert_eq!(session.receive(&mut &unknown[..], 3 + SECOND_US), Err(End::Flooding));
    }

    proptest! {
        /// Whatever a host sends, in pieces of any size: no panic, no endless loop, and all input is used up.
        #[test]
        fn any_bytes_in_any_pieces(
            frames in prop::collection::vec(
                prop_oneof![
                    Just(welcome(1)),
                    (any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(kind, body)| {
                        let mut out = vec![0; 128];
                        let count = frame::encode_with(&mut out, kind, |room| {
                            room[..body.len()].copy_from_slice(&body);
                            Ok(body.len())
                        });
                        out.truncate(count.unwrap());
                        out
                    }),
                    prop::collection::vec(any::<u8>(), 0..20),
                    Just(vec![1, 0, kind::ACK]),
                ],
                0..30,
            ),
            piece in 1_usize..70,
            control: bool,
        ) {
            let mut session = session(if control { Origin::Control } else { Origin::Dialled });
            let bytes = frames.concat();
            'all: for piece in bytes.chunks(piece) {
                let mut input = piece;
                loop {
                    let before = input.len();
                    match session.receive(&mut input, 1) {
                        Ok(None) => break,
                        Ok(Some(_)) => prop_assert!(input.len() < before),
                        Err(_) => break 'all,
                    }
                }
                prop_assert!(input.is_empty());
            }
        }
    }
}
