//! What a host may send. Append-only.

use crate::frame::{DecodeError, EncodeError, Frame, decode, encode, kind};
use crate::hello::{Refused, Welcome};
use crate::id::SessionId;
use crate::scale::{DemandAnswer, Downscale, ListControllers, Resized, RoleAnswer};
use serde::{Deserialize, Serialize};

/// Host to guest, as an answer: at least every 5 s while it hears the guest, at most once a second. The sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The highest sample sequence received on this session; 0 for none.
    pub sample: u64,
    /// The highest event sequence of the stream that is stored; 0 for none.
    pub event: u64,
}

impl Ack {
    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::ACK, self)
    }
}

/// Why a side ends a session. Open: unknown reasons are shown by number and mean "dial again with back-off".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByeReason(pub u16);

impl ByeReason {
    /// The process ends.
    pub const STOPPING: Self = Self(1);
    /// Another daemon has taken over at the same address: dial again at once.
    pub const MOVED: Self = Self(2);
    /// A newer session of the same agent, or a proven one, took this one's place.
    pub const REPLACED: Self = Self(3);
    /// The peer broke the protocol.
    pub const PROTOCOL: Self = Self(4);
    /// The instance was removed from the host.
    pub const REMOVED: Self = Self(5);
    /// The side that says it has as many sessions as it takes.
    pub const TOO_MANY: Self = Self(6);

    /// The reason's name for people.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::STOPPING => "stopping",
            Self::MOVED => "moved",
            Self::REPLACED => "replaced",
            Self::PROTOCOL => "protocol error",
            Self::REMOVED => "instance removed",
            Self::TOO_MANY => "too many sessions",
            _ => return None,
        })
    }
}

/// Either way: this side ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why.
    pub reason: ByeReason,
}

impl Bye {
    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::BYE, self)
    }
}

/// Host to guest on a connection to the control port, instead of Welcome: is this live session yours?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prove {
    /// The session of another connection.
    pub session: SessionId,
}

impl Prove {
    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        encode(out, kind::PROVE, self)
    }
}

/// A decoded frame from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostToGuest<'a> {
    /// See [`Welcome`].
    Welcome(Welcome<'a>),
    /// See [`Refused`].
    Refused(Refused<'a>),
    /// See [`Ack`].
    Ack(Ack),
    /// See [`Bye`].
    Bye(Bye),
    /// Draw a new nonce and a new event stream and dial again at once.
    Renonce,
    /// See [`Prove`].
    Prove(Prove),
    /// See [`RoleAnswer`].
    RoleAnswer(RoleAnswer),
    /// See [`DemandAnswer`].
    DemandAnswer(DemandAnswer),
    /// See [`Resized`].
    Resized(Resized),
    /// See [`Downscale`].
    Downscale(Downscale),
    /// See [`ListControllers`].
    ListControllers(ListControllers),
    /// A type that this version does not know: skip and count.
    Unknown(u8),
}

impl<'a> HostToGuest<'a> {
    /// Decodes a frame. Types that only a guest sends are unknown here.
    pub fn decode(frame: Frame<'a>) -> Result<Self, DecodeError> {
        Ok(match frame.kind {
            kind::WELCOME => Self::Welcome(Welcome::decode(frame.body)?),
            kind::REFUSED => Self::Refused(Refused::decode(frame.body)?),
            kind::ACK => Self::Ack(decode(frame.body)?),
            kind::BYE => Self::Bye(decode(frame.body)?),
            kind::RENONCE => decode::<()>(frame.body).map(|()| Self::Renonce)?,
            kind::PROVE => Self::Prove(decode(frame.body)?),
            kind::ROLE_ANSWER => Self::RoleAnswer(decode(frame.body)?),
            kind::DEMAND_ANSWER => Self::DemandAnswer(decode(frame.body)?),
            kind::RESIZED => Self::Resized(decode(frame.body)?),
            kind::DOWNSCALE => Self::Downscale(decode(frame.body)?),
            kind::LIST_CONTROLLERS => Self::ListControllers(decode(frame.body)?),
            other => Self::Unknown(other),
        })
    }
}
