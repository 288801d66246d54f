//! From Hello to status.json, and every way not to get there.

use crate::support::{AGENT, Daemon, Guest, Said, Who, event, hello, wait_for};
use informant_wire::event::EventKind;
use informant_wire::hello::{PeerKind, RefusedCode};
use informant_wire::host_to_guest::ByeReason;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;

const UNIX: (&str, &str) = ("vm", "unix = '@/vm.sock'");

/// The values of a metric, over all groups.
fn values<'a>(status: &'a Value, name: &str) -> Vec<&'a Value> {
    let groups = status["metrics"].as_array().unwrap().iter();
    groups.flat_map(|group| group["values"].as_array().unwrap()).filter(|value| value["name"] == name).collect()
}

#[test]
fn a_guests_values_reach_the_status_file_and_the_api() {
    let mut daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'\nlabels = { role = 'web' }")]);
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    daemon.wait_status("vm", "starting", |status| status["agent"]["state"] == "starting");
    guest.schema();
    let max = u64::MAX;
    guest.sample(100, &[Some(150), Some(1000), Some(400), Some(500), Some(900), Some(7000), Some(max), Some(1)]);
    guest.wait_ack(|ack| ack.sample == 1);
    guest.heartbeat();
    guest.sample(102, &[Some(150), Some(1000), None, Some(550), Some(1050), Some(9000), Some(max), Some(1)]);
    let status = daemon.wait_status("vm", "two samples", |status| status["counters"]["samples"] == 2);
    assert_eq!((&status["link"]["state"], &status["agent"]["state"]), (&json!("up"), &json!("ready")));
    assert_eq!((&status["data"]["state"], &status["labels"]), (&json!("fresh"), &json!({ "role": "web" })));
    assert_eq!(values(&status, "node_load1")[0]["value"], 1.5);
    assert_eq!(values(&status, "node_memory_MemTotal_bytes")[0]["value"], 1_024_000);
    assert!(values(&status, "node_memory_MemAvailable_bytes").is_empty(), "absent is not zero");
    assert_eq!(values(&status, "container_spec_memory_limit_bytes")[0]["value"], "max");
    assert_eq!(status["counters"]["series_unknown"], 1);
    let received = values(&status, "node_network_receive_bytes_total")[0];
    assert_eq!((&received["value"], &received["per_second"]), (&json!(9000), &json!(1000.0)));
    let cpu = values(&status, "node_cpu_seconds_total");
    assert_eq!((&cpu[0]["labels"], &cpu[0]["value"]), (&json!({ "mode": "user" }), &json!(5.5)));
    assert_eq!(
        (&status["summary"]["cpu_percent"], &status["summary"]["memory_used_bytes"]),
        (&json!(25.0), &Value::Null)
    );
    let interface = status["metrics"].as_array().unwrap().iter().find(|group| group["subject"] == "network").unwrap();
    assert_eq!(interface["labels"], json!({ "device": "eth0\u{1b}[2J\\xff" }));
    assert_eq!((&status["guest"]["proven"], &status["guest"]["interval_ms"]), (&json!(false), &json!(2000)));

    let (code, answer) = daemon.get("/v1/instances/vm");
    assert_eq!((code, ageless(&answer), &answer["summary"]), (200, ageless(&status), &status["summary"]));
    let (_, all) = daemon.get("/v1/instances");
    assert_eq!((&all["instances"][0]["name"], &all["instances"][0]["metrics"]), (&json!("vm"), &json!([])));
    assert_eq!(all["daemon"]["sessions"], 1);
    assert_eq!(daemon.get("/v1/instances/other"), (404, json!({ "error": "no instance `other`" })));

    assert!(daemon.terminate().success());
    assert_eq!((guest.hear_other(), guest.hear_other()), (Said::Bye(ByeReason::STOPPING), Said::Closed));
    let last = daemon.status("vm").unwrap();
    assert_eq!(last["link"]["state"], "down");
    assert_eq!(ageless(&last), ageless(&status), "the values are still there");
    assert!(!daemon.run().join("vm.sock").exists() && !daemon.dir().join("informant.sock").exists());
}

/// The groups of a document without their ages, which grow.
fn ageless(status: &Value) -> Value {
    let mut groups = status["metrics"].clone();
    for group in groups.as_array_mut().unwrap() {
        assert!(group.as_object_mut().unwrap().remove("age_ms").is_some_and(|age| age.is_u64()));
    }
    groups
}

#[test]
fn what_is_no_good_hello_is_refused_with_its_reason() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let mut wrong_magic = hello(AGENT);
    wrong_magic[3] = b'X';
    let mut early = hello(AGENT);
    early.extend(event(1, EventKind(999), b""));
    let cases: [(Vec<u8>, RefusedCode, bool, &str); 8] = [
        (hello(Who { versions: (2, 9), ..AGENT }), RefusedCode::VERSION, true, "guest speaks 2 to 9, this host 1 to 1"),
        (hello(Who { versions: (9, 1), ..AGENT }), RefusedCode::VERSION, true, "guest speaks 9 to 1, this host 1 to 1"),
        (hello(Who { kind: PeerKind::ADVISOR, ..AGENT }), RefusedCode::KIND, true, "takes agents and reporters"),
        (wrong_magic, RefusedCode::MALFORMED, true, "does not decode"),
        (event(1, EventKind(999), b""), RefusedCode::MALFORMED, true, "first frame of type 0x09, not hello"),
        (vec![0xff, 0xff, 1, 0, 0], RefusedCode::MALFORMED, true, "hello of over 1024 bytes"),
        (vec![0, 0], RefusedCode::MALFORMED, true, "frame of length 0"),
        (early, RefusedCode::MALFORMED, true, "frames before Welcome"),
    ];
    let count = cases.len();
    for (bytes, code, permanent, text) in cases {
        let mut guest = Guest::connect(&path);
        guest.send(&bytes);
        match guest.hear() {
            Said::Refused { code: got, permanent: lasts, text: said } => {
                assert_eq!((got, lasts), (code, permanent), "{text}");
                assert!(said.contains(text), "{said:?} has no {text:?}");
            }
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(guest.hear(), Said::Closed);
    }
    let status = daemon.wait_status("vm", "refusals", |status| status["counters"]["refused"] == count);
    assert_eq!(status["agent"]["state"], "refused");
}

#[test]
fn only_a_valid_handshake_replaces_a_session() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let mut first = Guest::open(&path, AGENT);
    let (_second, refused) = Guest::greet(&path, Who { versions: (7, 7), ..AGENT });
    assert!(matches!(refused, Said::Refused { .. }));
    let _half = {
        let mut half = Guest::connect(&path);
        half.send(&hello(AGENT)[..9]);
        half
    };
    first.schema();
    first.sample(1, &[Some(1); 8]);
    first.wait_ack(|ack| ack.sample == 1);
    let mut third = Guest::open(&path, Who { nonce: 2, ..AGENT });
    assert_eq!((first.hear_other(), first.hear_other()), (Said::Bye(ByeReason::REPLACED), Said::Closed));
    third.schema();
    third.sample(2, &[Some(1); 8]);
    third.wait_ack(|ack| ack.sample == 1);
    let status = daemon.wait_status("vm", "the newcomer", |status| status["counters"]["samples"] == 2);
    assert_eq!((&status["link"]["state"], &status["guest"]["sessions"]), (&json!("up"), &json!(1)));
}

#[test]
fn the_seventeenth_unproven_session_is_refused_and_a_place_becomes_free() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    let reporter = Who { kind: PeerKind::REPORTER, ..AGENT };
    let mut sessions: Vec<Guest> = (0..16).map(|_| Guest::open(&path, reporter)).collect();
    let (_, refused) = Guest::greet(&path, reporter);
    assert!(matches!(refused, Said::Refused { code: RefusedCode::TOO_MANY, permanent: false, .. }), "{refused:?}");
    sessions.pop();
    wait_for("a free place", || matches!(Guest::greet(&path, reporter).1, Said::Welcome { .. }).then_some(()));
}

#[test]
fn a_session_that_ends_without_a_word_is_lost_and_one_that_stops_is_stopped() {
    let daemon = Daemon::start(&[UNIX]);
    let path = daemon.run().join("vm.sock");
    drop(Guest::open(&path, AGENT));
    daemon.wait_status("vm", "lost", |status| status["agent"]["state"] == "lost" && status["link"]["state"] == "down");
    let mut guest = Guest::open(&path, AGENT);
    guest.bye(ByeReason::STOPPING);
    let status = daemon.wait_status("vm", "stopped", |status| status["agent"]["state"] == "stopped");
    assert_eq!(status["link"]["detail"], "the guest said goodbye: stopping");
}

#[test]
fn a_watcher_is_told_of_states_and_events_as_they_happen() {
    use std::io::{BufRead, BufReader, Write};
    let daemon = Daemon::start(&[UNIX, ("other", "unix = '@/other.sock'")]);
    let mut stream = UnixStream::connect(daemon.dir().join("informant.sock")).unwrap();
    stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
    write!(stream, "GET /v1/watch?name=vm HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = |what: &str, is: &dyn Fn(&Value) -> bool| loop {
        let line = lines.next().unwrap().unwrap();
        let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
        assert_ne!(line["status"]["name"], "other");
        if line.is_object() && is(&line) {
            return line;
        }
        assert_ne!(line["type"], "stopping", "{what}");
    };
    next("the first status", &|line| line["type"] == "status" && line["status"]["link"]["state"] == "listening");
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    next("the session", &|line| line["status"]["link"]["state"] == "up");
    guest.event(1, EventKind::AGENT_STOPPING, b"");
    let line = next("the event", &|line| line["event"]["kind"] == "agent_stopping");
    assert_eq!(
        (&line["type"], &line["instance"], &line["event"]["sequence"]),
        (&json!("event"), &json!("vm"), &json!(1))
    );
    std::fs::remove_file(daemon.dir().join("vm/instance.toml")).unwrap();
    assert_eq!(next("the end", &|line| line["type"] == "removed")["name"], "vm");
}
