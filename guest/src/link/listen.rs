//! A listening socket: accepts at once, whoever comes, and tells who it was. Who may stay is the caller's decision.

use super::Address;
use super::dial::errno;
use super::stream::Stream;
use crate::reactor;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use vsock::{VMADDR_CID_ANY, VsockListener};

/// Who came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this system that may open the socket file.
    Local,
    /// A vsock context id.
    Cid(u32),
}

/// A bound socket. A unix socket's file goes with it.
#[derive(Debug)]
pub enum Listener {
    /// AF_VSOCK.
    Vsock(AsyncFd<VsockListener>),
    /// A socket file.
    Unix(AsyncFd<UnixListener>, SocketFile),
}

/// Removes the file when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and the next start removes the file anyway.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds and listens. A socket file that nobody listens at is replaced; one that answers is not.
    pub fn bind(address: &Address) -> Result<Self, Errno> {
        match address {
            Address::Vsock { cid, port } => {
                let listener = VsockListener::bind_with_cid_port(cid.unwrap_or(VMADDR_CID_ANY), *port)
                    .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                    .map_err(|error| errno(&error))?;
                reactor::register(listener).map(Self::Vsock).map_err(|error| errno(&error))
            }
            Address::Unix(path) => bind_unix(path, 0o600).map_err(|error| errno(&error)),
        }
    }

    /// Binds the socket of local processes, mode 0660; makes its directory. A set-group-id directory gives it its group.
    pub fn bind_local(path: &Path) -> Result<Self, Errno> {
        let directory = path.parent().unwrap_or_else(|| Path::new(""));
        let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
        made.and_then(|()| bind_unix(path, 0o660)).map_err(|error| errno(&error))
    }

    /// The next connection. An error is of that connection or of the process's limits, never a reason to end.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        loop {
            let accepted = match self {
                Self::Vsock(listener) => {
                    let mut guard = ready!(listener.poll_read_ready(cx))?;
                    guard.try_io(|listener| {
                        let (stream, from) = listener.get_ref().accept()?;
                        stream.set_nonblocking(true)?;
                        Ok((OwnedFd::from(stream), Peer::Cid(from.cid())))
                    })
                }
                Self::Unix(listener, _) => {
                    let mut guard = ready!(listener.poll_read_ready(cx))?;
                    guard.try_io(|listener| {
                        let (stream, _) = listener.get_ref().accept()?;
                        stream.set_nonblocking(true)?;
                        Ok((OwnedFd::from(stream), Peer::Local))
                    })
                }
            };
            match accepted {
                Ok(Ok((socket, peer))) => return Poll::Ready(Stream::new(socket).map(|stream| (stream, peer))),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<Listener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && nobody_listens(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    // Between bind and this another user could connect only if the directory lets him in; the session protocol
    // gives such a peer nothing but this VM's own figures.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(Listener::Unix(reactor::register(listener)?, file))
}

/// Whether a connect is refused.
fn nobody_listens(path: &Path) -> bool {
    connect_unix(path).err() == Some(Errno::ECONNREFUSED)
}

/// Connects without waiting: a listener with a full backlog would hold a plain connect for ever. The stream then
/// blocks.
pub fn connect_unix(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map_err(|error| errno(&error))?;
    Ok(stream)
}
