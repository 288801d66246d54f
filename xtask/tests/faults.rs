//! Real agent, real daemon, and a VMM that misbehaves: the catalogue of what goes wrong with vsock. Each fault is seen
//! to be in force before its effect is judged.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::fake_vmm::{Dial, HalfClose, OkLine};
use xtask::system::{self, System, wait_for};

fn lines(log: &str, word: &str) -> usize {
    log.lines().filter(|line| line.contains(word)).count()
}

/// Sequences of the guest's events in events.log, a stream each, in the order of the file.
fn sequences(events: &[Value]) -> Vec<(String, u64)> {
    events
        .iter()
        .filter_map(|event| Some((event["stream"].as_str()?.to_owned(), event["sequence"].as_u64()?)))
        .collect()
}

fn assert_exactly_once(events: &[Value]) {
    let mut seen = sequences(events);
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(all, seen.len(), "an event is in events.log twice");
    for pair in seen.windows(2) {
        let [(stream, sequence), (next_stream, next)] = pair else { unreachable!("windows of two") };
        assert!(stream != next_stream || sequence + 1 == *next, "{stream}: {sequence} is followed by {next}");
    }
}

#[test]
fn t1_no_listener_for_a_while_then_one() -> Result<()> {
    let mut system = System::new()?;
    let mut vm = system.add_vm("vm", "")?;
    vm.start_agent(&[])?;
    wait_for("20 dials into nothing", || (vm.vmm.seen().dials.load(Ordering::Relaxed) >= 20).then_some(()))?;
    assert_eq!(vm.vmm.seen().forwarded.load(Ordering::Relaxed), 0);
    let log = vm.agent_log();
    assert!(log.lines().count() <= 5, "an agent without a host is quiet:\n{log}");
    system.start_daemon()?;
    system.wait_ready("vm")?;
    Ok(())
}

#[test]
fn t1_a_dial_that_hangs_for_two_seconds_is_like_a_refused_one() -> Result<()> {
    let mut system = System::new()?;
    let mut vm = system.add_vm("vm", "")?;
    vm.vmm.faults(|faults| faults.dial = Dial::ForwardOrHang(Duration::from_secs(2)));
    vm.start_agent(&[])?;
    wait_for("3 dials into nothing", || (vm.vmm.seen().dials.load(Ordering::Relaxed) >= 3).then_some(()))?;
    system.start_daemon()?;
    system.wait_ready("vm")?;
    Ok(())
}

#[test]
fn t2_accepted_and_closed_at_once_grows_the_back_off() -> Result<()> {
    let system = System::new()?;
    let mut vm = system.add_vm("vm", "")?;
    vm.vmm.faults(|faults| faults.dial = Dial::Close);
    vm.start_agent(&[])?;
    let since = Instant::now();
    wait_for("8 dials", || (vm.vmm.seen().dials.load(Ordering::Relaxed) >= 8).then_some(()))?;
    // A back-off that is forgotten at each connect makes 8 dials in half a second; one from 50 ms to 2 s with full
    // jitter needs at least the half of 50+100+...+1600 ms.
    assert!(since.elapsed() >= Duration::from_millis(1_000), "8 dials within {:?}", since.elapsed());
    let before = vm.vmm.seen().dials.load(Ordering::Relaxed);
    thread::sleep(Duration::from_secs(10));
    let dials = vm.vmm.seen().dials.load(Ordering::Relaxed) - before;
    assert!((4..=20).contains(&dials), "{dials} dials in 10 s at the cap of 2 s");
    Ok(())
}

#[test]
fn t3_a_host_that_takes_nothing_is_left_and_the_newest_data_comes_through() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let before = system.wait_ready("vm")?;
    let moved = vm.vmm.seen().to_host.load(Ordering::Relaxed);
    vm.vmm.faults(|faults| faults.stall_to_host = true);
    // The host hears nothing: it says so, and ends the session by itself; the agent, which gets no acks for new
    // samples but the host's sign of life, must not starve in its own write.
    system.wait_status("vm", "silent", |status| {
        status["link"]["state"] == "silent" || status["link"]["state"] == "down"
    })?;
    assert!(vm.vmm.seen().to_host.load(Ordering::Relaxed) - moved <= 64 * 1024, "the stall was not in force");
    vm.vmm.faults(|faults| faults.stall_to_host = false);
    let after = system.wait_ready_again("vm", &before).or_else(|_| system.wait_ready("vm"))?;
    assert!(after["data"]["age_ms"].as_u64().context("age")? < 5_000);
    Ok(())
}

#[test]
fn t4_a_host_that_never_acks_is_left_after_fifteen_seconds() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let before = system.wait_ready("vm")?;
    let since = Instant::now();
    vm.vmm.faults(|faults| faults.stall_to_guest = true);
    let dials = vm.vmm.seen().dials.load(Ordering::Relaxed);
    wait_for("a new dial", || (vm.vmm.seen().dials.load(Ordering::Relaxed) > dials).then_some(()))?;
    let waited = since.elapsed().as_secs();
    assert!((9..=20).contains(&waited), "redialled after {waited} s, not about 15 s after the last byte");
    vm.vmm.faults(|faults| faults.stall_to_guest = false);
    system.wait_ready_again("vm", &before)?;
    Ok(())
}

#[test]
fn t5_a_stream_cut_at_any_byte_is_taken_up_again_whole() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let mut status = system.wait_ready("vm")?;
    // The handshake, the schema and the first samples lie within these.
    for cut_after in [1, 2, 3, 40, 100, 101, 1_000, 2_500, 2_501, 6_000] {
        vm.vmm.faults(|faults| faults.cut_after = Some(cut_after));
        vm.vmm.cut();
        wait_for("the cut", || {
            let mut taken = false;
            vm.vmm.faults(|faults| taken = faults.cut_after.is_none());
            taken.then_some(())
        })?;
        status = system.wait_ready_again("vm", &status)?;
    }
    assert_eq!(status["counters"]["protocol_errors"], 0, "a cut frame is not an error");
    assert_eq!(status["counters"]["mismatches"], 0);
    assert_exactly_once(&system.events("vm")?);
    Ok(())
}

#[test]
fn t6_the_proof_copes_with_every_form_of_the_ok_line() -> Result<()> {
    for ok in [OkLine::Whole, OkLine::Split, OkLine::Glued, OkLine::Late(Duration::from_secs(1))] {
        let mut system = System::new()?;
        system.start_daemon()?;
        let mut vm = system.add_vm("vm", "")?;
        vm.vmm.faults(|faults| faults.ok = ok.clone());
        vm.start_agent(&[])?;
        system.wait_status("vm", &format!("proven with {ok:?}"), |status| status["guest"]["proven"] == true)?;
        assert!(vm.vmm.seen().connects.load(Ordering::Relaxed) >= 1);
    }
    Ok(())
}

#[test]
fn t6_a_broken_ok_line_leaves_the_session_unproven_and_alive() -> Result<()> {
    let mut system = System::new()?;
    system.start_daemon()?;
    let mut vm = system.add_vm("vm", "")?;
    for ok in [OkLine::Endless, OkLine::Cut, OkLine::Closed] {
        vm.vmm.faults(|faults| faults.ok = ok);
        if vm.agent().is_err() {
            vm.start_agent(&[])?;
        }
        let connects = vm.vmm.seen().connects.load(Ordering::Relaxed);
        wait_for("a try to prove", || (vm.vmm.seen().connects.load(Ordering::Relaxed) > connects).then_some(()))?;
        let status = system.wait_ready("vm")?;
        assert_eq!(status["guest"]["proven"], false);
    }
    vm.vmm.faults(|faults| faults.ok = OkLine::Whole);
    system.wait_status("vm", "proven at last", |status| status["guest"]["proven"] == true)?;
    Ok(())
}

#[test]
fn t7_restarts_of_the_host_leak_nothing_and_lose_only_what_is_counted() -> Result<()> {
    let (mut system, mut vm) = System::with_one_vm()?;
    let mut status = system.wait_ready("vm")?;
    let agent = vm.agent()?.pid();
    let (descriptors, resident) = (system::descriptors(agent)?, system::resident(agent)?);
    for _ in 0..system::repeats(20, 1_000) {
        system.kill_daemon()?;
        system.start_daemon()?;
        status = system.wait_ready_again("vm", &status)?;
    }
    assert_eq!(system::descriptors(agent)?, descriptors);
    let grown = system::resident(agent)?.saturating_sub(resident);
    assert!(grown <= 64 * 1024, "the agent grew by {grown} bytes");
    assert_exactly_once(&system.events("vm")?);
    Ok(())
}

#[test]
fn t8_a_clone_is_shown_under_its_endpoint_and_gets_a_new_identity() -> Result<()> {
    let mut system = System::new()?;
    system.start_daemon()?;
    let twin = system.add_vm("twin", "")?;
    let mut vm = system.add_vm("vm", "")?;
    vm.vmm.faults(|faults| faults.mirror = Some(twin.vmm.uds().to_owned()));
    vm.start_agent(&[])?;
    // The twin's connection says the same Hello first and is answered, so the agent's own is the clone and must take a new nonce.
    system.wait_status("twin", "a session", |status| status["guest"].is_object())?;
    vm.vmm.faults(|faults| faults.mirror = None);
    wait_for("a second dial, with the new nonce", || {
        (vm.vmm.seen().forwarded.load(Ordering::Relaxed) >= 2).then_some(())
    })?;
    let status = system.wait_ready("vm")?;
    assert_eq!(status["guest"]["clone"], true, "{status:#}");
    assert_eq!(system.wait_status("twin", "the other side", |_| true)?["guest"]["clone"], true);
    // Events may have been said before the agent heard that it is a clone: those have the old stream on either side.
    wait_for("an event of a new stream", || {
        let old = sequences(&system.events("twin").ok()?);
        let here = sequences(&system.events("vm").ok()?);
        here.into_iter().find(|(stream, _)| old.iter().all(|(other, _)| other != stream))
    })?;
    let events = system.events("vm")?;
    assert_exactly_once(&events);
    assert!(
        events.iter().any(|event| event["kind"].as_str().is_some_and(|kind| kind.contains("clone"))),
        "{events:#?}"
    );
    Ok(())
}

#[test]
fn t9_a_stopped_host_is_no_storm_and_the_data_is_fresh_afterwards() -> Result<()> {
    let (mut system, vm) = System::with_one_vm()?;
    system.daemon()?.signal(Signal::SIGSTOP)?;
    let dials = vm.vmm.seen().dials.load(Ordering::Relaxed);
    thread::sleep(Duration::from_secs(25));
    let storm = vm.vmm.seen().dials.load(Ordering::Relaxed) - dials;
    system.daemon()?.signal(Signal::SIGCONT)?;
    // 15 s of silence, then handshakes that time out after 4 s each.
    assert!((1..=6).contains(&storm), "{storm} dials while the host was stopped");
    let status = system.wait_ready("vm")?;
    assert_exactly_once(&system.events("vm")?);
    assert_eq!(status["counters"]["mismatches"], 0);
    Ok(())
}

#[test]
fn t16_a_host_that_dies_with_unread_bytes_is_noticed_by_silence_alone() -> Result<()> {
    let (mut system, vm) = System::with_one_vm()?;
    let before = system.wait_ready("vm")?;
    vm.vmm.faults(|faults| faults.hide_dead_host = true);
    let forwarded = vm.vmm.seen().forwarded.load(Ordering::Relaxed);
    system.kill_daemon()?;
    system.start_daemon()?;
    let since = Instant::now();
    thread::sleep(Duration::from_secs(5));
    assert_eq!(vm.vmm.seen().forwarded.load(Ordering::Relaxed), forwarded, "the death was not hidden");
    system.wait_ready_again("vm", &before)?;
    assert!(since.elapsed() < Duration::from_secs(25));
    Ok(())
}

#[test]
fn bytes_in_pieces_of_one_and_lost_half_closes_change_nothing() -> Result<()> {
    let mut system = System::new()?;
    system.start_daemon()?;
    let mut vm = system.add_vm("vm", "")?;
    vm.vmm.faults(|faults| {
        faults.pieces = Some(1);
        faults.half_close = HalfClose::Dropped;
    });
    vm.start_agent(&[])?;
    let status = system.wait_ready("vm")?;
    assert_eq!(status["counters"]["frames_bad"], 0);
    vm.agent()?.stop(Duration::from_secs(5))?;
    system.wait_status("vm", "stopped", |status| status["agent"]["state"] == "stopped")?;
    Ok(())
}

#[test]
fn bytes_lost_in_the_vmm_end_the_session_and_the_next_one_is_whole() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let before = system.wait_ready("vm")?;
    vm.vmm.faults(|faults| faults.lose_beyond = Some(10));
    let status = system.wait_status("vm", "an error of the protocol", |status| {
        status["counters"]["protocol_errors"].as_u64() > before["counters"]["protocol_errors"].as_u64()
            || status["guest"]["session"] != before["guest"]["session"]
            || status["link"]["state"] != "up"
    })?;
    vm.vmm.faults(|faults| faults.lose_beyond = None);
    drop(status);
    system.wait_ready_again("vm", &before)?;
    Ok(())
}

#[test]
fn a_transport_reset_is_a_new_session_without_a_gap_in_the_events() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let mut status = system.wait_ready("vm")?;
    for _ in 0..5 {
        vm.vmm.cut();
        status = system.wait_ready_again("vm", &status)?;
    }
    assert_exactly_once(&system.events("vm")?);
    assert!(lines(&system.daemon_log(), "") < 60, "{}", system.daemon_log());
    Ok(())
}

#[test]
fn a_paused_vm_is_silent_and_then_goes_on() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    vm.vmm.faults(|faults| faults.frozen = true);
    let status = system.wait_status("vm", "silent", |status| status["link"]["state"] == "silent")?;
    assert_ne!(status["agent"]["state"], "stopped");
    let shown = system.host(&["ls"])?;
    assert!(shown.contains("silent"), "{shown}");
    vm.vmm.faults(|faults| faults.frozen = false);
    system.wait_ready("vm")?;
    Ok(())
}

#[test]
fn events_are_stored_exactly_once_across_kills_of_agent_and_host() -> Result<()> {
    let (mut system, mut vm) = System::with_one_vm()?;
    let kills = system::repeats(20, 100);
    for round in 0..kills {
        // Neither is given time to settle: the kill lands anywhere between dial, hello, event and ack.
        vm.kill_agent()?;
        thread::sleep(Duration::from_millis(u64::from(round % 7) * 13));
        vm.start_agent(&[])?;
        thread::sleep(Duration::from_millis(u64::from(round % 11) * 17));
        system.kill_daemon()?;
        system.start_daemon()?;
        thread::sleep(Duration::from_millis(u64::from(round % 5) * 29));
    }
    system.wait_ready("vm")?;
    let started = |events: &[Value]| events.iter().filter(|event| event["kind"] == "agent_started").count();
    wait_for("every start in events.log", || {
        let events = system.events("vm").ok()?;
        (started(&events) > kills as usize).then_some(())
    })?;
    let events = system.events("vm")?;
    assert_exactly_once(&events);
    assert_eq!(started(&events), kills as usize + 1, "each start of the agent once");
    let streams: std::collections::BTreeSet<_> = sequences(&events).into_iter().map(|(stream, _)| stream).collect();
    assert_eq!(streams.len(), 1, "one stream for one boot");
    Ok(())
}

#[test]
fn readers_never_see_a_torn_status_file_while_the_daemon_is_killed() -> Result<()> {
    let (mut system, _vm) = System::with_one_vm()?;
    let path = system.host_dir().join("vm/status.json");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (reads, torn) = thread::scope(|scope| -> Result<(u64, u64)> {
        let readers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let (mut reads, mut torn) = (0_u64, 0_u64);
                    while !stop.load(Ordering::Relaxed) {
                        reads += 1;
                        let whole = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
                        torn += u64::from(whole.is_none_or(|status| status["schema"] != 1));
                        thread::sleep(Duration::from_millis(1));
                    }
                    (reads, torn)
                })
            })
            .collect();
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(700));
            system.kill_daemon()?;
            system.start_daemon()?;
        }
        stop.store(true, Ordering::Relaxed);
        let mut sums = (0, 0);
        for reader in readers {
            let (reads, torn) = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?;
            sums = (sums.0 + reads, sums.1 + torn);
        }
        Ok(sums)
    })?;
    assert!(reads >= 10_000, "{reads} reads");
    assert_eq!(torn, 0, "of {reads} reads");
    system.wait_ready("vm")?;
    let left: Vec<_> = fs::read_dir(system.host_dir().join("vm"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !["instance.toml", "status.json", "events.log", "events.log.1"].contains(&name.as_str()))
        .collect();
    assert!(left.len() <= 1, "litter: {left:?}");
    Ok(())
}

#[test]
fn a_port_that_nobody_serves_is_closed_and_harms_no_session() -> Result<()> {
    let (system, vm) = System::with_one_vm()?;
    let mut stray = UnixStream::connect(vm.vmm.uds())?;
    stray.set_read_timeout(Some(Duration::from_secs(5)))?;
    stray.write_all(b"CONNECT 7\n")?;
    assert_eq!(stray.read(&mut [0; 64])?, 0, "closed without a word");
    system.wait_ready("vm")?;
    Ok(())
}
