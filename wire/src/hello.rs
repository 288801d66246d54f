//! The handshake: Hello from the guest's side, Welcome or Refused from the host's. Fields are only ever appended;
//! bytes behind the known ones are ignored in these three messages alone.

use crate::frame::{DecodeError, EncodeError, decode_extensible, encode, kind};
use crate::id::{BootId, Challenge, ControllerId, Nonce, SessionId, StreamId};
use crate::limits::{MAX_PEER_NAME, MAX_PEER_VERSION, MAX_REFUSED_TEXT};
use crate::{MAX_VERSION, MIN_VERSION};
use serde::{Deserialize, Serialize};

/// The first four bytes of Hello: "INFM".
pub const MAGIC: [u8; 4] = *b"INFM";

/// What kind of process speaks. Open: an unknown one is refused with [`RefusedCode::KIND`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerKind(pub u8);

impl PeerKind {
    /// `informant-guest run`: speaks for the VM.
    pub const AGENT: Self = Self(1);
    /// Any other process: its own events and status.
    pub const REPORTER: Self = Self(2);
    /// A workload's voice in scaling decisions; on the agent's local socket only.
    pub const ADVISOR: Self = Self(3);
}

/// What the guest's side can do, a bit each; unknown bits are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// It sends schemas and samples.
    pub const SAMPLES: Self = Self(1);
    /// It listens on the control port, so it can prove that it is privileged.
    pub const CONTROL: Self = Self(2);
    /// It takes part in the scaling conversation: it says who decides, demands, and answers.
    pub const SCALING: Self = Self(4);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Guest to host, the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<'a> {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// The oldest version the guest speaks.
    pub min_version: u16,
    /// The newest version the guest speaks.
    pub max_version: u16,
    /// What kind of process this is.
    pub kind: PeerKind,
    /// A name for people, at most 64 bytes; never an identity.
    pub name: &'a str,
    /// This boot.
    pub boot_id: BootId,
    /// This process.
    pub nonce: Nonce,
    /// The event stream it continues or begins.
    pub stream: StreamId,
    /// The sequence of the first event it will send or has not yet seen acknowledged, whichever is lower.
    pub next_event: u64,
    /// `USER_HZ`: the unit of CPU times.
    pub ticks_per_second: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The program's version, at most 64 bytes.
    pub version: &'a str,
}

impl<'a> Hello<'a> {
    /// Decodes the body; refuses a wrong magic and texts over their limit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let hello: Self = decode_extensible(body)?;
        let fits = hello.name.len() <= MAX_PEER_NAME && hello.version.len() <= MAX_PEER_VERSION;
        if hello.magic == MAGIC && fits { Ok(hello) } else { Err(DecodeError::Malformed) }
    }

    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::HELLO, self)
    }

    /// The highest version both sides know; `None` for disjoint and for reversed ranges.
    #[must_use]
    pub fn agreed_version(&self) -> Option<u16> {
        let highest = self.max_version.min(MAX_VERSION);
        (self.min_version <= self.max_version && highest >= self.min_version.max(MIN_VERSION)).then_some(highest)
    }
}

/// The role of a host session. Open: an unknown one is treated as an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role(pub u8);

impl Role {
    /// May decide about the guest's resources.
    pub const CONTROLLER: Self = Self(1);
    /// Only reads.
    pub const OBSERVER: Self = Self(2);
}

/// Host to guest: the session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome<'a> {
    /// The version spoken from here.
    pub version: u16,
    /// This session.
    pub session: SessionId,
    /// To be repeated on a proof connection that asks for [`Self::session`], and nowhere else.
    pub challenge: Challenge,
    /// What the host side wants to be.
    pub role: Role,
    /// The host side's process.
    pub controller: ControllerId,
    /// Its name for people, at most 64 bytes.
    pub controller_name: &'a str,
    /// The last event of the Hello's (boot id, stream) that is stored; 0 for none.
    pub last_event: u64,
}

impl<'a> Welcome<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let welcome: Self = decode_extensible(body)?;
        if welcome.controller_name.len() <= MAX_PEER_NAME { Ok(welcome) } else { Err(DecodeError::Malformed) }
    }

    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::WELCOME, self)
    }
}

/// Why there is no session. Open: unknown codes are shown by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCode(pub u16);

impl RefusedCode {
    /// No common protocol version.
    pub const VERSION: Self = Self(1);
    /// A proven agent holds this instance.
    pub const AGENT_PRESENT: Self = Self(2);
    /// Too many sessions.
    pub const TOO_MANY: Self = Self(3);
    /// Not a kind of peer that is welcome here.
    pub const KIND: Self = Self(4);
    /// The first frame was not a valid Hello.
    pub const MALFORMED: Self = Self(5);
    /// The daemon is going away.
    pub const SHUTTING_DOWN: Self = Self(6);
    /// This endpoint belongs to no instance.
    pub const UNKNOWN_INSTANCE: Self = Self(7);

    /// The code's name for people.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VERSION => "no common protocol version",
            Self::AGENT_PRESENT => "agent present",
            Self::TOO_MANY => "too many sessions",
            Self::KIND => "unwelcome kind of peer",
            Self::MALFORMED => "malformed hello",
            Self::SHUTTING_DOWN => "shutting down",
            Self::UNKNOWN_INSTANCE => "unknown instance",
            _ => return None,
        })
    }
}

/// Host to guest: no session, and the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused<'a> {
    /// Why.
    pub code: RefusedCode,
    /// True: asking again soon will not help (redial every 30 s). False: redial with back-off.
    pub permanent: bool,
    /// One line for people, at most 120 bytes.
    pub text: &'a str,
}

impl<'a> Refused<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let refused: Self = decode_extensible(body)?;
        if refused.text.len() <= MAX_REFUSED_TEXT { Ok(refused) } else { Err(DecodeError::Malformed) }
    }

    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::REFUSED, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min_version: u16, max_version: u16) -> Hello<'static> {
        Hello {
            magic: MAGIC,
            min_version,
            max_version,
            kind: PeerKind::AGENT,
            name: "vm",
            boot_id: BootId([1; 16]),
            nonce: Nonce([2; 16]),
            stream: StreamId(3),
            next_event: 1,
            ticks_per_second: 100,
            capabilities: Capabilities::SAMPLES,
            version: "0.1.0",
        }
    }

    #[test]
    fn version_ranges() {
        assert_eq!(range(1, 1).agreed_version(), Some(1));
        assert_eq!(range(0, 9).agreed_version(), Some(1));
        assert_eq!(range(2, 9).agreed_version(), None, "disjoint");
        assert_eq!(range(0, 0).agreed_version(), None, "disjoint, older");
        assert_eq!(range(1, 0).agreed_version(), None, "reversed");
        assert_eq!(range(9, 1).agreed_version(), None, "reversed");
    }

    #[test]
    fn appended_fields_are_ignored_and_a_wrong_magic_is_not() {
        let mut out = [0; 256];
        let end = range(1, 1).encode(&mut out).unwrap();
        assert_eq!(Hello::decode(&out[3..end + 20]).unwrap(), range(1, 1));
        assert!(Hello::decode(&out[3..end - 1]).is_err());
        out[3] = b'X';
        assert!(Hello::decode(&out[3..end]).is_err());
    }
}
