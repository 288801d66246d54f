//! `informant-guest demand`.

use crate::agent::Place;
use crate::guest::size;
use crate::host::PATIENCE;
use crate::inside::{Came, Inside};
use informant_guest::local::desk::Standing;
use informant_guest::local::tally::line;
use informant_wire::scale::{DemandOutcome, DemandReason, DownscaleReason};
use informant_wire::size::Bytes;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn command(socket: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_informant-guest"));
    command.args(["demand", "--socket"]).arg(socket).args(options);
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap())
}

#[test]
fn the_first_answer_is_a_line_and_an_exit_code() {
    let place = Place::new();
    let inside = Inside::start(&place, Duration::from_millis(100));
    for (outcome, code, text) in [
        (DemandOutcome::GRANTED, 0, "granted: 2 CPUs, 2 GiB\n"),
        (DemandOutcome::APPLIED, 0, "applied: 2 CPUs, 2 GiB\n"),
        (DemandOutcome::PARTIAL, 1, "granted in part: 2 CPUs, 2 GiB, ask again in 15 s\n"),
        (DemandOutcome::DENIED, 1, "denied: stays at 2 CPUs, 2 GiB, ask again in 15 s\n"),
        (DemandOutcome::AT_MAXIMUM, 1, "at maximum: 2 CPUs, 2 GiB, ask again in 15 s\n"),
        (DemandOutcome::UNSUPPORTED, 1, "unsupported: this host can not give that\n"),
        (DemandOutcome(77), 1, "unknown(77): 2 CPUs, 2 GiB\n"),
    ] {
        *inside.standing.lock().unwrap() = Standing { outcome, granted: size(2, 2048), retry_after_ms: 14_001 };
        let output = command(&inside.socket, &["--memory", "2GiB", "--cpu", "2"]).output().unwrap();
        assert_eq!(said(&output), (Some(code), text.to_owned()));
    }
    assert_eq!(inside.came(), Came::Demand(Some(Bytes::gib(2)), DemandReason::PERSON));
}

#[test]
fn waiting_prints_each_change_until_it_is_there() {
    let place = Place::new();
    let inside = Inside::start(&place, Duration::from_millis(100));
    let set = |outcome| {
        *inside.standing.lock().unwrap() = Standing { outcome, granted: size(1, 3072), retry_after_ms: 1000 };
    };
    let mut child = command(&inside.socket, &["--memory=3GiB", "--wait"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "pending: the host has not answered yet");
    // Who waits for more is against less.
    inside.ask(size(2, 2048), size(1, 1024));
    let verdict = loop {
        if let Came::Verdict(verdict) = inside.came() {
            break verdict;
        }
    };
    assert_eq!(verdict.against, Some((DownscaleReason::ADVISOR, line(b"a person asks for more than that"))));
    set(DemandOutcome::DENIED);
    assert_eq!(lines.next().unwrap(), "denied: stays at 1 CPU, 3 GiB, ask again in 1 s");
    set(DemandOutcome::GRANTED);
    assert_eq!(lines.next().unwrap(), "granted: 1 CPU, 3 GiB");
    set(DemandOutcome::APPLIED);
    assert_eq!(lines.next().unwrap(), "applied: 1 CPU, 3 GiB");
    assert_eq!((lines.next(), child.wait().unwrap().code()), (None, Some(0)));
}

#[test]
fn what_does_not_come_in_time_has_its_own_exit_codes() {
    let place = Place::new();
    let inside = Inside::start(&place, Duration::from_millis(100));
    for (outcome, code, last) in [
        (DemandOutcome::PENDING, 3, "pending: no answer of the host in time"),
        (DemandOutcome::GRANTED, 3, "granted, and not there in time"),
        (DemandOutcome::AT_MAXIMUM, 1, "given up: not to be had in time"),
    ] {
        *inside.standing.lock().unwrap() = Standing { outcome, granted: size(1, 1024), retry_after_ms: 0 };
        let output = command(&inside.socket, &["--cpu", "2", "--wait=2"]).output().unwrap();
        let (seen, text) = said(&output);
        assert_eq!((seen, text.lines().last()), (Some(code), Some(last)));
    }
    let output = command(&place.path("nobody.sock"), &["--cpu", "2", "--wait=2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("informant-guest: demand: no agent at "));
    // One that listens and never answers.
    let _mute = std::os::unix::net::UnixListener::bind(place.path("mute.sock")).unwrap();
    let begun = std::time::Instant::now();
    let output = command(&place.path("mute.sock"), &["--cpu", "2"]).output().unwrap();
    assert!(output.status.code() == Some(3) && begun.elapsed() < PATIENCE);
    assert_eq!(command(&inside.socket, &[]).output().unwrap().status.code(), Some(2));
}
