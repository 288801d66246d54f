//! `informant-guest run`: builds the agent, makes the process hard to starve, and runs until it is told to end.

use crate::advise::Advice;
use crate::agent::Agent;
use crate::args::{HostLink, Run};
use crate::clock::{self, Timer};
use crate::collect::{Config, Sensors};
use crate::control::Door;
use crate::hosts::{Hosts, Identity};
use crate::kfile::Files;
use crate::link::Address;
use crate::link::dialler::Dialler;
use crate::link::session::Origin;
use crate::outbox::Outbox;
use crate::own::Own;
use crate::pace::{Governor, Pace};
use crate::scale::scaling::{self, Scaling};
use crate::{log, process, random, reactor};
use informant_wire::event::{AgentStarted, EventKind};
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::limits::MAX_PEER_NAME;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{SysconfVar, sysconf};
use std::io;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Why the agent can not run. All of these are the kernel refusing something every process may have.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Signals can not be taken.
    #[error("can not wait for signals: {0}")]
    Signals(io::Error),
    /// No event loop.
    #[error("can not make the event loop: {0}")]
    Loop(io::Error),
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(options: &Run) -> Result<(), RunError> {
    log::init(options.log);
    // Before any thread is made: all of them must have the mask.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|error| RunError::Signals(error.into()))?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(|error| RunError::Signals(error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(RunError::Loop)?;
    if options.root == Path::new("/") {
        process::harden(options.cgroup.as_deref());
    }
    runtime.block_on(async {
        let signals = reactor::register(signals).map_err(RunError::Signals)?;
        let timer = Timer::new().map_err(RunError::Loop)?;
        let mut agent = build(options, timer, signals);
        std::future::poll_fn(|cx| agent.poll(cx)).await.map_err(RunError::Loop)
    })
}

/// Puts the agent together: reads identities, takes up the outbox. Connects nothing yet. Needs the runtime.
pub fn build(options: &Run, timer: Timer, signals: AsyncFd<SignalFd>) -> Agent {
    let now_us = clock::boot_us();
    let boot = boot_id(&options.root);
    let (mut outbox, error) = Outbox::open(&options.state, boot, StreamId(random::bits()), now_us);
    if let Some(error) = error {
        tracing::warn!("events are kept in memory only: {error}");
    }
    started(&mut outbox, now_us);
    let identity = Identity {
        boot,
        nonce: Nonce(random::bytes()),
        name: options.name.clone().unwrap_or_else(|| host_name(&options.root)),
        ticks_per_second: sysconf(SysconfVar::CLK_TCK)
            .ok()
            .flatten()
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(100),
    };
    let mut doors = Vec::new();
    let mut dialler = None;
    let mut admit_loopback = false;
    match &options.host {
        HostLink::Connect(address) => {
            admit_loopback = matches!(address, Address::Vsock { cid: Some(vsock::VMADDR_CID_LOCAL), .. });
            dialler = Some(Dialler::new(address.clone()));
        }
        HostLink::Listen(address) => doors.push(Door::new(address.clone(), Origin::Listened, false)),
    }
    if let Some(address) = &options.control {
        doors.push(Door::new(address.clone(), Origin::Control, admit_loopback));
    }
    let scale = scaling::Options {
        state: options.state.clone(),
        boot,
        seed: random::bits(),
        tripwire: options.tripwire,
        clear_memory_high: options.clear_memory_high,
        thaw: options.thaw,
    };
    let mut scaling = Scaling::new(&scale, &options.root, now_us);
    scaling.arm();
    scaling.set_advisors(true);
    let config = Config { root: options.root.clone(), cgroup: options.cgroup.clone(), all_fresh: false };
    let advice = Advice::new(options.local.clone(), options.advisors.clone(), &identity.name);
    Agent {
        sensors: Sensors::new(&config),
        pace: Pace::new(options.interval, now_us),
        governor: Governor::new(now_us, clock::cpu_us()),
        own: Own::new(),
        outbox,
        hosts: Hosts::new(identity),
        mind: Box::new(scaling),
        dialler,
        doors,
        advice,
        timer,
        signals,
        newest: None,
        reschemed_us: 0,
        stopping_us: None,
    }
}

fn started(outbox: &mut Outbox, now_us: u64) {
    let started =
        AgentStarted { pid: std::process::id(), continued: outbox.continued(), version: env!("CARGO_PKG_VERSION") };
    let mut body = [0; 128];
    if let Ok(body) = postcard::to_slice(&started, &mut body) {
        outbox.append(EventKind::AGENT_STARTED, now_us, body);
    }
}

/// The kernel's id of this boot; a random one where there is none, so that nothing of another boot is continued.
fn boot_id(root: &Path) -> BootId {
    let mut files = Files::new(root);
    let text = files.read_once(None, b"proc/sys/kernel/random/boot_id").unwrap_or_default();
    BootId::parse(text).unwrap_or_else(|| {
        tracing::warn!("no boot id in /proc: events of an earlier agent are not taken over");
        BootId(random::bytes())
    })
}

fn host_name(root: &Path) -> String {
    let mut files = Files::new(root);
    let bytes = files.read_once(None, b"proc/sys/kernel/hostname").unwrap_or_default();
    let name = String::from_utf8_lossy(bytes.trim_ascii());
    let mut short = String::new();
    for letter in name.chars().filter(|letter| !letter.is_control()) {
        if short.len() + letter.len_utf8() > MAX_PEER_NAME {
            break;
        }
        short.push(letter);
    }
    short
}
