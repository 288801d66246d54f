//! One connection of a process of this guest, without I/O: here the agent plays the host's side of the protocol.
//!
//! ```text
//! [greeting] --valid Hello: Welcome--> [open] --Bye, silent 15 s, takes no byte for 10 s, bad frames--> end
//!      |------Refused--> [closing] --sent, or 1 s--> end
//!      +--4 s--> end
//! ```
//!
//! Buffers are fixed: a frame of at most 1 KiB comes in, and what does not fit the output ends the connection, because
//! then the other side does not read.

use super::demands::Demands;
use super::desk::Desk;
use super::tally::{Name, Voice, line};
use informant_wire::Decoder;
use informant_wire::frame::{EncodeError, Frame, FrameError, decode, kind};
use informant_wire::hello::{Hello, PeerKind, Refused, RefusedCode, Role, Welcome};
use informant_wire::host_to_guest::{Ack, Bye};
use informant_wire::id::{Challenge, ControllerId, SessionId};
use informant_wire::limits::{
    ADVISOR_DEADLINE_S, DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, MAX_BAD_FRAMES, MAX_HANDSHAKE_FRAME,
};
use informant_wire::scale::{
    AdvisorFault, Demand, DemandAnswer, Downscale, DownscaleAnswer, DownscaleOutcome, Epoch, RequestId,
};
use informant_wire::size::Size;
use nix::errno::Errno;

const SECOND_US: u64 = 1_000_000;
const STALLED_AFTER_US: u64 = 10 * SECOND_US;
const CLOSING_US: u64 = SECOND_US;
/// Acks are at least this far apart.
const ACK_EVERY_US: u64 = SECOND_US;
/// Frames in a second: a heartbeat, an answer, a renewed demand, and much room.
const MAX_FRAMES_PER_S: u32 = 50;
const OUTPUT: usize = 512;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum End {
    #[error("closed by the peer")]
    Closed,
    #[error("said goodbye")]
    Bye,
    #[error("broken: {}", .0.desc())]
    Broken(Errno),
    #[error("no hello in {HANDSHAKE_DEADLINE_S} s")]
    NoHello,
    #[error("silent for {DEAD_AFTER_S} s")]
    Silent,
    #[error("took no byte for 10 s, or does not read its answers")]
    Stalled,
    #[error("broke the protocol: {0}")]
    Framing(FrameError),
    #[error("broke the protocol: {MAX_BAD_FRAMES} frames in a row that do not decode")]
    BadFrames,
    #[error("broke the protocol: over {MAX_FRAMES_PER_S} frames in a second")]
    Flooding,
    #[error("refused: {0}")]
    Refused(&'static str),
}

/// Who the agent is on this socket.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: ControllerId,
    pub(super) name: Name,
}

/// What a connection needs while it hears.
#[derive(Debug)]
pub(super) struct Hearing<'a> {
    pub(super) host: &'a Host,
    pub(super) demands: &'a mut Demands,
    pub(super) desk: &'a mut dyn Desk,
    pub(super) now_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Open,
    Closing(&'static str),
}

#[derive(Debug)]
struct Output {
    buffer: [u8; OUTPUT],
    filled: usize,
    sent: usize,
}

impl Output {
    fn push(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>) -> Result<(), End> {
        self.buffer.copy_within(self.sent..self.filled, 0);
        self.filled -= std::mem::take(&mut self.sent);
        let room = self.buffer.get_mut(self.filled..).unwrap_or_default();
        self.filled += encode(room).map_err(|_| End::Stalled)?;
        Ok(())
    }
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Peer {
    /// Stands for the connection.
    pub(super) source: u32,
    /// What it calls itself.
    pub(super) name: Name,
    /// May advise and demand.
    trusted: bool,
    kind: PeerKind,
    phase: Phase,
    decoder: Decoder<[u8; MAX_HANDSHAKE_FRAME]>,
    output: Output,
    /// Since when it greets or closes; when it was heard last while it is open.
    since_us: u64,
    moved_us: u64,
    acked_us: u64,
    ack_wanted: bool,
    frames: u32,
    frames_since_us: u64,
    bad_frames: u32,
    next_request: RequestId,
    question: Option<RequestId>,
    answer: Option<Voice>,
}

impl Peer {
    pub(super) fn new(source: u32, trusted: bool, now_us: u64) -> Self {
        Self {
            source,
            name: Name::new(),
            trusted,
            kind: PeerKind::REPORTER,
            phase: Phase::Greeting,
            decoder: Decoder::new([0; MAX_HANDSHAKE_FRAME]),
            output: Output { buffer: [0; OUTPUT], filled: 0, sent: 0 },
            since_us: now_us,
            moved_us: now_us,
            acked_us: now_us,
            ack_wanted: false,
            frames: 0,
            frames_since_us: now_us,
            bad_frames: 0,
            next_request: RequestId::FIRST_OF_HOST,
            question: None,
            answer: None,
        }
    }

    pub(super) fn is_greeting(&self) -> bool {
        self.phase == Phase::Greeting
    }

    pub(super) fn is_advisor(&self) -> bool {
        self.phase == Phase::Open && self.kind == PeerKind::ADVISOR
    }

    /// Whether it was asked and has not answered.
    pub(super) fn is_asked(&self) -> bool {
        self.question.is_some()
    }

    /// Takes received bytes.
    pub(super) fn receive(&mut self, input: &mut &[u8], cx: &mut Hearing<'_>) -> Result<(), End> {
        loop {
            let frame = match self.decoder.next(input) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_) if self.phase == Phase::Greeting => {
                    return self.refuse(RefusedCode::MALFORMED, "no hello", cx.now_us);
                }
                Err(error) => return Err(End::Framing(error)),
            };
            if cx.now_us.saturating_sub(self.frames_since_us) >= SECOND_US {
                (self.frames, self.frames_since_us) = (0, cx.now_us);
            }
            self.frames += 1;
            if self.frames > MAX_FRAMES_PER_S {
                return Err(End::Flooding);
            }
            match self.phase {
                Phase::Closing(_) => {}
                Phase::Greeting => match judge(frame, !input.is_empty(), self.trusted) {
                    Err((code, why)) => return self.refuse(code, why, cx.now_us),
                    Ok((version, hello)) => {
                        (self.kind, self.name) = (hello.kind, line(hello.name.as_bytes()));
                        (self.phase, self.since_us, self.acked_us) = (Phase::Open, cx.now_us, cx.now_us);
                        let welcome = Welcome {
                            version,
                            session: SessionId(crate::random::bits()),
                            challenge: Challenge(crate::random::bytes()),
                            role: Role::CONTROLLER,
                            controller: cx.host.id,
                            controller_name: &cx.host.name,
                            last_event: 0,
                        };
                        self.output.push(|room| welcome.encode(room))?;
                    }
                },
                Phase::Open => {
                    (self.since_us, self.ack_wanted) = (cx.now_us, true);
                    let understood = match frame.kind {
                        kind::BYE if decode::<Bye>(frame.body).is_ok() => return Err(End::Bye),
                        kind::BYE => false,
                        kind::DOWNSCALE_ANSWER => match DownscaleAnswer::decode(frame.body) {
                            Ok(answer) => {
                                // One that is not open any more has no effect.
                                if self.question == Some(answer.request) {
                                    (self.question, self.answer) = (None, Some(voice(&answer, &self.name)));
                                }
                                true
                            }
                            Err(_) => false,
                        },
                        kind::DEMAND if self.kind == PeerKind::ADVISOR => match Demand::decode(frame.body) {
                            Ok(demand) => {
                                let standing = cx.demands.take(self.source, &demand, cx.desk, cx.now_us);
                                let answer = DemandAnswer {
                                    request: demand.request,
                                    outcome: standing.outcome,
                                    granted: standing.granted,
                                    retry_after_ms: standing.retry_after_ms,
                                };
                                self.output.push(|room| answer.encode(room))?;
                                true
                            }
                            Err(_) => false,
                        },
                        // A sign of life, whatever it is.
                        _ => true,
                    };
                    self.bad_frames = if understood { 0 } else { self.bad_frames + 1 };
                    if self.bad_frames >= MAX_BAD_FRAMES {
                        return Err(End::BadFrames);
                    }
                }
            }
        }
    }

    /// Says no, and closes when that is sent.
    pub(super) fn refuse(&mut self, code: RefusedCode, text: &'static str, now_us: u64) -> Result<(), End> {
        (self.phase, self.since_us) = (Phase::Closing(text), now_us);
        let refused = Refused { code, permanent: code != RefusedCode::TOO_MANY, text };
        self.output.push(|room| refused.encode(room))
    }

    /// Asks an advisor; what is wrong then shows as an end or as silence.
    pub(super) fn ask(&mut self, present: Size, wanted: Size) {
        let request = self.next_request;
        (self.next_request, self.question, self.answer) = (request.next(), Some(request), None);
        let within_ms = u32::try_from(ADVISOR_DEADLINE_S * 1000).unwrap_or(u32::MAX);
        let question = Downscale { request, epoch: Epoch(0), present, wanted, forced: false, within_ms };
        let _ = self.output.push(|room| question.encode(room));
    }

    /// What it answered since the last call.
    pub(super) fn take_answer(&mut self) -> Option<Voice> {
        self.answer.take()
    }

    /// Its time is over; whether it had not answered.
    pub(super) fn give_up(&mut self) -> bool {
        self.question.take().is_some()
    }

    /// What the kernel should take next.
    pub(super) fn output(&mut self, now_us: u64) -> &[u8] {
        if self.ack_wanted && self.phase == Phase::Open && now_us >= self.acked_us + ACK_EVERY_US {
            // Nothing is stored for reporters here; it only says that the agent is there. Without room: next time.
            if self.output.push(|room| Ack::default().encode(room)).is_ok() {
                (self.ack_wanted, self.acked_us) = (false, now_us);
            }
        }
        self.output.buffer.get(self.output.sent..self.output.filled).unwrap_or_default()
    }

    /// The kernel took this many bytes.
    pub(super) fn sent(&mut self, bytes: usize, now_us: u64) {
        self.output.sent = (self.output.sent + bytes).min(self.output.filled);
        self.moved_us = now_us;
    }

    fn owes(&self) -> bool {
        self.output.sent < self.output.filled
    }

    /// Ends what is over.
    pub(super) fn check(&mut self, now_us: u64) -> Result<(), End> {
        if !self.owes() {
            self.moved_us = now_us;
        }
        let passed = |limit_us: u64| now_us >= self.since_us + limit_us;
        match self.phase {
            Phase::Greeting if passed(HANDSHAKE_DEADLINE_S * SECOND_US) => Err(End::NoHello),
            Phase::Closing(why) if !self.owes() || passed(CLOSING_US) => Err(End::Refused(why)),
            Phase::Open if self.owes() && now_us >= self.moved_us + STALLED_AFTER_US => Err(End::Stalled),
            Phase::Open if passed(DEAD_AFTER_S * SECOND_US) => Err(End::Silent),
            _ => Ok(()),
        }
    }

    /// When to look again at the latest.
    pub(super) fn deadline_us(&self) -> u64 {
        match self.phase {
            Phase::Greeting => self.since_us + HANDSHAKE_DEADLINE_S * SECOND_US,
            Phase::Closing(_) => self.since_us + CLOSING_US,
            Phase::Open => {
                let dead = self.since_us + DEAD_AFTER_S * SECOND_US;
                let ack = if self.ack_wanted { self.acked_us + ACK_EVERY_US } else { u64::MAX };
                let stalled = if self.owes() { self.moved_us + STALLED_AFTER_US } else { u64::MAX };
                dead.min(ack).min(stalled)
            }
        }
    }
}

type Judgement<'a> = Result<(u16, Hello<'a>), (RefusedCode, &'static str)>;

/// Whether the first frame opens a session. `more`: bytes came behind it.
fn judge(frame: Frame<'_>, more: bool, trusted: bool) -> Judgement<'_> {
    let no_hello = (RefusedCode::MALFORMED, "no hello");
    if frame.kind != kind::HELLO {
        return Err(no_hello);
    }
    let hello = Hello::decode(frame.body).map_err(|_| no_hello)?;
    if more {
        return Err((RefusedCode::MALFORMED, "something was sent before the welcome"));
    }
    let version = hello.agreed_version().ok_or((RefusedCode::VERSION, "no version in common"))?;
    match hello.kind {
        PeerKind::REPORTER => Ok((version, hello)),
        PeerKind::ADVISOR if trusted => Ok((version, hello)),
        PeerKind::ADVISOR => Err((RefusedCode::KIND, "only root and the group of the socket may advise and demand")),
        _ => Err((RefusedCode::KIND, "reporters and advisors are welcome here; agents speak to their host")),
    }
}

fn voice(answer: &DownscaleAnswer<'_>, name: &Name) -> Voice {
    match answer.outcome {
        DownscaleOutcome::APPROVED => Voice::For,
        // "Not yet" is a no to this question; the next one comes.
        DownscaleOutcome::DENIED | DownscaleOutcome::NOT_READY => {
            let text = line(answer.text.as_bytes());
            Voice::Against(if text.is_empty() { line(name.as_bytes()) } else { text })
        }
        _ => Voice::Failed(AdvisorFault::CRASHED),
    }
}
