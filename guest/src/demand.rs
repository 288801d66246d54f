//! `informant-guest demand`: asks the agent, over its local socket, to ask the host for more; as a person or a script
//! does before it needs it. Exit codes: 0 granted (with `--wait`: there), 1 denied, only in part or at the maximum,
//! 2 not understood, 3 no agent or no answer in time.

use crate::args;
use crate::clock;
use crate::link::listen::connect_unix;
use crate::random;
use informant_wire::frame::{EncodeError, FrameError};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind};
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::limits::{DEMAND_EVERY_MS, DEMAND_EXPIRES_MS, HANDSHAKE_DEADLINE_S, MAX_HOST_FRAME};
use informant_wire::scale::{
    Demand, DemandAnswer, DemandId, DemandOutcome, DemandReason, DiskWanted, Downscale, DownscaleAnswer,
    DownscaleOutcome, DownscaleReason, RequestId,
};
use informant_wire::size::{Bytes, Size};
use informant_wire::{Decoder, HostToGuest, MAX_VERSION, MIN_VERSION};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// It is not to be had, or not all of it.
pub const NOT_GIVEN: u8 = 1;
/// Nobody answered.
pub const NO_ANSWER: u8 = 3;

const SECOND_US: u64 = 1_000_000;
const RENEW_EVERY_US: u64 = DEMAND_EVERY_MS * 1000;
/// Without `--wait`: so long for the host's first answer.
const FIRST_ANSWER_US: u64 = 5 * SECOND_US;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum DemandError {
    /// Nobody is there.
    #[error("no agent at {}: {error}; it hears there with run --local", .path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The agent was there and is gone, or stays silent.
    #[error("connection to the agent: {0}")]
    Broken(#[from] io::Error),
    /// It does not want this process.
    #[error("refused by the agent: {0}")]
    Refused(String),
    /// It does not speak the protocol.
    #[error("what answers is no agent: {0}")]
    Framing(#[from] FrameError),
    /// Standard output is closed or full.
    #[error("standard output: {0}")]
    Output(io::Error),
    /// Never the case: all messages are small.
    #[error("a message does not fit its frame")]
    Encode,
}

impl From<EncodeError> for DemandError {
    fn from(_: EncodeError) -> Self {
        Self::Encode
    }
}

/// Asks, prints each change of the answer in a line, and gives the exit code.
pub fn run(options: &args::Demand, out: &mut dyn Write) -> Result<u8, DemandError> {
    let now_us = clock::boot_us();
    let limit_us = options.wait.map_or(FIRST_ANSWER_US, |wait| wait.as_micros().try_into().unwrap_or(u64::MAX));
    let mut asking =
        Asking { options, out, id: DemandId(random::bits()), deadline_us: now_us.saturating_add(limit_us), last: None };
    loop {
        match asking.session() {
            Ok(code) => return Ok(code),
            // An agent that starts anew is there again soon.
            Err(DemandError::Broken(error)) if options.wait.is_some() && asking.left_us() > RENEW_EVERY_US => {
                drop(error);
                std::thread::sleep(Duration::from_micros(RENEW_EVERY_US));
            }
            Err(DemandError::NoAgent { .. }) if asking.last.is_some() && asking.left_us() > RENEW_EVERY_US => {
                std::thread::sleep(Duration::from_micros(RENEW_EVERY_US));
            }
            Err(error) => return Err(error),
        }
    }
}

struct Asking<'a> {
    options: &'a args::Demand,
    out: &'a mut dyn Write,
    id: DemandId,
    deadline_us: u64,
    /// What was printed last.
    last: Option<(DemandOutcome, Size)>,
}

impl Asking<'_> {
    fn left_us(&self) -> u64 {
        self.deadline_us.saturating_sub(clock::boot_us())
    }

    fn session(&mut self) -> Result<u8, DemandError> {
        let path = &self.options.socket;
        let stream =
            connect_unix(path).map_err(|error| DemandError::NoAgent { path: path.clone(), error: error.into() })?;
        let mut agent = Agent { stream, decoder: Decoder::new([0; MAX_HOST_FRAME]), input: [0; 1024], from: 0, to: 0 };
        let greeted_us = clock::boot_us() + HANDSHAKE_DEADLINE_S * SECOND_US;
        agent.greet()?;
        loop {
            match agent.hear(greeted_us, |message| match message {
                HostToGuest::Welcome(_) => Some(Ok(())),
                HostToGuest::Refused(refused) => Some(Err(DemandError::Refused(refused.text.to_owned()))),
                _ => None,
            })? {
                Some(Some(greeted)) => break greeted?,
                Some(None) => {}
                None => return Err(DemandError::Broken(io::ErrorKind::TimedOut.into())),
            }
        }
        let mut request = RequestId::FIRST_OF_GUEST;
        loop {
            let renew_us = clock::boot_us().saturating_add(RENEW_EVERY_US);
            let disk = self.options.disk.as_ref().map(|(mount, total)| DiskWanted { mount, total: *total });
            let (cpu, memory) = (self.options.cpu, self.options.memory);
            let demand = Demand {
                request,
                id: self.id,
                cpu,
                memory,
                disk,
                urgency: self.options.urgency,
                reason: DemandReason::PERSON,
                expires_ms: u32::try_from(DEMAND_EXPIRES_MS).unwrap_or(u32::MAX),
            };
            agent.say(|room| demand.encode(room))?;
            while let Some(heard) = agent.hear(renew_us.min(self.deadline_us), |message| match message {
                HostToGuest::DemandAnswer(answer) if answer.request == request => Some(Heard::Answer(answer)),
                HostToGuest::Downscale(question) => Some(Heard::Question(question)),
                HostToGuest::Bye(_) => Some(Heard::End),
                _ => None,
            })? {
                match heard {
                    Some(Heard::Answer(answer)) => {
                        self.print(&answer)?;
                        if self.is_final(answer.outcome) {
                            return Ok(code(Some(answer.outcome)));
                        }
                    }
                    Some(Heard::Question(question)) => agent.answer(&question, cpu, memory)?,
                    Some(Heard::End) => return Err(DemandError::Broken(io::ErrorKind::ConnectionAborted.into())),
                    None => {}
                }
            }
            if self.left_us() == 0 {
                return self.give_up();
            }
            request = request.next();
        }
    }

    /// Whether asking on changes nothing that this command waits for.
    fn is_final(&self, outcome: DemandOutcome) -> bool {
        match outcome {
            DemandOutcome::PENDING => false,
            DemandOutcome::APPLIED | DemandOutcome::UNSUPPORTED => true,
            _ => self.options.wait.is_none(),
        }
    }

    fn print(&mut self, answer: &DemandAnswer) -> Result<(), DemandError> {
        let now = (answer.outcome, answer.granted);
        if self.last.replace(now) == Some(now) {
            return Ok(());
        }
        let size = answer.granted;
        let after_s = answer.retry_after_ms.div_ceil(1000);
        let result = match answer.outcome {
            DemandOutcome::GRANTED => writeln!(self.out, "granted: {size}"),
            DemandOutcome::APPLIED => writeln!(self.out, "applied: {size}"),
            DemandOutcome::PARTIAL => writeln!(self.out, "granted in part: {size}, ask again in {after_s} s"),
            DemandOutcome::DENIED => writeln!(self.out, "denied: stays at {size}, ask again in {after_s} s"),
            DemandOutcome::AT_MAXIMUM => writeln!(self.out, "at maximum: {size}, ask again in {after_s} s"),
            DemandOutcome::UNSUPPORTED => writeln!(self.out, "unsupported: this host can not give that"),
            DemandOutcome::PENDING if self.options.wait.is_none() => Ok(()),
            DemandOutcome::PENDING => writeln!(self.out, "pending: the host has not answered yet"),
            DemandOutcome(other) => writeln!(self.out, "unknown({other}): {size}"),
        };
        match result.and_then(|()| self.out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(DemandError::Output(error)),
            _ => Ok(()),
        }
    }

    fn give_up(&mut self) -> Result<u8, DemandError> {
        let outcome = self.last.map(|(outcome, _)| outcome);
        let why = match outcome {
            Some(DemandOutcome::GRANTED) => "granted, and not there in time",
            Some(DemandOutcome::PENDING) | None => "pending: no answer of the host in time",
            _ => "given up: not to be had in time",
        };
        writeln!(self.out, "{why}").and_then(|()| self.out.flush()).map_err(DemandError::Output)?;
        Ok(match code(outcome) {
            0 => NO_ANSWER,
            code => code,
        })
    }
}

enum Heard {
    Answer(DemandAnswer),
    Question(Downscale),
    End,
}

fn code(outcome: Option<DemandOutcome>) -> u8 {
    match outcome {
        Some(DemandOutcome::GRANTED | DemandOutcome::APPLIED) => 0,
        Some(DemandOutcome::PENDING) | None => NO_ANSWER,
        _ => NOT_GIVEN,
    }
}

/// The connection, read and written with deadlines.
struct Agent {
    stream: UnixStream,
    decoder: Decoder<[u8; MAX_HOST_FRAME]>,
    input: [u8; 1024],
    from: usize,
    to: usize,
}

impl Agent {
    fn greet(&mut self) -> Result<(), DemandError> {
        self.stream.set_write_timeout(Some(Duration::from_secs(HANDSHAKE_DEADLINE_S)))?;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hello = Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::ADVISOR,
            name: "demand",
            boot_id: BootId::parse(&boot).unwrap_or(BootId([0; 16])),
            nonce: Nonce(random::bytes()),
            stream: StreamId(random::bits()),
            next_event: 1,
            ticks_per_second: 0,
            capabilities: Capabilities::default(),
            version: env!("CARGO_PKG_VERSION"),
        };
        self.say(|room| hello.encode(room))
    }

    fn say(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>) -> Result<(), DemandError> {
        let mut out = [0; 512];
        let count = encode(&mut out)?;
        Ok(self.stream.write_all(out.get(..count).unwrap_or_default())?)
    }

    /// Whoever waits for more is against less than that.
    fn answer(
        &mut self,
        question: &Downscale,
        cpu: Option<informant_wire::size::MilliCpu>,
        memory: Option<Bytes>,
    ) -> Result<(), DemandError> {
        let mine = Size { cpu: cpu.unwrap_or_default(), memory: memory.unwrap_or_default() };
        let (outcome, reason, text) = if question.wanted.covers(mine) {
            (DownscaleOutcome::APPROVED, DownscaleReason::ROOM, "")
        } else {
            (DownscaleOutcome::DENIED, DownscaleReason::DEMAND_OPEN, "a person asks for more than that")
        };
        let answer = DownscaleAnswer {
            request: question.request,
            outcome,
            reason,
            usage: Bytes(0),
            headroom: Bytes(0),
            limit: Bytes(0),
            retry_after_ms: 0,
            text,
        };
        self.say(|room| answer.encode(room))
    }

    /// The next frame, as `pick` understands it; `None` when the time is over. Frames that do not decode are skipped.
    fn hear<T>(
        &mut self,
        deadline_us: u64,
        pick: impl FnOnce(HostToGuest<'_>) -> Option<T>,
    ) -> Result<Option<Option<T>>, DemandError> {
        loop {
            let mut input = self.input.get(self.from..self.to).unwrap_or_default();
            let frame = self.decoder.next(&mut input)?;
            self.from = self.to - input.len();
            if let Some(frame) = frame {
                return Ok(Some(HostToGuest::decode(frame).ok().and_then(pick)));
            }
            let left_us = deadline_us.saturating_sub(clock::boot_us());
            if left_us == 0 {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(Duration::from_micros(left_us)))?;
            match self.stream.read(&mut self.input) {
                Ok(0) => return Err(DemandError::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => (self.from, self.to) = (0, count),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
