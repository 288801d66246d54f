//! A scripted host: it does what the test says and nothing by itself.

use crate::agent::Place;
use informant_wire::frame::{Decoder, kind};
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Refused, RefusedCode, Role, Welcome};
use informant_wire::host_to_guest::{Ack, Bye, ByeReason};
use informant_wire::id::{Challenge, ControllerId, Nonce, SessionId, StreamId};
use informant_wire::limits::{MAX_EVENT_BODY, MAX_FRAME};
use informant_wire::sample::{Base, SampleHead};
use informant_wire::scale::{
    Applied, DemandId, DownscaleOutcome, Epoch, ListControllers, RequestId, RoleAnswer, Stale,
};
use informant_wire::schema::SchemaReader;
use informant_wire::{Frame, GuestToHost, bits, frame};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longer than any deadline of the protocol but the 30 s after a permanent refusal.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

pub(crate) struct Host(UnixListener);

impl Host {
    pub(crate) fn new(place: &Place) -> Self {
        Self::at(&place.path("host.sock"))
    }

    pub(crate) fn at(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    pub(crate) fn try_accept(&self, within: Duration) -> Option<Peer> {
        let deadline = Instant::now() + within;
        loop {
            match self.0.accept() {
                Ok((stream, _)) => return Some(Peer::of_this_machine(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("accept: {error}"),
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn accept(&self) -> Peer {
        self.try_accept(PATIENCE).expect("the agent dials")
    }

    /// Accepts, reads Hello and welcomes.
    pub(crate) fn session(&self, last_event: u64) -> Peer {
        let mut peer = self.accept();
        peer.hello();
        peer.welcome(last_event);
        peer
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenHello {
    pub(crate) nonce: Nonce,
    pub(crate) stream: StreamId,
    pub(crate) next_event: u64,
    pub(crate) capabilities: Capabilities,
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenEvent {
    pub(crate) sequence: u64,
    pub(crate) kind: informant_wire::event::EventKind,
    pub(crate) body: Vec<u8>,
}

/// A host of [`Said::Controllers`]: name, role, whether it decides, its last turn.
pub(crate) type SeenController = (String, u8, bool, u64);

/// One thing an agent said, whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Hello(SeenHello),
    Schema { generation: u32, series: usize },
    Sample { head: SampleHead, key: bool, values: Vec<Option<u64>> },
    Heartbeat(Heartbeat),
    Event(SeenEvent),
    Bye(ByeReason),
    Proof(Challenge),
    NotMine,
    Suspend(RequestId, Epoch),
    Resume(RequestId, Epoch),
    Stale(Stale),
    Unregistered(bool),
    Controllers(RequestId, Vec<SeenController>),
    DownscaleAnswer(RequestId, DownscaleOutcome, String),
    Applied(Applied),
    Demand { request: RequestId, id: DemandId, withdrawn: bool, mount: Option<Vec<u8>> },
}

/// One connection of the agent, read strictly: anything a host would object to is a failure.
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    decoder: Decoder<Vec<u8>>,
    input: Vec<u8>,
    taken: usize,
    reader: SchemaReader,
    values: Vec<u64>,
    present: Vec<u8>,
    generation: Option<u32>,
    pub(crate) session: SessionId,
    pub(crate) challenge: Challenge,
    /// Demands are heard. An agent that runs here demands whatever this machine lacks at the time.
    hears_demands: bool,
}

impl Peer {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_nonblocking(false).unwrap();
        static SESSIONS: AtomicU64 = AtomicU64::new(1000);
        let session = SessionId(SESSIONS.fetch_add(1, Ordering::Relaxed));
        Self {
            stream,
            decoder: Decoder::new(vec![0; MAX_FRAME]),
            input: Vec::new(),
            taken: 0,
            reader: SchemaReader::default(),
            values: Vec::new(),
            present: Vec::new(),
            generation: None,
            session,
            challenge: Challenge([session.0.to_le_bytes()[0] ^ 0x5a; 16]),
            hears_demands: true,
        }
    }

    /// Of an agent of this machine.
    fn of_this_machine(stream: UnixStream) -> Self {
        Self { hears_demands: false, ..Self::new(stream) }
    }

    pub(crate) fn connect(path: &Path) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::of_this_machine(stream),
                Err(error) => assert!(Instant::now() < deadline, "{}: {error}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next thing said; `None` when the connection has ended.
    pub(crate) fn next(&mut self) -> Option<Said> {
        self.next_within(PATIENCE).expect("the agent says something")
    }

    /// The next thing said within a time; the inner `None` is the end of the connection.
    pub(crate) fn next_within(&mut self, within: Duration) -> Option<Option<Said>> {
        let deadline = Instant::now() + within;
        loop {
            let mut input = &self.input[self.taken..];
            let before = input.len();
            let said = loop {
                let Some(frame) = self.decoder.next(&mut input).unwrap() else { break None };
                let Frame { kind, body } = frame;
                let body = body.to_vec();
                let said = understand(
                    Frame { kind, body: &body },
                    &mut self.reader,
                    &mut self.generation,
                    &mut self.values,
                    &mut self.present,
                );
                if !self.hears_demands && matches!(said, Some(Said::Demand { .. })) {
                    continue;
                }
                if said.is_some() {
                    break said;
                }
            };
            self.taken += before - input.len();
            if said.is_some() {
                return Some(said);
            }
            self.input.clear();
            self.taken = 0;
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    assert!(!self.decoder.is_mid_frame(), "the agent closes between frames");
                    return Some(None);
                }
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Some(None),
                Err(error) => panic!("reading from the agent: {error}"),
            }
        }
    }

    /// Reads until something that `pick` wants.
    pub(crate) fn until<T>(&mut self, mut pick: impl FnMut(Said) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "what was waited for does not come");
            if let Some(found) = pick(self.next().expect("the connection goes on")) {
                return found;
            }
        }
    }

    pub(crate) fn event(&mut self) -> SeenEvent {
        self.until(|said| if let Said::Event(event) = said { Some(event) } else { None })
    }

    pub(crate) fn sample(&mut self) -> (SampleHead, bool) {
        self.until(|said| if let Said::Sample { head, key, .. } = said { Some((head, key)) } else { None })
    }

    /// Reads to the end of the connection and returns the goodbye, if there was one.
    pub(crate) fn end(&mut self) -> Option<ByeReason> {
        let mut reason = None;
        let deadline = Instant::now() + PATIENCE;
        while let Some(said) = self.next() {
            assert!(Instant::now() < deadline, "the connection does not end");
            if let Said::Bye(bye) = said {
                reason = Some(bye);
            }
        }
        reason
    }

    /// Reads until it is told that it decides; the turn.
    pub(crate) fn resume(&mut self) -> (RequestId, Epoch) {
        self.until(|said| match said {
            Said::Resume(request, epoch) => Some((request, epoch)),
            Said::Suspend(..) => panic!("suspended: {said:?}"),
            _ => None,
        })
    }

    /// Reads until it is told that its turn ends.
    pub(crate) fn suspend(&mut self) -> (RequestId, Epoch) {
        self.until(|said| match said {
            Said::Suspend(request, epoch) => Some((request, epoch)),
            Said::Resume(..) => panic!("resumed: {said:?}"),
            _ => None,
        })
    }

    pub(crate) fn role(&mut self, request: RequestId, accepted: bool) -> bool {
        self.send(|out| RoleAnswer { request, accepted }.encode(out))
    }

    /// Is told that it decides, and does; the turn.
    pub(crate) fn take_turn(&mut self) -> Epoch {
        let (request, epoch) = self.resume();
        self.role(request, true);
        epoch
    }

    /// Asks which hosts there are, and reads until the answer. What is said of turns meanwhile is a failure.
    pub(crate) fn controllers(&mut self, request: u32) -> Vec<SeenController> {
        let request = RequestId(request);
        self.send(|out| ListControllers { request }.encode(out));
        self.until(|said| match said {
            Said::Controllers(answered, list) => {
                assert_eq!(answered, request);
                Some(list)
            }
            Said::Resume(..) | Said::Suspend(..) => panic!("{said:?}"),
            _ => None,
        })
    }

    pub(crate) fn hello(&mut self) -> SeenHello {
        match self.next() {
            Some(Said::Hello(hello)) => hello,
            other => panic!("not a hello: {other:?}"),
        }
    }

    /// Fails when the agent is gone already, which some tests want.
    pub(crate) fn send(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, frame::EncodeError>) -> bool {
        let mut out = [0; 1024];
        let count = encode(&mut out).unwrap();
        self.stream.write_all(&out[..count]).is_ok()
    }

    pub(crate) fn welcome(&mut self, last_event: u64) -> bool {
        self.welcome_as(Role::CONTROLLER, last_event)
    }

    pub(crate) fn welcome_as(&mut self, role: Role, last_event: u64) -> bool {
        self.welcome_named("scripted\x1b[31m", role, last_event)
    }

    pub(crate) fn welcome_named(&mut self, name: &str, role: Role, last_event: u64) -> bool {
        let welcome = Welcome {
            version: 1,
            session: self.session,
            challenge: self.challenge,
            role,
            controller: ControllerId([3; 16]),
            controller_name: name,
            last_event,
        };
        self.send(|out| welcome.encode(out))
    }

    pub(crate) fn ack(&mut self, sample: u64, event: u64) -> bool {
        self.send(|out| Ack { sample, event }.encode(out))
    }

    pub(crate) fn bye(&mut self, reason: ByeReason) -> bool {
        self.send(|out| Bye { reason }.encode(out))
    }

    pub(crate) fn refuse(&mut self, permanent: bool) -> bool {
        let refused = Refused { code: RefusedCode::TOO_MANY, permanent, text: "no room" };
        self.send(|out| refused.encode(out))
    }

    pub(crate) fn renonce(&mut self) -> bool {
        self.send(|out| frame::encode(out, kind::RENONCE, &()))
    }
}

fn understand(
    frame: Frame<'_>,
    reader: &mut SchemaReader,
    generation: &mut Option<u32>,
    values: &mut Vec<u64>,
    present: &mut Vec<u8>,
) -> Option<Said> {
    Some(match GuestToHost::decode(frame).unwrap() {
        GuestToHost::Hello(hello) => Said::Hello(SeenHello {
            nonce: hello.nonce,
            stream: hello.stream,
            next_event: hello.next_event,
            capabilities: hello.capabilities,
            name: hello.name.to_owned(),
        }),
        GuestToHost::SchemaPart(part) => {
            reader.part(&part, frame.body).unwrap();
            return None;
        }
        GuestToHost::SchemaEnd(end) => {
            let series = reader.end(&end).unwrap();
            *generation = Some(end.generation);
            *values = vec![0; series];
            *present = vec![0; bits::bytes_for(series)];
            Said::Schema { generation: end.generation, series }
        }
        GuestToHost::Sample(sample) => {
            assert_eq!(Some(sample.head.generation), *generation, "a sample follows the schema that was sent");
            let applied = sample.apply(&mut Base { values, present }).unwrap();
            assert_eq!(applied.mismatches, 0, "a key frame repeats what the deltas said");
            let values = values.iter().enumerate().map(|(i, value)| bits::get(present, i).then_some(*value)).collect();
            Said::Sample { head: sample.head, key: sample.is_key(), values }
        }
        GuestToHost::Heartbeat(heartbeat) => Said::Heartbeat(heartbeat),
        GuestToHost::Event(event) => {
            assert!(event.body.len() <= MAX_EVENT_BODY);
            Said::Event(SeenEvent { sequence: event.sequence, kind: event.kind, body: event.body.to_vec() })
        }
        GuestToHost::Bye(bye) => Said::Bye(bye.reason),
        GuestToHost::Proof(proof) => Said::Proof(proof.challenge),
        GuestToHost::NotMine => Said::NotMine,
        GuestToHost::Suspend(suspend) => Said::Suspend(suspend.request, suspend.epoch),
        GuestToHost::Resume(resume) => Said::Resume(resume.request, resume.epoch),
        GuestToHost::Stale(stale) => Said::Stale(stale),
        GuestToHost::Unregistered(unregistered) => Said::Unregistered(unregistered.was_current),
        GuestToHost::Controllers(controllers) => {
            let list = controllers.list.iter();
            let seen = list.map(|host| (host.name.to_owned(), host.role.0, host.current, host.epoch.0));
            Said::Controllers(controllers.request, seen.collect())
        }
        GuestToHost::DownscaleAnswer(answer) => {
            Said::DownscaleAnswer(answer.request, answer.outcome, answer.text.to_owned())
        }
        GuestToHost::Applied(applied) => Said::Applied(applied),
        GuestToHost::Demand(demand) => Said::Demand {
            request: demand.request,
            id: demand.id,
            withdrawn: demand.is_withdrawal(),
            mount: demand.disk.map(|disk| disk.mount.to_vec()),
        },
        other => panic!("the agent sent {other:?}"),
    })
}
