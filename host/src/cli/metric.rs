//! A metric's value as people read it, by what the metric counts. The metric table says what that is; names decide
//! for metrics of a newer daemon.

use super::quantity::{bytes, clock, count, percent, ratio, seconds};
use crate::publish::status::{Number, Value};
use informant_wire::metric::TABLE;
use informant_wire::units::Unit;
use jiff::tz::TimeZone;

/// What a published value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Count,
    Bytes,
    BytesPerSecond,
    Seconds,
    /// Seconds since 1970.
    Moment,
    /// 0 to 1.
    Ratio,
}

fn dimension(name: &str) -> Dimension {
    // A name's ending is a promise of Prometheus' conventions, which the table keeps; cAdvisor's older names have none.
    let stem = name.strip_suffix("_total").unwrap_or(name);
    if name == "node_boot_time_seconds" {
        Dimension::Moment
    } else if name == "node_network_speed_bytes" {
        Dimension::BytesPerSecond
    } else if stem.ends_with("_bytes") {
        Dimension::Bytes
    } else if stem.ends_with("_seconds") {
        Dimension::Seconds
    } else if stem.ends_with("_ratio") {
        Dimension::Ratio
    } else {
        match TABLE.iter().find(|row| row.name == name).map(|row| row.unit) {
            Some(Unit::Bytes | Unit::Kib) => Dimension::Bytes,
            _ => Dimension::Count,
        }
    }
}

/// The value, with its unit.
#[must_use]
pub(super) fn value(value: &Value, now_ms: u64, zone: &TimeZone) -> String {
    let Number::Finite(number) = value.value else { return "max".to_owned() };
    match dimension(&value.name) {
        Dimension::Count => count(number),
        Dimension::Bytes => bytes(number),
        Dimension::BytesPerSecond => format!("{}/s", bytes(number)),
        Dimension::Seconds => seconds(number),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; display only")]
        Dimension::Moment => clock((number * 1000.0) as u64, now_ms, zone),
        Dimension::Ratio => ratio(number),
    }
}

/// A counter's growth, with its unit; seconds a second are a share. Empty where there is none.
#[must_use]
pub(super) fn rate(value: &Value) -> String {
    let Some(rate) = value.per_second else { return String::new() };
    match dimension(&value.name) {
        Dimension::Bytes => format!("{}/s", bytes(rate)),
        Dimension::Seconds => percent(rate * 100.0),
        _ => format!("{}/s", count((rate * 100.0).round() / 100.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, number: f64, per_second: Option<f64>) -> (String, String) {
        let row = Value { name: name.to_owned(), value: Number::Finite(number), per_second, ..Value::default() };
        (value(&row, 0, &TimeZone::UTC), rate(&row))
    }

    #[test]
    fn units_follow_the_metric() {
        let cases = [
            ("node_memory_MemTotal_bytes", 2_040_109_465.6, None, "1.9 GiB", ""),
            ("container_memory_rss", 1048576.0, None, "1.0 MiB", ""),
            ("node_cpu_seconds_total", 7500.0, Some(0.123), "2h 05m", "12.3 %"),
            ("node_network_receive_bytes_total", 3.0, Some(2048.0), "3 B", "2.0 KiB/s"),
            ("node_forks_total", 12_345.0, Some(1.0 / 3.0), "12,345", "0.33/s"),
            ("informant_pressure_avg10_ratio", 0.0123, None, "1.2 %", ""),
            ("node_boot_time_seconds", 1_795_953_784.0, None, "2026-11-29 12:03:04", ""),
            ("node_load1", 0.42, None, "0.42", ""),
            ("from_the_future_bytes", 1024.0, None, "1.0 KiB", ""),
        ];
        for (name, number, per_second, text, rate_text) in cases {
            assert_eq!(shown(name, number, per_second), (text.to_owned(), rate_text.to_owned()), "{name}");
        }
    }

    #[test]
    fn every_row_in_bytes_or_seconds_is_shown_so() {
        for row in TABLE {
            let expected = match row.unit {
                Unit::Bytes | Unit::Kib | Unit::Sectors if dimension(row.name) == Dimension::Count => {
                    // Sectors and KiB that node_exporter publishes by the piece.
                    assert!(row.name.contains("sectors") || row.name.contains("vmstat"), "{}", row.name);
                    continue;
                }
                Unit::Ticks | Unit::Nanos | Unit::Micros | Unit::Millis => Dimension::Seconds,
                Unit::Permyriad => Dimension::Ratio,
                _ => continue,
            };
            assert_eq!(dimension(row.name), expected, "{}", row.name);
        }
    }

    #[test]
    fn a_limit_without_a_bound_is_max() {
        let row =
            Value { name: "container_spec_memory_limit_bytes".to_owned(), value: Number::Max, ..Value::default() };
        assert_eq!(value(&row, 0, &TimeZone::UTC), "max");
    }
}
