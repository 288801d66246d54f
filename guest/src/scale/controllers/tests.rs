//! What others paid for, named for their bugs (as#: neondatabase/autoscaling), and the rules of who is tried.

use super::*;

const A: Key = Key(1);
const B: Key = Key(2);
const C: Key = Key(3);
const NOW: u64 = 50 * SECOND_US;

fn join(registry: &mut Registry, key: Key, now_us: u64) {
    assert!(registry.welcomed(key, Role::CONTROLLER, ControllerId([1; 16]), "host", now_us));
}

fn said(registry: &mut Registry) -> std::vec::Vec<(Key, Step, u64)> {
    std::iter::from_fn(|| registry.next_action()).map(|action| (action.key, action.step, action.epoch.0)).collect()
}

fn yes(registry: &mut Registry, key: Key, step: Step, epoch: u64, now_us: u64) {
    assert!(registry.answered(key, step, Epoch(epoch), true, now_us));
}

/// A decides, in its first turn.
fn held() -> Registry {
    let mut registry = Registry::new();
    join(&mut registry, A, NOW);
    assert_eq!(said(&mut registry), [(A, Step::Resume, 1)]);
    yes(&mut registry, A, Step::Resume, 1, NOW);
    assert_eq!(registry.current(), Some((A, Epoch(1))));
    registry
}

/// A was suspended for B, and B is asked to decide.
fn switching() -> Registry {
    let mut registry = held();
    join(&mut registry, B, NOW);
    assert_eq!(said(&mut registry), [(A, Step::Suspend, 1)]);
    yes(&mut registry, A, Step::Suspend, 1, NOW);
    assert_eq!(said(&mut registry), [(B, Step::Resume, 2)]);
    registry
}

#[test]
fn as_24_two_current_controllers_never() {
    let mut registry = held();
    join(&mut registry, B, NOW);
    // The old one is suspended before the new one hears anything.
    assert_eq!(said(&mut registry), [(A, Step::Suspend, 1)]);
    assert_eq!((registry.current(), registry.holder()), (None, Some((A, Epoch(1)))));
    yes(&mut registry, A, Step::Suspend, 1, NOW);
    assert_eq!(registry.may_command(A, Epoch(1)), Err(Epoch(2)), "its turn is over");
    assert_eq!(registry.may_command(B, Epoch(2)), Err(Epoch(2)), "and the next one has not begun");
    yes(&mut registry, B, Step::Resume, 2, NOW);
    assert_eq!(registry.may_command(B, Epoch(2)), Ok(()));
    assert_eq!(registry.may_command(B, Epoch(1)), Err(Epoch(2)));
}

#[test]
fn as_114_a_suspended_controller_has_five_seconds_to_drain() {
    let mut registry = held();
    join(&mut registry, B, NOW);
    said(&mut registry);
    let deadline_us = registry.deadline_us().unwrap();
    assert_eq!(deadline_us, NOW + 5 * SECOND_US);
    registry.check(deadline_us - 1);
    // What it has begun before it heard of this is still carried out, and B is not asked.
    assert_eq!(registry.may_command(A, Epoch(1)), Ok(()));
    assert_eq!(said(&mut registry), []);
    registry.check(deadline_us);
    assert_eq!(said(&mut registry), [(B, Step::Resume, 2)]);
    assert!(registry.may_command(A, Epoch(1)).is_err(), "not drained, but fenced");
    assert!(!registry.answered(A, Step::Suspend, Epoch(1), true, deadline_us), "late");
}

#[test]
fn one_that_can_not_stop_has_the_rest_of_its_time() {
    let mut registry = held();
    join(&mut registry, B, NOW);
    said(&mut registry);
    assert!(registry.answered(A, Step::Suspend, Epoch(1), false, NOW + 1));
    assert_eq!(said(&mut registry), []);
    registry.check(NOW + 5 * SECOND_US);
    assert_eq!(said(&mut registry), [(B, Step::Resume, 2)]);
}

#[test]
fn as_163_one_failed_resume_is_tried_again() {
    let mut registry = Registry::new();
    join(&mut registry, A, NOW);
    let mut now_us = NOW;
    let mut pauses = std::vec::Vec::new();
    for epoch in 1..10 {
        assert_eq!(said(&mut registry), [(A, Step::Resume, epoch)]);
        now_us = registry.deadline_us().unwrap();
        registry.check(now_us);
        assert_eq!(registry.take_failure(), Some((A, Failure::Silent)));
        assert_eq!(said(&mut registry), [(A, Step::Withdraw, epoch)], "should it hear of its turn late");
        let again_us = registry.deadline_us().unwrap();
        pauses.push((again_us - now_us) / SECOND_US);
        registry.check(again_us - 1);
        assert_eq!(said(&mut registry), []);
        registry.check(again_us);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30, 30]);
    yes(&mut registry, A, Step::Resume, 10, now_us);
    assert_eq!(registry.current(), Some((A, Epoch(10))));
}

#[test]
fn as_200_and_341_being_alive_is_nothing_the_registry_asks_for() {
    // Hours without a word to it: neither the current one nor one that waits is unregistered or asked.
    let mut registry = switching();
    yes(&mut registry, B, Step::Resume, 2, NOW);
    for hour in 1..10 {
        registry.check(NOW + hour * 3600 * SECOND_US);
        assert_eq!(said(&mut registry), []);
        assert_eq!(registry.current(), Some((B, Epoch(2))));
    }
    registry.ended(B, NOW + 40_000 * SECOND_US);
    assert_eq!(said(&mut registry), [(A, Step::Resume, 3)], "the suspended one is still there");
}

#[test]
fn as_217_words_of_unknown_sessions_have_no_effect() {
    let mut registry = held();
    let before = registry.clone();
    registry.ended(C, NOW);
    registry.heard(C, NOW);
    assert!(!registry.bye(C, NOW));
    for step in [Step::Suspend, Step::Resume, Step::Withdraw] {
        assert!(!registry.answered(C, step, Epoch(1), true, NOW));
    }
    assert_eq!(registry.may_command(C, Epoch(1)), Err(Epoch(1)));
    assert_eq!(registry, before);
}

#[test]
fn a_failed_switch_does_not_strand_the_old_controller() {
    for how in ["refuses", "is silent", "ends", "says bye"] {
        let mut registry = switching();
        let mut now_us = NOW;
        match how {
            "refuses" => assert!(registry.answered(B, Step::Resume, Epoch(2), false, NOW)),
            "is silent" => {
                now_us = registry.deadline_us().unwrap();
                assert_eq!(now_us, NOW + 2 * SECOND_US);
                registry.check(now_us);
            }
            "ends" => registry.ended(B, NOW),
            _ => assert!(!registry.bye(B, NOW), "it never was current"),
        }
        let all = said(&mut registry);
        assert!(all.contains(&(A, Step::Resume, 3)), "B {how}: {all:?}");
        yes(&mut registry, A, Step::Resume, 3, now_us);
        // And B is not tried again for a while, nor ever while A decides.
        registry.check(now_us + 1000 * SECOND_US);
        assert_eq!((said(&mut registry), registry.current()), (vec![], Some((A, Epoch(3)))), "B {how}");
    }
}

#[test]
fn one_that_failed_may_register_anew_at_once() {
    let mut registry = switching();
    assert!(registry.answered(B, Step::Resume, Epoch(2), false, NOW));
    yes(&mut registry, A, Step::Resume, 3, NOW);
    said(&mut registry);
    registry.ended(B, NOW);
    join(&mut registry, C, NOW);
    assert_eq!(said(&mut registry), [(A, Step::Suspend, 3)]);
}

#[test]
fn the_newest_of_those_that_were_not_tried_comes_first() {
    let mut registry = held();
    join(&mut registry, B, NOW);
    join(&mut registry, C, NOW);
    assert_eq!(said(&mut registry), [(A, Step::Suspend, 1)]);
    yes(&mut registry, A, Step::Suspend, 1, NOW);
    assert_eq!(said(&mut registry), [(C, Step::Resume, 2)]);
    assert!(registry.answered(C, Step::Resume, Epoch(2), false, NOW));
    assert_eq!(said(&mut registry), [(B, Step::Resume, 3)]);
    assert!(registry.answered(B, Step::Resume, Epoch(3), false, NOW));
    assert_eq!(said(&mut registry), [(A, Step::Resume, 4)]);
}

#[test]
fn a_newer_one_that_came_meanwhile_takes_over_at_once_and_an_older_one_never() {
    let mut registry = switching();
    join(&mut registry, C, NOW);
    yes(&mut registry, B, Step::Resume, 2, NOW);
    assert_eq!(said(&mut registry), [(B, Step::Suspend, 2)]);
    yes(&mut registry, B, Step::Suspend, 2, NOW);
    yes(&mut registry, C, Step::Resume, 3, NOW);
    registry.check(NOW + 100 * SECOND_US);
    assert_eq!(said(&mut registry), [(C, Step::Resume, 3)], "said before, and nothing since");
    registry.ended(C, NOW);
    assert_eq!(said(&mut registry), [(B, Step::Resume, 4)], "the one before");
}

#[test]
fn a_current_controller_that_leaves_while_it_drains_was_current() {
    let mut registry = held();
    join(&mut registry, B, NOW);
    said(&mut registry);
    assert!(registry.bye(A, NOW));
    assert_eq!(said(&mut registry), [(B, Step::Resume, 2)], "nothing is waited for");
}

#[test]
fn observers_are_listed_and_never_asked() {
    let mut registry = held();
    for (key, role) in [(B, Role::OBSERVER), (C, Role(77))] {
        assert!(registry.welcomed(key, role, ControllerId([9; 16]), "reader", NOW));
    }
    registry.heard(A, NOW + SECOND_US);
    assert_eq!(said(&mut registry), []);
    {
        let list = registry.list(NOW + 3 * SECOND_US);
        let seen = list.iter().map(|host| (host.name, host.role.0, host.current, host.epoch.0, host.heard_ms));
        assert!(seen.eq([("host", 1, true, 1, 2000), ("reader", 2, false, 0, 3000), ("reader", 77, false, 0, 3000)]));
    }
    assert!(!registry.bye(B, NOW));
    registry.ended(A, NOW);
    assert_eq!((said(&mut registry), registry.deadline_us()), (vec![], None));
    assert_eq!(registry.may_command(A, Epoch(1)), Err(Epoch(1)));
}

#[test]
fn as_367_there_is_room_for_as_many_as_are_served_and_no_more() {
    let mut registry = held();
    for key in 2..=4 {
        assert!(registry.welcomed(Key(key), Role::OBSERVER, ControllerId([0; 16]), "", NOW));
    }
    assert!(!registry.welcomed(Key(5), Role::CONTROLLER, ControllerId([0; 16]), "", NOW));
    assert_eq!((said(&mut registry), registry.current()), (vec![], Some((A, Epoch(1)))));
    assert_eq!(registry.list(NOW).len(), 4);
}
