//! The host side of informant: a daemon that listens to agents, and the commands that read what it knows.
//!
//! `session` and `model` are pure: bytes and times are arguments. `daemon` wires them to sockets and files, `publish`
//! writes what the world sees, `cli` reads it, `scale` decides how large VMs are, `vmm` resizes them. Nothing depends on
//! `daemon`.

pub mod cli;
pub mod config;
pub mod daemon;
mod inbox;
pub mod lock;
pub mod model;
pub mod publish;
pub mod quantity;
pub mod scale;
pub mod session;
pub mod transport;
mod unix_http;
pub mod vmm;
