//! The last seconds of a VM: how fast its used memory grows, and when its size last rose. A fixed size, no clock.

use super::Sample;
use informant_wire::size::{Bytes, Size};

/// Samples that are kept: as many seconds at 1 Hz.
const KEPT: usize = 20;
/// Samples older than that say nothing about now.
const WINDOW_US: u64 = 20_000_000;
/// Two samples closer than that make no rate.
const LEAST_US: u64 = 900_000;
/// Growth over less than that is no burst, but noise.
const BURST_US: u64 = 2_500_000;
/// A burst is expected to come again for so long.
const REMEMBERED_US: u64 = 900_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Point {
    taken_us: u64,
    used: Bytes,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trend {
    /// The newest is the last.
    points: [Point; KEPT],
    held: usize,
    present: Option<Size>,
    rose_us: Option<u64>,
    /// The fastest burst, and when it was.
    burst: Option<(Bytes, u64)>,
}

impl Trend {
    /// Takes note of a sample (repeated ones count once) and of the size at that time. To be told at each decision.
    pub fn saw(&mut self, now_us: u64, sample: Option<&Sample>, present: Size) {
        if self.present.is_some_and(|before| !before.covers(present)) {
            self.rose_us = Some(now_us);
        }
        self.present = Some(present);
        let Some((sample, used)) = sample.and_then(|sample| Some((sample, sample.used()?))) else { return };
        let [.., newest] = self.points;
        if self.held > 0 && sample.taken_us <= newest.taken_us {
            // A clock that went backwards belongs to another guest: what it said before is of no use.
            if sample.taken_us < newest.taken_us {
                self.held = 0;
            } else {
                return;
            }
        }
        self.points.rotate_left(1);
        if let Some(last) = self.points.last_mut() {
            *last = Point { taken_us: sample.taken_us, used };
        }
        self.held = (self.held + 1).min(KEPT);
        let grown = self.rate(now_us, BURST_US).unwrap_or_default();
        if grown.0 > 0 && grown >= self.burst(now_us) {
            self.burst = Some((grown, now_us));
        }
    }

    /// Bytes in a second of the fastest growth for some seconds on end within the last quarter of an hour.
    #[must_use]
    pub fn burst(&self, now_us: u64) -> Bytes {
        let recent = |at: &u64| now_us.saturating_sub(*at) < REMEMBERED_US;
        self.burst.filter(|(_, at)| recent(at)).map_or(Bytes(0), |(rate, _)| rate)
    }

    /// Bytes that used memory grows by in a second: by how much it exceeds the highest of before. What only goes up and
    /// down grows by nothing. `None` while too little is known.
    #[must_use]
    pub fn growth(&self, now_us: u64) -> Option<Bytes> {
        self.rate(now_us, LEAST_US)
    }

    fn rate(&self, now_us: u64, least_us: u64) -> Option<Bytes> {
        let [.., newest] = self.points;
        let age = |point: &Point| newest.taken_us.saturating_sub(point.taken_us);
        let before = self.kept(now_us).filter(|point| age(point) >= least_us);
        let highest = before.max_by_key(|point| (point.used, point.taken_us))?;
        let grown = u128::from(newest.used.saturating_sub(highest.used).0) * 1_000_000;
        Some(Bytes(u64::try_from(grown / u128::from(age(highest).max(1))).unwrap_or(u64::MAX)))
    }

    /// The most memory in use that is kept.
    #[must_use]
    pub fn peak(&self, now_us: u64) -> Option<Bytes> {
        self.kept(now_us).map(|point| point.used).max()
    }

    fn kept(&self, now_us: u64) -> impl Iterator<Item = &Point> {
        let recent = move |point: &&Point| now_us.saturating_sub(point.taken_us) <= WINDOW_US;
        self.points.iter().rev().take(self.held).take_while(recent)
    }

    /// Whether the size rose within so many seconds: what was given has hardly arrived, and averages still tell of
    /// before.
    #[must_use]
    pub fn rose_within(&self, seconds: u32, now_us: u64) -> bool {
        self.rose_us.is_some_and(|rose_us| now_us.saturating_sub(rose_us) < u64::from(seconds) * 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn at(second: u64, used_mib: u64) -> Sample {
        Sample { taken_us: second * 1_000_000, ..fixture::sample(0.0, Bytes::mib(used_mib)) }
    }

    #[test]
    fn growth_is_per_second_and_beyond_the_highest_of_before() {
        let mut trend = Trend::default();
        assert_eq!(trend.growth(0), None);
        for second in 1..=10 {
            trend.saw(0, Some(&at(second, 1000 + 10 * second)), Size::default());
        }
        assert_eq!(trend.growth(10_000_000), Some(Bytes::mib(10)));
        trend.saw(0, Some(&at(11, 1200)), Size::default());
        assert_eq!(trend.growth(11_000_000), Some(Bytes::mib(100)), "over the last second");
        trend.saw(0, Some(&at(11, 1200)), Size::default());
        assert_eq!(trend.growth(11_000_000), Some(Bytes::mib(100)), "a repeated one counts once");
        assert_eq!(trend.growth(32_000_000), None, "it is old");
        for second in 12..=30 {
            let used = if second % 2 == 0 { 900 } else { 1190 };
            trend.saw(0, Some(&at(second, used)), Size::default());
            assert_eq!(trend.growth(second * 1_000_000), Some(Bytes(0)), "what goes up and down does not grow");
        }
        assert_eq!(trend.peak(30_000_000), Some(Bytes::mib(1200)));
        trend.saw(0, Some(&at(32, 900)), Size::default());
        assert_eq!(trend.peak(32_000_000), Some(Bytes::mib(1190)));
    }

    #[test]
    fn a_gap_or_another_guest_is_no_growth() {
        let mut trend = Trend::default();
        trend.saw(0, Some(&at(1, 100)), Size::default());
        trend.saw(0, Some(&at(60, 900)), Size::default());
        assert_eq!((trend.growth(60_000_000), trend.peak(60_000_000)), (None, Some(Bytes::mib(900))));
        trend.saw(0, Some(&at(3, 100)), Size::default());
        trend.saw(0, Some(&at(5, 300)), Size::default());
        assert_eq!(trend.growth(5_000_000), Some(Bytes::mib(100)));
    }

    #[test]
    fn a_burst_is_remembered_and_noise_is_none() {
        let mut trend = Trend::default();
        for second in 1..=100 {
            let used = 1000 + if second % 3 == 0 { 500 } else { 0 };
            trend.saw(second * 1_000_000, Some(&at(second, used)), Size::default());
        }
        assert_eq!(trend.burst(100_000_000), Bytes(0));
        for second in 101..=110 {
            trend.saw(second * 1_000_000, Some(&at(second, 1500 + (second - 100) * 80)), Size::default());
        }
        assert_eq!(trend.burst(700_000_000), Bytes::mib(80));
        assert_eq!(trend.burst(1_010_000_000), Bytes(0), "it does not come again");
    }

    #[test]
    fn a_rise_is_remembered_for_a_while() {
        let mut trend = Trend::default();
        let size = |gib| Size { memory: Bytes::gib(gib), ..Size::default() };
        trend.saw(1, None, size(2));
        assert!(!trend.rose_within(10, 1), "the first size is no rise");
        trend.saw(2, None, size(1));
        assert!(!trend.rose_within(10, 2));
        trend.saw(3, None, size(2));
        assert!(trend.rose_within(10, 9_000_000));
        assert!(!trend.rose_within(10, 10_000_003));
    }
}
