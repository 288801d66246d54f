//! Identities that travel: boots, processes, sessions, event streams.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

id128! {
    /// The kernel's random id of this boot (`/proc/sys/kernel/random/boot_id`, the UUID's 16 bytes in reading order).
    /// A restored snapshot keeps it: it identifies a boot, never a VM.
    BootId
}
id128! {
    /// Random per agent process. Two live sessions with equal boot id and nonce on two endpoints are clones.
    Nonce
}
id128! {
    /// Random per session, host to guest in Welcome. Only the holder of that session can repeat it.
    Challenge
}
id128! {
    /// Random per controller process on the host.
    ControllerId
}

impl BootId {
    /// Reads the kernel's text form (32 hexadecimal digits, dashes anywhere, white space around). `None` for others.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut digits = text.trim_ascii().iter().filter(|byte| **byte != b'-');
        let mut id = [0; 16];
        for byte in &mut id {
            let high = char::from(*digits.next()?).to_digit(16)?;
            let low = char::from(*digits.next()?).to_digit(16)?;
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        digits.next().is_none().then_some(Self(id))
    }
}

/// A session, random, chosen by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// An event stream: random, chosen by the agent when it cannot continue an older one. Sequences count within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn boot_id_text() {
        let id = BootId::parse(b"01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        assert_eq!(id.to_string(), "0123456789abcdef0123456789abcdef");
        assert_eq!(BootId::parse(b"0123"), None);
        assert_eq!(BootId::parse(b"0123456789abcdef0123456789abcdef00"), None);
        assert_eq!(BootId::parse(b"g123456789abcdef0123456789abcdef"), None);
    }
}
