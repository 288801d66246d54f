//! The agent under test, in a directory of its own, gone when the test ends.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory with the host's socket, the agent's state and its log.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// An agent that dials `host.sock`.
    pub(crate) fn agent(&self, options: &[&str]) -> Agent {
        let connect = format!("unix:{}", self.path("host.sock").display());
        self.start(&[&["--connect", &connect], options].concat())
    }

    pub(crate) fn start(&self, options: &[&str]) -> Agent {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_informant-guest"));
        command.arg("run").args(["--interval", "100ms", "--log", "debug"]);
        command.arg("--state").arg(self.path("state")).args(options);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"INFORMANT_")) {
            command.env_remove(name);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0).spawn().unwrap();
        Agent { child, log: self.path("log") }
    }
}

pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and gone when this returns.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.pid().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// The exit code of an agent that was told to end.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the agent does not end; its log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn log(&self) -> String {
        read(&self.log)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the agent:\n{}", self.log());
        }
    }
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    let _ = std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    text
}
