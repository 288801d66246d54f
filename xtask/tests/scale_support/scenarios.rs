//! The conversations of scaling from end to end, each on a booted rig that is as small as it may be, and is so again
//! afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use informant_wire::hello::Role;
use xtask::vm::{self, Hold, Resize};

use super::guest::{self, SOON};
use super::peer::Peer;
use super::{BOOT_MIB, MIB, Rig, SETTLED, shown};

/// What a workload takes in all: more than the VM boots with.
const TAKEN_MIB: u32 = 720;
/// So much at once: what fits without anybody's help, 0.7 of what is usable at boot.
const FIRST_MIB: u32 = 256;
/// At 8 MiB a second under emulation, with room for a busy machine.
const GROWING: Duration = Duration::from_secs(240);
/// One step down every few seconds. A block that was in use when it was asked for is tried again by the guest's driver
/// after 5 s, 10 s, 20 s and so on, or at once when another size is asked for.
const SHRINKING: Duration = Duration::from_secs(240);

/// A program takes more memory than there is, steadily: it gets it, nothing is killed, and what it leaves goes back in
/// steps; not before. `words`: which memory.
pub(crate) fn memory_comes_and_goes(rig: &Rig, name: &str, words: &str) -> Result<()> {
    let (kills, before, mark) = (guest::oom_kills(&rig.vm)?, rig.sides()?, rig.tap.resizes()?.len());
    let since = Instant::now();
    let words = format!("{words} --mib {TAKEN_MIB} --first {FIRST_MIB} --rate 8");
    let work = rig.vm.workload(name, &words, Hold::Released)?;
    work.wait_holding(GROWING)?;
    println!("{name}: {TAKEN_MIB} MiB after {:.1} s", since.elapsed().as_secs_f64());
    let sides = rig.wait_settled("with all memory taken", SETTLED)?;
    ensure!(before.guest_total < u64::from(TAKEN_MIB) * MIB, "it fitted without help: {before:?}");
    ensure!(sides.guest_total > u64::from(TAKEN_MIB) * MIB, "{TAKEN_MIB} MiB are taken of {sides:?}");

    let asked_for = || -> Result<Vec<u64>> {
        Ok(rig.tap.resizes()?.into_iter().skip(mark).filter_map(|(_, resize)| memory(&resize)).collect())
    };
    // Not always up: the first of it comes at once, is taken for the beginning of more, and what is too much goes again.
    let up = asked_for()?;

    // It is in use: the guest does not let it go.
    let denied = shown::questions_denied(&rig.system.status("vm").unwrap_or_default()).unwrap_or(0);
    let asked = rig.system.host(&["resize", "vm", "--memory", &format!("{BOOT_MIB}MiB")]);
    ensure!(asked.is_err(), "memory in use was let go: {asked:?}");
    rig.system
        .wait_status("vm", "a denial", |status| shown::questions_denied(status).is_some_and(|count| count > denied))?;
    // What was too much may go meanwhile, with the guest's leave; what is in use stays.
    let meanwhile = asked_for()?.split_off(up.len());
    let in_use = u64::from(TAKEN_MIB - BOOT_MIB) * MIB;
    ensure!(meanwhile.iter().all(|size| *size > in_use), "less than what is in use was asked for: {meanwhile:?}");
    let still = rig.sides()?;
    ensure!(still.guest_total > u64::from(TAKEN_MIB) * MIB, "less than what is in use after a denial: {still:?}");
    ensure!(work.is_running()?, "the workload is dead");

    let released = asked_for()?.len();
    work.release()?;
    work.wait_finished(SOON)?;
    ensure!(guest::oom_kills(&rig.vm)? == kills, "the kernel killed for want of memory");
    rig.wait_small(SHRINKING)?;
    let sizes = asked_for()?;
    println!(
        "{name}: sizes asked for beyond {BOOT_MIB} MiB: {:?} MiB",
        sizes.iter().map(|size| size / MIB).collect::<Vec<_>>()
    );
    let down = sizes.get(released..).context("sizes behind the release")?;
    ensure!(down.is_sorted_by(|one, next| one > next), "not down only: {sizes:?}");
    ensure!(down.len() >= 2, "down in one step: {sizes:?}");
    Ok(())
}

fn memory(resize: &Resize) -> Option<u64> {
    if let Resize::Memory(bytes) = resize { Some(*bytes) } else { None }
}

/// Two threads want to run: a second CPU comes, and goes when they end.
pub(crate) fn cpus_come_and_go(rig: &Rig) -> Result<()> {
    let work = rig.vm.workload("cpu", "cpu --threads 2", Hold::Released)?;
    work.wait_holding(SOON)?;
    vm::wait_until("a second CPU", GROWING, || Ok(guest::online_cpus(&rig.vm)? == 2))?;
    rig.wait_settled("with two CPUs", SETTLED)?;
    work.release()?;
    work.wait_finished(SOON)?;
    // The load average falls to half within 40 s.
    rig.wait_small(SHRINKING)
}

/// On a rig whose maximum is little more than it boots with: the guest hears that there is no more, and asks no more
/// often than once a second.
pub(crate) fn at_the_maximum_the_guest_is_told(rig: &Rig, taken_mib: u32) -> Result<()> {
    let words = format!("memory --mib {taken_mib} --first {FIRST_MIB} --rate 16");
    let work = rig.vm.workload("full", &words, Hold::Released)?;
    work.wait_holding(GROWING)?;
    let first = rig
        .system
        .wait_status("vm", "at the maximum", |status| shown::last_demand_outcome(status) == Some("at_maximum"))?;
    let received = |status: &serde_json::Value| shown::demands_received(status).context("demands received");
    let written = |status: &serde_json::Value| status["written"]["ms"].as_u64().context("written");
    let (count, from) = (received(&first)?, written(&first)?);
    // By the host's own clock, so that a late look costs nothing.
    let last = rig
        .system
        .wait_status("vm", "ten more seconds", |status| written(status).is_ok_and(|now| now >= from + 10_000))?;
    let (more, seconds) = (received(&last)? - count, (written(&last)? - from).div_ceil(1000));
    println!("at the maximum: {more} requests in {seconds} s");
    ensure!(more >= 1, "the guest gave up");
    ensure!(more <= seconds + 1, "{more} requests in {seconds} s");
    work.release()?;
    work.wait_finished(SOON)?;
    rig.wait_small(SHRINKING)
}

/// A second host while the first one's session lives: it reads; it decides, and the first is suspended; it goes, and
/// the first decides again.
pub(crate) fn a_second_host_takes_over_and_leaves(rig: &Rig) -> Result<()> {
    a_second_host_reads(rig)?;
    let peer = Peer::open(&rig.vm, Role::CONTROLLER, 9)?;
    vm::wait_until("the newcomer decides", SOON, || Ok(peer.heard().epoch.is_some()))?;
    ensure!(rig.system.status("vm").unwrap_or_default()["link"]["state"] == "up", "the first session is gone");
    let heard = peer.leave()?;
    ensure!(heard.suspended == 0, "it was suspended, though nobody newer came: {heard:?}");
    rig.wait_settled("after the newcomer left", SETTLED)?;
    // The first one decides again: what it asks is done.
    rig.vm.sh(&format!("informant-guest demand --memory {}MiB --wait", BOOT_MIB + 128), SOON * 2)?;
    rig.wait_settled("a demand after the newcomer left", SETTLED)?;
    rig.wait_small(SHRINKING)
}

/// An observer hears samples; the first session goes on, the same.
pub(crate) fn a_second_host_reads(rig: &Rig) -> Result<()> {
    let before = rig.system.wait_ready("vm")?;
    let peer = Peer::open(&rig.vm, Role::OBSERVER, 7)?;
    vm::wait_until("five samples to the second host", SOON, || {
        let heard = peer.heard();
        ensure!(!heard.closed, "the second session ended: {heard:?}");
        Ok(heard.samples >= 5)
    })?;
    let samples = before["counters"]["samples"].as_u64().context("samples")?;
    let after = rig.system.wait_status("vm", "five samples to the first host", |status| {
        status["counters"]["samples"].as_u64().is_some_and(|count| count >= samples + 5)
    })?;
    ensure!(after["guest"]["session"] == before["guest"]["session"], "the first session was replaced");
    let heard = peer.heard();
    ensure!(heard.epoch.is_none() && heard.demands == 0, "an observer was asked to decide: {heard:?}");
    drop(peer);
    Ok(())
}

/// By hand, the same way, each step told; and who may decide is told too.
pub(crate) fn a_person_resizes_it(rig: &Rig, memory_mib: u32) -> Result<()> {
    let said = rig.system.host(&["resize", "vm", "--memory", &format!("{memory_mib}MiB")])?;
    print!("{said}");
    let last = said.lines().last().context("steps")?;
    ensure!(last.contains(&format!("done: it has 1 CPU, {memory_mib} MiB; held for 300 s")), "{said}");
    let sides = rig.wait_settled("after a resize by hand", SETTLED)?;
    ensure!(sides.plugged.size == u64::from(memory_mib - BOOT_MIB) * MIB, "{sides:?}");
    let controllers = rig.system.host(&["controllers", "vm"])?;
    print!("{controllers}");
    ensure!(controllers.lines().count() == 2 && controllers.contains("current  informant-host"), "{controllers}");
    Ok(())
}
