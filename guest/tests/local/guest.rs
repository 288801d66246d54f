//! A scripted process of the guest at the agent's local socket.

use crate::host::PATIENCE;
use informant_wire::frame::{Decoder, EncodeError};
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind, RefusedCode};
use informant_wire::host_to_guest::Ack;
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::limits::MAX_HOST_FRAME;
use informant_wire::scale::{
    Demand, DemandAnswer, DemandId, DemandReason, Downscale, DownscaleAnswer, DownscaleOutcome, DownscaleReason,
    RequestId,
};
use informant_wire::size::{Bytes, MilliCpu, Size};
use informant_wire::{HostToGuest, MAX_VERSION, MIN_VERSION};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// What the agent says here, whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Welcome { name: String },
    Refused { code: RefusedCode, permanent: bool, text: String },
    Ack(Ack),
    Question(Downscale),
    Answer(DemandAnswer),
}

pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    decoder: Decoder<[u8; MAX_HOST_FRAME]>,
    input: Vec<u8>,
}

pub(crate) fn hello(kind: PeerKind, name: &str) -> Vec<u8> {
    let hello = Hello {
        magic: MAGIC,
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        kind,
        name,
        boot_id: BootId([1; 16]),
        nonce: Nonce([2; 16]),
        stream: StreamId(3),
        next_event: 1,
        ticks_per_second: 0,
        capabilities: Capabilities::default(),
        version: "1",
    };
    encoded(|room| hello.encode(room))
}

pub(crate) fn encoded(encode: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>) -> Vec<u8> {
    let mut out = vec![0; 1024];
    let count = encode(&mut out).unwrap();
    out.truncate(count);
    out
}

impl Guest {
    pub(crate) fn connect(path: &Path) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{}: {error}", path.display()),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, decoder: Decoder::new([0; MAX_HOST_FRAME]), input: Vec::new() }
    }

    /// An advisor that is welcome.
    pub(crate) fn advisor(path: &Path, name: &str) -> Self {
        let mut guest = Self::connect(path);
        guest.say(&hello(PeerKind::ADVISOR, name));
        assert!(matches!(guest.next(), Some(Told::Welcome { .. })));
        guest
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn heartbeat(&mut self) -> bool {
        let beat = Heartbeat { boot_time_us: 1, wall_time_us: 1, loop_lag_us: 0, sample_cost_us: 0 };
        self.stream.write_all(&encoded(|room| beat.encode(room))).is_ok()
    }

    /// The next thing told; `None` when the connection has ended.
    pub(crate) fn next(&mut self) -> Option<Told> {
        loop {
            let input = std::mem::take(&mut self.input);
            let mut rest = &input[..];
            let frame = self.decoder.next(&mut rest).unwrap();
            self.input = rest.to_vec();
            if let Some(frame) = frame {
                return Some(match HostToGuest::decode(frame).unwrap() {
                    HostToGuest::Welcome(m) => Told::Welcome { name: m.controller_name.to_owned() },
                    HostToGuest::Refused(m) => {
                        Told::Refused { code: m.code, permanent: m.permanent, text: m.text.to_owned() }
                    }
                    HostToGuest::Ack(m) => Told::Ack(m),
                    HostToGuest::Downscale(m) => Told::Question(m),
                    HostToGuest::DemandAnswer(m) => Told::Answer(m),
                    other => panic!("the agent told {other:?}"),
                });
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    assert!(!self.decoder.is_mid_frame());
                    return None;
                }
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("reading from the agent: {error}"),
            }
        }
    }

    pub(crate) fn until<T>(&mut self, mut pick: impl FnMut(Told) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.next().expect("the connection goes on")) {
                return found;
            }
        }
    }

    pub(crate) fn question(&mut self) -> Downscale {
        self.until(|told| if let Told::Question(question) = told { Some(question) } else { None })
    }

    pub(crate) fn answer(&mut self, request: RequestId, outcome: DownscaleOutcome, text: &str) {
        let none = Bytes(0);
        let answer = DownscaleAnswer {
            request,
            outcome,
            reason: DownscaleReason::ROOM,
            usage: none,
            headroom: none,
            limit: none,
            retry_after_ms: 0,
            text,
        };
        self.say(&encoded(|room| answer.encode(room)));
    }

    /// Demands memory and reads the answer.
    pub(crate) fn demand(&mut self, request: u32, mib: u64) -> DemandAnswer {
        let demand = Demand {
            request: RequestId(request),
            id: DemandId(9),
            cpu: None,
            memory: Some(Bytes::mib(mib)),
            disk: None,
            urgency: 10,
            reason: DemandReason::PRESSURE,
            expires_ms: 10_000,
        };
        self.say(&encoded(|room| demand.encode(room)));
        let answer = self.until(|told| if let Told::Answer(answer) = told { Some(answer) } else { None });
        assert_eq!(answer.request, demand.request);
        answer
    }
}

pub(crate) fn size(cpus: u32, mib: u64) -> Size {
    Size { cpu: MilliCpu::from_cpus(cpus), memory: Bytes::mib(mib) }
}
