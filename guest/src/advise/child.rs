//! One advisor's process: started without a copy of the agent, in a group of its own, with nothing of the agent open.

use crate::local::tally::{Name, Text, Voice, line};
use informant_wire::scale::AdvisorFault;
use informant_wire::size::Size;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::stat::Mode;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, pipe2, read};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is kept of the output: more than the longest line that is told.
const KEPT: usize = 256;
/// What is read of it; then the pipe is closed.
const MAX_OUTPUT: usize = 64 * 1024;
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Arguments and environment of every advisor.
pub(super) struct Call {
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Call {
    pub(super) fn new(present: Size, wanted: Size) -> Self {
        let mut arguments = vec![CString::default(), c"downscale".to_owned()];
        let mut environment = Vec::new();
        let text = |text: String| CString::new(text).unwrap_or_default();
        environment.push(text(PATH.to_owned()));
        for (option, variable, value) in [
            ("--present-cpu-milli", "PRESENT_CPU_MILLI", u64::from(present.cpu.0)),
            ("--present-memory-bytes", "PRESENT_MEMORY_BYTES", present.memory.0),
            ("--wanted-cpu-milli", "WANTED_CPU_MILLI", u64::from(wanted.cpu.0)),
            ("--wanted-memory-bytes", "WANTED_MEMORY_BYTES", wanted.memory.0),
        ] {
            arguments.extend([text(option.to_owned()), text(value.to_string())]);
            environment.push(text(format!("INFORMANT_{variable}={value}")));
        }
        Self { arguments, environment }
    }
}

/// A process that runs, or has ended and is not reaped.
pub(super) struct Child {
    pub(super) name: Name,
    pub(super) pid: Pid,
    output: Option<OwnedFd>,
    kept: heapless::Vec<u8, KEPT>,
    taken: usize,
}

impl Child {
    /// Starts `path`. Signals that the agent waits for must not be blocked in it, and it must not be spared by the OOM
    /// killer.
    pub(super) fn start(name: Name, path: &Path, call: &mut Call) -> Result<Self, Errno> {
        let (output, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut files = PosixSpawnFileActions::init()?;
        let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        for (from, to) in [(&null, 0), (&theirs, 1), (&null, 2)] {
            files.add_dup2(from.as_raw_fd(), to)?;
        }
        let mut with = PosixSpawnAttr::init()?;
        let flags = PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
            .union(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)
            .union(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF);
        with.set_flags(flags)?;
        with.set_pgroup(Pid::from_raw(0))?;
        with.set_sigmask(&SigSet::empty())?;
        with.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
        if let Some(first) = call.arguments.first_mut() {
            *first = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        }
        let pid = posix_spawn(path, &files, &with, &call.arguments, &call.environment)?;
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
        Ok(Self { name, pid, output: Some(output), kept: heapless::Vec::new(), taken: 0 })
    }

    /// Its output, until that has ended.
    pub(super) fn output(&self) -> Option<&OwnedFd> {
        self.output.as_ref()
    }

    /// Takes what it has written, without waiting.
    pub(super) fn drain(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(output) = &self.output {
            match read(output, &mut bytes) {
                Ok(count @ 1..) if self.taken + count <= MAX_OUTPUT => {
                    self.taken += count;
                    let room = count.min(KEPT - self.kept.len());
                    let _ = self.kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // Ended, broken, or too much.
                _ => self.output = None,
            }
        }
    }

    /// What it says, once it has ended.
    pub(super) fn voice(&mut self) -> Option<Voice> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = match waitid(Id::Pid(self.pid), flags) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => return None,
            status => status,
        };
        self.drain();
        Some(match status {
            Ok(WaitStatus::Exited(_, 0)) => Voice::For,
            Ok(WaitStatus::Exited(_, 1)) => {
                let text: Text = line(&self.kept);
                Voice::Against(if text.is_empty() { line(self.name.as_bytes()) } else { text })
            }
            _ => Voice::Failed(AdvisorFault::CRASHED),
        })
    }
}

/// Ends a process and all it has started. Its number is its own until it is reaped.
pub(super) fn kill(pid: Pid) {
    let _ = killpg(pid, Signal::SIGKILL);
}

/// Whether nothing is left of an ended process.
pub(super) fn reap(pid: Pid) -> bool {
    !matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
}
