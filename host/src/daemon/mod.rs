//! The daemon: wires sessions, model and publishing to sockets, files and time.

use informant_wire::HOST_PORT;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The vsock port on which the agents find this host
    #[arg(long, value_name = "PORT", default_value_t = HOST_PORT)]
    pub port: u32,
}

/// Runs the daemon until it is told to stop.
#[must_use]
pub fn main(_dir: &Path, _arguments: &Arguments) -> ExitCode {
    ExitCode::FAILURE
}
