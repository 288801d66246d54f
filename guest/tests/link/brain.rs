//! Demands and commands between hosts and a brain that a test scripts: the agent's connections in this process, with
//! the test's own clock.

use crate::host::{Peer, Said};
use informant_guest::collect::{Config, Sensors};
use informant_guest::hosts::{Context, Hosts, Identity};
use informant_guest::link::session::Origin;
use informant_guest::link::stream::Stream;
use informant_guest::outbox::Outbox;
use informant_guest::own::Own;
use informant_guest::scale::brain::{Brain, Wanted};
use informant_wire::hello::Role;
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::scale::{
    Applied, AppliedCause, AppliedOutcome, DemandAnswer, DemandId, DemandOutcome, DemandReason, Downscale,
    DownscaleAnswer, DownscaleOutcome, DownscaleReason, Epoch, RequestId, Resized, Seen,
};
use informant_wire::size::{Bytes, Size};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;

const SECOND_US: u64 = 1_000_000;

/// Does what the test sets, and remembers what it was told.
#[derive(Debug, Default)]
struct Scripted {
    wanted: Option<DemandId>,
    is_asked: bool,
    told: Vec<String>,
    question: Option<Downscale>,
    resized: Option<Resized>,
    outcome: Option<AppliedOutcome>,
    answers: bool,
}

impl Brain for Scripted {
    fn demand(&mut self, _: u64) -> Option<Wanted> {
        assert!(!self.is_asked, "one at a time");
        let id = self.wanted?;
        self.is_asked = true;
        let mount = heapless::Vec::from_slice(&[b'/'; 255]).unwrap();
        let disk = Some((mount, Bytes::gib(9)));
        let (memory, reason) = (Some(Bytes::gib(2)), DemandReason::USAGE);
        Some(Wanted { id, cpu: None, memory, disk, urgency: 200, reason, expires_ms: 10_000 })
    }

    fn demand_due_us(&self) -> u64 {
        0
    }

    fn demand_answered(&mut self, answer: &DemandAnswer, _: u64) {
        self.is_asked = false;
        self.wanted = None;
        self.told.push(format!("answered {}", answer.outcome.0));
    }

    fn demand_unanswered(&mut self, _: u64) {
        self.is_asked = false;
        self.told.push("unanswered".to_owned());
    }

    fn downscale(&mut self, question: &Downscale, _: u64) {
        self.question = Some(*question);
    }

    fn downscale_answer(&mut self, _: u64) -> Option<DownscaleAnswer<'_>> {
        if !self.answers {
            return None;
        }
        let question = self.question.take()?;
        let (outcome, reason) = (DownscaleOutcome::DENIED, DownscaleReason::ADVISOR);
        let (usage, headroom, limit) = (Bytes(3), Bytes(2), Bytes(1));
        let request = question.request;
        Some(DownscaleAnswer { request, outcome, reason, usage, headroom, limit, retry_after_ms: 5, text: "busy" })
    }

    fn resized(&mut self, told: &Resized, _: u64) {
        self.resized = Some(*told);
    }

    fn applied(&mut self, _: u64) -> Option<Applied> {
        let outcome = self.outcome.take()?;
        let request = self.resized?.request;
        Some(Applied { request, outcome, cause: AppliedCause::NONE, seen: Seen::default() })
    }

    fn current_gone(&mut self, _: u64) {
        (self.question, self.resized) = (None, None);
        self.told.push("gone".to_owned());
    }
}

/// The agent's side.
struct Guest {
    runtime: tokio::runtime::Runtime,
    hosts: Hosts,
    sensors: Sensors,
    outbox: Outbox,
    own: Own,
    brain: Scripted,
    now_us: u64,
    _place: TempDir,
}

impl Guest {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let identity =
            Identity { boot: BootId([1; 16]), nonce: Nonce([2; 16]), name: "vm".to_owned(), ticks_per_second: 100 };
        let config = Config { root: place.path().to_owned(), cgroup: None, all_fresh: true };
        let (outbox, _) = Outbox::open(&place.path().join("state"), BootId([1; 16]), StreamId(1), 1);
        Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap(),
            hosts: Hosts::new(identity),
            sensors: Sensors::new(&config),
            outbox,
            own: Own::new(),
            brain: Scripted::default(),
            now_us: 100 * SECOND_US,
            _place: place,
        }
    }

    /// As many wake-ups as anything takes to arrive and be answered.
    fn run(&mut self) {
        let Self { runtime, hosts, sensors, outbox, own, brain, now_us, .. } = self;
        runtime.block_on(async {
            for _ in 0..20 {
                let mut woken = false;
                std::future::poll_fn(|cx| {
                    if std::mem::replace(&mut woken, true) {
                        return Poll::Ready(());
                    }
                    let mut context = Context {
                        sensors,
                        newest: None,
                        outbox: &mut *outbox,
                        own: &mut *own,
                        dialler: None,
                        brain: &mut *brain,
                        now_us: *now_us,
                        serve_again: false,
                    };
                    hosts.poll(cx, &mut context);
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        });
    }

    fn pass(&mut self, seconds: u64) {
        self.now_us += seconds * SECOND_US;
        self.run();
    }

    /// A controller that was welcomed.
    fn join(&mut self) -> Peer {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let _entered = self.runtime.enter();
        let stream = Stream::new(OwnedFd::from(here)).unwrap();
        self.hosts.add(stream, Origin::Control, &self.outbox, self.now_us);
        drop(_entered);
        self.run();
        let mut peer = Peer::new(there);
        peer.hello();
        peer.welcome_as(Role::CONTROLLER, 0);
        self.run();
        peer
    }

    fn join_and_decide(&mut self) -> (Peer, Epoch) {
        let mut peer = self.join();
        let epoch = peer.take_turn();
        self.run();
        (peer, epoch)
    }

    /// What has been said to a host about scaling.
    fn said(&mut self, peer: &mut Peer) -> Vec<Said> {
        self.run();
        let mut said = Vec::new();
        while let Some(next) = peer.next_within(Duration::from_millis(1)) {
            match next.expect("the session lives") {
                Said::Schema { .. } | Said::Sample { .. } | Said::Heartbeat(_) | Said::Event(_) => {}
                other => said.push(other),
            }
        }
        said
    }

    /// The one demand that was asked of a host.
    fn demand(&mut self, peer: &mut Peer) -> RequestId {
        match self.said(peer).as_slice() {
            [Said::Demand { request, id, withdrawn: false, mount: Some(mount) }] => {
                assert_eq!((*id, mount.len()), (DemandId(7), 255));
                *request
            }
            other => panic!("not one demand: {other:?}"),
        }
    }

    fn told(&mut self) -> Vec<String> {
        self.run();
        std::mem::take(&mut self.brain.told)
    }
}

fn answer(peer: &mut Peer, request: RequestId, outcome: DemandOutcome) {
    let answer = DemandAnswer { request, outcome, granted: Size::default(), retry_after_ms: 0 };
    assert!(peer.send(|out| answer.encode(out)));
}

fn downscale(peer: &mut Peer, request: u32, epoch: Epoch) {
    let (present, wanted) = (Size::default(), Size::default());
    let request = RequestId(request);
    assert!(peer.send(|out| Downscale { request, epoch, present, wanted, forced: false, within_ms: 1 }.encode(out)));
}

fn resized(peer: &mut Peer, request: u32, epoch: Epoch) {
    let (was, now) = (Size::default(), Size::default());
    let request = RequestId(request);
    assert!(peer.send(|out| Resized { request, epoch, was, now, within_ms: 1 }.encode(out)));
}

#[test]
fn a_demand_waits_for_a_host_that_decides_and_is_answered_once() {
    let mut guest = Guest::new();
    guest.brain.wanted = Some(DemandId(7));
    let mut peer = guest.join();
    let (turn, _) = peer.resume();
    assert_eq!(guest.said(&mut peer), [], "not before it has said that it decides");
    peer.role(turn, true);
    let request = guest.demand(&mut peer);
    answer(&mut peer, RequestId(request.0 + 2), DemandOutcome::DENIED);
    answer(&mut peer, request, DemandOutcome::PARTIAL);
    answer(&mut peer, request, DemandOutcome::DENIED);
    assert_eq!(guest.told(), ["answered 2"]);
    assert_eq!(guest.said(&mut peer), []);
    let counts = guest.own.scaling;
    assert_eq!((counts.demands_answered, counts.late_answers), ([0, 0, 1, 0, 0, 0], 2));
}

#[test]
fn a_demand_that_is_not_answered_is_asked_again_under_another_request() {
    let mut guest = Guest::new();
    let (mut peer, _) = guest.join_and_decide();
    guest.brain.wanted = Some(DemandId(7));
    let first = guest.demand(&mut peer);
    guest.pass(1);
    assert_eq!((guest.told(), guest.said(&mut peer)), (vec![], vec![]));
    guest.pass(1);
    assert_eq!(guest.told(), ["unanswered"]);
    let second = guest.demand(&mut peer);
    assert_eq!(second.0, first.0 + 2);
    answer(&mut peer, first, DemandOutcome::GRANTED);
    assert_eq!(guest.told(), [""; 0], "late");
    answer(&mut peer, second, DemandOutcome(99));
    assert_eq!(guest.told(), ["answered 99"]);
    let counts = guest.own.scaling;
    assert_eq!((counts.demands_unanswered, counts.demands_answered[0]), (1, 1));
}

#[test]
fn a_demand_goes_to_the_next_host_that_decides() {
    let mut guest = Guest::new();
    let (mut first, _) = guest.join_and_decide();
    guest.brain.wanted = Some(DemandId(7));
    let open = guest.demand(&mut first);
    let mut second = guest.join();
    let (request, _) = first.suspend();
    // Not stopped yet: it may still answer what it was asked, and nobody else is.
    assert_eq!((guest.said(&mut second), guest.told()), (vec![], vec![]));
    first.role(request, true);
    assert_eq!(guest.told(), ["gone", "unanswered"]);
    answer(&mut first, open, DemandOutcome::GRANTED);
    assert_eq!(guest.told(), [""; 0], "late");
    assert_eq!(second.take_turn(), Epoch(2));
    guest.demand(&mut second);
    // The session ends: the first decides again, and is asked.
    drop(second);
    assert_eq!(guest.told(), ["gone", "unanswered"]);
    assert_eq!(first.take_turn(), Epoch(3));
    let request = guest.demand(&mut first);
    answer(&mut first, request, DemandOutcome::GRANTED);
    assert_eq!(guest.told(), ["answered 1"]);
}

#[test]
fn a_demand_may_be_answered_by_a_host_that_is_about_to_stop() {
    let mut guest = Guest::new();
    let (mut first, _) = guest.join_and_decide();
    guest.brain.wanted = Some(DemandId(7));
    let open = guest.demand(&mut first);
    let _second = guest.join();
    first.suspend();
    answer(&mut first, open, DemandOutcome::GRANTED);
    assert_eq!(guest.told(), ["answered 1"]);
}

#[test]
fn answers_go_to_the_host_that_asked_and_to_none_after_its_turn() {
    let mut guest = Guest::new();
    let (mut first, epoch) = guest.join_and_decide();
    downscale(&mut first, 2, epoch);
    assert_eq!(guest.said(&mut first), []);
    guest.brain.answers = true;
    let denied = Said::DownscaleAnswer(RequestId(2), DownscaleOutcome::DENIED, "busy".to_owned());
    assert_eq!(guest.said(&mut first), [denied]);
    guest.brain.answers = false;
    downscale(&mut first, 4, epoch);
    guest.run();
    let mut second = guest.join();
    let (request, _) = first.suspend();
    first.role(request, true);
    guest.run();
    assert_eq!(second.take_turn(), Epoch(2));
    guest.brain.answers = true;
    assert_eq!((guest.said(&mut first), guest.said(&mut second)), (vec![], vec![]));
    assert_eq!(guest.told(), ["gone"]);
    // A command of the first comes too late, and reaches nobody.
    downscale(&mut first, 6, epoch);
    assert!(matches!(guest.said(&mut first).as_slice(), [Said::Stale(_)]));
    assert_eq!((guest.brain.question, guest.own.scaling.stale_commands), (None, 1));
}

#[test]
fn what_has_arrived_is_said_until_it_is_there_and_a_newer_command_takes_its_place() {
    let mut guest = Guest::new();
    let (mut peer, epoch) = guest.join_and_decide();
    resized(&mut peer, 2, epoch);
    guest.run();
    for outcome in [AppliedOutcome::NOT_YET, AppliedOutcome::NOT_YET, AppliedOutcome::APPLIED] {
        guest.brain.outcome = Some(outcome);
        match guest.said(&mut peer).as_slice() {
            [Said::Applied(applied)] => assert_eq!((applied.request, applied.outcome), (RequestId(2), outcome)),
            other => panic!("{other:?}"),
        }
    }
    resized(&mut peer, 4, epoch);
    guest.run();
    downscale(&mut peer, 6, epoch);
    guest.run();
    guest.brain.outcome = Some(AppliedOutcome::APPLIED);
    assert_eq!(guest.said(&mut peer), [], "the host has one command open, and that is the newer one");
    guest.brain.answers = true;
    assert!(matches!(guest.said(&mut peer).as_slice(), [Said::DownscaleAnswer(RequestId(6), ..)]));
}

#[test]
fn neon_5606_a_host_that_asks_without_end_gets_its_newest_answer_and_no_queue_grows() {
    let mut guest = Guest::new();
    let (mut peer, epoch) = guest.join_and_decide();
    guest.brain.answers = true;
    // Under the limit of frames in a second, all at once.
    for i in 1..=150 {
        downscale(&mut peer, i * 2, epoch);
    }
    let said = guest.said(&mut peer);
    let last = said.last();
    assert!(matches!(last, Some(Said::DownscaleAnswer(RequestId(300), ..))), "{last:?}");
    assert!(said.len() < 150, "the older ones get none");
}
