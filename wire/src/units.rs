//! Units: what a value on the wire counts, and the exact factor to the unit in which it is published.

/// The unit in which a metric travels: the kernel's own, so that nothing is lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things; published as it is.
    Count,
    /// Bytes; published as bytes.
    Bytes,
    /// Kibibytes (the kernel prints `kB`); published as bytes.
    Kib,
    /// Sectors of 512 bytes, whatever the disk's own sector size (Documentation/admin-guide/iostats.rst).
    Sectors,
    /// Clock ticks (`USER_HZ`, told in Hello); published as seconds.
    Ticks,
    /// Nanoseconds; published as seconds.
    Nanos,
    /// Microseconds; published as seconds.
    Micros,
    /// Milliseconds; published as seconds.
    Millis,
    /// Seconds; published as they are.
    Seconds,
    /// Hundredths of one; published as a plain number (load averages) or of a second (uptime).
    Hundredths,
    /// Hundredths of a percent (PSI averages); published as a ratio from 0 to 1.
    Permyriad,
    /// Millionths of one (CPUs of a quota); published as a plain number.
    Millionths,
    /// Megabits per second (link speed); published as bytes per second.
    Mbits,
}

impl Unit {
    /// The exact scale to the published unit: published = value * `.0` / `.1`.
    #[must_use]
    pub const fn scale(self, ticks_per_second: u32) -> (u64, u64) {
        match self {
            Self::Count | Self::Bytes | Self::Seconds => (1, 1),
            Self::Kib => (1024, 1),
            Self::Sectors => (512, 1),
            Self::Ticks => (1, if ticks_per_second == 0 { 100 } else { ticks_per_second as u64 }),
            Self::Nanos => (1, 1_000_000_000),
            Self::Micros | Self::Millionths => (1, 1_000_000),
            Self::Millis => (1, 1000),
            Self::Hundredths => (1, 100),
            Self::Permyriad => (1, 10_000),
            Self::Mbits => (125_000, 1),
        }
    }

    /// `value` in the published unit. Exact below 2^53 published units; above it the nearest double.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "the published form is a double; documented")]
    pub fn publish(self, value: u64, ticks_per_second: u32) -> f64 {
        let (mul, div) = self.scale(ticks_per_second);
        let scaled = u128::from(value) * u128::from(mul);
        let div = u128::from(div);
        // The whole part apart, so that large counters keep their integer digits.
        (scaled / div) as f64 + (scaled % div) as f64 / div as f64
    }

    /// The name of the wire unit in documents and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Kib => "KiB",
            Self::Sectors => "512-byte sectors",
            Self::Ticks => "ticks",
            Self::Nanos => "ns",
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::Hundredths => "1/100",
            Self::Permyriad => "1/10000",
            Self::Millionths => "1/1000000",
            Self::Mbits => "Mbit/s",
        }
    }
}

/// CPU in thousandths of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MilliCpu(pub u32);

/// An amount of memory or disk in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!(Unit::Kib.publish(6_233_177, 100), 6_382_773_248.0);
        assert_eq!(Unit::Micros.publish(18_446_744_073_709, 100), 18_446_744.073_709);
        assert_eq!(Unit::Ticks.publish(150, 100), 1.5);
        assert_eq!(Unit::Ticks.publish(150, 0), 1.5);
        assert_eq!(Unit::Permyriad.publish(1234, 100), 0.1234);
        assert_eq!(Unit::Sectors.publish(2, 100), 1024.0);
        assert!(Unit::Kib.publish(u64::MAX, 100).is_finite());
    }
}
