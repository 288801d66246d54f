//! Stream sockets towards guests: plain unix, hybrid vsock over unix, AF_VSOCK. No protocol here, and no waiting
//! without a deadline of the caller's.

pub mod hybrid;
pub mod unix;
pub mod vsock;

use std::io;
use std::os::fd::OwnedFd;
use tokio::net::UnixStream;

/// A connected stream socket of any family as tokio's stream. `UnixStream` is here no more than the registered
/// descriptor: reading is `recv` and writing is `send`, which are the same for AF_VSOCK.
pub(crate) fn from_descriptor(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
