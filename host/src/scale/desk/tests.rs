//! A desk with a guest and a VMM that are played here, and a clock that only the test moves.

mod faults;

use super::*;
use crate::publish::scaling::{ResizeRequest, ResizeStep};
use crate::vmm::{Capabilities, CpuRange, MemoryRange, VmmError};
use informant_wire::scale::{
    Applied, AppliedCause, AppliedOutcome, Demand, DownscaleAnswer, DownscaleOutcome, DownscaleReason, Resume, Stale,
    Suspend,
};
use tokio::sync::mpsc;

const SESSION: SessionId = SessionId(7);

fn size(cpus: u32, mib: u64) -> Size {
    Size { cpu: MilliCpu::from_cpus(cpus), memory: Bytes::mib(mib) }
}

/// The guest's and the VMM's side. The VMM takes at once; the guest has what the VMM gives, less 100 MiB.
struct Play {
    desk: Desk,
    now: Now,
    has: Size,
    wish: Size,
    gives: bool,
    sent: Vec<Size>,
    said: Vec<Message>,
    next: RequestId,
}

impl Play {
    fn new(policy: Option<Policy>) -> Self {
        let mut desk = Desk::default();
        let bounds = policy::Bounds { min: size(1, 512), max: size(4, 4096) };
        let now = Now { mono_us: 1_000_000_000, wall_ms: 1 };
        let vmm = vmm::Config::Qemu("/qmp.sock".into());
        desk.configure(Some(Settings { vmm, policy, bounds }), now);
        desk.opened(SESSION);
        let (has, next) = (size(1, 1024), RequestId::FIRST_OF_GUEST);
        Self { desk, now, has, wish: has, gives: true, sent: Vec::new(), said: Vec::new(), next }
    }

    /// With a turn, and settled.
    fn ready(policy: Option<Policy>) -> Self {
        let mut play = Self::new(policy);
        play.run(1000);
        play.hear(Said::Resume(Resume { request: RequestId(1), epoch: Epoch(1) }));
        play.run(2000);
        assert_eq!(play.desk.status(play.now).state, "idle");
        play.said.clear();
        play
    }

    fn hear(&mut self, said: Said<'_>) {
        self.desk.heard(SESSION, true, &said, self.now);
        self.collect();
    }

    fn request(&mut self) -> RequestId {
        self.next = self.next.next();
        self.next
    }

    fn demand(&mut self, memory: u64) -> DemandOutcome {
        let request = self.request();
        self.hear(Said::Demand(Demand {
            request,
            id: DemandId(1),
            cpu: None,
            memory: Some(Bytes::mib(memory)),
            disk: None,
            urgency: 50,
            reason: DemandReason::USAGE,
            expires_ms: 10_000,
        }));
        let answer = |message: &Message| match message {
            Message::DemandAnswer(answer) if answer.request == request => Some(answer.outcome),
            _ => None,
        };
        self.said.iter().find_map(answer).expect("a demand is answered at once")
    }

    fn reported(&self) -> Reported {
        let can = Capabilities {
            cpu: CpuRange::whole(1, 4),
            memory: MemoryRange { min: Bytes::mib(512), max: Bytes::mib(4096), block: Bytes::mib(128) },
            balloon: false,
        };
        Reported { has: self.has, wish: self.wish, can, running: true }
    }

    fn collect(&mut self) {
        let (says, _) = self.desk.take_effects();
        self.said.extend(says.into_iter().map(|(_, message)| message));
    }

    /// Time goes by in tenths of a second; the VMM answers, the guest does not.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.now.mono_us += 100_000;
            self.desk.tick(None, true, self.now);
            while let Some(act) = self.desk.take_act(self.now) {
                match act {
                    Act::Observe => self.desk.observed(Ok(self.reported()), self.now),
                    Act::Resize(wanted) => {
                        self.sent.push(wanted);
                        self.wish = wanted;
                        if self.gives {
                            self.has = wanted;
                        }
                        self.desk.resized(Ok(self.reported()), 0, self.now);
                    }
                }
            }
            self.collect();
            self.answer_resized(AppliedOutcome::APPLIED);
        }
    }

    /// The guest's answer to what it was told.
    fn answer_resized(&mut self, outcome: AppliedOutcome) {
        let told: Vec<_> = self
            .said
            .iter()
            .filter_map(|message| match message {
                Message::Resized(told) => Some(*told),
                _ => None,
            })
            .collect();
        self.said.retain(|message| !matches!(message, Message::Resized(_)));
        for told in told {
            let seen = Seen {
                cpus: told.now.cpu.cpus(),
                memory_total: told.now.memory.saturating_sub(Bytes::mib(100)),
                memory_online: None,
            };
            self.hear(Said::Applied(Applied { request: told.request, outcome, cause: AppliedCause::NONE, seen }));
        }
    }

    fn question(&mut self) -> Option<informant_wire::scale::Downscale> {
        let at = self.said.iter().position(|message| matches!(message, Message::Downscale(_)))?;
        match self.said.remove(at) {
            Message::Downscale(question) => Some(question),
            _ => None,
        }
    }

    fn answer(&mut self, outcome: DownscaleOutcome) {
        let question = self.question().expect("the guest is asked");
        let reason =
            if outcome == DownscaleOutcome::APPROVED { DownscaleReason::ROOM } else { DownscaleReason::MEMORY_IN_USE };
        self.hear(Said::DownscaleAnswer(DownscaleAnswer {
            request: question.request,
            outcome,
            reason,
            usage: Bytes::mib(800),
            headroom: Bytes::mib(100),
            limit: Bytes::mib(816),
            retry_after_ms: 5000,
            text: "",
        }));
    }

    fn command(&mut self, memory: u64, force: bool) -> mpsc::Receiver<ResizeStep> {
        let (steps, said) = mpsc::channel(MAX_STEPS);
        let request = ResizeRequest { cpu_milli: None, memory_bytes: Some(Bytes::mib(memory).0), force };
        self.desk.command(request, steps, self.now).unwrap();
        self.collect();
        said
    }

    fn count(&self, message: &str, result: &str) -> u64 {
        self.desk.counters.messages.get(message, result)
    }
}

fn compute_unit() -> Option<Policy> {
    Some(policy::parse("compute-unit", None).unwrap())
}

fn approval(request: RequestId) -> Said<'static> {
    Said::DownscaleAnswer(DownscaleAnswer {
        request,
        outcome: DownscaleOutcome::APPROVED,
        reason: DownscaleReason::ROOM,
        usage: Bytes(0),
        headroom: Bytes(0),
        limit: Bytes(0),
        retry_after_ms: 0,
        text: "",
    })
}

fn last(steps: &mut mpsc::Receiver<ResizeStep>) -> (Vec<String>, Option<bool>) {
    let (mut all, mut done) = (Vec::new(), None);
    while let Ok(step) = steps.try_recv() {
        done = step.done;
        all.push(step.step);
    }
    (all, done)
}

#[test]
fn a_demand_is_granted_sent_told_and_applied_once() {
    let mut play = Play::ready(compute_unit());
    assert_eq!(play.demand(2048), DemandOutcome::GRANTED);
    assert_eq!(play.demand(2048), DemandOutcome::GRANTED, "a repeated one changes nothing");
    play.run(3000);
    assert_eq!(play.sent, [size(1, 2048)]);
    let status = play.desk.status(play.now);
    assert_eq!((status.state.as_str(), status.vmm_has), ("idle", Some(size(1, 2048).into())));
    assert_eq!(status.guest_memory_bytes, Some(Bytes::mib(1948).0));
    assert_eq!(
        (status.counters.as_ref().unwrap().applied.memory_up, status.counters.as_ref().unwrap().demand_to_vmm.count),
        (1, 1)
    );
    play.run(20_000);
    assert_eq!(play.desk.status(play.now).demand, None, "it expires unless it is renewed");
}

#[test]
fn at_the_maximum_the_guest_is_told_so_and_nothing_is_sent_again() {
    let mut play = Play::ready(compute_unit());
    assert_eq!(play.demand(9000), DemandOutcome::PARTIAL);
    play.run(3000);
    for _ in 0..5 {
        assert_eq!(play.demand(9000), DemandOutcome::AT_MAXIMUM);
        play.run(1000);
    }
    assert_eq!(play.sent, [size(1, 4096)]);
}

#[test]
fn as_593_a_grant_that_never_arrives_is_noticed_told_again_and_not_sent_again() {
    let mut play = Play::ready(compute_unit());
    play.gives = false;
    play.demand(2048);
    play.run(31_000);
    let status = play.desk.status(play.now);
    assert_eq!(status.counters.as_ref().unwrap().stuck.get("vmm_did_not_give"), 1);
    assert_eq!(status.stuck.as_deref(), Some("the VMM was asked for 1 CPU, 2 GiB and gives 1 CPU, 1 GiB"));
    play.run(120_000);
    assert_eq!(play.sent, [size(1, 2048)], "what was wished is never sent twice");
    play.has = play.wish;
    play.run(45_000);
    let status = play.desk.status(play.now);
    assert_eq!((status.stuck, status.state.as_str()), (None, "idle"));
}

#[test]
fn a_shrink_that_the_vmm_does_not_take_is_taken_back() {
    let mut play = Play::ready(None);
    play.gives = false;
    let mut steps = play.command(512, false);
    play.answer(DownscaleOutcome::APPROVED);
    play.run(40_000);
    assert_eq!(last(&mut steps).1, Some(false));
    assert_eq!(play.sent, [size(1, 512), size(1, 1024)]);
    let status = play.desk.status(play.now);
    assert_eq!((status.counters.as_ref().unwrap().stuck.get("vmm_did_not_take"), status.state.as_str()), (1, "idle"));
    assert_eq!((status.vmm_has, status.vmm_wish), (Some(size(1, 1024).into()), Some(size(1, 1024).into())));
}

#[test]
fn a_person_is_told_each_step_and_a_denial_with_its_numbers() {
    let mut play = Play::ready(None);
    let mut steps = play.command(512, false);
    play.answer(DownscaleOutcome::DENIED);
    let (all, done) = last(&mut steps);
    assert_eq!(done, Some(false));
    assert_eq!(all.last().unwrap(), "the guest refuses: 800 MiB in use and 100 MiB to spare do not fit into 816 MiB");
    assert!(play.sent.is_empty());
    let mut steps = play.command(512, false);
    play.answer(DownscaleOutcome::APPROVED);
    play.run(2000);
    let (all, done) = last(&mut steps);
    assert_eq!((done, all.len()), (Some(true), 7), "{all:?}");
    assert_eq!(play.sent, [size(1, 512)]);
    assert_eq!(play.desk.counters.denied.memory_down, 1);
}

#[test]
fn as_554_a_forced_downscale_has_a_deadline_and_needs_nobody() {
    let mut play = Play::ready(None);
    let mut steps = play.command(512, true);
    assert!(play.question().unwrap().forced);
    play.run(8000);
    assert_eq!((last(&mut steps).1, play.sent.as_slice()), (Some(true), &[size(1, 512)][..]));
    play.desk.closed(SESSION, play.now);
    let mut steps = play.command(1024, true);
    play.run(40_000);
    let mut down = play.command(512, true);
    play.run(40_000);
    assert_eq!((last(&mut steps).1, last(&mut down).1), (Some(true), Some(true)));
}

#[test]
fn a_demand_turns_a_question_around_and_its_answer_has_no_effect() {
    let mut play = Play::ready(compute_unit());
    play.desk.ask(size(1, 1024), size(1, 512), false, play.now);
    play.collect();
    let question = play.question().unwrap();
    assert_eq!(play.demand(2048), DemandOutcome::GRANTED);
    let late = play.count("late", "ignored");
    play.hear(approval(question.request));
    assert_eq!(play.count("late", "ignored"), late + 1);
    play.run(2000);
    assert_eq!(play.sent, [size(1, 2048)]);
}

#[test]
fn as_114_suspended_means_drained() {
    let mut play = Play::ready(compute_unit());
    play.demand(2048);
    play.now.mono_us += 100_000;
    play.desk.tick(None, true, play.now);
    assert!(matches!(play.desk.take_act(play.now), Some(Act::Resize(_))));
    let request = play.request();
    play.hear(Said::Suspend(Suspend { request, epoch: Epoch(1) }));
    assert!(!play.said.iter().any(|message| matches!(message, Message::RoleAnswer(_))), "the VMM is still being asked");
    play.wish = size(1, 2048);
    play.desk.resized(Ok(play.reported()), 0, play.now);
    play.collect();
    assert!(
        play.said.iter().any(|message| matches!(message, Message::RoleAnswer(answer) if answer.request == request))
    );
    assert!(!play.desk.status(play.now).current);
    assert_eq!(play.demand(4096), DemandOutcome::DENIED);
    play.run(5000);
    assert!(play.sent.is_empty(), "nothing is begun after that");
}

#[test]
fn a_stale_turn_and_a_lost_session_void_what_was_asked() {
    let mut play = Play::ready(compute_unit());
    play.desk.ask(size(1, 1024), size(1, 512), false, play.now);
    play.collect();
    let question = play.question().unwrap();
    play.hear(Said::Stale(Stale { request: question.request, current: Epoch(2) }));
    let status = play.desk.status(play.now);
    assert_eq!((status.current, status.state.as_str()), (false, "idle"));
    play.hear(Said::Resume(Resume { request: RequestId(9), epoch: Epoch(3) }));
    assert!(play.desk.status(play.now).current);
    play.demand(2048);
    play.desk.closed(SESSION, play.now);
    assert!(!play.desk.status(play.now).current);
    assert!(play.desk.demand.is_some(), "what the guest wants outlives its connection");
}

#[test]
fn who_is_not_proven_scales_nothing() {
    let mut play = Play::ready(compute_unit());
    let demand = Demand {
        request: RequestId(11),
        id: DemandId(1),
        cpu: None,
        memory: Some(Bytes::mib(2048)),
        disk: None,
        urgency: 50,
        reason: DemandReason::USAGE,
        expires_ms: 10_000,
    };
    play.desk.heard(SESSION, false, &Said::Demand(demand), play.now);
    play.desk.heard(SessionId(99), true, &Said::Demand(demand), play.now);
    play.collect();
    assert_eq!(play.said.len(), 1, "a session that takes no part is not answered");
    assert!(matches!(play.said[0], Message::DemandAnswer(answer) if answer.outcome == DemandOutcome::DENIED));
    play.run(3000);
    assert!(play.sent.is_empty());
}

#[test]
fn a_vmm_that_fails_is_tried_again_and_then_given_up() {
    let mut play = Play::ready(None);
    let mut steps = play.command(2048, false);
    let mut tries = 0;
    for _ in 0..600 {
        play.now.mono_us += 100_000;
        play.desk.tick(None, true, play.now);
        match play.desk.take_act(play.now) {
            Some(Act::Observe) => play.desk.observed(Ok(play.reported()), play.now),
            Some(Act::Resize(_)) => {
                tries += 1;
                play.desk.resized(Err(VmmError::Timeout("qemu took more than 10 s in all".into())), 0, play.now);
            }
            None => {}
        }
    }
    let (all, done) = last(&mut steps);
    assert_eq!((tries, done), (3, Some(false)), "{all:?}");
    assert_eq!(play.desk.counters.stuck.get("vmm_unreachable"), 1);
}

#[test]
fn a_new_turn_tells_the_guest_what_the_vmm_gives() {
    let mut play = Play::new(compute_unit());
    play.wish = size(2, 2048);
    play.run(1000);
    play.hear(Said::Resume(Resume { request: RequestId(1), epoch: Epoch(1) }));
    assert!(play.said.iter().any(|message| matches!(message, Message::Resized(told) if told.now == size(2, 2048))));
    play.has = play.wish;
    play.run(2000);
    assert!(play.sent.is_empty());
    assert_eq!(play.desk.status(play.now).state, "idle");
}

#[test]
fn beyond_the_bounds_only_by_force_and_one_at_a_time() {
    let mut play = Play::ready(None);
    let (steps, _said) = mpsc::channel(MAX_STEPS);
    let request = ResizeRequest { cpu_milli: Some(9000), memory_bytes: None, force: false };
    let refused = play.desk.command(request, steps.clone(), play.now);
    assert!(matches!(refused, Err(Refusal::Bounds { .. })));
    let forced = play.desk.command(ResizeRequest { force: true, ..request }, steps.clone(), play.now);
    assert!(matches!(forced, Err(Refusal::Vmm(_))), "the VMM has its own");
    assert_eq!(play.desk.command(ResizeRequest::default(), steps.clone(), play.now), Err(Refusal::Nothing));
    let fine = ResizeRequest { cpu_milli: Some(2000), ..request };
    assert_eq!(play.desk.command(fine, steps.clone(), play.now), Ok(()));
    assert_eq!(play.desk.command(fine, steps, play.now), Err(Refusal::Busy));
}
