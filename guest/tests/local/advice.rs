//! Processes on the local socket that advise and demand.

use crate::agent::Place;
use crate::guest::{Guest, size};
use crate::host::{Host, PATIENCE, Said};
use crate::inside::{Came, Inside};
use informant_guest::local::desk::Standing;
use informant_guest::local::tally::{Verdict, line};
use informant_wire::event::{AdvisorFailed, EventKind};
use informant_wire::frame::{decode, kind};
use informant_wire::scale::{
    AdvisorFault, DemandOutcome, DemandReason, DownscaleOutcome, DownscaleReason, Epoch, RequestId,
};
use informant_wire::size::Bytes;
use std::time::{Duration, Instant};

const OFTEN: Duration = Duration::from_millis(100);

fn against(text: &str) -> Verdict {
    Verdict { against: Some((DownscaleReason::ADVISOR, line(text.as_bytes()))), ..Verdict::default() }
}

#[test]
fn the_answers_of_advisors_are_the_verdict() {
    let place = Place::new();
    let inside = Inside::start(&place, OFTEN);
    inside.ask(size(2, 2048), size(1, 1024));
    assert_eq!(inside.verdict(), Verdict::default(), "nobody is there who could be against");
    let (mut one, mut two) = (Guest::advisor(&inside.socket, "one"), Guest::advisor(&inside.socket, "two"));
    let ask = |inside: &Inside, guests: [&mut Guest; 2]| {
        inside.ask(size(2, 2048), size(1, 1024));
        guests.map(|guest| {
            let question = guest.question();
            assert_eq!((question.present, question.wanted), (size(2, 2048), size(1, 1024)));
            assert_eq!((question.epoch, question.forced, question.within_ms), (Epoch(0), false, 2000));
            assert_eq!(question.request.0 % 2, 0);
            question.request
        })
    };
    let [a, b] = ask(&inside, [&mut one, &mut two]);
    one.answer(a, DownscaleOutcome::APPROVED, "fine");
    assert_eq!(inside.has_come(), None, "one has not answered yet");
    two.answer(b, DownscaleOutcome::APPROVED, "");
    assert_eq!(inside.verdict(), Verdict::default());
    let [c, d] = ask(&inside, [&mut one, &mut two]);
    assert_ne!(a, c);
    // Answers to what is not open have no effect.
    one.answer(a, DownscaleOutcome::DENIED, "late");
    one.answer(RequestId(999), DownscaleOutcome::DENIED, "wrong");
    one.answer(c, DownscaleOutcome::APPROVED, "");
    two.answer(d, DownscaleOutcome::DENIED, "index\x1b[31m build\nmore");
    assert_eq!(inside.verdict(), against("index [31m build"));
    let [e, f] = ask(&inside, [&mut one, &mut two]);
    one.answer(e, DownscaleOutcome::NOT_READY, "");
    two.answer(f, DownscaleOutcome(77), "");
    let verdict = inside.verdict();
    assert_eq!((verdict.against, verdict.crashed), (against("one").against, 1));
}

#[test]
fn who_is_silent_or_goes_is_counted_reported_and_no_voice() {
    let place = Place::new();
    let host = Host::new(&place);
    let inside = Inside::start(&place, OFTEN);
    let mut peer = host.session(0);
    let mut silent = Guest::advisor(&inside.socket, "silent");
    let mut half = Guest::advisor(&inside.socket, "half");
    let mut crashing = Guest::advisor(&inside.socket, "crashing");
    let mut leaving = Guest::advisor(&inside.socket, "leaving");
    inside.ask(size(2, 2048), size(1, 1024));
    let late = silent.question().request;
    half.question();
    half.say(&[60, 0, kind::DOWNSCALE_ANSWER]);
    crashing.question();
    drop(crashing);
    leaving.question();
    leaving.say(&[2, 0, kind::BYE, 1]);
    assert_eq!(inside.verdict(), Verdict { against: None, silent: 2, crashed: 1 });
    silent.answer(late, DownscaleOutcome::DENIED, "too late");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match peer.next() {
            Some(Said::Sample { head, .. }) => assert!(peer.ack(head.sequence, 0)),
            Some(Said::Event(event)) if event.kind == EventKind::ADVISOR_FAILED => {
                let body: AdvisorFailed<'_> = decode(&event.body).unwrap();
                seen.push((body.what, body.name.to_owned()));
            }
            other => assert!(other.is_some()),
        }
    }
    let (is_silent, crashed) = (AdvisorFault::SILENT, AdvisorFault::CRASHED);
    assert_eq!(seen[0], (crashed, "crashing".to_owned()));
    assert!(seen[1..].iter().all(|(what, name)| *what == is_silent && ["silent", "half"].contains(&name.as_str())));
    // The silent one is still there, and may answer the next question.
    drop(half);
    inside.ask(size(2, 2048), size(1, 1024));
    let request = silent.question().request;
    silent.answer(request, DownscaleOutcome::DENIED, "now");
    assert_eq!(inside.verdict().against, against("now").against);
}

#[test]
fn a_demand_is_pending_then_what_the_host_says_and_outlives_its_connection() {
    let place = Place::new();
    let inside = Inside::start(&place, OFTEN);
    let mut guest = Guest::advisor(&inside.socket, "builder");
    let wanted = || Came::Demand(Some(Bytes::mib(3072)), DemandReason::ADVISOR);
    let granted = Standing { outcome: DemandOutcome::GRANTED, granted: size(2, 3072), retry_after_ms: 0 };
    *inside.standing.lock().unwrap() = granted;
    assert_eq!(guest.demand(1, 3072).outcome, DemandOutcome::PENDING);
    assert_eq!(inside.came(), wanted(), "a process of the guest can not speak of pressure");
    let answer = guest.demand(3, 3072);
    assert_eq!((answer.outcome, answer.granted), (DemandOutcome::GRANTED, size(2, 3072)));
    assert_eq!(inside.came(), wanted());
    *inside.standing.lock().unwrap() =
        Standing { outcome: DemandOutcome::AT_MAXIMUM, retry_after_ms: 15_000, ..granted };
    let answer = guest.demand(5, 3072);
    assert_eq!((answer.outcome, answer.retry_after_ms), (DemandOutcome::AT_MAXIMUM, 15_000));
    assert_eq!(inside.came(), wanted());
    let renewed = Instant::now();
    drop(guest);
    assert_eq!(inside.came(), Came::Withdrawn);
    assert!(renewed.elapsed() >= Duration::from_secs(9), "it lives its 10 s though who asked is gone");
    assert!(renewed.elapsed() < PATIENCE);
}
