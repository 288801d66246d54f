//! What a well-behaved host sees.

use crate::agent::Place;
use crate::host::{Host, Peer, Said};
use informant_wire::event::{AgentStarted, EventKind};
use informant_wire::hello::{Capabilities, Role};
use informant_wire::host_to_guest::ByeReason;

#[test]
fn schema_samples_heartbeat_and_the_first_event_follow_the_handshake() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&["--name", "vm-1"]);
    let mut peer = host.accept();
    let hello = peer.hello();
    assert_eq!((hello.name.as_str(), hello.next_event), ("vm-1", 1));
    assert!(hello.capabilities.has(Capabilities::SAMPLES) && !hello.capabilities.has(Capabilities::CONTROL));
    peer.welcome(0);
    let (mut schemas, mut samples, mut heartbeats, mut started) = (Vec::new(), Vec::new(), 0, None);
    while samples.len() < 70 || started.is_none() || heartbeats == 0 {
        match peer.next().unwrap() {
            Said::Schema { generation, series } => schemas.push((generation, series)),
            Said::Sample { head, key, values } => samples.push((head, key, values)),
            Said::Heartbeat(_) => heartbeats += 1,
            Said::Event(event) => started = started.or(Some(event)),
            Said::Resume(turn, _) => assert!(peer.role(turn, true)),
            other => panic!("{other:?}"),
        }
        peer.ack(samples.last().map_or(0, |(head, ..)| head.sequence), 1);
    }
    assert!(schemas[0].1 > 20, "the real /proc has more than a handful of series");
    assert!(samples[0].1, "the first sample is a key frame");
    let keys = samples.iter().filter(|(_, key, _)| *key).count();
    assert!((2..=2 + schemas.len()).contains(&keys), "every 60th is one, and the first of each schema");
    assert!(samples.windows(2).all(|pair| pair[1].0.sequence == pair[0].0.sequence + 1), "nothing is skipped");
    assert!(samples[0].2.iter().any(Option::is_some));
    let started = started.unwrap();
    let body: AgentStarted<'_> = postcard::from_bytes(&started.body).unwrap();
    assert_eq!((started.sequence, started.kind), (1, EventKind::AGENT_STARTED));
    assert_eq!((body.pid, body.continued), (agent.pid(), false));
    assert!(agent.log().contains("ready"));
    assert!(agent.log().contains(r"scripted\x1b[31m"), "the host's words are escaped");
}

#[test]
fn an_agent_that_has_no_ack_does_not_call_itself_ready() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&[]);
    let mut peer = host.session(0);
    peer.sample();
    peer.sample();
    assert!(!agent.log().contains("ready"));
}

#[test]
fn told_to_end_it_delivers_the_event_says_goodbye_and_exits_with_zero() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut agent = place.agent(&[]);
    let mut peer = host.session(0);
    peer.sample();
    agent.terminate();
    let stopping = loop {
        let event = peer.event();
        if event.kind == EventKind::AGENT_STOPPING {
            break event.sequence;
        }
    };
    peer.ack(0, stopping);
    assert_eq!(peer.end(), Some(ByeReason::STOPPING));
    assert_eq!(agent.exit_code(), Some(0));
    // It was acknowledged: the next agent of this boot goes on behind it.
    let _next = place.agent(&[]);
    assert_eq!(host.accept().hello().next_event, stopping + 1);
}

#[test]
fn told_to_end_it_does_not_wait_for_ever_for_a_host_that_does_not_acknowledge() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut agent = place.agent(&[]);
    let mut peer = host.session(0);
    peer.sample();
    agent.terminate();
    assert_eq!(peer.end(), Some(ByeReason::STOPPING));
    assert_eq!(agent.exit_code(), Some(0));
    let _next = place.agent(&[]);
    assert_eq!(host.accept().hello().next_event, 1, "nothing was acknowledged, so nothing is forgotten");
}

#[test]
fn without_a_host_it_ends_at_once_when_told_to() {
    let place = Place::new();
    let mut agent = place.agent(&[]);
    let started = || agent.log().contains("dialling on");
    while !started() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    agent.terminate();
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn the_host_may_dial_instead_and_a_newcomer_replaces_only_after_its_handshake() {
    let place = Place::new();
    let door = place.path("agent.sock");
    let _agent = place.start(&["--listen", &format!("unix:{}", door.display())]);
    let mut first = Peer::connect(&door);
    first.hello();
    first.welcome(0);
    first.sample();
    first.ack(1, 1);
    let mut second = Peer::connect(&door);
    second.hello();
    first.sample();
    first.sample();
    second.welcome_as(Role::CONTROLLER, 1);
    assert_eq!(first.end(), Some(ByeReason::REPLACED));
    second.sample();
}

#[test]
fn heartbeats_do_not_wait_for_samples() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&["--interval", "1h"]);
    let mut peer = host.session(0);
    let mut boot_times = Vec::new();
    while boot_times.len() < 3 {
        match peer.next().unwrap() {
            Said::Heartbeat(heartbeat) => boot_times.push(heartbeat.boot_time_us),
            Said::Sample { head, .. } => assert_eq!(head.sequence, 1),
            _ => {}
        }
        peer.ack(1, 1);
    }
    assert!(boot_times.windows(2).all(|pair| pair[1] >= pair[0] + 5_000_000));
}

#[test]
fn a_newcomer_brings_a_new_schema_at_most_every_five_seconds() {
    let place = Place::new();
    let host = Host::new(&place);
    let root = place.path("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let cpus = |count: u32| {
        let lines: String = (0..count).map(|i| format!("cpu{i} 1 2 3 4 5 6 7 8 9 10\n")).collect();
        std::fs::write(root.join("proc/stat"), format!("cpu 1 2 3 4 5 6 7 8 9 10\n{lines}")).unwrap();
    };
    cpus(1);
    let _agent = place.agent(&["--root", root.to_str().unwrap()]);
    let mut peer = host.session(0);
    let (mut schemas, mut samples) = (Vec::new(), 0);
    let mut first_of_schema = false;
    while schemas.len() < 3 {
        match peer.next().unwrap() {
            Said::Schema { generation, series } => {
                schemas.push((generation, series, samples));
                first_of_schema = true;
            }
            Said::Sample { key, values, head } => {
                assert!(key || !first_of_schema, "a schema begins with a key frame");
                assert_eq!(values.len(), schemas.last().unwrap().1);
                (first_of_schema, samples) = (false, head.sequence);
                peer.ack(head.sequence, 0);
            }
            _ => {}
        }
        // A CPU comes with every look at it: faster than schemas may.
        cpus(2 + u32::try_from(samples / 3).unwrap());
    }
    for pair in schemas.windows(2) {
        assert!(pair[1].1 > pair[0].1 && pair[1].0 > pair[0].0, "{schemas:?}");
        assert!(pair[1].2 >= pair[0].2 + 45, "samples in between: {schemas:?}");
    }
}

#[test]
fn a_watched_cgroup_that_is_not_there_is_told_once() {
    let place = Place::new();
    let host = Host::new(&place);
    let root = place.path("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let agent = place.agent(&["--cgroup", "/nope", "--root", root.to_str().unwrap()]);
    let mut peer = host.session(0);
    while peer.sample().0.sequence < 8 {}
    assert_eq!(agent.log().matches("--cgroup /nope: no such cgroup").count(), 1, "{}", agent.log());
}
