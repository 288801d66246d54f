//! The link to hosts: addresses, byte streams, dialling, listening, and the session protocol.
//!
//! Leaf modules: they know nothing of the loop that calls them, and only [`session`] knows the protocol.

pub mod backoff;
pub mod dial;
pub mod dialler;
pub mod listen;
pub mod session;
pub mod stream;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Where the other side is, or where this side listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// AF_VSOCK.
    Vsock {
        /// Whom to dial; `None` to listen for every context id (who may enter is decided after accept).
        cid: Option<u32>,
        /// The port there or here.
        port: u32,
    },
    /// A unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `vsock:CID:PORT` or `unix:PATH`.
    pub fn parse_connect(text: &OsStr) -> Result<Self, &'static str> {
        const FORMS: &str = "is no address to dial; vsock:CID:PORT or unix:PATH";
        let bytes = text.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"unix:") {
            return socket_path(path).map(Self::Unix);
        }
        let rest = text.to_str().and_then(|text| text.strip_prefix("vsock:")).ok_or(FORMS)?;
        let (cid, port) = rest.split_once(':').ok_or(FORMS)?;
        let cid = number(cid).ok_or(FORMS)?;
        if cid == vsock::VMADDR_CID_ANY {
            return Err("names no peer: context id 4294967295 is the wildcard");
        }
        Ok(Self::Vsock { cid: Some(cid), port: port_number(port).ok_or(FORMS)? })
    }

    /// Reads `vsock:PORT` or `unix:PATH`.
    pub fn parse_listen(text: &OsStr) -> Result<Self, &'static str> {
        const FORMS: &str = "is no address to listen at; vsock:PORT or unix:PATH, or for --control off";
        let bytes = text.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"unix:") {
            return socket_path(path).map(Self::Unix);
        }
        let port = text.to_str().and_then(|text| text.strip_prefix("vsock:")).ok_or(FORMS)?;
        Ok(Self::Vsock { cid: None, port: port_number(port).ok_or(FORMS)? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock { cid: Some(cid), port } => write!(f, "vsock:{cid}:{port}"),
            Self::Vsock { cid: None, port } => write!(f, "vsock:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Digits only: `u32::from_str` would take a plus sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn port_number(text: &str) -> Option<u32> {
    number(text).filter(|port| (1..u32::MAX).contains(port))
}

/// A path that fits `sockaddr_un` with its final zero.
fn socket_path(bytes: &[u8]) -> Result<PathBuf, &'static str> {
    match bytes.len() {
        0 => Err("has no path; unix:PATH"),
        1..=107 if !bytes.contains(&0) => Ok(PathBuf::from(OsStr::from_bytes(bytes))),
        _ => Err("is too long for a unix socket; at most 107 bytes of path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(text: &str) -> Result<Address, &'static str> {
        Address::parse_connect(OsStr::new(text))
    }

    #[test]
    fn addresses_read_and_print_alike() {
        for text in ["vsock:2:5252", "vsock:1:1", "unix:/run/host.sock", "unix:relative"] {
            assert_eq!(connect(text).unwrap().to_string(), text);
        }
        for text in ["vsock:1022", "unix:/run/control.sock"] {
            assert_eq!(Address::parse_listen(OsStr::new(text)).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_can_not_be_dialled_is_refused() {
        for text in [
            "",
            "vsock",
            "vsock:",
            "vsock:2",
            "vsock:2:0",
            "vsock:2:+1",
            "vsock:-1:5",
            "vsock:4294967295:1",
            "vsock:2:4294967295",
            "vsock:2:4294967296",
            "vsock:2:1:1",
            "tcp:1:2",
            "unix:",
            "unix:a\0b",
            "Vsock:2:1",
        ] {
            assert!(connect(text).is_err(), "{text:?}");
        }
        assert!(connect(&format!("unix:/{}", "x".repeat(106))).is_ok());
        assert!(connect(&format!("unix:/{}", "x".repeat(107))).is_err());
    }
}
