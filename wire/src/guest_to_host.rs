//! What a guest may send. Append-only.

use crate::event::Event;
use crate::frame::{DecodeError, Frame, decode, encode, kind};
use crate::hello::Hello;
use crate::host_to_guest::Bye;
use crate::id::Challenge;
use crate::sample::SampleBody;
use crate::scale::{Applied, Controllers, Demand, DownscaleAnswer, Resume, Stale, Suspend, Unregistered};
use crate::schema::{SchemaEnd, SchemaPart};
use serde::{Deserialize, Serialize};

/// Guest to host, every 5 s whatever the sample interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// `CLOCK_BOOTTIME`, microseconds.
    pub boot_time_us: u64,
    /// `CLOCK_REALTIME`, microseconds since 1970. Information only.
    pub wall_time_us: u64,
    /// The latest that the agent's loop woke up since the last heartbeat, microseconds.
    pub loop_lag_us: u32,
    /// CPU time of the last sample, microseconds.
    pub sample_cost_us: u32,
}

impl Heartbeat {
    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, crate::frame::EncodeError> {
        encode(out, kind::HEARTBEAT, self)
    }
}

/// Guest to host on a proof connection: the challenge that came with the session asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// As Welcome gave it.
    pub challenge: Challenge,
}

impl Proof {
    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, crate::frame::EncodeError> {
        encode(out, kind::PROOF, self)
    }
}

/// A decoded frame from a guest.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestToHost<'a> {
    /// See [`Hello`].
    Hello(Hello<'a>),
    /// See [`SchemaPart`].
    SchemaPart(SchemaPart<'a>),
    /// See [`SchemaEnd`].
    SchemaEnd(SchemaEnd),
    /// See [`SampleBody`]: can be read only with its schema.
    Sample(SampleBody<'a>),
    /// See [`Heartbeat`].
    Heartbeat(Heartbeat),
    /// See [`Event`].
    Event(Event<'a>),
    /// See [`Bye`].
    Bye(Bye),
    /// See [`Proof`].
    Proof(Proof),
    /// The session asked for is not this agent's.
    NotMine,
    /// See [`Suspend`].
    Suspend(Suspend),
    /// See [`Resume`].
    Resume(Resume),
    /// See [`Demand`].
    Demand(Demand<'a>),
    /// See [`Applied`].
    Applied(Applied),
    /// See [`DownscaleAnswer`].
    DownscaleAnswer(DownscaleAnswer<'a>),
    /// See [`Stale`].
    Stale(Stale),
    /// See [`Controllers`].
    Controllers(Controllers<'a>),
    /// See [`Unregistered`].
    Unregistered(Unregistered),
    /// A type that this version does not know: skip and count.
    Unknown(u8),
}

impl<'a> GuestToHost<'a> {
    /// Decodes a frame. Types that only a host sends are unknown here.
    pub fn decode(frame: Frame<'a>) -> Result<Self, DecodeError> {
        Ok(match frame.kind {
            kind::HELLO => Self::Hello(Hello::decode(frame.body)?),
            kind::SCHEMA_PART => Self::SchemaPart(SchemaPart::decode(frame.body)?),
            kind::SCHEMA_END => Self::SchemaEnd(decode(frame.body)?),
            kind::SAMPLE => Self::Sample(SampleBody::decode(frame.body)?),
            kind::HEARTBEAT => Self::Heartbeat(decode(frame.body)?),
            kind::EVENT => Self::Event(Event::decode(frame.body)?),
            kind::BYE => Self::Bye(decode(frame.body)?),
            kind::PROOF => Self::Proof(decode(frame.body)?),
            kind::NOT_MINE => decode::<()>(frame.body).map(|()| Self::NotMine)?,
            kind::SUSPEND => Self::Suspend(decode(frame.body)?),
            kind::RESUME => Self::Resume(decode(frame.body)?),
            kind::DEMAND => Self::Demand(Demand::decode(frame.body)?),
            kind::APPLIED => Self::Applied(decode(frame.body)?),
            kind::DOWNSCALE_ANSWER => Self::DownscaleAnswer(DownscaleAnswer::decode(frame.body)?),
            kind::STALE => Self::Stale(decode(frame.body)?),
            kind::CONTROLLERS => Self::Controllers(Controllers::decode(frame.body)?),
            kind::UNREGISTERED => Self::Unregistered(decode(frame.body)?),
            other => Self::Unknown(other),
        })
    }
}
