//! The control port: further host sessions, and the proof that whoever answers there is the agent.

use crate::agent::{Agent, Place};
use crate::host::{Host, Peer, Said};
use informant_wire::event::EventKind;
use informant_wire::hello::{Capabilities, Role};
use informant_wire::host_to_guest::{ByeReason, Prove};
use informant_wire::id::SessionId;

/// An agent with a control socket and a session with its own host.
fn setting(place: &Place, host: &Host) -> (Agent, Peer, std::path::PathBuf) {
    let control = place.path("control.sock");
    let agent = place.agent(&["--control", &format!("unix:{}", control.display())]);
    let mut own = host.session(0);
    own.sample();
    own.ack(1, 0);
    (agent, own, control)
}

#[test]
fn the_challenge_of_a_live_session_is_repeated_and_of_no_other() {
    let place = Place::new();
    let host = Host::new(&place);
    let (_agent, mut own, control) = setting(&place, &host);
    let prove = |session: SessionId| {
        let mut peer = Peer::connect(&control);
        assert!(peer.hello().capabilities.has(Capabilities::CONTROL));
        peer.send(|out| Prove { session }.encode(out));
        let answer = peer.next().unwrap();
        assert_eq!(peer.next(), None, "one question a connection");
        answer
    };
    assert_eq!(prove(own.session), Said::Proof(own.challenge));
    assert_eq!(prove(SessionId(own.session.0 ^ 1)), Said::NotMine);
    // A session that came through the door itself proves nothing.
    let mut observer = Peer::connect(&control);
    observer.hello();
    observer.session = SessionId(77);
    observer.welcome_as(Role::OBSERVER, 0);
    observer.sample();
    assert_eq!(prove(SessionId(77)), Said::NotMine);
    // Nor does one that has ended.
    let ended = own.session;
    own.bye(ByeReason::REPLACED);
    own.end();
    assert_eq!(prove(ended), Said::NotMine);
}

#[test]
fn the_host_that_was_dialled_can_not_be_asked_to_prove() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut peer = host.accept();
    peer.hello();
    let session = peer.session;
    peer.send(|out| Prove { session }.encode(out));
    peer.welcome(0);
    peer.sample();
}

#[test]
fn an_observer_has_its_own_schema_samples_and_events_and_its_acks_cost_the_host_nothing() {
    let place = Place::new();
    let host = Host::new(&place);
    let control = place.path("control.sock");
    let _agent = place.agent(&["--control", &format!("unix:{}", control.display())]);
    let mut observer = Peer::connect(&control);
    observer.hello();
    observer.welcome_as(Role::OBSERVER, 0);
    assert!(observer.sample().1, "it begins with a key frame");
    assert_eq!(observer.event().kind, EventKind::AGENT_STARTED);
    observer.ack(1, 1);
    let mut own = host.accept();
    assert_eq!(own.hello().next_event, 1, "only the agent's own host takes events from it");
    own.welcome(0);
    assert!(own.sample().1, "and so does the other");
    assert_eq!(own.event().kind, EventKind::AGENT_STARTED);
    observer.sample();
}

#[test]
fn four_sessions_are_served_and_a_fifth_is_turned_away_but_may_still_ask_for_proof() {
    let place = Place::new();
    let host = Host::new(&place);
    let (agent, mut own, control) = setting(&place, &host);
    let mut observers: Vec<Peer> = (0..3)
        .map(|_| {
            let mut peer = Peer::connect(&control);
            peer.hello();
            peer.welcome_as(Role::OBSERVER, 0);
            peer.sample();
            peer
        })
        .collect();
    let mut fifth = Peer::connect(&control);
    fifth.hello();
    fifth.welcome_as(Role::OBSERVER, 0);
    assert_eq!(fifth.end(), Some(ByeReason::TOO_MANY));
    let mut proof = Peer::connect(&control);
    proof.hello();
    let session = own.session;
    proof.send(|out| Prove { session }.encode(out));
    assert_eq!(proof.next(), Some(Said::Proof(own.challenge)));
    for peer in observers.iter_mut().chain([&mut own]) {
        peer.sample();
    }
    assert!(agent.log().contains("too many sessions"));
}

#[test]
fn connections_that_never_greet_can_not_hold_the_door() {
    let place = Place::new();
    let host = Host::new(&place);
    let (_agent, mut own, control) = setting(&place, &host);
    let idle: Vec<Peer> = (0..30).map(|_| Peer::connect(&control)).collect();
    own.sample();
    // The idle ones are closed after the handshake's deadline, the others at once.
    let mut ended = 0;
    for mut peer in idle {
        peer.end();
        ended += 1;
    }
    assert_eq!(ended, 30);
    own.sample();
    let mut observer = Peer::connect(&control);
    observer.hello();
    observer.welcome_as(Role::OBSERVER, 0);
    observer.sample();
}
