//! When more is needed, and how much.

use super::*;
use proptest::prelude::*;

const MIB: u64 = Bytes::MIB;
const S: u64 = 1_000_000;

fn seen(now_us: u64, usage: u64) -> Seen {
    Seen {
        now_us,
        total: 472 * MIB,
        reserve: 40 * MIB,
        usage: Some(usage),
        growth: 0,
        signals: Signals::default(),
        cpus: 1,
        running: None,
    }
}

fn after(looks: &[Seen]) -> Option<Wanted> {
    let mut needs = Needs::default();
    looks.iter().for_each(|seen| needs.look(seen));
    needs.wanted()
}

#[test]
fn usage_at_its_share_wants_a_step_more() {
    let at = |usage| after(&[seen(S, usage)]);
    let share = 472 * MIB * 17 / 20;
    assert_eq!(at(share - MIB), None);
    let wanted = at(share + 1).unwrap();
    assert_eq!((wanted.memory, wanted.reason), (Some(Bytes(640 * MIB)), DemandReason::USAGE));
    assert_eq!((wanted.cpu, wanted.disk), (None, None));
    // Exactly 0.85 is enough: of 480 MiB it is 408.
    let exact = |usage| after(&[Seen { total: 480 * MIB, ..seen(S, usage) }]).is_some();
    assert!(exact(408 * MIB) && !exact(408 * MIB - 1));
}

/// as#444: a step at a time is slower than an allocation.
#[test]
fn growth_asks_before_it_is_too_late_and_for_enough() {
    let growing = Seen { growth: 40 * MIB, ..seen(S, 260 * MIB) };
    let wanted = after(&[growing]).unwrap();
    assert_eq!(wanted.reason, DemandReason::GROWTH);
    // (260 + 5 x 40) / 0.75 + 40 is 653 MiB: 768.
    assert_eq!(wanted.memory, Some(Bytes(768 * MIB)));
    assert_eq!(after(&[Seen { growth: MIB, usage: Some(400 * MIB), ..growing }]), None, "that is noise");
    let wild = after(&[Seen { growth: u64::MAX, ..growing }]).unwrap();
    assert_eq!(wild.memory, Some(Bytes(768 * MIB)), "twice 260 at most");
}

#[test]
fn pressure_and_limits_want_memory_where_it_would_help() {
    let with =
        |signals, usage| after(&[Seen { signals, ..seen(S, usage) }]).map(|wanted| (wanted.reason, wanted.urgency));
    let some = Signals { memory_some: true, ..Signals::default() };
    assert_eq!(with(some, 300 * MIB), Some((DemandReason::PRESSURE, 60)));
    assert_eq!(with(some, 100 * MIB), None, "a cgroup that is held small in a VM with room");
    let full = Signals { memory_full: true, ..some };
    assert_eq!(with(full, 300 * MIB), Some((DemandReason::PRESSURE, 80)));
    let limit = Signals { limit: true, ..Signals::default() };
    assert_eq!(with(limit, 300 * MIB), Some((DemandReason::CGROUP_EVENT, 60)));
    let oom = Signals { oom: true, ..limit };
    assert_eq!(with(oom, 300 * MIB), Some((DemandReason::CGROUP_EVENT, 100)));
}

#[test]
fn a_need_outlives_its_cause_a_little_and_ends_when_it_is_met() {
    let mut needs = Needs::default();
    needs.look(&seen(S, 450 * MIB));
    let first = needs.wanted().unwrap().memory.unwrap();
    needs.look(&seen(3 * S, 300 * MIB));
    assert_eq!(needs.wanted().unwrap().memory, Some(first), "usage dips for a moment");
    needs.look(&seen(4 * S, 300 * MIB));
    assert_eq!(needs.wanted(), None);
    needs.look(&seen(5 * S, 450 * MIB));
    assert!(needs.wanted().is_some());
    needs.look(&Seen { total: 600 * MIB, ..seen(5 * S + 1, 450 * MIB) });
    assert_eq!(needs.wanted(), None, "it is there");
}

#[test]
fn nothing_known_wants_nothing() {
    let blind = Seen { usage: None, ..seen(S, 0) };
    assert_eq!(after(&[blind]), None);
    assert_eq!(after(&[Seen { total: 0, ..seen(S, 450 * MIB) }]), None);
    assert_eq!(after(&[Seen { cpus: 0, running: Some(50), ..seen(S, 0) }]), None);
}

/// as#421: units are in types; as#1114: a queue, not a load average.
#[test]
fn a_run_queue_of_seconds_wants_cpus() {
    let mut needs = Needs::default();
    let mut now_us = S;
    let mut feed = |needs: &mut Needs, running, cpus, looks| {
        for _ in 0..looks {
            now_us += 200_000;
            needs.look(&Seen { running: Some(running), cpus, ..seen(now_us, 0) });
        }
        needs.wanted().and_then(|wanted| wanted.cpu)
    };
    assert_eq!(feed(&mut needs, 1, 1, 50), None, "one task on one CPU");
    assert_eq!(feed(&mut needs, 4, 1, 1), None, "a moment");
    assert_eq!(feed(&mut needs, 4, 1, 30), Some(MilliCpu(2000)), "at most twice as many");
    assert_eq!(feed(&mut needs, 4, 2, 10), Some(MilliCpu(4000)));
    assert_eq!(feed(&mut needs, 0, 4, 60), None);
}

#[test]
fn a_disk_that_is_nearly_full() {
    let with = |size, available| {
        let mut needs = Needs::default();
        needs.disk(Some((b"/data", size, available)));
        needs.wanted().and_then(|wanted| wanted.disk)
    };
    let total = |size, available| with(size, available).map(|(_, total)| total);
    assert_eq!(total(1000 * MIB, 50 * MIB), None);
    assert_eq!(total(1000 * MIB, 50 * MIB - 1), Some(Bytes(1216 * MIB)));
    assert_eq!(with(1000 * MIB, 0).unwrap().0, b"/data");
    assert_eq!(total(10_000 * Bytes::GIB, 9 * Bytes::GIB), None, "a part of a large one is much");
    assert_eq!(with(0, 0), None);
    let mut needs = Needs::default();
    needs.disk(Some((b"/", 1000 * MIB, 0)));
    assert_eq!(needs.wanted().unwrap().reason, DemandReason::LOW_DISK);
    needs.disk(None);
    assert_eq!(needs.wanted(), None);
}

proptest! {
    #[test]
    fn what_is_wanted_is_more_than_there_is(
        looks in prop::collection::vec((0_u64..4_000_000, any::<[u64; 4]>(), any::<[bool; 5]>(), any::<[u32; 2]>()), 1..40)
    ) {
        let mut needs = Needs::default();
        let mut now_us = 0;
        for (step, [total, reserve, usage, growth], flags, [cpus, running]) in looks {
            now_us += step;
            let [memory_some, memory_full, cpu_some, limit, oom] = flags;
            let signals = Signals { memory_some, memory_full, cpu_some, limit, oom };
            let seen = Seen { now_us, total, reserve, usage: Some(usage), growth, signals, cpus, running: Some(running) };
            needs.look(&seen);
            if let Some(wanted) = needs.wanted() {
                prop_assert!(!wanted.is_withdrawal() && wanted.urgency <= 100);
                prop_assert!(wanted.memory.is_none_or(|memory| memory.0 > total.saturating_add(reserve)));
                prop_assert!(wanted.cpu.is_none_or(|cpu| cpu.cpus() > cpus || cpu.0 == u32::MAX));
            }
        }
    }

    /// What is at its share is always wanted more of, and while the need lasts never less than before.
    #[test]
    fn full_is_never_missed_and_what_is_wanted_never_falls(
        total in 64_u64..1 << 20, looks in prop::collection::vec((0_u64..500_000, 0_u64..=100, any::<u32>()), 1..60)
    ) {
        let total = total * MIB;
        let (mut needs, mut now_us, mut before) = (Needs::default(), S, None::<Bytes>);
        for (step, percent, growth) in looks {
            now_us += step;
            let usage = total / 100 * percent;
            let lasts = needs.memory.is_some_and(|need| need.until_us > now_us);
            needs.look(&Seen { total, growth: u64::from(growth), ..seen(now_us, usage) });
            let memory = needs.wanted().and_then(|wanted| wanted.memory);
            if u128::from(usage) * 20 >= u128::from(total) * 17 {
                prop_assert!(memory.is_some());
            }
            if let (true, Some(memory)) = (lasts, memory) {
                prop_assert!(Some(memory) >= before);
            }
            before = memory;
        }
    }

    #[test]
    fn who_uses_more_or_grows_faster_never_wants_less(
        total in 64_u64..1 << 20, a in (0_u64..=100, any::<u32>()), b in (0_u64..=100, any::<u32>())
    ) {
        let total = total * MIB;
        let memory = |percent: u64, growth: u32| {
            let seen = Seen { total, growth: u64::from(growth), ..seen(S, total / 100 * percent) };
            after(&[seen]).and_then(|wanted| wanted.memory)
        };
        prop_assert!(memory(a.0.min(b.0), a.1.min(b.1)) <= memory(a.0.max(b.0), a.1.max(b.1)));
    }
}
