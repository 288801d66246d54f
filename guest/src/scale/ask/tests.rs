//! When a demand is asked, and what becomes of its answers.

use super::*;
use informant_wire::scale::RequestId;
use informant_wire::size::Bytes;
use proptest::prelude::*;

const S: u64 = 1_000_000;

fn wanted(mib: u64, urgency: u8) -> Wanted {
    Wanted {
        id: DemandId(0),
        cpu: None,
        memory: Some(Bytes::mib(mib)),
        disk: None,
        urgency,
        reason: DemandReason::USAGE,
        expires_ms: 10_000,
    }
}

fn answer(outcome: DemandOutcome, retry_after_ms: u32) -> DemandAnswer {
    DemandAnswer { request: RequestId(1), outcome, granted: Size::default(), retry_after_ms }
}

/// neon#5263: a thousand requests a second at the largest size.
#[test]
fn at_the_maximum_it_is_asked_once_a_second_and_later_where_told() {
    let mut asking = Asking::new(7);
    let (mut asked, mut now_us) = (0, 0);
    while now_us < 60 * S {
        asking.want(Some(wanted(512 + now_us / S, 50)), now_us);
        if asking.next(now_us).is_some() {
            asked += 1;
            asking.answered(&answer(DemandOutcome::AT_MAXIMUM, 0), now_us);
        }
        now_us += 100_000;
    }
    assert_eq!(asked, 60);
    asking.want(Some(wanted(900, 50)), now_us);
    assert!(asking.next(now_us).is_some());
    asking.answered(&answer(DemandOutcome::AT_MAXIMUM, 30_000), now_us);
    assert_eq!(asking.due_us(), now_us + 30 * S);
    asking.want(Some(wanted(5000, 55)), now_us + S);
    assert_eq!(asking.due_us(), now_us + 30 * S, "more is no news to one who has nothing");
    asking.want(Some(wanted(5000, 90)), now_us + S / 2);
    assert_eq!(asking.due_us(), now_us + S, "that it burns is, after a second");
    asking.next(now_us + S).unwrap();
    asking.answered(&answer(DemandOutcome::DENIED, u32::MAX), now_us + S);
    assert_eq!(asking.due_us(), now_us + S + LATEST_US);
}

/// A host that gives no disks says so for a minute; memory does not wait for that. as#444: seconds are what there is.
#[test]
fn another_resource_is_news_whatever_became_of_the_first() {
    let full_disk = Wanted {
        memory: None,
        disk: Some((heapless::Vec::new(), Bytes::gib(20))),
        reason: DemandReason::LOW_DISK,
        ..wanted(0, 60)
    };
    let both = Wanted { disk: full_disk.disk.clone(), ..wanted(640, 60) };
    for outcome in
        [DemandOutcome::UNSUPPORTED, DemandOutcome::DENIED, DemandOutcome::AT_MAXIMUM, DemandOutcome::PARTIAL]
    {
        let mut asking = Asking::new(0);
        asking.want(Some(full_disk.clone()), 0);
        asking.next(0).unwrap();
        asking.answered(&answer(outcome, 60_000), 0);
        asking.want(Some(both.clone()), S / 2);
        assert_eq!(asking.due_us(), S, "{outcome:?}");
        assert_eq!(asking.next(S).unwrap().memory, both.memory);
        asking.answered(&answer(outcome, 60_000), S);
        // One that comes and goes is news once.
        for tenth in 0..590 {
            let now_us = S + tenth * 100_000;
            asking.want(Some(if tenth % 2 == 0 { full_disk.clone() } else { both.clone() }), now_us);
            assert_eq!(asking.next(now_us), None, "{outcome:?} {tenth}");
        }
    }
}

#[test]
fn one_need_has_one_id_and_the_next_has_another() {
    let mut asking = Asking::new(u64::MAX - 1);
    asking.want(Some(wanted(512, 50)), 0);
    let first = asking.next(0).unwrap();
    asking.answered(&answer(DemandOutcome::GRANTED, 0), 1);
    assert_eq!(asking.due_us(), 1 + RENEW_US);
    asking.want(Some(wanted(1024, 50)), 2);
    let more = asking.next(S).unwrap();
    assert_eq!((more.id, more.memory), (first.id, Some(Bytes::mib(1024))));
    asking.answered(&answer(DemandOutcome::PARTIAL, 0), S);
    // It dips, and comes back before anybody was told.
    asking.want(None, S + 1);
    asking.want(Some(wanted(1024, 50)), S + 2);
    assert_eq!(asking.next(2 * S).unwrap().id, first.id);
    asking.unanswered(2 * S);
    asking.want(None, 2 * S + 1);
    assert_eq!(asking.next(2 * S + 1), None, "at most one a second, a withdrawal too");
    let back = asking.next(3 * S).unwrap();
    assert!(back.is_withdrawal() && back.id == first.id && back.reason == DemandReason::WITHDRAWN);
    asking.answered(&answer(DemandOutcome::GRANTED, 0), 3 * S);
    assert_eq!((asking.next(9 * S), asking.due_us()), (None, u64::MAX), "once");
    asking.want(Some(wanted(512, 50)), 10 * S);
    let next = asking.next(10 * S).unwrap();
    assert_ne!(next.id, first.id);
}

#[test]
fn what_was_never_asked_needs_no_withdrawal() {
    let mut asking = Asking::new(0);
    asking.want(Some(wanted(512, 50)), 0);
    asking.want(None, 1);
    assert_eq!((asking.due_us(), asking.next(9 * S)), (u64::MAX, None));
}

/// as#163, as#200: one failure is not the end; as#495: nothing is waited for that can not come.
#[test]
fn a_demand_goes_to_the_next_controller() {
    let mut asking = Asking::new(0);
    asking.want(Some(wanted(512, 50)), 0);
    let first = asking.next(0).unwrap();
    assert_eq!(asking.due_us(), u64::MAX, "an answer is waited for");
    asking.unanswered(100);
    assert_eq!(asking.due_us(), S);
    assert_eq!(asking.next(S).unwrap(), first);
    asking.answered(&answer(DemandOutcome::DENIED, 60_000), S);
    asking.unanswered(S + 1);
    assert_eq!(asking.due_us(), 2 * S, "what one denied the next may give");
    assert_eq!(asking.outcome, None);
}

#[test]
fn an_answer_that_nobody_waits_for_has_no_effect() {
    let mut asking = Asking::new(0);
    asking.answered(&answer(DemandOutcome::GRANTED, 0), 0);
    asking.want(Some(wanted(512, 50)), 0);
    asking.answered(&answer(DemandOutcome::AT_MAXIMUM, 60_000), 0);
    assert_eq!((asking.due_us(), asking.outcome), (0, None));
}

proptest! {
    /// A demand is never lost, never asked twice in a second, and never waits for longer than its bounds.
    #[test]
    fn asked_in_time_and_not_too_often(
        steps in prop::collection::vec((0_u8..6, 0_u64..3_000_000, 1_u64..4000, 0_u8..=100, 0_u16..9, 0_u32..100_000), 1..200)
    ) {
        let (mut asking, mut now_us, mut last) = (Asking::new(3), 0, None::<u64>);
        for (what, step, mib, urgency, outcome, retry) in steps {
            now_us += step;
            match what {
                0 => asking.want(Some(wanted(mib, urgency)), now_us),
                1 => asking.want(None, now_us),
                2 => { asking.answered(&answer(DemandOutcome(outcome), retry), now_us); }
                3 => asking.unanswered(now_us),
                _ => if asking.next(now_us).is_some() {
                    prop_assert!(last.is_none_or(|last| now_us >= last + EVERY_US));
                    last = Some(now_us);
                }
            }
            if asking.wanted().is_some() && asking.flight.is_none() {
                prop_assert!(asking.due_us() <= now_us + LATEST_US);
            }
        }
    }

    /// as#163: whatever a host says, or does not say, what is needed is asked again in the time that it told at most;
    /// and what was asked is taken back, once. neon#5263: meanwhile never twice in a second.
    #[test]
    fn a_need_is_not_lost_and_is_taken_back_once(
        replies in prop::collection::vec((0_u16..7, 0_u32..120_000, 0_u64..2_500_000, 1_u64..4000, 0_u8..=100), 1..40)
    ) {
        let (mut asking, mut now_us) = (Asking::new(9), 0);
        let (mut last_us, mut latest_us, mut id) = (None::<u64>, 0, None);
        for (outcome, retry, travel_us, mib, urgency) in replies {
            asking.want(Some(wanted(mib, urgency)), now_us);
            now_us = now_us.max(asking.due_us());
            prop_assert!(now_us <= latest_us, "asked at {now_us}, and not by {latest_us}");
            let asked = asking.next(now_us);
            prop_assert!(asked.as_ref().is_some_and(|asked| !asked.is_withdrawal()));
            prop_assert!(last_us.is_none_or(|last_us| now_us >= last_us + EVERY_US));
            prop_assert_eq!(*id.get_or_insert_with(|| asked.unwrap().id), asking.wanted().unwrap().id);
            last_us = Some(now_us);
            now_us += travel_us;
            if outcome == 0 {
                asking.unanswered(now_us);
                latest_us = now_us.max(last_us.unwrap() + EVERY_US);
            } else {
                prop_assert!(asking.answered(&answer(DemandOutcome(outcome), retry), now_us));
                let told_us = u64::from(retry) * 1000;
                latest_us = now_us + told_us.max(UNSUPPORTED_US);
            }
        }
        asking.want(None, now_us);
        let mut taken_back = 0;
        for _ in 0..300 {
            now_us += 100_000;
            if let Some(asked) = asking.next(now_us) {
                prop_assert!(asked.is_withdrawal() && Some(asked.id) == id);
                prop_assert!(last_us.is_none_or(|last_us| now_us >= last_us + EVERY_US));
                taken_back += 1;
                asking.answered(&answer(DemandOutcome::GRANTED, 0), now_us);
            }
        }
        prop_assert_eq!(taken_back, 1);
    }
}

/// Who comes while the host is not to be asked again is not left without an answer.
#[test]
fn a_host_s_no_stands_for_who_comes_later() {
    let mut asking = Asking::new(7);
    for (outcome, stands) in [
        (DemandOutcome::UNSUPPORTED, true),
        (DemandOutcome::AT_MAXIMUM, true),
        (DemandOutcome::DENIED, false),
        (DemandOutcome::PARTIAL, false),
    ] {
        asking.want(Some(wanted(900, 50)), 0);
        let now_us = asking.due_us();
        asking.next(now_us).unwrap();
        assert!(asking.answered(&answer(outcome, 60_000), now_us));
        let later = |wanted: &Wanted, now_us| asking.outcome_for(wanted, now_us, now_us).map(|outcome| outcome.outcome);
        assert_eq!(later(&wanted(900, 50), now_us + S).is_some(), stands, "{outcome:?}");
        let cpu = Wanted { cpu: Some(informant_wire::size::MilliCpu(2000)), ..wanted(900, 50) };
        assert_eq!(later(&cpu, now_us + S), None, "that was not asked");
        assert_eq!(later(&wanted(900, 50), asking.due_us()), None, "it is asked again");
        assert!(asking.outcome_for(&wanted(900, 50), now_us, now_us + S).is_some(), "who was there before has it");
    }
}
