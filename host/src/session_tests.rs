//! What bytes and time mean to a session, in pieces of any size and from peers that break every rule.

use super::*;
use informant_wire::event::EventKind;
use informant_wire::hello::{Capabilities, MAGIC, PeerKind};
use informant_wire::id::{BootId, Nonce, StreamId};
use proptest::prelude::*;

fn at(ms: u64) -> Now {
    Now { mono_us: ms * 1000, wall_ms: ms }
}

fn hello() -> Vec<u8> {
    let hello = Hello {
        magic: MAGIC,
        min_version: 1,
        max_version: 1,
        kind: PeerKind::AGENT,
        name: "vm",
        boot_id: BootId([1; 16]),
        nonce: Nonce([2; 16]),
        stream: StreamId(3),
        next_event: 1,
        ticks_per_second: 100,
        capabilities: Capabilities::SAMPLES,
        version: "0.1.0",
    };
    let mut out = vec![0; 1024];
    let length = hello.encode(&mut out).unwrap();
    out.truncate(length);
    out
}

/// What a stream means when it comes in pieces, as text.
fn heard(session: &mut Session, now: Now, pieces: &[&[u8]]) -> Vec<String> {
    let mut all = Vec::new();
    for piece in pieces {
        let mut used = 0;
        while let Some(heard) = session.next(now, piece, &mut used) {
            let over = matches!(heard, Heard::Over(_) | Heard::Refuse { .. });
            all.push(format!("{heard:?}"));
            if over {
                return all;
            }
        }
    }
    all
}

fn open(agent: bool) -> Session {
    let mut session = Session::new(at(0));
    assert_eq!(heard(&mut session, at(0), &[&hello()]).len(), 1);
    session.open(at(0), agent, 0, false);
    session
}

fn event(sequence: u64) -> Vec<u8> {
    let mut out = vec![0; 600];
    let event = Event { sequence, boot_time_us: 1, kind: EventKind(999), body: &[7; 40] };
    let length = event.encode(&mut out).unwrap();
    out.truncate(length);
    out
}

#[test]
fn the_first_frame_must_be_a_hello_and_nothing_may_follow_before_welcome() {
    let mut too_long = vec![0xff, 0xff, kind::HELLO];
    too_long.resize(2000, 0);
    let mut early = hello();
    early.extend(event(1));
    for (bytes, what) in [
        (event(1), "first frame of type 0x09, not hello"),
        (too_long, "hello of over 1024 bytes"),
        (vec![0, 0], "frame of length 0"),
        (vec![3, 0, kind::HELLO, 1, 2], "hello: body does not decode"),
        (early, "frames before Welcome"),
    ] {
        let heard = heard(&mut Session::new(at(0)), at(0), &[&bytes]);
        assert!(heard.last().is_some_and(|heard| heard.starts_with("Refuse") && heard.contains(what)), "{heard:?}");
    }
}

#[test]
fn ten_undecodable_frames_in_a_row_end_it_and_nine_do_not() {
    let mut told = false;
    let bad = [2, 0, kind::HEARTBEAT, 0xff];
    let mut session = open(true);
    for _ in 0..9 {
        let said = heard(&mut session, at(0), &[&bad]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("Bad("), "{said:?}");
        assert_eq!(said[0].contains("frame of type 0x08: "), !std::mem::replace(&mut told, true), "once: {said:?}");
    }
    assert_eq!(heard(&mut session, at(0), &[&event(1)]).len(), 1);
    for _ in 0..9 {
        let said = heard(&mut session, at(0), &[&bad]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("Bad("), "{said:?}");
        assert_eq!(said[0].contains("frame of type 0x08: "), !std::mem::replace(&mut told, true), "once: {said:?}");
    }
    assert!(heard(&mut session, at(0), &[&bad])[0].contains("in a row"));
}

#[test]
fn a_broken_schema_or_sample_ends_it_at_once_and_a_reporters_is_not_looked_at() {
    for kind in [kind::SCHEMA_PART, kind::SCHEMA_END, kind::SAMPLE] {
        let broken = [2, 0, kind, 0xff];
        assert!(heard(&mut open(true), at(0), &[&broken])[0].starts_with("Over(Broken"));
        assert_eq!(heard(&mut open(false), at(0), &[&broken]), [format!("Unknown({kind})")]);
    }
}

#[test]
fn acks_answer_within_5_s_at_most_once_a_second_and_never_before_the_file() {
    let mut session = open(true);
    assert_eq!(session.due(at(4_000)), None, "a silent guest is sent nothing");
    heard(&mut session, at(4_000), &[&event(1)[..2]]);
    assert_eq!(session.due(at(4_000)), Some(Due::Ack(Ack { sample: 0, event: 0 })));
    session.sample_taken(1);
    heard(&mut session, at(4_100), &[&event(1)]);
    assert_eq!(session.due(at(4_900)), None, "not within a second");
    assert_eq!(session.due(at(5_000)), Some(Due::Ack(Ack { sample: 1, event: 0 })), "the first sample at once");
    heard(&mut session, at(5_050), &[&event(1)]);
    session.event_stored(1);
    assert_eq!(session.deadline_us(), 6_000_000);
    assert_eq!(session.due(at(6_000)), Some(Due::Ack(Ack { sample: 1, event: 1 })));
    session.sample_taken(2);
    heard(&mut session, at(9_950), &[&event(2)]);
    assert_eq!(session.due(at(9_999)), None, "nothing urgent");
    assert_eq!(session.deadline_us(), 10_000_000);
    assert_eq!(session.due(at(10_000)), Some(Due::Ack(Ack { sample: 2, event: 1 })));
    assert_eq!(session.due(at(15_000)), None);
    assert_eq!(session.deadline_us(), 9_950_000 + DEAD_AFTER_S * SECOND_US, "until it speaks again");
}

#[test]
fn silence_and_unfinished_handshakes_have_an_end() {
    let mut session = Session::new(at(0));
    heard(&mut session, at(3_000), &[&hello()[..20]]);
    assert_eq!(session.deadline_us(), 4_000_000, "half a hello is no reprieve");
    assert_eq!(session.due(at(4_000)), Some(Due::Over(Ending::NoHello)));
    let mut session = open(true);
    heard(&mut session, at(10_000), &[&event(1)[..5]]);
    for second in 10..25 {
        assert_ne!(session.due(at(second * 1000)), Some(Due::Over(Ending::Silent)));
    }
    assert_eq!(session.due(at(25_000)), Some(Due::Over(Ending::Silent)));
}

#[test]
fn a_held_session_is_not_read_but_gets_acks() {
    let mut session = Session::new(at(0));
    heard(&mut session, at(0), &[&hello()]);
    session.open(at(0), true, 0, true);
    assert!(!session.wants_bytes());
    assert!(matches!(session.due(at(4_000)), Some(Due::Ack(_))));
    session.resume(at(20_000));
    assert!(session.wants_bytes());
    assert_ne!(session.due(at(21_000)), Some(Due::Over(Ending::Silent)), "silence counts from then");
}

proptest! {
    #[test]
    fn pieces_of_any_size_mean_the_same(
        frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        for (kind, body) in &frames {
            bytes.extend(u16::try_from(body.len() + 1).unwrap().to_le_bytes());
            // Mostly types that have a meaning.
            bytes.push(if *kind < 200 { *kind % 16 } else { *kind });
            bytes.extend(body);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let (mut whole, mut cut) = (open(true), open(true));
        prop_assert_eq!(heard(&mut whole, at(0), &[&bytes]), heard(&mut cut, at(0), &pieces));
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_pile_up(
        greeted: bool,
        agent: bool,
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..40),
    ) {
        let mut session = if greeted { open(agent) } else { Session::new(at(0)) };
        let limit = if greeted && agent { 2 * MAX_BODY } else { 2 * MAX_SMALL_BODY };
        for piece in &pieces {
            heard(&mut session, at(0), &[piece]);
            prop_assert!(session.inbox.capacity() <= limit);
        }
    }
}
