//! The API among clients that are idle, wrong or many.

use crate::support::{DEADLINE, Daemon};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

fn send(daemon: &Daemon, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.dir().join("informant.sock")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

#[test]
fn clients_that_send_half_a_request_are_hung_up_on_and_keep_nobody_out() {
    let daemon = Daemon::start(&[]);
    let idle: Vec<_> = (0..400).map(|_| send(&daemon, "GET /v1/daemon HTTP/1.1\r\n")).collect();
    assert_eq!(daemon.get("/v1/daemon").0, 200);
    for mut stream in idle {
        let _reset_or_end = stream.read_to_end(&mut Vec::new());
    }
}

/// A client that asked for a watch, and whether it got one.
fn watch(daemon: &Daemon) -> (BufReader<UnixStream>, bool) {
    let mut stream = BufReader::new(send(daemon, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n"));
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    (stream, line == "HTTP/1.1 200 OK\r\n")
}

#[test]
fn a_client_that_was_answered_keeps_no_place() {
    let daemon = Daemon::start(&[]);
    let answered: Vec<_> = (0..200).map(|_| watch(&daemon)).collect();
    assert_eq!(answered.iter().filter(|(_, watches)| *watches).count(), 32);
    assert_eq!(daemon.get("/v1/daemon").0, 200);
}

#[test]
fn watchers_leave_room_for_plain_requests() {
    let daemon = Daemon::start(&[]);
    let watches: Vec<_> = (0..32).map(|_| watch(&daemon)).collect();
    assert!(watches.iter().all(|(_, watches)| *watches));
    let (code, answer) = daemon.get("/v1/watch");
    assert_eq!((code, answer["error"].as_str()), (503, Some("32 watches are open")));
    assert_eq!(daemon.get("/v1/daemon").0, 200);
    drop(watches);
}

#[test]
fn every_refusal_is_json() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    for (path, code) in [
        ("/", 404),
        ("/v1/instances/none", 404),
        ("/v1/instances/%ff", 400),
        ("/v1/instances/vm/events?after=x", 400),
        ("/v1/instances/vm/events?limit=-1", 400),
        ("/v1/watch?name=none", 404),
    ] {
        let (got, answer) = daemon.get(path);
        assert_eq!(got, code, "{path}");
        assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{path}: {answer}");
    }
    let mut answer = String::new();
    send(&daemon, "POST /v1/daemon HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .read_to_string(&mut answer)
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.ends_with(r#"{"error":"not by this method"}"#), "{answer}");
}

#[test]
fn a_watcher_is_told_of_every_one_of_many_instances() {
    let names: Vec<String> = (0..600).map(|i| format!("vm-{i}")).collect();
    let broken: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let daemon = Daemon::start(&broken);
    let watch = BufReader::new(send(&daemon, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n"));
    let mut missing: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    for line in watch.lines() {
        // Heads and lengths of chunks are no JSON objects.
        let said: Value = serde_json::from_str(&line.unwrap()).unwrap_or_default();
        assert_ne!(said["type"], "lost");
        if let Some(name) = said["status"]["name"].as_str() {
            missing.remove(name);
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("the watch ended, and {} were not told of", missing.len());
}
