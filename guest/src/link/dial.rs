//! One attempt to reach the host: a non-blocking socket, a privileged source port on vsock, a deadline.

use super::Address;
use super::stream::Stream;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrLike, UnixAddr, VsockAddr, bind, connect, socket};
use std::os::fd::AsRawFd;
use std::task::{Context, Poll};
use vsock::VMADDR_CID_ANY;

/// Below the 2 s after which the kernel gives up by itself: a request that was lost while the driver came up is
/// never answered, and the next one is.
pub const ATTEMPT_DEADLINE_US: u64 = 1_800_000;

/// Source ports that only a privileged process can have: the host takes one as the sign that root speaks. Above the
/// range of old `rresvport` users, below the control port.
const PRIVILEGED_PORTS: std::ops::Range<u32> = 512..informant_wire::CONTROL_PORT;

/// Chooses source ports. The last used one is never taken again at once: a VMM that missed a guest reset still holds
/// the old pair of ports, and a connect from the same pair hangs.
#[derive(Debug, Default)]
pub struct SourcePorts {
    last: Option<u32>,
}

impl SourcePorts {
    /// Candidates in random order of start; `random`: any bits.
    fn candidates(&self, random: u64) -> impl Iterator<Item = u32> + use<> {
        const COUNT: u32 = PRIVILEGED_PORTS.end - PRIVILEGED_PORTS.start;
        let last = self.last;
        let start = u32::try_from(random % u64::from(COUNT)).unwrap_or_default();
        (0..COUNT).map(move |i| PRIVILEGED_PORTS.start + (start + i) % COUNT).filter(move |port| Some(*port) != last)
    }

    /// Binds `socket` to a free privileged port. `Ok(None)`: not allowed, an unprivileged port has to do.
    fn bind(&mut self, socket: &impl AsRawFd, random: u64) -> Result<Option<u32>, Errno> {
        for port in self.candidates(random) {
            match bind(socket.as_raw_fd(), &VsockAddr::new(VMADDR_CID_ANY, port)) {
                Ok(()) => {
                    self.last = Some(port);
                    return Ok(Some(port));
                }
                Err(Errno::EADDRINUSE) => {}
                Err(Errno::EACCES | Errno::EPERM) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EADDRINUSE)
    }
}

/// An attempt under way.
#[derive(Debug)]
pub struct Dial {
    stream: Option<Stream>,
    connected: bool,
    /// The privileged source port; `None` on unix sockets and without the capability.
    pub source_port: Option<u32>,
    /// When to give up, `CLOCK_BOOTTIME` microseconds.
    pub deadline_us: u64,
}

impl Dial {
    /// Begins an attempt. `random`: any bits.
    pub fn start(address: &Address, ports: &mut SourcePorts, random: u64, now_us: u64) -> Result<Self, Errno> {
        let new = |family| socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None);
        let mut source_port = None;
        let (socket, result) = match address {
            Address::Unix(path) => {
                let socket = new(AddressFamily::Unix)?;
                let result = connect_to(&socket, &UnixAddr::new(path.as_path())?);
                (socket, result)
            }
            Address::Vsock { cid, port } => {
                let socket = new(AddressFamily::Vsock)?;
                source_port = ports.bind(&socket, random)?;
                let result = connect_to(&socket, &VsockAddr::new(cid.unwrap_or(vsock::VMADDR_CID_HOST), *port));
                (socket, result)
            }
        };
        let connected = match result {
            Ok(()) => true,
            Err(Errno::EINPROGRESS) => false,
            Err(error) => return Err(error),
        };
        let stream = Stream::new(socket).map_err(|error| errno(&error))?;
        Ok(Self { stream: Some(stream), connected, source_port, deadline_us: now_us + ATTEMPT_DEADLINE_US })
    }

    /// Waits for the outcome; `ETIMEDOUT` at the deadline. To be polled until it is ready and not after.
    pub fn poll(&mut self, cx: &mut Context<'_>, now_us: u64) -> Poll<Result<Stream, Errno>> {
        let Some(stream) = &self.stream else { return Poll::Ready(Err(Errno::ENOTCONN)) };
        if !self.connected {
            match stream.poll_connected(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if now_us >= self.deadline_us => return Poll::Ready(Err(Errno::ETIMEDOUT)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(self.stream.take().ok_or(Errno::ENOTCONN))
    }
}

fn connect_to(socket: &impl AsRawFd, address: &dyn SockaddrLike) -> Result<(), Errno> {
    connect(socket.as_raw_fd(), address)
}

/// The kernel's code of an I/O error.
pub(super) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn source_ports_are_privileged_never_the_control_port_and_never_the_last(random: u64, last in 512_u32..1022) {
            let ports = SourcePorts { last: Some(last) };
            let candidates: std::collections::BTreeSet<u32> = ports.candidates(random).collect();
            let expected: std::collections::BTreeSet<u32> = (512..=1021).filter(|port| *port != last).collect();
            prop_assert_eq!(candidates, expected);
        }
    }
}
