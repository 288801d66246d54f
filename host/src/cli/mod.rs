//! The commands that talk to the daemon. Those that read (`ls`, `show`, `watch`) read its folders when it is down and
//! say so; `controllers` and `resize` need it. One file a command; what they share is beside them.

/// What the `--help` of every command says about how it ends.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  done
  1  it failed: one line on standard error says what, where and what to do
  2  the command line is wrong"
    };
}
use exit_codes;

mod client;
mod controllers;
mod escape;
mod feed;
#[cfg(test)]
mod fixture;
mod folders;
mod ls;
mod metric;
mod output;
mod quantity;
mod reading;
mod resize;
mod scaling;
mod screen;
mod show;
mod suggest;
mod table;
mod watch;
mod words;

use client::ClientError;
use jiff::tz::TimeZone;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// A command to the daemon.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Ls(ls::Args),
    Show(show::Args),
    Watch(watch::Args),
    Resize(resize::Args),
    Controllers(controllers::Args),
}

/// Runs a command on the instances of `dir`.
#[must_use]
pub fn run(dir: &Path, command: Command) -> ExitCode {
    let context = Context { dir: dir.to_owned(), zone: TimeZone::system() };
    match run_in(&context, command) {
        // Whoever read our output has seen enough.
        Ok(()) | Err(CommandError::Output(io::ErrorKind::BrokenPipe, _)) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run_in(context: &Context, command: Command) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Runtime)?;
    let result = match command {
        Command::Ls(args) => runtime.block_on(ls::run(context, &args)),
        Command::Show(args) => runtime.block_on(show::run(context, &args)),
        Command::Watch(args) => runtime.block_on(watch::run(context, &args)),
        Command::Resize(args) => runtime.block_on(resize::run(context, &args)),
        Command::Controllers(args) => runtime.block_on(controllers::run(context, &args)),
    };
    // A write to an output that nobody reads any more may hang on one of its threads: do not wait for it.
    runtime.shutdown_background();
    result
}

/// Where and for whom a command runs.
#[derive(Debug)]
struct Context {
    /// The daemon's directory.
    dir: PathBuf,
    /// In which clock times are shown.
    zone: TimeZone,
}

/// Milliseconds since 1970 by this host's clock.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Why a command failed, in one line.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error("cannot write to standard output: {1}")]
    Output(io::ErrorKind, io::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot read {}: {cause} (is this the right --dir?)", dir.display())]
    Directory { dir: PathBuf, cause: io::Error },
    #[error("no daemon and no instances in {} (is this the right --dir?)", dir.display())]
    Nothing { dir: PathBuf },
    #[error("no instance {}{}", names.join(", "), suggest::hint(suggestion.as_deref()))]
    Unknown { names: Vec<String>, suggestion: Option<String> },
    #[error("no instance {name}: its folder {} has no instance.toml", folder.display())]
    NoConfig { name: String, folder: PathBuf },
    #[error("gone since the daemon was away: {}", names.join(" or "))]
    Gone { names: Vec<String> },
    #[error("{name} is not resized: {why}")]
    NotResized { name: String, why: String },
    #[error("{what}: {cause}")]
    Document { what: String, cause: String },
    #[error("{what} is of schema {schema}, and this program reads up to {known}: use a newer informant-host")]
    Newer { what: String, schema: u32, known: u32 },
}

impl From<io::Error> for CommandError {
    /// Only output is written through a bare `io::Error`; what is read has its own variants.
    fn from(error: io::Error) -> Self {
        Self::Output(error.kind(), error)
    }
}
