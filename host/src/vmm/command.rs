//! A program that knows how to resize: for VMMs that have no actuator here.
//!
//! `PROGRAM ARGS observe` prints one JSON object: `cpu_milli` and `memory_bytes` are what the VM has; `wish_cpu_milli`
//! and `wish_memory_bytes` what it was asked to have, `min_…`, `max_…` and `step_cpu_milli`, `min_memory_bytes`,
//! `max_memory_bytes` and `block_bytes`, and `running` may be left out. `PROGRAM ARGS resize --cpu-milli N
//! --memory-bytes N` asks for a size and prints the same, or nothing. Exit code 75 means "not yet", any other than 0 a
//! refusal; the first line of its standard error says why. It has 5 s and closes its output.

use super::bounds::{Capabilities, CpuRange, MemoryRange};
use super::deadline::{ANSWER, within};
use super::error::{VmmError, line};
use super::pending::Pending;
use super::{Reported, Vmm};
use informant_wire::size::{Bytes, MilliCpu, Size};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command as Process};

/// Bytes of an output that are read.
const MAX_OUTPUT: u64 = 64 * 1024;
/// `EX_TEMPFAIL` of sysexits.h.
const NOT_YET: i32 = 75;

/// See the module.
#[derive(Debug)]
pub struct Command {
    words: Vec<String>,
    /// For programs that do not tell.
    asked: Pending<Size>,
}

#[derive(Deserialize)]
struct Printed {
    cpu_milli: u32,
    memory_bytes: u64,
    wish_cpu_milli: Option<u32>,
    wish_memory_bytes: Option<u64>,
    min_cpu_milli: Option<u32>,
    max_cpu_milli: Option<u32>,
    step_cpu_milli: Option<u32>,
    min_memory_bytes: Option<u64>,
    max_memory_bytes: Option<u64>,
    block_bytes: Option<u64>,
    running: Option<bool>,
}

impl Command {
    /// `words` are the program and its first arguments.
    #[must_use]
    pub fn new(words: &[String]) -> Self {
        Self { words: words.to_vec(), asked: Pending::default() }
    }

    fn says(&self, text: &str) -> String {
        format!("`{}`: {text}", self.words.join(" "))
    }

    fn reported(&mut self, output: &[u8]) -> Result<Reported, VmmError> {
        let printed: Printed = serde_json::from_slice(output)
            .map_err(|error| VmmError::Protocol(self.says(&format!("not the JSON expected: {error}"))))?;
        let has = Size { cpu: MilliCpu(printed.cpu_milli), memory: Bytes(printed.memory_bytes) };
        let asked = self.asked.wish(has);
        let wish = Size {
            cpu: printed.wish_cpu_milli.map_or(asked.cpu, MilliCpu),
            memory: printed.wish_memory_bytes.map_or(asked.memory, Bytes),
        };
        let cpu = CpuRange {
            min: MilliCpu(printed.min_cpu_milli.unwrap_or(1)),
            max: MilliCpu(printed.max_cpu_milli.unwrap_or(u32::MAX)),
            step: MilliCpu(printed.step_cpu_milli.unwrap_or(1)),
        };
        let memory = MemoryRange {
            min: Bytes(printed.min_memory_bytes.unwrap_or(1)),
            max: Bytes(printed.max_memory_bytes.unwrap_or(u64::MAX)),
            block: Bytes(printed.block_bytes.unwrap_or(1)),
        };
        let can = Capabilities { cpu, memory, balloon: false };
        Ok(Reported { has, wish, can, running: printed.running.unwrap_or(true) })
    }

    /// The program's output, if it ended well.
    async fn run(&self, arguments: &[String]) -> Result<Vec<u8>, VmmError> {
        let (program, first) = self.words.split_first().ok_or_else(|| VmmError::Unsupported("no program".into()))?;
        let mut process = Process::new(program);
        process.args(first).args(arguments).process_group(0).kill_on_drop(true);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child =
            process.spawn().map_err(|error| VmmError::Unreachable(self.says(&format!("cannot run: {error}"))))?;
        let mut group = Group(child);
        let what = arguments.first().map(String::as_str).unwrap_or_default();
        // Whatever ends this early, also that our caller waits no longer, ends the program with all it started.
        let (status, output, errors) = within(ANSWER, || self.says(what), self.finish(&mut group)).await?;
        let why = || self.says(&line(&String::from_utf8_lossy(&errors)));
        match (status.code(), status.signal()) {
            (Some(0), _) => Ok(output),
            (Some(NOT_YET), _) => Err(VmmError::NotYet(why())),
            (Some(_), _) => Err(VmmError::Refused(why())),
            (None, signal) => {
                Err(VmmError::Protocol(self.says(&format!("killed by signal {}", signal.unwrap_or_default()))))
            }
        }
    }

    /// Its ends of the pipes close first, so that until it is reaped below its id is nobody else's.
    async fn finish(&self, group: &mut Group) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), VmmError> {
        let broken = |error: std::io::Error| VmmError::Protocol(self.says(&error.to_string()));
        let child = &mut group.0;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = async {
            let (output, rest) = read(stdout, false).await.map_err(broken)?;
            if rest { Err(VmmError::Protocol(self.says("prints more than 64 KiB"))) } else { Ok(output) }
        };
        let errors = async { read(stderr, true).await.map_err(broken) };
        let (output, (errors, _)) = tokio::try_join!(output, errors)?;
        let status = child.wait().await.map_err(broken)?;
        Ok((status, output, errors))
    }
}

/// The first 64 KiB, and whether there is more. `drain` reads on, so that the writer is not held up.
async fn read(pipe: Option<impl AsyncRead + Unpin>, drain: bool) -> std::io::Result<(Vec<u8>, bool)> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return Ok((kept, false)) };
    (&mut pipe).take(MAX_OUTPUT).read_to_end(&mut kept).await?;
    let more = pipe.read(&mut [0]).await? > 0;
    if drain {
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok((kept, more))
}

/// The program and what it started; all are killed unless it was waited for.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // No id: it was reaped, and the number may be another's by now.
        if let Some(id) = self.0.id().and_then(|id| i32::try_from(id).ok()) {
            let _gone_already = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

impl Vmm for Command {
    fn name(&self) -> &'static str {
        "command"
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let output = self.run(&["observe".into()]).await?;
        self.reported(&output)
    }

    async fn send(&mut self, _now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        let cpu = target.cpu.0.to_string();
        let memory = target.memory.0.to_string();
        let arguments = ["resize".into(), "--cpu-milli".into(), cpu, "--memory-bytes".into(), memory];
        let output = self.run(&arguments).await?;
        self.asked.accepted(target);
        if output.trim_ascii().is_empty() { Ok(None) } else { self.reported(&output).map(Some) }
    }
}
