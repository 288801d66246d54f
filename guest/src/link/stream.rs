//! A connected, non-blocking stream socket of either family, registered with the reactor. Knows bytes only.

use crate::reactor;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;

/// One connection.
#[derive(Debug)]
pub struct Stream(AsyncFd<OwnedFd>);

impl Stream {
    /// Takes over a connected, non-blocking socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        reactor::register(socket).map(Self)
    }

    /// User and group of the process that connected, where the family tells.
    #[must_use]
    pub fn credentials(&self) -> Option<(u32, u32)> {
        let peer = getsockopt(self.0.get_ref(), PeerCredentials).ok()?;
        Some((peer.uid(), peer.gid()))
    }

    /// Receives what is there; 0 at the end of the stream.
    pub fn poll_recv(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let tried = guard.try_io(|socket| Ok(recv(socket.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?));
            match tried {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    /// Hands bytes to the kernel and tells how many it took. That they arrive is for the peer to say.
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            match guard.try_io(|socket| Ok(send(socket.as_raw_fd(), bytes, FLAGS)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    /// Says a last word, if the kernel takes it at once.
    pub fn send_last(&self, bytes: &[u8]) {
        let _ = send(self.0.get_ref().as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    /// Waits until a connect that was begun is decided.
    pub(super) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        use nix::sys::socket::sockopt::SocketError;
        let _writable = ready!(self.0.poll_write_ready(cx)).map_err(|_| Errno::EIO)?;
        Poll::Ready(match getsockopt(self.0.get_ref(), SocketError) {
            Ok(0) => Ok(()),
            Ok(code) => Err(Errno::from_raw(code)),
            Err(error) => Err(error),
        })
    }
}
