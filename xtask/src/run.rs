//! Runs other programs to their end: cargo without what cargo told *us*, and errors that name the command.

use std::env;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::project;

/// Variables named `CARGO_*` that a person sets on purpose; all others come from the cargo that runs us.
const KEPT: &[&str] =
    &["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_TERM_", "CARGO_BUILD_JOBS"];

/// A cargo in the workspace that sees neither our own package's variables nor anybody's rustflags.
pub fn cargo() -> Command {
    let mut cargo = cargo_anywhere();
    cargo.current_dir(project::root());
    cargo
}

/// The same without a directory: outside the workspace its `.cargo/config.toml` and profiles do not count.
pub fn cargo_anywhere() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept));
        if ours
            || matches!(
                name.as_str(),
                "CARGO" | "RUSTFLAGS" | "RUSTDOCFLAGS" | "RUSTC_BOOTSTRAP" | "__CARGO_DEFAULT_LIB_METADATA"
            )
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs with our own output, and fails when the command does.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs and gives its standard output; its standard error goes into the error when it fails.
pub fn read(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}: {}", shown(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` printed bytes that are not UTF-8", shown(command)))
}

/// Whether a program is on PATH.
pub fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Says what a long step does and, when it is done, how long it took.
#[derive(Debug)]
pub struct Step {
    since: Instant,
    what: String,
}

impl Step {
    pub fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        eprintln!("{} {what} ...", mark());
        Self { since: Instant::now(), what }
    }

    pub fn elapsed(&self) -> std::time::Duration {
        self.since.elapsed()
    }

    pub fn done(self, result: &str) {
        eprintln!("{} {}: {result} ({:.1} s)", mark(), self.what, self.since.elapsed().as_secs_f64());
    }
}

fn mark() -> &'static str {
    // What was printed before stays before it.
    let _ = std::io::stdout().flush();
    if std::io::stderr().is_terminal() { "\x1b[1m==\x1b[0m" } else { "==" }
}
