//! `cargo xtask demo`: a real VM whose agent reports to a daemon on this machine, and what the daemon shows of it.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::child::{self, Child};
use crate::project::{self, Arch};
use crate::run::{self, Step};
use crate::vm::{self, Vm};
use crate::{guest, host, initramfs, setup};

/// The instance's name.
const NAME: &str = "demo";
/// From a console that answers to a first sample at the host, on a slow machine.
const FIRST_REPORT: Duration = Duration::from_secs(30);
/// How often a table is printed where it cannot be redrawn.
const PLAIN_EVERY: u32 = 3;

/// Shows it for so many seconds, or until Ctrl-C. Everything that was started is ended, whatever happens.
pub fn run(seconds: Option<u64>) -> Result<()> {
    // Set before anything starts, so that Ctrl-C always ends in an orderly way.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    setup::all()?;
    guest::build(Arch::X86_64)?;
    host::build()?;
    initramfs::build(false)?;

    let temporary = tempfile::Builder::new().prefix("informant-demo-").tempdir()?;
    let (state, vm_dir) = (temporary.path().join("state"), temporary.path().join("vm"));
    let instance = state.join(NAME);
    fs::create_dir_all(&instance)?;
    fs::create_dir(&vm_dir)?;
    let uds = vm_dir.join("v.sock");
    fs::write(instance.join("instance.toml"), format!("uds = \"{}\"\n", uds.display()))?;

    let log = temporary.path().join("host.log");
    let mut daemon = start_daemon(&state, &log)?;
    let shown = show(&state, &vm_dir, &mut daemon, seconds, &stop);
    if shown.is_err() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        if !said.trim().is_empty() {
            eprintln!("-- the daemon's log:\n{}", said.trim_end());
        }
    }
    let stopped = daemon.stop(Duration::from_secs(10));
    shown?;
    stopped.map(drop)
}

fn start_daemon(state: &Path, log: &Path) -> Result<Child> {
    let mut command = child::command(project::host_path());
    command.arg("serve").arg("--dir").arg(state);
    child::log_to(&mut command, log)?;
    Child::spawn("informant-host serve", command)
}

fn show(state: &Path, vm_dir: &Path, daemon: &mut Child, seconds: Option<u64>, stop: &AtomicBool) -> Result<()> {
    let step = Step::new("booting a VM");
    let vm = Vm::builder().dir(vm_dir).cpus(2).append("informant.interval=1s").append("initramfs.load=1").start()?;
    let accel = vm.accel().name();
    while let Err(error) = vm.wait_boot(Duration::from_secs(1)) {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if step.elapsed() > vm::BOOT_TIMEOUT {
            return Err(error);
        }
    }
    step.done(&format!("its console answers, {accel}"));

    let booted = Instant::now();
    let until = seconds.map(|seconds| booted + Duration::from_secs(seconds));
    let redraw = std::io::stdout().is_terminal();
    let mut reported = false;
    let mut round: u32 = 0;
    while !stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
        if let Some(status) = daemon.ended()? {
            bail!("informant-host serve ended with {}", child::shown(status));
        }
        if !vm.is_running()? {
            bail!("the VM ended; its console: {}", vm.console_log().display());
        }
        reported = reported || has_reported(state);
        if !reported && booted.elapsed() > FIRST_REPORT {
            bail!("the VM did not report within {} s of its boot{}", FIRST_REPORT.as_secs(), agent_log(&vm));
        }
        draw(&table(state)?, redraw, round)?;
        round = round.wrapping_add(1);
        pause(stop);
    }
    if !reported && !has_reported(state) {
        bail!("the VM never reported{}", agent_log(&vm));
    }
    Ok(())
}

fn table(state: &Path) -> Result<String> {
    run::read(Command::new(project::host_path()).arg("ls").arg("--dir").arg(state))
}

fn draw(table: &str, redraw: bool, round: u32) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if redraw {
        // Home, the lines each with its rest cleared, then what is below: no flicker.
        let lines = table.trim_end().replace('\n', "\x1b[K\n");
        write!(
            out,
            "{}\x1b[H{lines}\x1b[K\n\n(Ctrl-C ends the demo)\x1b[K\n\x1b[J",
            if round == 0 { "\x1b[2J" } else { "" }
        )?;
    } else if round.is_multiple_of(PLAIN_EVERY) {
        writeln!(out, "{}\n", table.trim_end())?;
    }
    out.flush().context("cannot write to standard output")
}

/// One second, or less when it is to end.
fn pause(stop: &AtomicBool) {
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Whether numbers of the guest have reached the host.
fn has_reported(state: &Path) -> bool {
    let read =
        || -> Option<Value> { serde_json::from_slice(&fs::read(state.join(NAME).join("status.json")).ok()?).ok() };
    read().is_some_and(|status| !status["summary"].is_null())
}

fn agent_log(vm: &Vm) -> String {
    match vm.sh("tail -n 20 /run/informant.log", Duration::from_secs(10)) {
        Ok(text) if !text.trim().is_empty() => format!("; the agent's log:\n{}", text.trim_end()),
        _ => String::from("; the agent's log is empty"),
    }
}
