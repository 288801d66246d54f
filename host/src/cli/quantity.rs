//! Numbers and times as people read them: bytes, shares, rates, ages, clock times. Pure: the present and the time
//! zone are arguments.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// `1.9 GiB`; three significant digits at most, so that a column stays narrow.
#[must_use]
pub(super) fn bytes(value: f64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = value;
    let mut unit = 0;
    // 1023.5 would be printed as 1024.
    while value.abs() >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 || value.abs() >= 99.95 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

/// A number of things: whole ones as they are with thousands apart, others with as many digits as matter.
#[must_use]
pub(super) fn count(value: f64) -> String {
    if value.fract() != 0.0 {
        return if value.abs() >= 100.0 { format!("{value:.1}") } else { format!("{value:.2}") };
    }
    // Beyond 2^53 a double is no exact count any more.
    if value.abs() >= 9_007_199_254_740_992.0 {
        return format!("{value:e}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    if value < 0.0 {
        out.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A ratio from 0 to 1 as `12.3 %`.
#[must_use]
pub(super) fn ratio(value: f64) -> String {
    percent(value * 100.0)
}

/// `12.3 %`.
#[must_use]
pub(super) fn percent(value: f64) -> String {
    // A tiny negative rounds to "-0.0".
    let value = if value.abs() < 0.05 { 0.0 } else { value };
    format!("{value:.1} %")
}

/// A length of time given in seconds: `812 us`, `1.52 s`, `2h 05m`.
#[must_use]
pub(super) fn seconds(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0 s".to_owned()
    } else if size < 0.001 {
        format!("{:.0} us", value * 1e6)
    } else if size < 1.0 {
        format!("{:.1} ms", value * 1e3)
    } else if size < 60.0 {
        format!("{value:.2} s")
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "a cast of a float saturates; display only")]
        #[expect(clippy::cast_sign_loss, reason = "of an absolute value")]
        let whole = age((size * 1e3) as u64);
        if value < 0.0 { format!("-{whole}") } else { whole }
    }
}

/// How long ago, at most two units: `0.4s`, `42s`, `2m 05s`, `3h 12m`, `4d 02h`.
#[must_use]
pub(super) fn age(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if seconds < 10 {
        format!("{seconds}.{}s", milliseconds % 1000 / 100)
    } else if minutes == 0 {
        format!("{seconds}s")
    } else if hours == 0 {
        format!("{minutes}m {:02}s", seconds % 60)
    } else if days == 0 {
        format!("{hours}h {:02}m", minutes % 60)
    } else {
        format!("{days}d {:02}h", hours % 24)
    }
}

/// The clock time of `at_ms` (since the epoch): `12:03:04`, and with its date when that is not today's.
#[must_use]
pub(super) fn clock(at_ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    let (Some(at), Some(now)) = (local(at_ms, zone), local(now_ms, zone)) else {
        return format!("{at_ms} ms after 1970");
    };
    let format = if at.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    at.strftime(format).to_string()
}

fn local(at_ms: u64, zone: &TimeZone) -> Option<DateTime> {
    Some(zone.to_datetime(Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_unit_where_they_round_up() {
        let shown: Vec<_> =
            [0.0, 1023.0, 1024.0, 1_048_063.0, 1_048_064.0, 2_040_109_465.6, 1.5e11, 1.8e19, -2048.0].map(bytes).into();
        assert_eq!(
            shown,
            ["0 B", "1023 B", "1.0 KiB", "1023 KiB", "1.0 MiB", "1.9 GiB", "140 GiB", "15.6 EiB", "-2.0 KiB"]
        );
    }

    #[test]
    fn counts_have_thousands_apart() {
        let shown: Vec<_> = [0.0, 999.0, 1000.0, 1_234_567.0, -1000.0, 0.25, 1234.56, 1e300].map(count).into();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567", "-1,000", "0.25", "1234.6", "1e300"]);
    }

    #[test]
    fn shares() {
        assert_eq!(ratio(0.1234), "12.3 %");
        assert_eq!(percent(-0.01), "0.0 %");
        assert_eq!(percent(200.0), "200.0 %");
    }

    #[test]
    fn lengths_of_time() {
        let shown: Vec<_> = [0.0, 0.000_812, 0.0152, 1.524, 60.0, 7500.0, -90.0].map(seconds).into();
        assert_eq!(shown, ["0 s", "812 us", "15.2 ms", "1.52 s", "1m 00s", "2h 05m", "-1m 30s"]);
    }

    #[test]
    fn ages() {
        let shown: Vec<_> =
            [0, 499, 9_999, 10_000, 59_999, 60_000, 125_000, 3_599_999, 3_600_000, 90_000_000].map(age).into();
        assert_eq!(shown, ["0.0s", "0.4s", "9.9s", "10s", "59s", "1m 00s", "2m 05s", "59m 59s", "1h 00m", "1d 01h"]);
    }

    #[test]
    fn clock_times_have_a_date_when_it_is_another_day() {
        let noon = 1_795_953_784_000; // 2026-11-29 12:03:04 UTC
        assert_eq!(clock(noon, noon + 42_000, &TimeZone::UTC), "12:03:04");
        assert_eq!(clock(noon, noon + 86_400_000, &TimeZone::UTC), "2026-11-29 12:03:04");
        let tokyo = TimeZone::fixed(jiff::tz::offset(9));
        assert_eq!(clock(noon, noon, &tokyo), "21:03:04");
        assert_eq!(clock(u64::MAX, noon, &tokyo), "18446744073709551615 ms after 1970");
    }
}
