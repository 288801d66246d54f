//! Peers that break the protocol, on purpose or not: counted, ended or slowed down, and nobody else notices.

use crate::support::{AGENT, Daemon, Guest, Said, Who, event, hello};
use informant_wire::event::EventKind;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::metric::{SubjectKind, id};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;

const TWO: [(&str, &str); 2] = [("bad", "unix = '@/bad.sock'"), ("good", "unix = '@/good.sock'")];

#[test]
fn a_stream_in_single_bytes_is_as_good_as_one_in_frames() {
    let daemon = Daemon::start(&TWO);
    let mut guest = Guest::connect(&daemon.run().join("bad.sock"));
    for byte in hello(AGENT) {
        guest.send(&[byte]);
    }
    assert!(matches!(guest.hear(), Said::Welcome { .. }));
    guest.schema();
    for byte in guest.sample_bytes(1, &[Some(1); 8]) {
        guest.send(&[byte]);
    }
    guest.wait_ack(|ack| ack.sample == 1);
}

#[test]
fn unknown_and_oversized_frames_are_skipped_and_counted() {
    let daemon = Daemon::start(&TWO);
    let mut guest = Guest::open(&daemon.run().join("bad.sock"), AGENT);
    let mut huge = vec![0xff, 0xff, 0x5f];
    huge.resize(2 + 0xffff, 7);
    guest.send(&huge);
    guest.send(&[1, 0, 0x3f]);
    guest.send(&[2, 0, 0x08, 0xff]);
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
    let status = daemon.wait_status("bad", "counts", |status| status["counters"]["samples"] == 1);
    assert_eq!((&status["counters"]["frames_unknown"], &status["counters"]["frames_bad"]), (&json!(2), &json!(1)));
    let told =
        daemon.log().lines().filter(|line| line.contains("WARN") && line.contains("frame of type 0x08: ")).count();
    assert_eq!(told, 1, "{}", daemon.log());
}

/// Sends a schema of disks in the middle of which the host may hang up.
fn disks(guest: &mut Guest, count: usize, name_bytes: usize) {
    let name = vec![b'x'; name_bytes];
    let subjects = vec![(SubjectKind::DISK, name.as_slice(), [id::DISK_READS].as_slice()); count];
    let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guest.schema_of(&subjects)));
    drop(sent);
}

#[test]
fn a_session_that_can_not_be_followed_ends_with_its_reason() {
    let daemon = Daemon::start(&TWO);
    let path = daemon.run().join("bad.sock");
    type Case = (&'static str, fn(&mut Guest));
    let cases: [Case; 8] = [
        ("10 frames in a row", |guest| (0..10).for_each(|_| guest.send(&[2, 0, 0x08, 0xff]))),
        ("frame of length 0", |guest| guest.send(&[0, 0])),
        ("sample of schema generation", |guest| {
            guest.schema();
            let sample = guest.sample_bytes(1, &[Some(1); 8]);
            guest.schema();
            guest.send(&sample);
        }),
        ("no key frame", |guest| {
            guest.schema();
            let _first = guest.sample_bytes(1, &[Some(1); 8]);
            guest.sample(2, &[Some(2); 8]);
        }),
        ("sequence went from", |guest| {
            guest.schema();
            let sample = guest.sample_bytes(1, &[Some(1); 8]);
            guest.send(&sample);
            guest.send(&sample);
        }),
        ("does not match its checksum", |guest| guest.send(&[4, 0, 5, 1, 7, 7])),
        ("over the limit of subjects or series", |guest| disks(guest, 3000, 8)),
        ("over the limit of bytes", |guest| disks(guest, 2000, 200)),
    ];
    for (what, misbehave) in cases {
        let mut guest = Guest::open(&path, AGENT);
        misbehave(&mut guest);
        let said = guest.hear_other();
        assert!(matches!(said, Said::Bye(ByeReason::PROTOCOL) | Said::Closed), "{what}: {said:?}");
        let status = daemon.wait_status("bad", what, |status| {
            status["link"]["detail"].as_str().is_some_and(|detail| detail.contains(what))
        });
        assert_eq!(status["link"]["state"], "down");
    }
}

#[test]
fn handshakes_that_never_finish_end_and_leave_room() {
    let daemon = Daemon::start(&TWO);
    let path = daemon.run().join("bad.sock");
    let mut idle: Vec<Guest> = (0..20).map(|_| Guest::connect(&path)).collect();
    idle[0].send(&hello(AGENT)[..10]);
    let mut good = Guest::open(&path, AGENT);
    good.schema();
    good.sample(1, &[Some(1); 8]);
    good.wait_ack(|ack| ack.sample == 1);
    for guest in &mut idle {
        assert_eq!(guest.hear(), Said::Closed);
    }
}

#[test]
fn a_storm_of_silent_connections_keeps_nobody_out() {
    let daemon = Daemon::start(&TWO);
    let path = daemon.run().join("bad.sock");
    let storm: Vec<Guest> = (0..200).map(|_| Guest::connect(&path)).collect();
    let mut guest = Guest::open(&path, AGENT);
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
    let status = daemon.wait_status("bad", "the storm", |status| status["counters"]["connections"] == 201);
    assert!(status["counters"]["throttled"].as_u64() > Some(0), "{status}");
    drop(storm);
}

/// Resident memory of a process, KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes until the host has not taken anything for a while: it has paused.
fn flood(stream: &mut UnixStream, frame: &[u8]) -> usize {
    let block = frame.repeat(60_000 / frame.len());
    stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    let mut sent = 0;
    loop {
        match stream.write(&block) {
            Ok(written) => sent += written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return sent,
            Err(error) => panic!("the host hung up: {error}"),
        }
    }
}

#[test]
fn a_flood_is_paused_costs_little_memory_and_starves_nobody() {
    let frames =
        [event(1, EventKind(999), &[7; 500]), vec![1, 0, 0x5f], [&[0x10, 0, 0x5f], [7; 15].as_slice()].concat()];
    for frame in frames {
        let daemon = Daemon::start(&TWO);
        let mut good = Guest::open(&daemon.run().join("good.sock"), AGENT);
        good.schema();
        good.sample(1, &[Some(1); 8]);
        good.wait_ack(|ack| ack.sample == 1);
        let mut bad = Guest::open(&daemon.run().join("bad.sock"), Who { boot: 9, ..AGENT });
        let before = resident_kib(daemon.pid());
        flood(&mut bad.stream, &frame);
        good.sample(2, &[Some(2); 8]);
        daemon.wait_status("good", "both samples", |status| status["counters"]["samples"] == 2);
        let throttled = |status: &serde_json::Value| status["counters"]["throttled"].as_u64() > Some(0);
        let status = daemon.wait_status("bad", "the pause", throttled);
        assert_eq!(status["link"]["state"], "up", "paused, not cut");
        let after = resident_kib(daemon.pid());
        assert!(after < before + 1024, "{before} KiB before the flood, {after} KiB after");
        assert!(daemon.log().lines().count() < 30, "{}", daemon.log());
    }
}

#[test]
fn six_thousand_series_with_long_names_are_taken_and_cost_under_a_mebibyte() {
    let daemon = Daemon::start(&TWO);
    let mut guest = Guest::open(&daemon.run().join("bad.sock"), AGENT);
    daemon.wait_status("bad", "the session", |status| status["link"]["state"] == "up");
    let before = resident_kib(daemon.pid());
    let names: Vec<[u8; 60]> = (0..600_u64)
        .map(|i| {
            let mut name = [0x1b; 60];
            name[..8].copy_from_slice(&i.to_le_bytes());
            name
        })
        .collect();
    let ids: Vec<_> = (0..10).map(|i| informant_wire::metric::MetricId(id::DISK_READS.0 + i)).collect();
    let subjects: Vec<_> = names.iter().map(|name| (SubjectKind::DISK, name.as_slice(), ids.as_slice())).collect();
    guest.schema_of(&subjects);
    for second in 1..=3 {
        guest.sample(second, &vec![Some(second * 1_000_000_007); 6000]);
    }
    guest.wait_ack(|ack| ack.sample >= 1);
    let status = daemon.wait_status("bad", "the samples", |status| status["counters"]["samples"] == 3);
    assert_eq!(status["metrics"].as_array().unwrap().len(), 600);
    let after = resident_kib(daemon.pid());
    assert!(after < before + 1024, "{before} KiB before, {after} KiB after");
}
