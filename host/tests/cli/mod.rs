//! Runs the binary's reading commands: shared by the tests of them.

use informant_host::publish::status::WatchLine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// For anything that must happen at all.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The binary with these arguments, in a known time zone.
pub(crate) fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_informant-host"));
    command.arg("--dir").arg(dir).args(arguments).stdin(Stdio::null()).env("TZ", "UTC").env_remove("NO_COLOR");
    command
}

/// Its exit code, standard output and standard error.
pub(crate) fn run(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(dir, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Asks until there is an answer; `None`: there was none in time.
fn ask_for<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// The answer, which must come.
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    ask_for(ask).unwrap_or_else(|| panic!("never: {what}"))
}

/// How a child ended, which it must do by itself.
pub(crate) fn wait(mut child: Child) -> ExitStatus {
    match ask_for(|| child.try_wait().unwrap()) {
        Some(status) => status,
        None => {
            child.kill().unwrap();
            panic!("it does not end");
        }
    }
}

/// Sends a signal to a child.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

/// `watch` of everything, as JSON lines, and those lines parsed.
pub(crate) fn watch(dir: &Path) -> (Child, Receiver<WatchLine>) {
    let mut child = command(dir, &["watch"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, receiver) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    thread::spawn(move || {
        for line in out.lines() {
            if sender.send(serde_json::from_str(&line.unwrap()).unwrap()).is_err() {
                return;
            }
        }
    });
    (child, receiver)
}
