//! Exact boundaries of becoming smaller, for VMs of 128 MiB, 512 MiB and 4 GiB.

use super::*;
use informant_wire::size::MilliCpu;
use proptest::prelude::*;

const MIB: u64 = Bytes::MIB;

fn size(memory: u64) -> Size {
    Size { cpu: MilliCpu(1000), memory: Bytes(memory) }
}

fn question(present: u64, wanted: u64) -> Question {
    Question { present: size(present), wanted: size(wanted), forced: false }
}

fn facts(usage: u64, total: u64) -> Facts {
    Facts { usage: Usage::Known(usage), total, approved: None, demanded: Size::default() }
}

fn verdict(facts: &Facts, question: &Question) -> (DownscaleOutcome, DownscaleReason) {
    let decision = decide(facts, question);
    (decision.outcome, decision.reason)
}

const ROOM: (DownscaleOutcome, DownscaleReason) = (DownscaleOutcome::APPROVED, DownscaleReason::ROOM);
const IN_USE: (DownscaleOutcome, DownscaleReason) = (DownscaleOutcome::DENIED, DownscaleReason::MEMORY_IN_USE);

/// Usage + headroom exactly equal is approved, one byte over is not.
#[test]
fn exactly_equal_is_approved_and_one_byte_over_is_denied() {
    // Present, wanted, MemTotal now: VMs that shrink to 128 MiB, 512 MiB and 4 GiB.
    for (present, wanted, total) in
        [(256 * MIB, 128 * MIB, 220 * MIB), (1024 * MIB, 512 * MIB, 980 * MIB), (8192 * MIB, 4096 * MIB, 7900 * MIB)]
    {
        let question = question(present, wanted);
        let usable = total - (present - wanted);
        // The largest whole number of bytes that fits.
        let most = usable * 17 / 20 - headroom(wanted);
        assert_eq!(verdict(&facts(most, total), &question), ROOM, "{wanted}");
        assert_eq!(verdict(&facts(most + 1, total), &question), IN_USE, "{wanted}");
    }
    // A usable size of which 0.85 is whole: equal to the byte.
    let question = question(300 * MIB, 200 * MIB);
    let total = 100 * MIB + 200 * MIB;
    assert_eq!(u128::from(170 * MIB - 20 * MIB + 20 * MIB) * 20, u128::from(200 * MIB) * 17);
    assert_eq!(verdict(&facts(150 * MIB, total), &question), ROOM);
    assert_eq!(verdict(&facts(150 * MIB + 1, total), &question), IN_USE);
    // 0.85 of it is not whole: what is below the fraction fits, the next byte does not.
    assert!(fits(18, 22) && !fits(19, 22));
}

#[test]
fn headroom_is_a_tenth_between_16_and_100_mib() {
    for (wanted, expected) in [
        (0, 16 * MIB),
        (128 * MIB, 16 * MIB),
        (160 * MIB, 16 * MIB),
        (512 * MIB, 512 * MIB / 10),
        (1000 * MIB, 100 * MIB),
        (4096 * MIB, 100 * MIB),
        (u64::MAX, 100 * MIB),
    ] {
        assert_eq!(headroom(wanted), expected);
    }
}

/// All subtractions saturate.
#[test]
fn sizes_that_nobody_has_decide_nothing_wrong() {
    let max = u64::MAX;
    // Wanted is larger than present: no memory is taken.
    assert_eq!(
        verdict(&facts(900 * MIB, 1000 * MIB), &question(MIB, max)),
        (DownscaleOutcome::APPROVED, DownscaleReason::NO_MEMORY_TAKEN)
    );
    // More is taken than there is.
    assert_eq!(verdict(&facts(0, 1000 * MIB), &question(max, 0)), IN_USE);
    assert_eq!(decide(&facts(0, 1000 * MIB), &question(max, 0)).limit, Bytes(0));
    // The sum of usage and headroom is more than 64 bits.
    assert_eq!(verdict(&facts(max, max), &question(max, max - 1)), IN_USE);
    assert_eq!(share_of(max), u64::try_from(u128::from(max) * 17 / 20).unwrap());
}

/// neon#5606, as#572: the first samples are no error, and dead sensors are no denial.
#[test]
fn four_outcomes_are_four() {
    let shrink = question(1024 * MIB, 512 * MIB);
    let with = |usage| Facts { usage, ..facts(0, 980 * MIB) };
    let few = decide(&with(Usage::TooFew), &shrink);
    assert_eq!((few.outcome, few.reason), (DownscaleOutcome::NOT_READY, DownscaleReason::TOO_FEW_SAMPLES));
    assert!(few.retry_after_ms > 0, "the host is told when");
    let dead = decide(&with(Usage::Dead), &shrink);
    assert_eq!((dead.outcome, dead.reason), (DownscaleOutcome::FAILED, DownscaleReason::NO_SAMPLES));
    assert_eq!(verdict(&facts(100 * MIB, 980 * MIB), &shrink), ROOM);
    assert_eq!(verdict(&facts(900 * MIB, 980 * MIB), &shrink), IN_USE);
}

/// CPU is never denied for memory.
#[test]
fn only_cpus_need_no_samples() {
    let mut less = question(512 * MIB, 512 * MIB);
    less.present.cpu = MilliCpu(2000);
    for usage in [Usage::Dead, Usage::TooFew, Usage::Known(u64::MAX)] {
        let facts = Facts { usage, ..facts(0, 480 * MIB) };
        assert_eq!(verdict(&facts, &less), (DownscaleOutcome::APPROVED, DownscaleReason::NO_MEMORY_TAKEN));
    }
}

#[test]
fn an_open_demand_keeps_only_what_it_wants() {
    let open = (DownscaleOutcome::DENIED, DownscaleReason::DEMAND_OPEN);
    let shrink = question(1024 * MIB, 512 * MIB);
    let wants = |cpu, memory| Facts {
        demanded: Size { cpu: MilliCpu(cpu), memory: Bytes(memory) },
        ..facts(10 * MIB, 980 * MIB)
    };
    assert_eq!(verdict(&wants(0, 1024 * MIB), &shrink), open);
    assert_eq!(verdict(&wants(0, 512 * MIB), &shrink), ROOM, "what is left is what is wanted");
    assert_eq!(verdict(&wants(4000, 0), &shrink), ROOM, "CPUs are wanted, memory is taken");
    let mut less = question(1024 * MIB, 1024 * MIB);
    less.present.cpu = MilliCpu(2000);
    assert_eq!(verdict(&wants(2000, 0), &less), open);
    assert_eq!(verdict(&wants(0, 4096 * MIB), &less).0, DownscaleOutcome::APPROVED);
}

/// as#554: a guest does not veto for ever.
#[test]
fn forced_is_approved_with_the_numbers() {
    let forced = Question { forced: true, ..question(1024 * MIB, 512 * MIB) };
    for usage in [Usage::Dead, Usage::TooFew, Usage::Known(900 * MIB)] {
        let facts = Facts { usage, ..facts(0, 980 * MIB) };
        let decision = decide(&facts, &forced);
        assert_eq!((decision.outcome, decision.reason), (DownscaleOutcome::APPROVED, DownscaleReason::FORCED));
        assert_eq!(decision.limit.0, share_of(468 * MIB));
    }
}

/// What is promised is gone, though MemTotal does not know.
#[test]
fn approved_memory_counts_as_gone_once() {
    let first = question(4096 * MIB, 2048 * MIB);
    let (total, usage) = (4000 * MIB, 1000 * MIB);
    let decision = decide(&facts(usage, total), &first);
    assert_eq!(decision.outcome, DownscaleOutcome::APPROVED);
    let approved = Some(Approved { at_us: 0, memory: 2048 * MIB, total: decision.usable_after });
    let later = Facts { approved, ..facts(usage, total) };
    // The same question again: the same answer.
    assert_eq!(decide(&later, &first), decision);
    // From the new size, before the kernel let go of anything: 512 MiB more would leave 1440, not 3488.
    let next = question(2048 * MIB, 1536 * MIB);
    assert_eq!(decide(&facts(usage, total), &next).usable_after, 3488 * MIB);
    assert_eq!(decide(&later, &next).usable_after, 1440 * MIB);
    // When it has let go of it the promise changes nothing.
    let taken = Facts { total: decision.usable_after, ..later };
    assert_eq!(decide(&taken, &next).usable_after, 1440 * MIB);
    // A smaller step after a larger promise is no new room.
    assert_eq!(decide(&later, &question(4096 * MIB, 3072 * MIB)).usable_after, 1952 * MIB);
}

/// as#593: the guest was told of memory that is not there. What the host gives is no room; what the kernel has is.
#[test]
fn what_is_given_and_not_there_is_no_room() {
    let (present, wanted) = (8192 * MIB, 6144 * MIB);
    // Of 8 GiB, half has not come.
    let decision = decide(&facts(1800 * MIB, 4000 * MIB), &question(present, wanted));
    assert_eq!(decision.usable_after, 1952 * MIB);
    assert_eq!((decision.outcome, decision.reason), IN_USE);
    assert_eq!(verdict(&facts(1800 * MIB, 8000 * MIB), &question(present, wanted)), ROOM);
}

/// as#572: each answer that is no approval says when to come again; an approval does not.
#[test]
fn who_is_not_approved_is_told_when_to_ask_again() {
    let shrink = question(1024 * MIB, 512 * MIB);
    for usage in [Usage::Dead, Usage::TooFew, Usage::Known(0), Usage::Known(900 * MIB)] {
        for demanded in [Size::default(), size(2048 * MIB)] {
            let decision = decide(&Facts { usage, demanded, ..facts(0, 980 * MIB) }, &shrink);
            assert_eq!(decision.outcome == DownscaleOutcome::APPROVED, decision.retry_after_ms == 0, "{decision:?}");
        }
    }
}

proptest! {
    /// Against fractions, made otherwise: x fits if 100 x is not over 85 of what is usable, to the byte.
    #[test]
    fn room_is_where_the_fraction_says_so(
        total in 0_u64..1 << 44, taken in 0_u64..1 << 44, wanted in 0_u64..1 << 44, near in -2_i64..3, far in any::<u32>()
    ) {
        let question = question(wanted.saturating_add(taken), wanted);
        let usable = total.saturating_sub(taken);
        let limit = usable - (usable * 3).div_ceil(20);
        for usage in [limit.saturating_sub(headroom(wanted)).saturating_add_signed(near), u64::from(far)] {
            let decision = decide(&facts(usage, total), &question);
            let has_room = (usage + headroom(wanted)) * 100 <= usable * 85;
            let expected = if taken == 0 { DownscaleReason::NO_MEMORY_TAKEN }
                else if has_room { DownscaleReason::ROOM } else { DownscaleReason::MEMORY_IN_USE };
            prop_assert_eq!(decision.reason, expected);
            prop_assert_eq!(decision.limit.0, limit);
        }
    }

    #[test]
    fn less_wanted_never_leaves_more(
        total in any::<u64>(), present in any::<u64>(), a in any::<u64>(), b in any::<u64>(), usage in any::<u64>(),
        promised in prop::option::of((any::<u64>(), any::<u64>())),
    ) {
        let approved = promised.map(|(memory, total)| Approved { at_us: 0, memory, total });
        let facts = Facts { approved, ..facts(usage, total) };
        let (less, more) = (question(present, a.min(b)), question(present, a.max(b)));
        let (less, more) = (decide(&facts, &less), decide(&facts, &more));
        prop_assert!(less.usable_after <= more.usable_after);
        prop_assert!(more.usable_after <= total);
        if less.reason == DownscaleReason::ROOM {
            prop_assert!(u128::from(less.usage.0) + u128::from(less.headroom.0) <= u128::from(less.limit.0));
        }
    }
}
