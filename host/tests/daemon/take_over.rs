//! One daemon follows another: no connect is refused, no value grows old, no event is lost or stored twice.

use crate::support::{AGENT, Daemon, Guest, Said, Who, event, wait_for};
use informant_wire::event::EventKind;
use informant_wire::host_to_guest::ByeReason;
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Younger than this all data must be.
const YOUNG_MS: u64 = 3000;
const INSTANCES: usize = 8;

/// An agent as real ones are: a sample every 100 ms, an event every second, back at once when it is told to.
fn live(path: &Path, boot: u8, stop: &AtomicBool, events: &AtomicU64) -> u64 {
    let (mut sessions, mut boot_s, mut next_event) = (0, 100, 1);
    while !stop.load(Ordering::Relaxed) {
        let mut guest = Guest::connect(path);
        guest.hello(Who { boot, ..AGENT });
        let last_event = match guest.hear() {
            Said::Welcome { last_event, .. } => last_event,
            Said::Refused { permanent: false, .. } | Said::Closed => continue,
            other => panic!("{other:?}"),
        };
        sessions += 1;
        for sequence in last_event + 1..next_event {
            guest.event(sequence, EventKind::AGENT_STOPPING, &[]);
        }
        guest.schema();
        let mut said_at = Instant::now();
        guest.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let over = loop {
            boot_s += 1;
            let values = [Some(150), Some(1000), Some(400), Some(500), Some(900), Some(7000), None, Some(1)];
            let sample = guest.sample_bytes(boot_s, &values);
            // A host that has gone is heard of below.
            let _gone = guest.stream.write_all(&sample);
            if said_at.elapsed() >= Duration::from_millis(300) {
                said_at = Instant::now();
                let _gone = guest.stream.write_all(&event(next_event, EventKind::AGENT_STOPPING, &[]));
                next_event += 1;
            }
            match guest.try_hear() {
                Some(Said::Ack(ack)) => _ = events.fetch_max(ack.event, Ordering::Relaxed),
                Some(Said::Bye(ByeReason::MOVED) | Said::Closed) => break false,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if stop.load(Ordering::Relaxed) {
                break true;
            }
        };
        if over {
            break;
        }
    }
    sessions
}

/// Connects for as long as it lasts; the number of connects.
fn knock(path: &Path, stop: &AtomicBool) -> u64 {
    let mut connects = 0;
    while !stop.load(Ordering::Relaxed) {
        match UnixStream::connect(path) {
            Ok(_) => connects += 1,
            Err(error) => panic!("{} was refused: {error}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    connects
}

/// The oldest that any instance's data was, by the status files, milliseconds.
fn watch_files(folders: &[PathBuf], stop: &AtomicBool) -> u64 {
    let mut oldest = 0;
    while !stop.load(Ordering::Relaxed) {
        for folder in folders {
            let Ok(text) = std::fs::read(folder.join("status.json")) else { continue };
            let status: Value = serde_json::from_slice(&text).unwrap();
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            let written = u128::from(status["written"]["ms"].as_u64().unwrap());
            let age = u64::try_from(now.as_millis().saturating_sub(written)).unwrap();
            match status["data"]["age_ms"].as_u64() {
                Some(data) => oldest = oldest.max(age + data),
                None => panic!("a status without data: {}", status["data"]),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    oldest
}

#[test]
fn guests_and_readers_notice_nothing_but_a_new_session() {
    let names: Vec<String> = (0..INSTANCES).map(|number| format!("vm{number}")).collect();
    let tomls: Vec<String> = names.iter().map(|name| format!("unix = '@/{name}.sock'")).collect();
    let instances: Vec<_> = names.iter().zip(&tomls).map(|(name, toml)| (name.as_str(), toml.as_str())).collect();
    let mut daemon = Daemon::start(&instances);
    let (run, dir) = (daemon.run(), daemon.dir());
    let stop = AtomicBool::new(false);
    let acked: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
    let paths: Vec<_> = names.iter().map(|name| run.join(format!("{name}.sock"))).collect();
    let folders: Vec<_> = names.iter().map(|name| dir.join(name)).collect();
    let (api, other) = (dir.join("informant.sock"), run.join("vm0.sock"));
    std::thread::scope(|scope| {
        let agents: Vec<_> = paths
            .iter()
            .zip(&acked)
            .zip(1..)
            .map(|((path, acked), boot)| {
                let stop = &stop;
                scope.spawn(move || live(path, boot, stop, acked))
            })
            .collect();
        for name in &names {
            daemon.wait_status(name, "data", |status| status["data"]["state"] == "fresh");
        }
        let knocks = [scope.spawn(|| knock(&api, &stop)), scope.spawn(|| knock(&other, &stop))];
        let oldest = scope.spawn(|| watch_files(&folders, &stop));
        for _ in 0..2 {
            let before: Vec<_> = acked.iter().map(|acked| acked.load(Ordering::Relaxed)).collect();
            let mut old = daemon.take_over();
            assert!(old.wait().unwrap().success(), "the one before ends well");
            // Each guest's events are stored by the new one.
            wait_for("new events", || {
                let all = acked.iter().zip(&before).all(|(now, before)| now.load(Ordering::Relaxed) > *before);
                all.then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
        for agent in agents {
            assert_eq!(agent.join().unwrap(), 3, "a session a daemon");
        }
        let knocks = knocks.map(|knock| knock.join().unwrap());
        let oldest = oldest.join().unwrap();
        println!("oldest data {oldest} ms; {knocks:?} connects, none refused");
        assert!(oldest <= YOUNG_MS, "data of {oldest} ms");
    });
    for (name, acked) in names.iter().zip(&acked) {
        let events = daemon.events(name);
        let sequences: Vec<_> = events
            .iter()
            .filter(|line| line["kind"] == "agent_stopping")
            .filter_map(|l| l["sequence"].as_u64())
            .collect();
        let expected: Vec<_> = (1..=sequences.len() as u64).collect();
        assert_eq!(sequences, expected, "each once, in order");
        assert!(sequences.len() as u64 >= acked.load(Ordering::Relaxed));
    }
}

#[test]
fn without_a_daemon_it_starts_and_without_the_word_it_is_refused() {
    let mut daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let second = daemon.command().stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && said.contains("another daemon serves this directory"), "{said}");
    daemon.kill();
    let (mut child, log) = {
        let mut child = daemon.command().arg("--take-over").stderr(Stdio::piped()).spawn().unwrap();
        let log = child.stderr.take().unwrap();
        (child, log)
    };
    wait_for("the API", || UnixStream::connect(daemon.dir().join("informant.sock")).ok());
    assert_eq!(daemon.get("/v1/daemon").1["instances"], 1);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(log);
}
