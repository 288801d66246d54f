//! The unix sockets between simulator and daemon, as a hybrid-vsock VMM has them: none of these calls waits.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result};
use informant_wire::host_to_guest::Prove;
use informant_wire::limits::MAX_HOST_FRAME;
use informant_wire::{CONTROL_PORT, Decoder, HostToGuest};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::AsRawFd;

/// Longest `CONNECT PORT\n`.
const MAX_COMMAND: usize = 32;

/// Connects without waiting; a full backlog is an error like nobody listening.
pub(super) fn dial(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Listens where the daemon dials, in place of a socket left by an earlier run.
pub(super) fn listen(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What became of a connection that the daemon opened.
pub(super) enum Heard {
    /// Not yet.
    Nothing,
    /// It wants the agent's dial port: the connection is the agent's now.
    Agent,
    /// It asks whether a session is the agent's.
    Prove(Prove),
    /// It is over.
    Closed,
}

/// A connection that the daemon opened with `CONNECT`.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) stream: UnixStream,
    command: Vec<u8>,
    control: Option<Decoder<Vec<u8>>>,
}

impl Incoming {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, command: Vec::new(), control: None }
    }

    /// Reads on. `hello`: the frame to greet a connection to the control port with.
    pub(super) fn ready(&mut self, hello: &[u8]) -> Heard {
        self.read(hello).unwrap_or(Heard::Closed)
    }

    fn read(&mut self, hello: &[u8]) -> io::Result<Heard> {
        loop {
            let mut byte = [0; 1];
            match self.stream.read(&mut byte) {
                Ok(0) => return Ok(Heard::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Heard::Nothing),
                Err(error) => return Err(error),
            }
            if let Some(decoder) = &mut self.control {
                match decoder.next(&mut byte.as_slice()) {
                    Ok(None) => {}
                    Ok(Some(frame)) => match HostToGuest::decode(frame) {
                        Ok(HostToGuest::Prove(prove)) => return Ok(Heard::Prove(prove)),
                        _ => return Ok(Heard::Closed),
                    },
                    Err(_) => return Ok(Heard::Closed),
                }
                continue;
            }
            self.command.push(byte[0]);
            if byte[0] != b'\n' {
                if self.command.len() > MAX_COMMAND {
                    return Ok(Heard::Closed);
                }
                continue;
            }
            let port = std::str::from_utf8(&self.command).ok().and_then(|line| line.strip_prefix("CONNECT "));
            let Some(port) = port.and_then(|port| port.trim_end().parse::<u32>().ok()) else {
                return Ok(Heard::Closed);
            };
            // A VMM answers with the port it chose for the host's side of the connection.
            let mut answer = format!("OK {}\n", 0x4000_0000_u32 + (port & 0xffff)).into_bytes();
            if port == CONTROL_PORT {
                answer.extend_from_slice(hello);
            }
            // A few hundred bytes into an empty socket buffer: they fit.
            self.stream.write_all(&answer)?;
            if port != CONTROL_PORT {
                return Ok(Heard::Agent);
            }
            self.control = Some(Decoder::new(vec![0; 2 + MAX_HOST_FRAME]));
        }
    }
}

/// The whole frame of `NotMine` or `Proof` leaves at once, and the connection closes with it.
pub(super) fn answer(stream: &mut UnixStream, bytes: &[u8]) {
    // The daemon may be gone already; then nobody is there to tell.
    let _ = stream.write_all(bytes);
}
