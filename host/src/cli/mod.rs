//! The reading commands. One file each; `client` is their way to the daemon.

use std::path::Path;
use std::process::ExitCode;

/// The commands that only read.
#[derive(Debug, clap::Subcommand)]
pub enum Command {}

/// Runs one. `dir`: the daemon's directory.
#[must_use]
pub fn run(_dir: &Path, command: Command) -> ExitCode {
    match command {}
}
