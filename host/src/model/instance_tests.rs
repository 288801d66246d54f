//! Who speaks for a VM: every way in which sessions meet on one instance.

use super::*;
use informant_wire::frame::{Frame, Split, split};
use informant_wire::guest_to_host::GuestToHost;
use informant_wire::hello::{Capabilities, RefusedCode};
use informant_wire::metric::{Metric, SubjectKind, id};
use informant_wire::sample::{Base, Row, SampleHead};
use informant_wire::schema::{MetricRange, SchemaWriter, Subject};

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
fn reporters_never_keep_an_agent_out() {
    for (standing, most) in [(Standing::Unproven, 16), (Standing::Proven, 32)] {
        let mut instance = Instance::default();
        let reporter = facts(PeerKind::REPORTER, 1, 9);
        for session in 1..=most {
            let admission = instance.hello(SessionId(session), &reporter, standing, at(1));
            assert!(matches!(admission, Admission::Open { .. }), "{session}");
        }
        let one_more = instance.hello(SessionId(50), &reporter, standing, at(1));
        assert!(matches!(one_more, Admission::Refuse { code: RefusedCode::TOO_MANY, .. }));
        assert!(matches!(agent(&mut instance, 60, Standing::Pending), Admission::Open { held: false, .. }));
        assert_eq!(orders(&mut instance), [(1, Order::End(ByeReason::TOO_MANY))], "the oldest makes way");
        for session in 61..=64 {
            assert!(matches!(agent(&mut instance, session, Standing::Pending), Admission::Open { held: true, .. }));
        }
        let (all, unproven) = instance.sessions();
        assert!(all <= 32 && unproven <= 16, "{all} {unproven}");
        let one_more = instance.hello(SessionId(70), &reporter, standing, at(1));
        assert!(matches!(one_more, Admission::Refuse { .. }));
    }
}

#[test]
fn who_has_the_nonce_of_the_control_port_finds_a_place_and_is_asked_first() {
    let mut instance = Instance::default();
    for session in 1..=5 {
        let stranger = facts(PeerKind::AGENT, 1, u8::try_from(session).unwrap());
        instance.hello(SessionId(session), &stranger, Standing::Pending, at(1));
    }
    let root = facts(PeerKind::AGENT, 1, 77);
    let hello = |instance: &mut Instance| instance.hello(SessionId(9), &root, Standing::Pending, at(2));
    assert!(matches!(hello(&mut instance), Admission::Refuse { .. }), "four wait already");
    instance.listener(Nonce([77; 16]));
    instance.proof(SessionId(1), false, at(2));
    let stranger = facts(PeerKind::AGENT, 1, 6);
    let refill = instance.hello(SessionId(6), &stranger, Standing::Pending, at(2));
    assert!(matches!(refill, Admission::Open { held: true, .. }), "a place that becomes free is taken at once");
    assert!(matches!(hello(&mut instance), Admission::Open { held: true, .. }));
    assert_eq!(instance.wants_proof(Some(SessionId(2))), Some(SessionId(9)));
    instance.proof(SessionId(9), true, at(3));
    assert_eq!(speaks(&instance), 9);
}

#[test]
fn what_was_said_without_proof_is_no_part_of_what_the_proven_agent_says() {
    let first = |instance: &mut Instance, standing, nonce| {
        instance.hello(SessionId(1), &facts(PeerKind::AGENT, 1, nonce), standing, at(1));
        samples_from(instance, 1, 1, 1 << 62, &[(1, 1), (2, 2)]);
        instance.closed(SessionId(1), &Ending::Closed, at(3));
    };
    for (before, nonce, after, continues) in [
        (Standing::Unproven, 5, Standing::Pending, false),
        (Standing::Pending, 5, Standing::Pending, false),
        (Standing::Pending, 5, Standing::Proven, false),
        (Standing::Pending, 1, Standing::Pending, true),
        (Standing::Proven, 5, Standing::Pending, true),
        (Standing::Proven, 5, Standing::Unproven, true),
        (Standing::Unproven, 5, Standing::Unproven, true),
    ] {
        let mut instance = Instance::default();
        first(&mut instance, before, nonce);
        agent(&mut instance, 2, after);
        samples_from(&mut instance, 2, 1, 100, &[(3, 3)]);
        let total = instance.series.reading(0, Metric::find(id::CONTEXT_SWITCHES).unwrap()).unwrap().value;
        assert_eq!(total > 100, continues, "{before:?} {nonce}, then {after:?} 1: {total}");
    }
}

#[test]
fn under_a_proven_agent_nobody_waits_who_can_not_be_proven() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Pending);
    assert!(matches!(agent(&mut instance, 2, Standing::Unproven), Admission::Open { held: true, .. }));
    assert!(matches!(agent(&mut instance, 3, Standing::Pending), Admission::Open { held: true, .. }));
    instance.proof(SessionId(1), true, at(4));
    assert_eq!(orders(&mut instance), [(2, REPLACED)]);
    instance.closed(SessionId(1), &Ending::Closed, at(5));
    assert_eq!(speaks(&instance), 3, "it is not the one that was told to end");
}

#[test]
fn counts_of_what_is_missing_never_wrap() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Proven);
    samples(&mut instance, 1, &[(1, 1)]);
    (instance.counters.samples_missed, instance.counters.events_missed) = (u64::MAX - 1, u64::MAX - 1);
    for (session, sequence) in [(2, 1000), (3, 2000)] {
        let mut again = facts(PeerKind::AGENT, 1, 1);
        again.stream = StreamId(session);
        instance.hello(SessionId(session), &again, Standing::Proven, at(2));
        samples_from(&mut instance, session, sequence, 7, &[(sequence, 2)]);
        tell(&mut instance, &mut Budget::new(at(2)), session, u64::MAX - 1000, at(2));
    }
    assert_eq!((instance.counters.samples_missed, instance.counters.events_missed), (u64::MAX, u64::MAX));
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
    let budget = &mut Budget::new(at(0));
    let event = Event { sequence: 1, boot_time_us: 5, kind: informant_wire::event::EventKind(999), body: b"x" };
    assert!(instance.event(SessionId(1), &event, budget, true, at(1)).is_some());
    assert_eq!(orders(&mut instance), vec![], "no ack yet");
    instance.not_stored(at(2));
    assert!(instance.event(SessionId(1), &Event { sequence: 2, ..event }, budget, true, at(1)).is_none(), "left alone");
    instance.store_again(budget, at(11));
    assert_eq!(orders(&mut instance), vec![]);
    instance.store_again(budget, at(12));
    assert_eq!(orders(&mut instance), vec![(1, Order::End(ByeReason::STOPPING))]);
    instance.closed(SessionId(1), &Ending::Closed, at(12));
    agent(&mut instance, 2, Standing::Unproven);
    orders(&mut instance);
    assert!(instance.event(SessionId(2), &event, budget, true, at(1)).is_some(), "taken at last");
    instance.stored(BootId([1; 16]), StreamId(1), 1, 1);
    assert_eq!(orders(&mut instance), vec![(2, Order::Stored(1))]);
    assert!(instance.event(SessionId(2), &event, budget, true, at(1)).is_none());
    assert_eq!((instance.counters.events, instance.counters.events_repeated), (1, 1));
}

/// Events of a session from `first` on, until one is not taken: how many were.
fn tell(instance: &mut Instance, budget: &mut Budget, session: u64, first: u64, now: Now) -> u64 {
    let kind = informant_wire::event::EventKind(999);
    let taken = |sequence: &u64| {
        let event = Event { sequence: *sequence, boot_time_us: 5, kind, body: b"x" };
        instance.event(SessionId(session), &event, budget, true, now).is_some()
    };
    (first..first + 700).take_while(taken).count() as u64
}

#[test]
fn unproven_sessions_have_few_events_together_and_take_none_of_the_proven_ones() {
    let (mut instance, budget) = (Instance::default(), &mut Budget::new(at(0)));
    agent(&mut instance, 1, Standing::Proven);
    for session in 2..=3 {
        let reporter = facts(PeerKind::REPORTER, 1, session);
        instance.hello(SessionId(session.into()), &reporter, Standing::Unproven, at(1));
    }
    budget.bytes(1, at(1));
    assert_eq!(tell(&mut instance, budget, 2, 1, at(1)), 60);
    assert_eq!(budget.pause_us(), SECOND_US, "who spent it waits");
    assert_eq!(tell(&mut instance, budget, 3, 1, at(4)), 3, "one a second, together");
    budget.bytes(1, at(4));
    assert_eq!((tell(&mut instance, budget, 1, 1, at(4)), budget.pause_us()), (700, 0));
    orders(&mut instance);
    assert_eq!(tell(&mut instance, budget, 2, 61, at(9)), 0, "nothing behind what was left alone");
    instance.store_again(budget, at(60));
    assert_eq!(orders(&mut instance), vec![]);
    instance.store_again(budget, at(70));
    let again = Order::End(ByeReason::STOPPING);
    assert_eq!(orders(&mut instance), vec![(2, again), (3, again)], "they come again");
}

#[test]
fn an_outbox_is_taken_while_the_proof_is_under_way_and_the_rest_comes_again_once_it_is_in() {
    let (mut instance, budget) = (Instance::default(), &mut Budget::new(at(0)));
    agent(&mut instance, 1, Standing::Pending);
    assert_eq!(tell(&mut instance, budget, 1, 1, at(1)), 300);
    orders(&mut instance);
    instance.proof(SessionId(1), true, at(2));
    assert_eq!(orders(&mut instance), vec![(1, Order::End(ByeReason::STOPPING))]);
    instance.closed(SessionId(1), &Ending::Ended(ByeReason::STOPPING), at(3));
    agent(&mut instance, 2, Standing::Pending);
    assert_eq!(tell(&mut instance, budget, 2, 301, at(4)), 300, "a whole burst again");
    agent(&mut instance, 3, Standing::Pending);
    assert_eq!(tell(&mut instance, budget, 2, 601, at(4)), 0, "but once");
}

/// A schema of one series and then its samples: guest times and arrivals, both in seconds.
fn samples(instance: &mut Instance, session: u64, times: &[(u64, u64)]) {
    samples_from(instance, session, 1, 7, times);
}

/// The same of a counter that always has `value`, with another sequence of the first.
fn samples_from(instance: &mut Instance, session: u64, first: u64, value: u64, times: &[(u64, u64)]) {
    let session = SessionId(session);
    let metrics = [MetricRange { first: id::CONTEXT_SWITCHES, count: 1 }].into_iter().collect();
    let subject = Subject { kind: SubjectKind::VM, name: b"", labels: Default::default(), incarnation: 1, metrics };
    let mut out = [0; 256];
    let mut writer = SchemaWriter::new(1);
    let (length, _) = writer.part(&mut out, [subject].into_iter()).unwrap();
    let part = frame(&out[..length]);
    let GuestToHost::SchemaPart(parsed) = GuestToHost::decode(part).unwrap() else { panic!("{part:?}") };
    instance.schema_part(session, &parsed, part.body).unwrap();
    let length = writer.end(&mut out).unwrap();
    let GuestToHost::SchemaEnd(end) = GuestToHost::decode(frame(&out[..length])).unwrap() else { panic!() };
    instance.schema_end(session, &end).unwrap();
    let (mut values, mut present) = ([0], [0]);
    for (sequence, (guest_s, arrival_s)) in (first..).zip(times) {
        let head = SampleHead { generation: 1, sequence, boot_time_us: guest_s * SECOND_US };
        let mut base = Base { values: &mut values, present: &mut present };
        let row = Row { values: &[value], present: &[1] };
        let length = informant_wire::sample::encode(&mut out, head, sequence == first, row, &mut base).unwrap();
        let GuestToHost::Sample(sample) = GuestToHost::decode(frame(&out[..length])).unwrap() else { panic!() };
        instance.sample(session, &sample, at(*arrival_s)).unwrap();
    }
}

fn frame(bytes: &[u8]) -> Frame<'_> {
    let Split::Frame(frame, _) = split(bytes, 1024).unwrap() else { panic!("no frame") };
    frame
}

#[test]
fn freshness_is_judged_by_when_samples_arrive_whatever_the_guests_clock_says() {
    let stale_after_s = |times: &[(u64, u64)]| {
        let mut instance = Instance::default();
        agent(&mut instance, 1, Standing::Unproven);
        samples(&mut instance, 1, times);
        let last = times.last().unwrap().1;
        let after = (0..200_000).find(|s| instance.data(at(last + s)).0 == Data::Stale);
        after.map(|after| (after, instance.data(at(last + 500_000)).1.mono_us / SECOND_US - last))
    };
    assert_eq!(stale_after_s(&[(1, 10)]), Some((6, 5)), "one sample says nothing of an interval");
    assert_eq!(stale_after_s(&[(1, 10), (11, 20)]), Some((26, 25)), "three intervals, and 15 s beyond one at most");
    assert_eq!(stale_after_s(&[(1, 10), (4, 13)]), Some((10, 9)));
    assert_eq!(stale_after_s(&[(1, 10), (10_000_000_000_000, 11)]), Some((6, 5)), "a jump of the guest's clock");
    assert_eq!(stale_after_s(&[(1, 10), (2, 5_000)]), Some((6, 5)), "a pause of the VM");
    assert_eq!(stale_after_s(&[(1, 10), (5_000, 5_000)]), Some((5_006, 5_005)));
}

#[test]
fn a_full_outbox_of_a_proven_agent_is_taken_at_once_and_what_has_no_end_is_not() {
    let (mut instance, budget) = (Instance::default(), &mut Budget::new(at(0)));
    agent(&mut instance, 1, Standing::Proven);
    assert_eq!(tell(&mut instance, budget, 1, 1, at(1)), 700);
    assert_eq!(tell(&mut instance, budget, 1, 701, at(1)), 100, "on credit, while reading pauses");
    assert_eq!(tell(&mut instance, budget, 1, 801, at(1)), 0);
    orders(&mut instance);
    instance.store_again(budget, at(8));
    assert_eq!(orders(&mut instance), vec![], "not before it can be taken at once again");
    instance.store_again(budget, at(9));
    assert_eq!(orders(&mut instance), vec![(1, Order::End(ByeReason::STOPPING))]);
}

#[test]
fn what_unproven_sessions_spend_holds_up_no_proven_one() {
    let (mut instance, budget) = (Instance::default(), &mut Budget::new(at(0)));
    agent(&mut instance, 1, Standing::Proven);
    instance.hello(SessionId(2), &facts(PeerKind::REPORTER, 1, 2), Standing::Unproven, at(1));
    assert_eq!(tell(&mut instance, budget, 1, 1, at(1)), 700);
    assert!(tell(&mut instance, budget, 1, 701, at(1)) < 700, "the proven one has said too much");
    assert!(tell(&mut instance, budget, 2, 1, at(2)) < 700, "and so has the other");
    orders(&mut instance);
    instance.store_again(budget, at(20));
    assert_eq!(orders(&mut instance), [(1, Order::End(ByeReason::STOPPING))]);
}

#[test]
fn an_event_for_which_there_is_no_room_comes_again_on_another_session() {
    let (mut instance, budget) = (Instance::default(), &mut Budget::new(at(0)));
    agent(&mut instance, 1, Standing::Proven);
    orders(&mut instance);
    let event = Event { sequence: 1, boot_time_us: 5, kind: informant_wire::event::EventKind(999), body: b"x" };
    assert!(instance.event(SessionId(1), &event, budget, false, at(1)).is_none());
    assert!(instance.event(SessionId(1), &Event { sequence: 2, ..event }, budget, true, at(1)).is_none(), "no gap");
    instance.store_again(budget, at(2));
    assert_eq!(orders(&mut instance), vec![(1, Order::End(ByeReason::STOPPING))]);
}

#[test]
fn fresh_data_says_since_when_it_has_been_fresh() {
    let mut instance = Instance::default();
    agent(&mut instance, 1, Standing::Unproven);
    samples(&mut instance, 1, &[(1, 10), (2, 11), (3, 12), (60, 69), (61, 70)]);
    assert_eq!(instance.data(at(71)), (Data::Fresh, at(69)), "since the first sample after the gap");
}
