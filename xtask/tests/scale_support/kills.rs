//! Kills between the steps of a conversation.

use std::time::Duration;

use anyhow::{Context, Result};
use informant_wire::hello::Role;
use nix::sys::signal::Signal;
use xtask::system::wait_for;
use xtask::vm::{self, Way};

use super::guest::SOON;
use super::peer::Peer;
use super::{BOOT_MIB, MIB, Rig, SETTLED, shown};

/// Where a conversation stands at the kill: the guest's steps 1 to 5 and the host's, as they are listed at
/// `host/src/scale/desk`. Deciding (the host's 2) is one moment with what follows from it: it is [`Step::Ordered`], and
/// [`Step::Said`] of shrinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The guest has said that this host decides again, after another one; that is not read.
    Turn,
    /// The host's question for what is true is on its way to the VMM.
    Observed,
    /// The guest has said its demand (growing) or was asked the question (shrinking); the other side has not read it.
    Said,
    /// The host has decided; its command is on its way to the VMM.
    Ordered,
    /// The VMM has done it; its answer is on its way to the host.
    Done,
    /// The guest has been told and has not onlined it, or not said so.
    Told,
    /// All has arrived.
    Applied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Agent,
    Daemon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

pub(crate) const STEPS: [Step; 7] =
    [Step::Turn, Step::Observed, Step::Said, Step::Ordered, Step::Done, Step::Told, Step::Applied];

/// A demand stands for 10 s, and then the policy takes its time for each step.
const BACK: Duration = Duration::from_secs(240);
const ORDER: Duration = Duration::from_secs(120);

/// Each victim killed once after each step in both directions; the VM grows by a demand made by hand, and shrinks when
/// that has expired.
pub(crate) fn every_kill_is_survived(rig: &mut Rig) -> Result<()> {
    for victim in [Victim::Agent, Victim::Daemon] {
        for step in STEPS {
            for direction in [Direction::Up, Direction::Down] {
                let what = format!("{victim:?} killed after {step:?}, {direction:?}");
                println!("{what}");
                go_to(rig, step, direction).with_context(|| what.clone())?;
                kill(rig, victim).with_context(|| what.clone())?;
                rig.wait_settled(&what, SETTLED)?;
            }
            rig.wait_small(BACK).with_context(|| format!("after {victim:?} and {step:?}"))?;
        }
    }
    Ok(())
}

fn go_to(rig: &mut Rig, step: Step, direction: Direction) -> Result<()> {
    let mark = rig.tap.mark();
    let is_order = |line: &vm::Line| line.resize().is_some();
    match (step, direction) {
        (Step::Turn, _) => {
            if direction == Direction::Down {
                grow(rig)?;
            }
            // An agent that was killed is back within a second or two.
            let peer = wait_for("another host's session", || Peer::open(&rig.vm, Role::CONTROLLER, 9).ok())?;
            vm::wait_until("another host decides", SOON, || Ok(peer.heard().epoch.is_some()))?;
            rig.system.daemon()?.signal(Signal::SIGSTOP)?;
            peer.leave()?;
            if direction == Direction::Up {
                demand(rig)?;
            }
            rig.vm.sh("sleep 1", SOON)?;
        }
        (Step::Observed, _) => {
            if direction == Direction::Down {
                grow(rig)?;
            }
            rig.tap.hold(Way::ToQemu, "query-memory-devices");
            rig.tap.wait_held(ORDER)?;
            if direction == Direction::Up {
                demand(rig)?;
                rig.vm.sh("sleep 1", SOON)?;
            }
        }
        (Step::Said, Direction::Up) => {
            rig.system.daemon()?.signal(Signal::SIGSTOP)?;
            demand(rig)?;
            // The agent's loop takes it from its socket within one tick; the daemon reads nothing.
            rig.vm.sh("sleep 1", SOON)?;
        }
        (Step::Said, Direction::Down) => {
            grow(rig)?;
            stop_agent(rig)?;
            let asked = shown::questions_asked(&rig.system.status("vm").unwrap_or_default()).unwrap_or(0);
            ask_for_less(rig)?;
            rig.system.wait_status("vm", "a question", |status| {
                shown::questions_asked(status).is_some_and(|count| count > asked)
            })?;
        }
        (Step::Ordered | Step::Done, _) => {
            let way = if step == Step::Ordered { Way::ToQemu } else { Way::FromQemu };
            if direction == Direction::Down {
                grow(rig)?;
            }
            rig.tap.hold(way, "qom-set");
            if direction == Direction::Up {
                demand(rig)?;
            }
            rig.tap.wait_held(ORDER)?;
        }
        (Step::Told, _) => {
            let mark = if direction == Direction::Up {
                demand(rig)?;
                mark
            } else {
                grow(rig)?;
                rig.tap.mark()
            };
            rig.tap.wait("an order", mark, ORDER, is_order)?;
            stop_agent(rig)?;
        }
        (Step::Applied, Direction::Up) => grow(rig)?,
        (Step::Applied, Direction::Down) => rig.wait_small(BACK)?,
    }
    Ok(())
}

/// More memory by hand, until it is there: renewed and tried again, for an agent that was killed is not there for a
/// second, and one that has just begun may not be proven yet.
fn grow(rig: &Rig) -> Result<()> {
    let demand = format!("informant-guest demand --memory {} --wait=20 2>&1", demanded());
    rig.vm.sh(&format!("n=0; until {demand}; do n=$((n + 1)); [ $n -lt 10 ] || exit 1; sleep 1; done"), SETTLED * 2)?;
    vm::wait_until("grown", SETTLED, || Ok(rig.sides()?.guest_total >= rig.boot_total + 250 * MIB))
}

/// A person wants less: the guest is asked at once.
fn ask_for_less(rig: &Rig) -> Result<()> {
    let memory = format!("{BOOT_MIB}MiB");
    let mut command = xtask::child::command(xtask::project::host()?);
    command.args(["resize", "vm", "--memory", &memory, "--dir"]).arg(rig.system.host_dir());
    // It ends by itself: with the daemon, the question or its deadline.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn()?;
    Ok(())
}

fn demanded() -> u64 {
    u64::from(BOOT_MIB) * MIB + 256 * MIB
}

/// More memory by hand, not waited for.
fn demand(rig: &Rig) -> Result<()> {
    rig.vm
        .sh(&format!("informant-guest demand --memory {} </dev/null >>/run/demand.log 2>&1 &", demanded()), SOON)
        .map(drop)
}

fn stop_agent(rig: &Rig) -> Result<()> {
    rig.vm.sh("kill -STOP $(pidof informant-guest)", SOON).map(drop)
}

/// SIGKILL while whatever is held back or stopped is so; then that goes on.
fn kill(rig: &mut Rig, victim: Victim) -> Result<()> {
    match victim {
        // Init starts it again.
        Victim::Agent => drop(rig.vm.sh("kill -9 $(pidof informant-guest)", SOON)?),
        Victim::Daemon => rig.system.kill_daemon()?,
    }
    rig.tap.release();
    match victim {
        Victim::Agent => rig.system.daemon()?.signal(Signal::SIGCONT)?,
        Victim::Daemon => {
            rig.vm.sh("kill -CONT $(pidof informant-guest)", SOON)?;
            rig.system.start_daemon()?;
        }
    }
    Ok(())
}
