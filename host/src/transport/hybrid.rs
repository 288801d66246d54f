//! Hybrid vsock (Firecracker, cloud-hypervisor, vhost-device-vsock): the VMM's unix socket stands for the guest.
//! Host to guest: connect, send `CONNECT port`, read `OK number`. The number has no meaning that VMMs agree on.

use super::unix;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Longest answer line, its end included: `OK 4294967295\n` has 14 bytes.
const MAX_LINE: usize = 32;

/// Where the VMM connects for a guest that dials `port`.
#[must_use]
pub fn listen_path(uds: &Path, port: u32) -> PathBuf {
    let mut path = uds.as_os_str().to_owned();
    path.push(format!("_{port}"));
    path.into()
}

/// Connects to a port of the guest. Bytes behind the answer line are left in the socket. The caller has the deadline.
pub async fn connect(uds: &Path, port: u32) -> io::Result<UnixStream> {
    let mut stream = unix::connect(uds).await?;
    // One write: some VMMs lose a line that comes in pieces.
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
    let mut line = Vec::with_capacity(MAX_LINE);
    // Byte by byte: what follows the line is already the guest's.
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            byte if line.len() < MAX_LINE - 1 => line.push(byte),
            _ => return Err(refused("an endless line instead of OK")),
        }
    }
    let number = line.strip_prefix(b"OK ").unwrap_or_default();
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
        return Err(refused("a line that is not OK"));
    }
    Ok(stream)
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the VMM answered {what}"))
}
