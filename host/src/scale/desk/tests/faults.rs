//! Turns that end, guests that are not proven, VMMs that change their mind: what may never lead to a resize.

use super::*;
use informant_wire::scale::Resized;

const GRANTED_AFTER_TURN: &str = "nothing that was decided in a turn outlives it";

impl Play {
    /// Time goes by without the VMM's being able to answer: what is to be asked of it first.
    fn next_act(&mut self) -> Option<Act> {
        self.now.mono_us += 100_000;
        self.desk.tick(None, true, self.now);
        let act = self.desk.take_act(self.now);
        self.collect();
        act
    }

    /// The VMM is told a size, and has not answered.
    fn until_told(&mut self) -> Size {
        for _ in 0..20 {
            match self.next_act() {
                Some(Act::Resize(wanted)) => return wanted,
                Some(Act::Observe) => self.desk.observed(Ok(self.reported()), self.now),
                None => {}
            }
        }
        panic!("the VMM is told nothing");
    }

    fn suspend(&mut self) {
        let request = self.request();
        self.hear(Said::Suspend(Suspend { request, epoch: Epoch(1) }));
        assert!(!self.desk.status(self.now).current);
    }

    fn resume(&mut self) {
        let request = self.request();
        self.hear(Said::Resume(Resume { request, epoch: Epoch(2) }));
    }

    fn stuck(&self, reason: &str) -> u64 {
        self.desk.counters.stuck.get(reason)
    }

    /// The guest was asked whether it can do with half, and can.
    fn approved(&mut self) {
        self.desk.ask(size(1, 1024), size(1, 512), false, self.now);
        self.collect();
        self.answer(DownscaleOutcome::APPROVED);
    }

    /// More was demanded, the VMM gives it, and the guest is told so.
    fn given(&mut self) -> Resized {
        self.demand(2048);
        (self.has, self.wish) = (self.until_told(), size(1, 2048));
        self.desk.resized(Ok(self.reported()), 0, self.now);
        self.collect();
        let told = self.said.iter().rev().find_map(|message| match message {
            Message::Resized(told) => Some(*told),
            _ => None,
        });
        self.said.clear();
        told.expect("the guest is told")
    }

    /// What the VMM refuses for a reason that passes.
    fn unreachable(&mut self) {
        self.desk.resized(Err(VmmError::Timeout("qemu took more than 10 s in all".into())), 0, self.now);
        self.collect();
    }
}

#[test]
fn as_114_a_drained_host_takes_nothing_back_later() {
    let mut play = Play::ready(None);
    play.gives = false;
    let _steps = play.command(512, false);
    play.answer(DownscaleOutcome::APPROVED);
    play.run(1000);
    assert_eq!(play.sent, [size(1, 512)]);
    play.suspend();
    play.run(120_000);
    assert_eq!(play.sent, [size(1, 512)], "{GRANTED_AFTER_TURN}");
}

#[test]
fn as_114_a_shrink_that_waits_for_its_next_try_ends_with_the_turn() {
    for ends in [
        Play::suspend,
        |play: &mut Play| play.desk.closed(SESSION, play.now),
        |play: &mut Play| {
            play.hear(Said::Stale(Stale { request: RequestId(77), current: Epoch(2) }));
        },
    ] {
        let mut play = Play::ready(compute_unit());
        play.approved();
        assert_eq!(play.until_told(), size(1, 512));
        play.unreachable();
        assert_eq!(play.desk.status(play.now).state, "resizing", "it is tried again");
        ends(&mut play);
        play.run(60_000);
        assert_eq!(play.sent, [], "{GRANTED_AFTER_TURN}");
    }
}

#[test]
fn a_call_to_the_vmm_that_fails_after_the_turn_is_not_tried_again() {
    let mut play = Play::ready(compute_unit());
    play.demand(2048);
    assert_eq!(play.until_told(), size(1, 2048));
    play.desk.closed(SESSION, play.now);
    play.unreachable();
    play.run(60_000);
    assert_eq!((play.sent.as_slice(), play.desk.status(play.now).state.as_str()), (&[][..], "idle"));
}

#[test]
fn as_24_a_demand_stops_a_shrink_that_was_approved_and_not_sent() {
    let mut play = Play::ready(compute_unit());
    play.approved();
    assert_eq!(play.desk.status(play.now).state, "resizing");
    assert_eq!(play.demand(1024), DemandOutcome::GRANTED);
    play.run(5000);
    assert_eq!(play.sent, [], "what was granted is not taken");
}

#[test]
fn as_560_while_the_vmm_is_told_to_shrink_nothing_is_granted_that_it_takes() {
    let mut play = Play::ready(compute_unit());
    play.approved();
    assert_eq!(play.until_told(), size(1, 512));
    assert_eq!(play.demand(1024), DemandOutcome::DENIED, "it can not be taken back while it is under way");
    (play.has, play.wish) = (size(1, 512), size(1, 512));
    play.desk.resized(Ok(play.reported()), 0, play.now);
    play.run(2000);
    assert_eq!(play.sent, [size(1, 1024)], "and is given next");
}

#[test]
fn as_413_approval_and_applied_count_only_of_who_is_proven() {
    let mut play = Play::ready(compute_unit());
    play.desk.ask(size(1, 1024), size(1, 512), false, play.now);
    play.collect();
    let question = play.question().unwrap();
    play.desk.heard(SESSION, false, &approval(question.request), play.now);
    assert_eq!(play.desk.status(play.now).state, "asking");
    play.now.mono_us += 6 * SECOND_US;
    play.desk.tick(None, false, play.now);
    assert_eq!((play.desk.status(play.now).state.as_str(), play.count("downscale", "timeout")), ("idle", 1));

    let mut play = Play::ready(compute_unit());
    let told = play.given();
    let seen = Seen { cpus: 64, memory_total: Bytes::mib(1 << 20), memory_online: None };
    let cause = AppliedCause::NONE;
    let lie = Applied { request: told.request, outcome: AppliedOutcome::APPLIED, cause, seen };
    play.desk.heard(SESSION, false, &Said::Applied(lie), play.now);
    assert_ne!(play.desk.status(play.now).guest_cpus, Some(64));
    assert_eq!(play.desk.counters.applied.memory_up, 0);
}

#[test]
fn what_the_guest_does_not_bring_online_is_stuck_with_its_cause() {
    let mut play = Play::ready(compute_unit());
    let told = play.given();
    for _ in 0..told.within_ms / 100 {
        if play.next_act() == Some(Act::Observe) {
            play.desk.observed(Ok(play.reported()), play.now);
        }
    }
    let seen = Seen { cpus: 1, memory_total: Bytes::mib(924), memory_online: None };
    let cause = AppliedCause::MEMORY_OFFLINE;
    play.hear(Said::Applied(Applied { request: told.request, outcome: AppliedOutcome::FAILED, cause, seen }));
    assert_eq!((play.stuck("guest_failed"), play.stuck("guest_silent")), (1, 0));
    assert_eq!(
        play.desk.status(play.now).stuck.as_deref(),
        Some("the guest has 1 CPU online, MemTotal 924 MiB: memory offline")
    );
}

#[test]
fn a_guest_that_begins_turn_after_turn_does_not_set_how_often_the_vmm_is_asked() {
    let mut play = Play::ready(compute_unit());
    let (mut asked, began) = (0, play.now);
    for _ in 0..1000 {
        play.now.mono_us += 10_000;
        play.resume();
        play.desk.tick(None, true, play.now);
        if play.desk.take_act(play.now) == Some(Act::Observe) {
            asked += 1;
            play.desk.observed(Ok(play.reported()), play.now);
        }
    }
    let at_most = play.now.since_us(began) / OBSERVE_SETTLING_US + 1;
    assert!(asked <= at_most, "{asked} times in 10 s");
}

#[test]
fn as_350_a_wish_that_somebody_takes_back_does_not_count_as_applied() {
    let mut play = Play::ready(compute_unit());
    play.gives = false;
    play.demand(2048);
    play.run(2000);
    assert_eq!(play.sent, [size(1, 2048)]);
    play.wish = play.has;
    play.run(1000);
    let counters = &play.desk.counters;
    assert_eq!((counters.stuck.get("vmm_did_not_give"), counters.applied.memory_up), (1, 0));
}

#[test]
fn as_350_what_arrives_late_counts_as_applied_once() {
    let mut play = Play::ready(compute_unit());
    play.gives = false;
    play.demand(2048);
    play.run(40_000);
    assert_eq!((play.stuck("vmm_did_not_give"), play.desk.counters.applied.memory_up), (1, 0));
    play.has = play.wish;
    play.run(60_000);
    assert_eq!((play.desk.counters.applied.memory_up, play.sent.len()), (1, 1));
}

#[test]
fn a_host_that_does_not_decide_resizes_only_by_force_and_says_what_it_does_not_know() {
    let mut play = Play::ready(compute_unit());
    play.suspend();
    let mut steps = play.command(2048, false);
    let (all, done) = last(&mut steps);
    assert_eq!(done, Some(false), "{all:?}");
    assert!(all.last().unwrap().contains("another host decides"), "{all:?}");
    let mut steps = play.command(2048, true);
    play.run(3000);
    let (all, done) = last(&mut steps);
    assert_eq!((done, play.sent.as_slice()), (Some(true), &[size(1, 2048)][..]), "{all:?}");
    assert!(all.last().unwrap().starts_with("the VMM gives 1 CPU, 2 GiB; no agent says what came of it"), "{all:?}");
    assert_eq!(play.desk.status(play.now).stuck, None);
}

#[test]
fn another_vmm_or_another_vm_has_nothing_to_do_with_what_was_under_way() {
    let mut play = Play::ready(compute_unit());
    let mut steps = play.command(2048, false);
    assert_eq!(play.until_told(), size(1, 2048));
    let bounds = policy::Bounds { min: size(1, 512), max: size(4, 4096) };
    let vmm = vmm::Config::Firecracker("/api.sock".into());
    play.desk.configure(Some(Settings { vmm, policy: None, bounds }), play.now);
    let (all, done) = last(&mut steps);
    assert_eq!(done, Some(false), "{all:?}");
    let late = Reported { has: size(3, 3072), wish: size(3, 3072), ..play.reported() };
    play.desk.resized(Ok(late), 0, play.now);
    play.desk.observed(Ok(late), play.now);
    let status = play.desk.status(play.now);
    assert_eq!(
        (status.vmm_has, status.state.as_str(), status.actuator.as_deref()),
        (None, "idle", Some("firecracker"))
    );
    play.run(2000);
    assert_eq!(play.sent, []);

    let mut play = Play::ready(compute_unit());
    play.demand(2048);
    assert_eq!(play.until_told(), size(1, 2048));
    play.desk.forget(play.now);
    play.desk.resized(Ok(late), 0, play.now);
    let status = play.desk.status(play.now);
    assert_eq!((status.vmm_has, status.demand, status.current), (None, None, false));
}

#[test]
fn the_same_vmm_configured_anew_goes_on_with_what_is_under_way() {
    let mut play = Play::ready(compute_unit());
    let mut steps = play.command(2048, false);
    assert_eq!(play.until_told(), size(1, 2048));
    let settings = play.desk.settings.clone();
    play.desk.configure(settings, play.now);
    play.wish = size(1, 2048);
    play.has = play.wish;
    play.desk.resized(Ok(play.reported()), 0, play.now);
    play.run(2000);
    assert_eq!(last(&mut steps).1, Some(true));
}

#[test]
fn a_guest_whose_host_has_no_policy_is_told_so_and_asks_again_in_a_minute() {
    let mut play = Play::ready(None);
    assert_eq!(play.demand(2048), DemandOutcome::UNSUPPORTED);
    let answer = play.said.iter().rev().find_map(|message| match message {
        Message::DemandAnswer(answer) => Some(answer.retry_after_ms),
        _ => None,
    });
    assert_eq!(answer, Some(60_000));
    play.run(5000);
    assert_eq!(play.sent, []);
}

#[test]
fn a_demand_lives_no_longer_than_the_protocol_says() {
    let mut play = Play::ready(compute_unit());
    let request = play.request();
    play.hear(Said::Demand(Demand {
        request,
        id: DemandId(1),
        cpu: None,
        memory: Some(Bytes::mib(9000)),
        disk: None,
        urgency: 50,
        reason: DemandReason::USAGE,
        expires_ms: u32::MAX,
    }));
    play.run(9000);
    assert!(play.desk.status(play.now).demand.is_some());
    play.run(1100);
    assert_eq!(play.desk.status(play.now).demand, None);
}

#[test]
fn a_daemon_that_hands_over_says_so_to_who_waits_for_a_resize() {
    let mut play = Play::ready(None);
    let mut steps = play.command(2048, false);
    play.desk.hand_over(play.now);
    let (all, done) = last(&mut steps);
    assert_eq!((done, all.last().unwrap().contains("another daemon takes over")), (Some(false), true));
}

#[test]
fn a_demand_s_way_to_the_vmm_is_counted_from_when_it_was_for_more() {
    let mut play = Play::ready(compute_unit());
    assert_eq!(play.demand(1024), DemandOutcome::GRANTED, "it has it");
    play.run(5000);
    assert_eq!(play.demand(2048), DemandOutcome::GRANTED);
    play.run(2000);
    assert_eq!(play.demand(2048), DemandOutcome::GRANTED);
    play.run(20_000);
    play.approved();
    play.run(2000);
    let leg = play.desk.counters.demand_to_vmm;
    assert_eq!((play.sent.as_slice(), leg.count), (&[size(1, 2048), size(1, 512)][..], 1));
    assert!(leg.max_us <= 100_000, "{leg:?}");
}

#[test]
fn a_vmm_that_comes_later_than_the_daemon_is_asked_as_soon_as_there_is_an_agent() {
    let mut play = Play::new(compute_unit());
    let down = |play: &mut Play| {
        let error = VmmError::Timeout("nobody listens".into());
        play.desk.observed(Err(error), play.now);
    };
    assert_eq!(play.next_act(), Some(Act::Observe));
    down(&mut play);
    let began = play.now;
    play.resume();
    play.demand(2048);
    while play.next_act() != Some(Act::Observe) {}
    assert!(play.now.since_us(began) <= OBSERVE_UNKNOWN_US);
    down(&mut play);
    assert_eq!((0..9).filter(|_| play.next_act().is_some()).count(), 0, "not without a pause");
    play.run(500);
    assert_eq!(play.sent, [size(1, 2048)]);
}

#[test]
fn a_person_waits_for_no_back_off_and_what_they_gave_up_is_not_done() {
    let mut play = Play::ready(None);
    let mut steps = play.command(2048, false);
    assert_eq!(play.until_told(), size(1, 2048));
    play.desk.resized(Err(VmmError::Refused("no such VM".into())), 0, play.now);
    assert_eq!(last(&mut steps).1, Some(false));
    let mut steps = play.command(2048, false);
    play.run(2000);
    assert_eq!((last(&mut steps).1, play.sent.as_slice()), (Some(true), &[size(1, 2048)][..]));

    let steps = play.command(3072, false);
    assert_eq!(play.until_told(), size(1, 3072));
    play.unreachable();
    drop(steps);
    play.run(60_000);
    assert_eq!(play.sent, [size(1, 2048)], "nobody waits for it");
}
