//! Each event is in events.log exactly once, whoever is killed.

use crate::support::{AGENT, Daemon, Guest, Said, Who, wait_for};
use informant_wire::event::EventKind;
use serde_json::json;
use std::collections::BTreeMap;

const UNIX: (&str, &str) = ("vm", "unix = '@/vm.sock'");

/// How often a `kill -9` interrupts the delivery.
fn kills() -> u64 {
    if std::env::var("INFORMANT_COUNTS").as_deref() == Ok("soak") { 100 } else { 20 }
}

#[test]
fn exactly_once_across_kills_of_the_daemon() {
    let mut daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let mut acknowledged = 0;
    let mut last = 0;
    for round in 0..kills() {
        let (mut guest, said) = Guest::greet(&path, AGENT);
        let Said::Welcome { last_event, .. } = said else { panic!("{said:?}") };
        assert!(last_event >= acknowledged, "what was acknowledged is in the file: {last_event} < {acknowledged}");
        // Everything behind what the host has, as an agent does, and some more.
        last += 5;
        for sequence in last_event + 1..=last {
            guest.event(sequence, EventKind(999), &sequence.to_le_bytes());
        }
        // Killed at another moment each time: at once, when the first is in the file, when all are acknowledged.
        match round % 3 {
            0 => {}
            1 => {
                let count =
                    || daemon.events("vm").iter().filter(|line| line["sequence"].as_u64() > Some(last_event)).count();
                wait_for("an event in the file", || (count() > 0).then_some(()));
            }
            _ => {
                guest.wait_ack(|ack| ack.event == last);
                acknowledged = last;
            }
        }
        daemon.kill();
        daemon.spawn();
    }
    let (mut guest, said) = Guest::greet(&path, AGENT);
    let Said::Welcome { last_event, .. } = said else { panic!("{said:?}") };
    for sequence in last_event + 1..=last {
        guest.event(sequence, EventKind(999), &sequence.to_le_bytes());
    }
    if last_event < last {
        guest.wait_ack(|ack| ack.event == last);
    }
    let mut seen = BTreeMap::new();
    for line in daemon.events("vm") {
        if let Some(sequence) = line["sequence"].as_u64() {
            *seen.entry(sequence).or_insert(0) += 1;
        }
    }
    assert_eq!(seen, (1..=last).map(|sequence| (sequence, 1)).collect());
}

#[test]
fn repeated_events_are_dropped_and_streams_are_apart() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let mut guest = Guest::open(&path, AGENT);
    guest.event(1, EventKind(999), b"\x01\xff");
    guest.event(1, EventKind(999), b"\x01\xff");
    guest.event(3, EventKind::CPUS_CHANGED, &[2, 4]);
    guest.wait_ack(|ack| ack.event == 3);
    let mut other = Guest::open(&path, Who { stream: 8, name: "an\u{1b}[31mother", ..AGENT });
    other.event(1, EventKind::CPUS_CHANGED, b"\xff");
    other.wait_ack(|ack| ack.event == 1);
    let (_, said) = Guest::greet(&path, AGENT);
    assert!(matches!(said, Said::Welcome { last_event: 3, .. }), "{said:?}");
    let events = daemon.events("vm");
    let from_guest: Vec<_> = events.iter().filter(|line| line["source"] == "agent").collect();
    assert_eq!(from_guest.len(), 3);
    assert_eq!((&from_guest[0]["kind"], &from_guest[0]["body_hex"]), (&json!("unknown(999)"), &json!("01ff")));
    assert_eq!(from_guest[1]["body"], json!({ "old_cpus": 2, "new_cpus": 4 }));
    assert_eq!((&from_guest[2]["body_hex"], &from_guest[2]["from"]), (&json!("ff"), &json!("an\u{1b}[31mother")));
    let status = daemon.wait_status("vm", "counts", |status| status["counters"]["events"] == 3);
    assert_eq!((&status["counters"]["events_repeated"], &status["counters"]["events_missed"]), (&json!(1), &json!(1)));
    let ids: Vec<_> = events.iter().map(|line| line["id"].as_u64().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    let (_, answer) = daemon.get(&format!("/v1/instances/vm/events?after={}&limit=1", ids[0]));
    assert_eq!((&answer["events"][0]["id"], &answer["more"]), (&json!(ids[1]), &json!(true)));
}

#[test]
fn a_log_that_can_not_be_written_leaves_events_unacknowledged_until_it_can() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let log = daemon.dir().join("vm/events.log");
    // A directory in the log's place: what a full disk does, for root too.
    std::fs::create_dir(&log).unwrap();
    let mut guest = Guest::open(&path, AGENT);
    guest.event(1, EventKind(999), b"");
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| {
        assert_eq!(ack.event, 0);
        ack.sample == 1
    });
    wait_for("a log line", || daemon.log().contains("cannot write events.log").then_some(()));
    std::fs::remove_dir(&log).unwrap();
    // The host ends the session so that the events come again.
    assert!(matches!(guest.hear_other(), Said::Bye(_)));
    let mut guest = Guest::open(&path, AGENT);
    guest.event(1, EventKind(999), b"");
    guest.wait_ack(|ack| ack.event == 1);
    assert_eq!(daemon.events("vm").iter().filter(|line| line["sequence"] == 1).count(), 1);
}

#[test]
fn a_storm_of_sessions_does_not_roll_the_log_and_what_is_left_out_is_told() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let path = daemon.run().join("vm.sock");
    for boot in 0..150 {
        drop(Guest::open(&path, Who { boot, ..AGENT }));
    }
    wait_for("a line that tells", || {
        drop(Guest::open(&path, AGENT));
        let lines = daemon.events("vm");
        let tells = |line: &serde_json::Value| {
            line["body"]["detail"].as_str().is_some_and(|detail| detail.contains("before this are left out"))
        };
        lines.iter().any(tells).then(|| assert!(lines.len() < 200, "{} lines", lines.len()))
    });
}
