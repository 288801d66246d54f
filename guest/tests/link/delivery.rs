//! Events arrive exactly once, whatever is killed.

use crate::agent::Place;
use crate::host::{Host, Peer, Said, SeenHello};
use informant_wire::event::{AgentStarted, Dropped, EventKind};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::StreamId;
use std::collections::BTreeMap;
use std::io::Write;

/// What a host has stored: it never stores an event twice.
#[derive(Default)]
struct Store {
    events: Vec<(StreamId, u64, EventKind, Vec<u8>)>,
    last: BTreeMap<StreamId, u64>,
}

impl Store {
    fn last(&self, stream: StreamId) -> u64 {
        self.last.get(&stream).copied().unwrap_or_default()
    }

    fn welcome(&self, peer: &mut Peer) -> SeenHello {
        let hello = peer.hello();
        assert!(hello.next_event <= self.last(hello.stream) + 1, "nothing is skipped");
        peer.welcome(self.last(hello.stream));
        hello
    }

    /// Stores the next event; it must be the one behind the last.
    fn store(&mut self, peer: &mut Peer, stream: StreamId) -> u64 {
        let event = peer.event();
        assert_eq!(event.sequence, self.last(stream) + 1, "each event once, in order");
        self.last.insert(stream, event.sequence);
        self.events.push((stream, event.sequence, event.kind, event.body));
        event.sequence
    }
}

#[test]
fn every_start_is_told_exactly_once_across_twenty_kills_at_every_step() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut store = Store::default();
    let mut pids = Vec::new();
    for round in 0..20 {
        let agent = place.agent(&[]);
        pids.push(agent.pid());
        let mut peer = host.accept();
        match round % 5 {
            // Killed before, in and after the handshake, with the event sent, stored, and acknowledged.
            0 => {
                peer.hello();
            }
            1 => {
                store.welcome(&mut peer);
            }
            2 => {
                store.welcome(&mut peer);
                peer.event();
            }
            3 => {
                let stream = store.welcome(&mut peer).stream;
                store.store(&mut peer, stream);
            }
            _ => {
                let stream = store.welcome(&mut peer).stream;
                let stored = store.store(&mut peer, stream);
                peer.ack(0, stored);
                peer.sample();
            }
        }
        agent.kill();
    }
    let agent = place.agent(&[]);
    pids.push(agent.pid());
    let mut peer = host.accept();
    let stream = store.welcome(&mut peer).stream;
    while store.last(stream) < 21 {
        store.store(&mut peer, stream);
    }
    let started: Vec<u32> = store
        .events
        .iter()
        .map(|(.., kind, body)| {
            assert_eq!(*kind, EventKind::AGENT_STARTED);
            postcard::from_bytes::<AgentStarted<'_>>(body).unwrap()
        })
        .inspect(|started| assert_eq!(started.continued, started.pid != pids[0]))
        .map(|started| started.pid)
        .collect();
    assert_eq!(started, pids);
    assert_eq!(store.last.len(), 1, "one boot, one stream");
}

#[test]
fn a_host_that_moves_is_dialled_again_and_told_only_what_it_does_not_have() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut store = Store::default();
    let mut peer = host.accept();
    let stream = store.welcome(&mut peer).stream;
    let stored = store.store(&mut peer, stream);
    peer.ack(0, stored);
    peer.bye(ByeReason::MOVED);
    peer.end();
    let mut peer = host.accept();
    assert_eq!(store.welcome(&mut peer).next_event, stored + 1);
    let nothing_old = |said| match said {
        Said::Event(event) => panic!("stored already: {event:?}"),
        Said::Sample { head, .. } => (head.sequence > 5).then_some(()),
        _ => None,
    };
    peer.until(nothing_old);
}

#[test]
fn asked_for_a_new_identity_it_moves_what_is_unsent_to_a_new_stream() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut clone = host.accept();
    let before = clone.hello();
    clone.renonce();
    let mut peer = host.accept();
    let after = peer.hello();
    assert!(before.nonce != after.nonce && before.stream != after.stream);
    assert_eq!(after.next_event, 1);
    peer.welcome(0);
    assert_eq!(peer.event().kind, EventKind::AGENT_STARTED);
    // In the middle of a session as well; what was acknowledged stays behind.
    peer.ack(0, 1);
    peer.renonce();
    let third = host.accept().hello();
    assert!(third.stream != after.stream && third.next_event == 1);
}

#[test]
fn a_vm_set_back_to_an_earlier_state_begins_a_new_stream() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&[]);
    let mut peer = host.accept();
    let before = peer.hello();
    // The host has events that this agent has not had yet.
    peer.welcome(40);
    peer.end();
    let mut peer = host.accept();
    let after = peer.hello();
    assert!(before.stream != after.stream);
    peer.welcome(0);
    assert_eq!(peer.event().kind, EventKind::AGENT_STARTED);
    assert!(agent.log().contains("set back"));
}

#[test]
fn a_damaged_outbox_is_told_as_an_unknown_loss() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&[]);
    let stream = host.accept().hello().stream;
    agent.kill();
    let mut file = std::fs::OpenOptions::new().write(true).open(place.path("state/outbox")).unwrap();
    file.write_all(&[0xa5; 300]).unwrap();
    let _agent = place.agent(&[]);
    let mut peer = host.accept();
    assert!(peer.hello().stream != stream);
    peer.welcome(0);
    let lost = peer.event();
    assert_eq!((lost.sequence, lost.kind), (1, EventKind::DROPPED));
    assert_eq!(postcard::from_bytes::<Dropped>(&lost.body).unwrap().count, None);
    let started = peer.event();
    assert_eq!((started.sequence, started.kind), (2, EventKind::AGENT_STARTED));
}

#[test]
fn without_a_state_directory_events_live_in_memory_and_an_unknown_loss_is_told() {
    let place = Place::new();
    let host = Host::new(&place);
    std::fs::write(place.path("file"), "").unwrap();
    let state = place.path("file/below");
    let agent = place.agent(&["--state", state.to_str().unwrap()]);
    let mut peer = host.session(0);
    assert_eq!(peer.event().kind, EventKind::DROPPED);
    assert_eq!(peer.event().kind, EventKind::AGENT_STARTED);
    assert!(agent.log().contains("in memory only"));
}

#[test]
fn a_second_agent_leaves_the_outbox_of_the_first_alone() {
    let place = Place::new();
    let host = Host::new(&place);
    let _first = place.agent(&[]);
    let first = host.accept().hello();
    let second = place.agent(&[]);
    let hello = loop {
        let hello = host.accept().hello();
        if hello.nonce != first.nonce {
            break hello;
        }
    };
    assert!(hello.stream != first.stream);
    assert!(second.log().contains("held by another agent"));
}

#[test]
fn an_outbox_that_is_truncated_under_the_agent_harms_neither_it_nor_its_events() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut agent = place.agent(&[]);
    let mut peer = host.session(0);
    let started = peer.event();
    std::fs::File::create(place.path("state/outbox")).unwrap();
    peer.ack(0, started.sequence);
    peer.sample();
    agent.terminate();
    while peer.event().kind != EventKind::AGENT_STOPPING {}
    peer.ack(0, u64::MAX);
    peer.end();
    assert_eq!(agent.exit_code(), Some(0));
}
