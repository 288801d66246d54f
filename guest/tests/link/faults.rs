//! Hosts that misbehave, vanish, or are not there.

use crate::agent::Place;
use crate::host::{Host, Peer};
use informant_wire::host_to_guest::ByeReason;
use std::io::Write;
use std::time::{Duration, Instant};

#[test]
fn accept_then_close_makes_the_back_off_grow_and_not_start_over() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut agent = place.agent(&[]);
    let end = Instant::now() + Duration::from_secs(6);
    let mut attempts = 0;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        attempts += u32::from(host.try_accept(left).is_some());
    }
    // With the shortest jitter: 25, 50, 100, 200, 400, 800 ms, then a second each.
    assert!((3..=12).contains(&attempts), "{attempts} attempts in 6 s");
    assert!(agent.is_running());
    assert!(agent.log().matches("dialling on").count() <= 2, "one line for one state:\n{}", agent.log());
}

#[test]
fn a_host_that_floods_is_left_alone_for_a_while() {
    let place = Place::new();
    let host = Host::new(&place);
    let mut agent = place.agent(&[]);
    let mut peer = host.accept();
    peer.hello();
    peer.welcome(0);
    let began = Instant::now();
    while peer.ack(0, 0) {
        assert!(began.elapsed() < Duration::from_secs(10), "it takes all of it");
    }
    assert!(host.try_accept(Duration::from_secs(4)).is_none(), "it is not dialled again soon");
    assert!(agent.is_running() && agent.log().contains("frames in a second"), "{}", agent.log());
}

/// How often the agent dials within a time, when each session is welcomed and then ended in some way.
fn attempts(host: &Host, time: Duration, mut end_session: impl FnMut(&mut Peer) -> bool) -> u32 {
    let end = Instant::now() + time;
    let mut attempts = 0;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let Some(mut peer) = host.try_accept(left) else { break };
        attempts += 1;
        peer.hello();
        peer.welcome(0);
        // Whether the agent was still there to hear it makes no difference.
        end_session(&mut peer);
    }
    attempts
}

#[test]
fn a_handshake_and_a_close_without_an_ack_make_the_back_off_grow_too() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let attempts = attempts(&host, Duration::from_secs(6), |peer| peer.bye(ByeReason::MOVED));
    assert!((3..=13).contains(&attempts), "{attempts} attempts in 6 s");
}

#[test]
fn a_host_that_acknowledges_and_moves_again_and_again_is_not_dialled_without_pause() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let attempts = attempts(&host, Duration::from_secs(4), |peer| {
        peer.ack(0, 0);
        peer.bye(ByeReason::MOVED)
    });
    // One a second at once, the others after 25 ms at least.
    assert!((5..=4 * 41 + 1).contains(&attempts), "{attempts} attempts in 4 s");
}

#[test]
fn a_permanent_refusal_is_not_asked_again_soon_and_a_passing_one_is() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    for _ in 0..3 {
        let mut peer = host.accept();
        peer.hello();
        peer.refuse(false);
    }
    let mut peer = host.accept();
    peer.hello();
    peer.refuse(true);
    assert!(host.try_accept(Duration::from_secs(8)).is_none(), "the usual pauses are 2 s at most");
}

#[test]
fn an_unanswered_handshake_is_given_up() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut silent = host.accept();
    silent.hello();
    assert_eq!(silent.end(), None);
    host.session(0).sample();
}

#[test]
fn a_host_that_reads_and_never_acknowledges_is_left() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&[]);
    let mut peer = host.session(0);
    peer.end();
    host.session(0).sample();
    assert!(agent.log().contains("acknowledged nothing"));
}

#[test]
fn answers_in_single_bytes_and_unknown_frames_do_no_harm() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let mut peer = host.accept();
    peer.hello();
    // Unknown types in front, between and behind, down to an empty body.
    let mut out = [0; 512];
    let mut bytes = vec![1, 0, 0x7f, 4, 0, 0x33, 1, 2, 3];
    let welcome = informant_wire::hello::Welcome {
        version: 1,
        session: peer.session,
        challenge: peer.challenge,
        role: informant_wire::hello::Role::CONTROLLER,
        controller: informant_wire::id::ControllerId([0; 16]),
        controller_name: "",
        last_event: 0,
    };
    let count = welcome.encode(&mut out).unwrap();
    bytes.extend_from_slice(&out[..count]);
    bytes.extend_from_slice(&[1, 0, 0xff]);
    for byte in bytes {
        peer.stream.write_all(&[byte]).unwrap();
    }
    peer.sample();
    peer.ack(1, 0);
    peer.sample();
}

#[test]
fn nine_bad_frames_in_a_row_are_skipped_and_ten_end_the_session() {
    let place = Place::new();
    let host = Host::new(&place);
    let agent = place.agent(&[]);
    let mut peer = host.session(0);
    peer.sample();
    // An Ack without a body.
    let bad = [1, 0, informant_wire::frame::kind::ACK];
    peer.stream.write_all(&bad.repeat(9)).unwrap();
    peer.ack(1, 0);
    peer.stream.write_all(&bad.repeat(9)).unwrap();
    peer.ack(1, 0);
    peer.sample();
    peer.sample();
    peer.stream.write_all(&bad.repeat(10)).unwrap();
    peer.end();
    host.session(0).sample();
    assert!(agent.log().contains("do not decode"));
}

#[test]
fn what_can_not_be_framed_ends_the_session() {
    for bytes in [&[0, 0, 1][..], &[0xff, 0xff, 2, 1, 2, 3], &[0x00, 0x10, 7]] {
        let place = Place::new();
        let host = Host::new(&place);
        let agent = place.agent(&[]);
        let mut peer = host.session(0);
        peer.sample();
        peer.stream.write_all(bytes).unwrap();
        peer.end();
        host.session(0).sample();
        assert!(agent.log().contains("broke the protocol"));
    }
}

#[test]
fn a_half_frame_and_a_close_leave_nothing_behind() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    for cut in 0..3 {
        let mut peer = host.accept();
        peer.hello();
        peer.stream.write_all(&[30, 0, 2][..cut]).unwrap();
    }
    host.session(0).sample();
}
