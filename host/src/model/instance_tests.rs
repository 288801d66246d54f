//! Who speaks for a VM: every way in which sessions meet on one instance.

use super::*;

fn at(s: u64) -> Now {
    Now { mono_us: s * SECOND_US, wall_ms: s * 1000 }
}

fn facts(kind: PeerKind, boot: u8, nonce: u8) -> Facts {
    Facts {
        kind,
        name: "vm".into(),
        version: "1".into(),
        boot: BootId([boot; 16]),
        nonce: Nonce([nonce; 16]),
        stream: StreamId(u64::from(nonce)),
        next_event: 1,
        ticks_per_second: 100,
        capabilities: Capabilities(3),
        protocol: 1,
    }
}

fn agent(instance: &mut Instance, session: u64, standing: Standing) -> Admission {
    instance.hello(SessionId(session), &facts(PeerKind::AGENT, 1, 1), standing, at(session))
}

fn orders(instance: &mut Instance) -> Vec<(u64, Order)> {
    instance.take_effects().0.into_iter().map(|(session, order)| (session.0, order)).collect()
}

fn speaks(instance: &Instance) -> u64 {
    instance.current().map_or(0, |peer| peer.session.0)
}

const REPLACED: Order = Order::End(ByeReason::REPLACED);

#[test]
fn a_newer_agent_takes_an_equals_place() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Unproven);
    agent(&mut instance, 2, Standing::Unproven);
    assert_eq!((speaks(&instance), orders(&mut instance)), (2, vec![(1, REPLACED)]));
    instance.closed(SessionId(1), &Ending::Ended(ByeReason::REPLACED), at(3));
    assert_eq!((instance.link.state, speaks(&instance)), (Link::Up, 2), "the old one's end is not the VM's");
    agent(&mut instance, 3, Standing::Proven);
    agent(&mut instance, 4, Standing::Proven);
    assert_eq!(speaks(&instance), 4);
}

#[test]
fn an_unproven_session_never_replaces_a_proven_one() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Proven);
    let refused = agent(&mut instance, 2, Standing::Unproven);
    assert!(matches!(refused, Admission::Refuse { code: RefusedCode::AGENT_PRESENT, permanent: false, .. }));
    let held = agent(&mut instance, 3, Standing::Pending);
    assert!(matches!(held, Admission::Open { held: true, agent: true, .. }));
    assert_eq!((speaks(&instance), instance.wants_proof(None)), (1, Some(SessionId(3))));
    instance.proof(SessionId(3), false, at(4));
    assert_eq!((speaks(&instance), orders(&mut instance)), (1, vec![(3, REPLACED)]));
    agent(&mut instance, 5, Standing::Pending);
    instance.proof(SessionId(5), true, at(5));
    assert_eq!((speaks(&instance), orders(&mut instance)), (5, vec![(1, REPLACED), (5, Order::Resume)]));
}

#[test]
fn while_a_proof_is_under_way_newcomers_wait_and_get_their_turn() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Pending);
    assert_eq!(speaks(&instance), 1, "somebody may speak until a proven one is there");
    for session in 2..=5 {
        assert!(matches!(agent(&mut instance, session, Standing::Pending), Admission::Open { held: true, .. }));
    }
    assert!(matches!(agent(&mut instance, 6, Standing::Pending), Admission::Refuse { .. }));
    assert_eq!(instance.wants_proof(Some(SessionId(1))), Some(SessionId(2)));
    assert_eq!(instance.wants_proof(Some(SessionId(5))), Some(SessionId(1)), "round and round");
    instance.proof(SessionId(1), false, at(9));
    assert_eq!(speaks(&instance), 5, "nobody is proven: the newest");
    orders(&mut instance);
    instance.closed(SessionId(5), &Ending::Closed, at(10));
    assert_eq!((speaks(&instance), orders(&mut instance)), (4, vec![(4, Order::Resume)]));
}

#[test]
fn sessions_are_counted_and_the_successor_needs_no_place() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Unproven);
    for session in 2..=16 {
        let reporter = facts(PeerKind::REPORTER, 1, 9);
        let admission = instance.hello(SessionId(session), &reporter, Standing::Unproven, at(1));
        assert!(matches!(admission, Admission::Open { agent: false, held: false, .. }), "{session}");
    }
    let reporter = facts(PeerKind::REPORTER, 1, 9);
    let admission = instance.hello(SessionId(17), &reporter, Standing::Unproven, at(1));
    assert!(matches!(admission, Admission::Refuse { code: RefusedCode::TOO_MANY, .. }));
    assert!(matches!(agent(&mut instance, 18, Standing::Unproven), Admission::Open { .. }));
    let advisor = instance.hello(SessionId(19), &facts(PeerKind::ADVISOR, 1, 1), Standing::Proven, at(1));
    assert!(matches!(advisor, Admission::Refuse { code: RefusedCode::KIND, permanent: true, .. }));
}

#[test]
fn silence_is_dated_from_the_last_byte_and_stopping_is_not_losing() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Unproven);
    instance.bytes(SessionId(1), 10, at(7));
    instance.closed(SessionId(1), &Ending::Silent, at(22));
    assert_eq!((instance.link.state, instance.link.since), (Link::Silent, at(7)));
    assert_eq!(instance.agent.state, Agent::Lost);
    agent(&mut instance, 2, Standing::Unproven);
    instance.closed(SessionId(2), &Ending::Bye(ByeReason::STOPPING), at(30));
    assert_eq!((instance.link.state, instance.agent.state), (Link::Down, Agent::Stopped));
    instance.refused(RefusedCode::VERSION, at(31));
    assert_eq!(instance.agent.detail.as_deref(), Some("no common protocol version"));
}

#[test]
fn an_event_is_acknowledged_when_it_is_in_the_file_and_asked_for_again_when_it_is_not() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Unproven);
    orders(&mut instance);
    let event = Event { sequence: 1, boot_time_us: 5, kind: informant_wire::event::EventKind(999), body: b"x" };
    assert!(instance.event(SessionId(1), &event).is_some());
    assert_eq!(orders(&mut instance), vec![], "no ack yet");
    instance.not_stored(at(2));
    assert!(instance.event(SessionId(1), &Event { sequence: 2, ..event }).is_none(), "left alone");
    instance.store_again(at(11));
    assert_eq!(orders(&mut instance), vec![]);
    instance.store_again(at(12));
    assert_eq!(orders(&mut instance), vec![(1, Order::End(ByeReason::STOPPING))]);
    instance.closed(SessionId(1), &Ending::Closed, at(12));
    agent(&mut instance, 2, Standing::Unproven);
    orders(&mut instance);
    assert!(instance.event(SessionId(2), &event).is_some(), "taken at last");
    instance.stored(BootId([1; 16]), StreamId(1), 1, 1);
    assert_eq!(orders(&mut instance), vec![(2, Order::Stored(1))]);
    assert!(instance.event(SessionId(2), &event).is_none());
    assert_eq!((instance.counters.events, instance.counters.events_repeated), (1, 1));
}
