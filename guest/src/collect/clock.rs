//! The wall clock against the boot clock: a step of more than a second is told once.
//!
//! Both run on through a suspend; a snapshot that is restored stops both, and then somebody steps the wall clock.

use super::event::Events;
use informant_wire::event::{ClockStepped, EventKind};

/// Slewing moves the wall clock by at most 500 ppm; from here on it was stepped.
const STEP_US: i64 = 1_000_000;

/// Watches the distance of the two clocks.
#[derive(Debug, Default)]
pub struct ClockWatch {
    distance_us: Option<i64>,
}

impl ClockWatch {
    /// Takes two readings made right after one another, microseconds.
    pub fn observe(&mut self, wall_us: i64, boot_us: i64, events: &mut Events) {
        let distance = wall_us.saturating_sub(boot_us);
        if let Some(before) = self.distance_us {
            let step_us = distance.saturating_sub(before);
            if step_us.saturating_abs() > STEP_US {
                events.push(EventKind::CLOCK_STEPPED, &ClockStepped { step_us });
            }
        }
        self.distance_us = Some(distance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(readings: &[(i64, i64)]) -> Vec<i64> {
        let (mut watch, mut events, mut found) = (ClockWatch::default(), Events::default(), Vec::new());
        for (wall, boot) in readings {
            watch.observe(*wall, *boot, &mut events);
        }
        events.take(&mut |kind, body| {
            assert_eq!(kind, EventKind::CLOCK_STEPPED);
            found.push(postcard::from_bytes::<ClockStepped>(body).unwrap().step_us);
        });
        found
    }

    #[test]
    fn wall_clock_stands_still_during_a_snapshot() {
        const S: i64 = 1_000_000;
        // Paused for two hours, ten seconds of guest time, then the wall clock is stepped.
        assert_eq!(
            steps(&[(1000 * S, 50 * S), (1010 * S, 60 * S), (8211 * S, 61 * S), (8212 * S, 62 * S)]),
            [7200 * S]
        );
        assert_eq!(steps(&[(1000 * S, 50 * S), (900 * S, 51 * S)]), [-101 * S]);
        // Suspended for an hour: both clocks went on. Slewing is no step.
        assert_eq!(steps(&[(1000 * S, 50 * S), (4600 * S, 3650 * S), (4601 * S + 900_000, 3651 * S)]), [0_i64; 0]);
        assert_eq!(steps(&[(i64::MIN, 0), (i64::MAX, 0)]), [i64::MAX]);
    }
}
