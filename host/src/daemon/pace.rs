//! When a status file is written: each instance has its own share, so that one with a large file, or whose state changes
//! without end, makes nobody else's file old. Pure.

use crate::model::budget::Bucket;
use crate::model::{Now, SECOND_US};
use std::sync::atomic::{AtomicU64, Ordering};

/// All files together, again and again, take so much of a core: a fiftieth, in equal shares.
const SHARE: u64 = 50;
/// No file is written again and again more often.
const AT_LEAST_US: u64 = SECOND_US;
/// However many instances there are, if the storage can do it.
const AT_MOST_US: u64 = 300 * SECOND_US;
/// A file is not written more often than this, even when states change without end.
const APART_US: u64 = SECOND_US / 10;
/// Writes because of changed states: so many at once, then one a second.
const CHANGES_AT_ONCE: u64 = 3;
/// After a write that failed.
const AGAIN_AFTER_US: u64 = SECOND_US;

/// What all instances have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    /// How many instances there are.
    pub(super) instances: usize,
    /// How long the storage took for a file lately, microseconds.
    pub(super) took_us: u64,
    /// What a file costs most instances lately, microseconds of CPU time.
    pub(super) cost_us: u64,
}

/// The median of what passes by, roughly, in constant space: however large a single value is, it moves it by a step.
#[derive(Debug)]
pub(super) struct Median(AtomicU64);

impl Median {
    pub(super) const fn new(guess: u64) -> Self {
        Self(AtomicU64::new(guess))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One thread adds, others read.
    pub(super) fn add(&self, value: u64) {
        let median = self.get();
        let step = median / 16 + 1;
        let moved = if value > median { median.saturating_add(step) } else { median.saturating_sub(step) };
        self.0.store(moved, Ordering::Relaxed);
    }
}

/// When the file may show that a state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeShows {
    /// It does, or is on its way to.
    Already,
    /// It may be written.
    Now,
    /// The instance has had its share.
    Later,
}

/// Of one instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When it is written next, if no state changes.
    due_us: u64,
    written_us: u64,
    /// A state changed that the file does not show yet.
    changed: bool,
    /// The writer has one to write: another one would only take memory while the storage is slow.
    queued: bool,
    /// CPU time that its file took lately.
    cost_us: u64,
    changes: Bucket,
}

impl Pace {
    pub(super) fn new(now: Now) -> Self {
        let changes = Bucket::new(1, CHANGES_AT_ONCE, now);
        Self { due_us: 0, written_us: 0, changed: false, queued: false, cost_us: 100, changes }
    }

    /// A state changed; false when that is known.
    pub(super) fn change(&mut self) -> bool {
        !std::mem::replace(&mut self.changed, true)
    }

    /// Whether it may be written because a state changed.
    pub(super) fn change_shows(&mut self, now: Now) -> ChangeShows {
        if !self.changed {
            return ChangeShows::Already;
        }
        let apart = self.written_us == 0 || now.mono_us >= self.written_us + APART_US;
        if !self.queued && apart && self.changes.has(1, now) { ChangeShows::Now } else { ChangeShows::Later }
    }

    /// Since when it should have been written again, if it should.
    pub(super) fn due_since(&self, now: Now) -> Option<u64> {
        (!self.queued && now.mono_us >= self.due_us).then_some(self.due_us)
    }

    /// What writing it costs, microseconds of CPU time.
    pub(super) const fn cost_us(&self) -> u64 {
        self.cost_us
    }

    /// It is on its way to the writer.
    pub(super) fn queue(&mut self, fleet: Fleet, now: Now) {
        if self.changed {
            self.changes.try_spend(now);
        }
        (self.changed, self.queued) = (false, true);
        self.written_us = now.mono_us;
        self.due_us = now.mono_us + self.every_us(fleet);
    }

    /// The writer is done with it. `cost_us`: CPU time it took.
    pub(super) fn written(&mut self, cost_us: u64, failed: bool, now: Now) {
        self.queued = false;
        self.cost_us = (self.cost_us * 3 + cost_us).div_ceil(4);
        if failed {
            self.due_us = self.due_us.min(now.mono_us + AGAIN_AFTER_US);
        }
    }

    /// Microseconds from one write to the next without a change.
    fn every_us(&self, fleet: Fleet) -> u64 {
        let instances = fleet.instances as u64;
        // An instance learns from its own files alone what one costs, which is slow where it has few.
        let cost_us = self.cost_us.max(fleet.cost_us);
        let share_us = cost_us.saturating_mul(SHARE).saturating_mul(instances);
        // One thread writes them one after the other: slower storage makes the round longer, whatever it costs.
        let round_us = fleet.took_us.saturating_mul(instances).saturating_mul(2);
        share_us.clamp(AT_LEAST_US, AT_MOST_US).max(round_us)
    }

    /// When a file that is written now is written again at the latest; wall clock, milliseconds.
    pub(super) fn promise_ms(&self, fleet: Fleet, now: Now) -> u64 {
        now.wall_ms + 2 * self.every_us(fleet) / 1000 + 5_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now { mono_us: ms * 1000, wall_ms: ms }
    }

    fn fleet(instances: usize) -> Fleet {
        Fleet { instances, took_us: 200, cost_us: 100 }
    }

    fn write(pace: &mut Pace, cost_us: u64, instances: usize, ms: u64) {
        pace.queue(fleet(instances), at(ms));
        pace.written(cost_us, false, at(ms));
    }

    #[test]
    fn a_large_file_is_written_less_often_and_a_small_one_beside_it_as_before() {
        let (mut large, mut small) = (Pace::new(at(0)), Pace::new(at(0)));
        for ms in [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000] {
            write(&mut large, 5_000, 25, ms);
            write(&mut small, 100, 25, ms);
        }
        assert!(small.due_since(at(9_000)).is_some());
        assert!(large.due_since(at(13_000)).is_none() && large.due_since(at(15_000)).is_some());
    }

    #[test]
    fn thousands_are_written_within_what_is_promised_and_slow_storage_stretches_that() {
        let mut pace = Pace::new(at(0));
        write(&mut pace, 100, 10_000, 1000);
        assert!(pace.due_since(at(50_000)).is_none() && pace.due_since(at(51_000)).is_some());
        assert_eq!(pace.promise_ms(fleet(10_000), at(1000)), 106_000);
        assert_eq!(pace.promise_ms(Fleet { took_us: 50_000, ..fleet(10_000) }, at(0)), 2_005_000);
    }

    #[test]
    fn what_files_have_come_to_cost_stretches_the_pace_of_those_that_have_not_been_written_since() {
        let mut pace = Pace::new(at(0));
        write(&mut pace, 100, 1_000, 1000);
        pace.queue(Fleet { cost_us: 400, ..fleet(1_000) }, at(10_000));
        pace.written(100, false, at(10_000));
        assert!(pace.due_since(at(29_000)).is_none() && pace.due_since(at(30_000)).is_some());
    }

    #[test]
    fn a_few_dear_files_move_no_median() {
        let median = Median::new(100);
        for number in 0..1_000 {
            median.add(if number % 10 == 0 { 50_000 } else { 300 });
        }
        assert!((250..500).contains(&median.get()), "{median:?}");
    }

    #[test]
    fn a_change_is_shown_at_once_and_changes_without_end_once_a_second() {
        let mut pace = Pace::new(at(0));
        let mut shown = Vec::new();
        for ms in (1000..6000).step_by(10) {
            pace.change();
            if pace.change_shows(at(ms)) == ChangeShows::Now {
                shown.push(ms);
                write(&mut pace, 100, 1, ms);
            }
        }
        assert_eq!(shown[..3], [1000, 1100, 1200]);
        assert!((3..=8).contains(&shown.len()), "{shown:?}");
    }

    #[test]
    fn while_one_is_on_its_way_there_is_no_other_and_a_failed_one_comes_again_soon() {
        let mut pace = Pace::new(at(0));
        assert!(pace.change() && !pace.change());
        pace.queue(fleet(10_000), at(10));
        pace.change();
        assert_eq!(pace.change_shows(at(5_000)), ChangeShows::Later);
        assert!(pace.due_since(at(500_000)).is_none());
        pace.written(100, true, at(5_000));
        assert_eq!(pace.change_shows(at(5_000)), ChangeShows::Now);
        assert!(pace.due_since(at(6_000)).is_some());
    }
}
