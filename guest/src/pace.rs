//! When to sample: absolute deadlines on a grid, so that errors do not add up and missed ticks are skipped, never
//! made up for in a bunch. Also the agent's own budget. Pure: times are arguments.

use std::time::Duration;

/// What the agent may cost over a minute, millionths of one CPU: 0.5 %.
const BUDGET_PPM: u64 = 5_000;
const WINDOW_US: u64 = 60_000_000;
/// Minutes under a third of the budget before the rate is doubled again.
const CALM_WINDOWS: u32 = 3;
/// The slowest: an eighth of the configured rate.
const MAX_FACTOR: u64 = 8;

/// A tick that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// How long after its time it is taken, microseconds.
    pub late_us: u64,
    /// Ticks that were missed altogether.
    pub missed: u64,
    /// Whether it is more than half an interval late.
    pub is_late: bool,
}

/// The grid of sample times.
#[derive(Debug)]
pub struct Pace {
    configured_us: u64,
    factor: u64,
    next_us: u64,
}

impl Pace {
    /// The first tick is due at once. `interval`: not zero.
    #[must_use]
    pub fn new(interval: Duration, now_us: u64) -> Self {
        let configured_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX / MAX_FACTOR / 4).max(1);
        Self { configured_us, factor: 1, next_us: now_us }
    }

    /// The interval in force, microseconds.
    #[must_use]
    pub fn interval_us(&self) -> u64 {
        self.configured_us * self.factor
    }

    /// When the next tick is due.
    #[must_use]
    pub fn next_us(&self) -> u64 {
        self.next_us
    }

    /// The tick that is due, if one is.
    pub fn due(&mut self, now_us: u64) -> Option<Tick> {
        let late_us = now_us.checked_sub(self.next_us)?;
        let interval_us = self.interval_us();
        let missed = late_us / interval_us;
        self.next_us += interval_us * (missed + 1);
        Some(Tick { late_us, missed, is_late: late_us > interval_us / 2 })
    }

    fn set_factor(&mut self, factor: u64) {
        let last_us = self.next_us.saturating_sub(self.interval_us());
        self.factor = factor;
        self.next_us = last_us + self.interval_us();
    }
}

/// A change of rate to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Whether the configured rate is back; else the rate was halved.
    pub restored: bool,
    /// The interval from here on, milliseconds.
    pub interval_ms: u32,
    /// What the last minute cost, millionths of one CPU.
    pub cost_ppm: u32,
}

/// Keeps the agent within its budget by slowing its pace.
#[derive(Debug)]
pub struct Governor {
    window_us: u64,
    window_cpu_us: u64,
    calm: u32,
}

impl Governor {
    /// Counts from here. `cpu_us`: CPU time of the process so far.
    #[must_use]
    pub fn new(now_us: u64, cpu_us: u64) -> Self {
        Self { window_us: now_us, window_cpu_us: cpu_us, calm: 0 }
    }

    /// To be called at every tick. Slows or restores `pace` after a minute that was too dear, or three that were
    /// calm; tells a halved and a restored rate, not the steps on the way back.
    pub fn observe(&mut self, pace: &mut Pace, now_us: u64, cpu_us: u64) -> Option<RateChange> {
        let elapsed_us = now_us.saturating_sub(self.window_us);
        if elapsed_us < WINDOW_US {
            return None;
        }
        let cost_ppm = cpu_us.saturating_sub(self.window_cpu_us).saturating_mul(1_000_000) / elapsed_us;
        (self.window_us, self.window_cpu_us) = (now_us, cpu_us);
        let calm = pace.factor > 1 && cost_ppm * 3 < BUDGET_PPM;
        self.calm = if calm { self.calm + 1 } else { 0 };
        let restored = if cost_ppm > BUDGET_PPM && pace.factor < MAX_FACTOR {
            pace.set_factor(pace.factor * 2);
            false
        } else if self.calm >= CALM_WINDOWS {
            self.calm = 0;
            pace.set_factor(pace.factor / 2);
            if pace.factor > 1 {
                return None;
            }
            true
        } else {
            return None;
        };
        Some(RateChange {
            restored,
            interval_ms: u32::try_from(pace.interval_us() / 1000).unwrap_or(u32::MAX),
            cost_ppm: u32::try_from(cost_ppm).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: u64 = WINDOW_US;

    #[test]
    fn missed_ticks_are_skipped_and_the_grid_stays() {
        let mut pace = Pace::new(Duration::from_secs(1), 500);
        assert_eq!(pace.due(499), None);
        assert_eq!(pace.due(500), Some(Tick { late_us: 0, missed: 0, is_late: false }));
        assert_eq!(pace.next_us(), 1_000_500);
        assert_eq!(pace.due(1_400_500), Some(Tick { late_us: 400_000, missed: 0, is_late: false }));
        // Stopped for an hour: one tick, late, and then the grid again.
        let tick = pace.due(3_602_100_500).unwrap();
        assert_eq!((tick.missed, tick.is_late, pace.next_us()), (3600, true, 3_603_000_500));
        assert_eq!(pace.due(3_602_900_500), None);
        let tick = pace.due(3_603_700_500).unwrap();
        assert_eq!((tick.missed, tick.is_late), (0, true));
    }

    #[test]
    fn a_dear_minute_halves_the_rate_and_calm_ones_restore_it() {
        let mut pace = Pace::new(Duration::from_secs(1), 0);
        pace.due(0);
        let mut governor = Governor::new(0, 0);
        assert_eq!(governor.observe(&mut pace, MINUTE - 1, 1_000_000), None, "not a minute yet");
        let halved = governor.observe(&mut pace, MINUTE, 600_000).unwrap();
        assert_eq!(halved, RateChange { restored: false, interval_ms: 2000, cost_ppm: 10_000 });
        assert_eq!(pace.next_us(), 2_000_000);
        let cheap = |minute: u64| (MINUTE * minute, 600_000 + 90_000 * (minute - 1));
        for minute in [2, 3] {
            let (now, cpu) = cheap(minute);
            assert_eq!(governor.observe(&mut pace, now, cpu), None);
        }
        let (now, cpu) = cheap(4);
        let back = governor.observe(&mut pace, now, cpu).unwrap();
        assert_eq!((back.restored, back.interval_ms), (true, 1000));
    }

    proptest! {
        #[test]
        fn ticks_stay_on_the_grid_and_ahead_of_time(steps in prop::collection::vec(0_u64..5_000_000, 1..200)) {
            let mut pace = Pace::new(Duration::from_millis(700), 3);
            let mut now = 3;
            for step in steps {
                now += step;
                let _ = pace.due(now);
                prop_assert!(pace.next_us() > now && pace.next_us() <= now + 700_000);
                prop_assert_eq!((pace.next_us() - 3) % 700_000, 0);
            }
        }
    }
}
