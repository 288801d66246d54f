//! Entry point: arguments, one command, its errors as exit codes. 0 done, 1 failed, 2 not understood; see
//! `demand` for its own.

use informant_guest::args::{self, ArgsError, Command, Surroundings};
use informant_guest::{demand, doctor, run, sample};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let surroundings = Surroundings {
        arguments: std::env::args_os().skip(1).collect(),
        variable: &|name| std::env::var_os(name),
        kernel_command_line: &|| std::fs::read("/proc/cmdline").unwrap_or_default(),
    };
    let result = match args::parse(&surroundings) {
        Ok(command) => carry_out(command),
        Err(error) => return misunderstood(&error),
    };
    match result {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

fn carry_out(command: Command) -> Result<ExitCode, String> {
    let mut out = io::stdout().lock();
    match command {
        Command::Run(options) => {
            drop(out);
            run::run(&options).map_err(|error| format!("run: {error}"))?;
        }
        Command::Sample(options) => {
            let args::Sample { root, count, interval, cgroup } = options;
            sample::run(&root, count.into(), interval, cgroup.as_deref(), &mut out, &mut |warning| complain(warning))
                .map_err(|error| format!("sample: {error}"))?;
        }
        Command::Demand(options) => {
            let code = demand::run(&options, &mut out).unwrap_or_else(|error| {
                complain(&format_args!("demand: {error}"));
                demand::NO_ANSWER
            });
            return Ok(ExitCode::from(code));
        }
        Command::Doctor { root } => {
            let fine = doctor::run(&root, &mut out).map_err(|error| format!("doctor: {error}"))?;
            return Ok(ExitCode::from(u8::from(!fine)));
        }
        Command::Help(text) => print(&mut out, &text)?,
        Command::Version => print(&mut out, concat!("informant-guest ", env!("CARGO_PKG_VERSION"), "\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A reader that has gone away has read enough.
fn print(out: &mut impl Write, text: &str) -> Result<(), String> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

fn failed(error: &dyn Display) -> ExitCode {
    complain(error);
    ExitCode::from(1)
}

fn misunderstood(error: &ArgsError) -> ExitCode {
    complain(error);
    ExitCode::from(2)
}

/// Standard error may be closed; the exit code still tells.
fn complain(error: &dyn Display) {
    let _ = writeln!(io::stderr(), "informant-guest: {}", without_control(&error.to_string()));
}

/// One line that does nothing to a terminal: arguments and paths, which may be anything, stand in error texts.
fn without_control(text: &str) -> String {
    let escaped = |letter: char| if letter.is_control() { letter.escape_unicode().to_string() } else { letter.into() };
    text.chars().map(escaped).collect()
}
