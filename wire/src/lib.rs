//! The wire protocol between a VM's informant agent and its host: frames, handshake, messages, metric table.
//!
//! `no_std`, no allocation, no I/O and no clock: bytes and times are arguments. `PROTOCOL.md` beside this crate
//! describes every byte for other languages; the files in `vectors/` hold what is released.
//!
//! A reader starts with [`frame::Decoder`], turns a [`frame::Frame`] into a [`GuestToHost`] or [`HostToGuest`], and
//! follows a [`schema`] to understand a [`sample`]. A writer encodes into its own buffer with [`frame::encode`].
#![no_std]

#[cfg(test)]
extern crate std;

pub mod bits;
pub mod counter;
pub mod crc32;
pub mod event;
pub mod frame;
pub mod guest_to_host;
pub mod hello;
pub mod host_to_guest;
pub mod id;
pub mod limits;
pub mod metric;
pub mod sample;
pub mod scale;
pub mod schema;
pub mod size;
pub mod units;
pub mod varint;

pub use frame::{Decoder, Frame, FrameError};
pub use guest_to_host::GuestToHost;
pub use host_to_guest::HostToGuest;

/// The oldest protocol version this crate speaks.
pub const MIN_VERSION: u16 = 1;
/// The newest protocol version this crate speaks.
pub const MAX_VERSION: u16 = 1;

/// The vsock port on which a host daemon listens for agents.
pub const HOST_PORT: u32 = 5252;
/// The vsock port on which an agent listens for further host sessions. Privileged (below 1024): whoever answers
/// there holds `CAP_NET_BIND_SERVICE` in the guest.
pub const CONTROL_PORT: u32 = 1022;
