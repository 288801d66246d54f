//! What was seen of memory over the last seconds: averages by time, growth, and whether anything was seen at all.
//! Knows no clock and no file, and no connection: a host that comes back finds the history as it was.

/// Looks that are kept: six seconds at ten a second.
const LOOKS: usize = 64;
/// Averages are over so long.
pub const AVERAGE_US: u64 = 500_000;
/// Growth is looked at over so long at most, and not under [`GROWTH_LEAST_US`].
const GROWTH_US: u64 = 3_000_000;
const GROWTH_LEAST_US: u64 = 1_000_000;
/// Without a look for so long nothing is known any more.
pub const DEAD_AFTER_US: u64 = 5_000_000;
/// Fewer looks than this decide nothing.
const FEWEST: usize = 2;

/// One look at memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// When, boot time.
    pub at_us: u64,
    /// MemTotal, bytes.
    pub total: u64,
    /// In use in the VM: MemTotal − MemAvailable, bytes.
    pub vm: u64,
    /// In use in the watched cgroup and not to be reclaimed, bytes; 0 without one.
    pub group: u64,
}

/// What is known of memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// No look for over five seconds.
    Dead,
    /// Too few so far.
    TooFew,
    /// Bytes, averaged over half a second.
    Known(u64),
}

/// The last looks.
#[derive(Debug)]
pub struct History {
    ring: heapless::Deque<Look, LOOKS>,
    /// When the first look could have been.
    began_us: u64,
}

impl History {
    /// Nothing seen yet.
    #[must_use]
    pub const fn new(now_us: u64) -> Self {
        Self { ring: heapless::Deque::new(), began_us: now_us }
    }

    /// Takes a look in. One that is not newer than the last replaces it.
    pub fn push(&mut self, look: Look) {
        if self.ring.back().is_some_and(|last| look.at_us <= last.at_us) {
            self.ring.pop_back();
        }
        if self.ring.is_full() {
            self.ring.pop_front();
        }
        let _ = self.ring.push_back(look);
    }

    /// The newest look.
    #[must_use]
    pub fn newest(&self) -> Option<Look> {
        self.ring.back().copied()
    }

    /// Memory in use: of VM and watched cgroup the larger.
    #[must_use]
    pub fn usage(&self, now_us: u64) -> Usage {
        let last_us = self.ring.back().map_or(self.began_us, |look| look.at_us);
        if now_us.saturating_sub(last_us) > DEAD_AFTER_US {
            return Usage::Dead;
        }
        let fresh = self.ring.iter().filter(|look| now_us.saturating_sub(look.at_us) <= DEAD_AFTER_US);
        if fresh.count() < FEWEST {
            return Usage::TooFew;
        }
        Usage::Known(self.average(now_us))
    }

    /// Each look stands for the time since the one before it, the newest for the time up to `end_us` as well: one that
    /// came late weighs as much as it should.
    fn average(&self, end_us: u64) -> u64 {
        let begin_us = end_us.saturating_sub(AVERAGE_US);
        let (mut vm, mut group, mut weight) = (0_u128, 0_u128, 0_u128);
        let mut before_us = begin_us;
        let mut looks = self.ring.iter().filter(|look| look.at_us <= end_us).peekable();
        let mut last = Look::default();
        while let Some(look) = looks.next() {
            let until_us = if looks.peek().is_some() { look.at_us } else { end_us };
            let share = u128::from(until_us.saturating_sub(before_us.max(begin_us)));
            vm += u128::from(look.vm) * share;
            group += u128::from(look.group) * share;
            weight += share;
            before_us = until_us;
            last = *look;
        }
        match vm.max(group).checked_div(weight) {
            Some(average) => u64::try_from(average).unwrap_or(u64::MAX),
            None => last.vm.max(last.group),
        }
    }

    /// Bytes a second by which memory in use grew over the last seconds; 0 when it fell, or where too little was seen.
    #[must_use]
    pub fn growth(&self, now_us: u64) -> u64 {
        let Some(oldest) = self.ring.iter().find(|look| now_us.saturating_sub(look.at_us) <= GROWTH_US + AVERAGE_US)
        else {
            return 0;
        };
        let then_us = now_us.saturating_sub(GROWTH_US).max(oldest.at_us.saturating_add(AVERAGE_US));
        let span_us = now_us.saturating_sub(then_us);
        if span_us < GROWTH_LEAST_US {
            return 0;
        }
        let grown = self.average(now_us).saturating_sub(self.average(then_us));
        u64::try_from(u128::from(grown) * 1_000_000 / u128::from(span_us)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1024 * 1024;

    fn look(at_us: u64, vm: u64) -> Look {
        Look { at_us, total: 1024 * MIB, vm, group: 0 }
    }

    /// neon#5606: "no samples yet" is no failure. as#620: nothing here knows of a connection.
    #[test]
    fn too_few_is_not_dead_and_dead_is_not_too_few() {
        let mut history = History::new(1_000_000);
        assert_eq!(history.usage(1_000_000), Usage::TooFew);
        history.push(look(1_100_000, MIB));
        assert_eq!(history.usage(1_100_000), Usage::TooFew);
        history.push(look(1_200_000, MIB));
        assert_eq!(history.usage(1_200_000), Usage::Known(MIB));
        assert_eq!(history.usage(6_200_000), Usage::TooFew, "one look of the last five seconds");
        assert_eq!(history.usage(6_200_001), Usage::Dead);
        assert_eq!(History::new(0).usage(DEAD_AFTER_US + 1), Usage::Dead);
    }

    #[test]
    fn the_average_is_by_time_and_not_by_count() {
        let mut history = History::new(0);
        for i in 1..=20 {
            history.push(look(i * 100_000, 100 * MIB));
        }
        // The loop was late: one look for 400 ms weighs as four.
        history.push(look(2_400_000, 200 * MIB));
        assert_eq!(history.usage(2_400_000), Usage::Known(180 * MIB));
        assert_eq!(history.usage(2_500_000), Usage::Known(200 * MIB));
    }

    #[test]
    fn a_step_counts_after_half_a_second_and_the_larger_of_both_counts() {
        let mut history = History::new(0);
        for i in 1..=10 {
            history.push(Look { group: 300 * MIB, ..look(i * 100_000, 100 * MIB) });
        }
        for i in 11..=15 {
            history.push(Look { group: 300 * MIB, ..look(i * 100_000, 500 * MIB) });
        }
        assert_eq!(history.usage(1_500_000), Usage::Known(500 * MIB));
        assert_eq!(history.average(1_200_000), 300 * MIB, "of the VM it would be 260");
    }

    #[test]
    fn growth_is_bytes_a_second() {
        let mut history = History::new(0);
        for i in 1..=64 {
            history.push(look(i * 100_000, i * MIB));
        }
        let growth = history.growth(6_400_000);
        assert!(growth.abs_diff(10 * MIB) < MIB / 2, "{growth}");
        let mut falling = History::new(0);
        for i in 1..=64 {
            falling.push(look(i * 100_000, (100 - i) * MIB));
        }
        assert_eq!(falling.growth(6_400_000), 0);
        let mut young = History::new(0);
        young.push(look(100_000, MIB));
        young.push(look(200_000, 50 * MIB));
        assert_eq!(young.growth(200_000), 0, "a tenth of a second tells nothing");
    }

    proptest! {
        #[test]
        fn an_average_is_between_the_least_and_the_most(
            steps in prop::collection::vec((0_u64..3_000_000, any::<u64>(), any::<u64>()), 1..100),
            after in 0_u64..10_000_000,
        ) {
            let mut history = History::new(0);
            let mut at_us = 0;
            for (step, vm, group) in steps {
                at_us += step;
                history.push(Look { at_us, total: 1, vm, group });
            }
            let average = history.average(at_us + after);
            let larger = || history.ring.iter().map(|look| look.vm.max(look.group));
            prop_assert!(average <= larger().max().unwrap());
            prop_assert!(average >= history.ring.iter().map(|look| look.vm.min(look.group)).min().unwrap());
            let _ = history.growth(at_us + after);
        }
    }
}
