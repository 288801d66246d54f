//! AF_VSOCK: one listener for all CIDs, bound only when an instance has a `cid`.

use super::from_descriptor;
use std::io;
use std::os::fd::AsFd;
use tokio::net::UnixStream;
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

/// Listens on a port for every CID, with the backlog of 128 that the crate gives.
pub fn listen(port: u32) -> io::Result<VsockListener> {
    VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, port))
}

/// The next connection, the peer's CID and its port.
pub async fn accept(listener: &VsockListener) -> io::Result<(UnixStream, u32, u32)> {
    let (stream, peer) = listener.accept().await?;
    Ok((convert(&stream)?, peer.cid(), peer.port()))
}

/// Connects to a guest.
pub async fn connect(cid: u32, port: u32) -> io::Result<UnixStream> {
    convert(&VsockStream::connect(VsockAddr::new(cid, port)).await?)
}

fn convert(stream: &VsockStream) -> io::Result<UnixStream> {
    from_descriptor(stream.as_fd().try_clone_to_owned()?)
}
