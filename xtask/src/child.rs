//! Programs that run beside us (QEMU, the vsock device, a daemon) and must not outlive us.
//!
//! They are started through `setpriv --pdeathsig KILL`, so that even a killed xtask leaves none behind, and in a process
//! group of their own: Ctrl-C on the terminal reaches xtask alone, which then stops them in the right order.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::run;

/// A command that dies with us; add arguments and output to it, then give it to [`Child::spawn`].
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Sends both outputs of a command to a fresh file.
pub fn log_to(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let other = file.try_clone().context("cannot duplicate a file handle")?;
    command.stdout(file).stderr(other);
    Ok(())
}

/// A running program; dropping kills it and waits for its end.
#[derive(Debug)]
pub struct Child {
    name: String,
    child: std::process::Child,
}

impl Child {
    /// `name` is for messages.
    pub fn spawn(name: &str, command: Command) -> Result<Self> {
        let shown = run::shown(&command);
        let child = spawn_from_lasting_thread(command).with_context(|| format!("cannot start {name}: `{shown}`"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a process id fits i32")?);
        match signal::kill(pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(anyhow!("cannot send {signal} to {}: {errno}", self.name)),
        }
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot ask after {}", self.name))
    }

    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} did not end within {:.1} s", self.name, timeout.as_secs_f64());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGKILL, and its end.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(Duration::from_secs(10)).map(drop)
    }

    /// SIGTERM, and its end; killed when it takes too long.
    pub fn stop(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        if let Ok(status) = self.wait(timeout) {
            return Ok(status);
        }
        self.kill()?;
        bail!("{} did not end within {:.1} s of SIGTERM and was killed", self.name, timeout.as_secs_f64())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// `code 3` or `signal 9`, without the words that `ExitStatus` puts around them.
pub fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown end".to_owned(),
    }
}

type Order = (Command, Sender<io::Result<std::process::Child>>);

/// The kernel ties the death signal to the *thread* that started the program. A test's or helper's thread may end while
/// its VM goes on, so one thread that lasts as long as the process starts them all.
fn spawn_from_lasting_thread(command: Command) -> io::Result<std::process::Child> {
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, answered) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    spawner.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        let mut command = command("sleep");
        command.arg("30");
        Child::spawn("sleep", command).unwrap()
    }

    #[test]
    fn a_child_outlives_the_thread_that_started_it() {
        let mut child = thread::spawn(sleeper).join().unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(child.ended().unwrap().is_none());
        assert_eq!(child.stop(Duration::from_secs(5)).unwrap().signal(), Some(15));
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = sleeper();
        let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap());
        drop(child);
        assert_eq!(signal::kill(pid, None), Err(Errno::ESRCH));
    }

    #[test]
    fn waiting_has_a_deadline_and_a_program_that_is_not_there_ends_at_once() {
        let error = sleeper().wait(Duration::from_millis(30)).unwrap_err().to_string();
        assert_eq!(error, "sleep did not end within 0.0 s");
        let mut missing = command("no-such-program-of-ours");
        missing.stderr(Stdio::null());
        let status = Child::spawn("missing", missing).unwrap().wait(Duration::from_secs(5)).unwrap();
        assert_eq!(shown(status), "code 127");
    }
}
