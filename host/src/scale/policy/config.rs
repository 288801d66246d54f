//! The tables `[scaling.compute-unit]` and `[scaling.pressure]` to checked policies. Everything in them has a default.

use super::ahead::Ahead;
use super::compute_unit::ComputeUnit;
use super::goal::Goal;
use super::pressure::Pressure;
use super::rules::Rules;
use super::{NAMES, Policy};
use crate::quantity::{parse_bytes, parse_cpu};
use informant_wire::size::{Bytes, MilliCpu};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, de::DeserializeOwned};
use toml::Value;

/// What is wrong with a policy's table, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no such policy.
    #[error("`scaling.policy` must be \"compute-unit\" or \"pressure\"")]
    Name,
    /// A key that does not exist, or a value of another type.
    #[error("`scaling.{policy}`: {message}")]
    Table {
        /// Whose table.
        policy: &'static str,
        /// What, in one line.
        message: String,
    },
    /// A value that does not fit.
    #[error("`scaling.{policy}.{key}` must be {expected}")]
    Value {
        /// Whose table.
        policy: &'static str,
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
}

/// The policy of that name with the numbers of its table, or with its defaults.
///
/// # Errors
/// See [`PolicyError`].
pub fn parse(name: &str, table: Option<&Value>) -> Result<Policy, PolicyError> {
    let [compute_unit, pressure] = NAMES;
    let (policy, wrong) = if name == compute_unit {
        let config: ComputeUnit = read(compute_unit, table)?;
        (Policy::ComputeUnit(config), config.wrong())
    } else if name == pressure {
        let config: Pressure = read(pressure, table)?;
        (Policy::Pressure(config), config.wrong())
    } else {
        return Err(PolicyError::Name);
    };
    match wrong {
        None => Ok(policy),
        Some((key, expected)) => Err(PolicyError::Value { policy: policy.name(), key, expected }),
    }
}

fn read<T: Default + DeserializeOwned>(policy: &'static str, table: Option<&Value>) -> Result<T, PolicyError> {
    let Some(table) = table else { return Ok(T::default()) };
    table.clone().try_into().map_err(|error: toml::de::Error| PolicyError::Table {
        policy,
        message: error.message().lines().next().unwrap_or("no table").chars().flat_map(char::escape_debug).collect(),
    })
}

/// A key, and what its value must be.
pub(super) type Wrong = Option<(&'static str, &'static str)>;

impl ComputeUnit {
    fn wrong(&self) -> Wrong {
        self.goal.wrong().or_else(|| self.ahead.wrong()).or_else(|| self.rules.wrong())
    }
}

impl Pressure {
    fn wrong(&self) -> Wrong {
        let shares = [
            (self.tight, "tight", "a share above 0, at most 0.85: the guest agrees to no more"),
            (self.slack, "slack", "a share above 0, at most `tight`"),
            (self.load_fraction, "load_fraction", "above 0, below 2"),
            (self.cpu_pressure, "cpu_pressure", "a share above 0, at most 1"),
            (self.cpu_calm, "cpu_calm", "a share above 0, at most 1"),
        ];
        let fits = [
            self.tight > 0.0 && self.tight <= 0.85,
            self.slack > 0.0 && self.slack <= self.tight,
            self.load_fraction > 0.0 && self.load_fraction < 2.0,
            is_share(self.cpu_pressure),
            is_share(self.cpu_calm),
        ];
        let wrong = shares.into_iter().zip(fits).find(|(_, fits)| !fits).map(|((_, key, expected), _)| (key, expected));
        wrong
            .or_else(|| unit(self.step_cpu, self.step_memory).map(|(_, expected)| ("step_cpu, step_memory", expected)))
            .or_else(|| (self.burst_s > 300).then_some(("burst_s", "seconds: at most 300")))
            .or_else(|| self.ahead.wrong())
            .or_else(|| self.rules.wrong())
    }
}

impl Goal {
    fn wrong(&self) -> Wrong {
        let open = |value: f64, most: f64| value > 0.0 && value < most;
        let zone = |value: f64| (0.0..=1.0).contains(&value);
        if !open(self.load_fraction, 2.0) {
            return Some(("goal.load_fraction", "above 0, below 2"));
        }
        if !open(self.memory_fraction, 1.0) {
            return Some(("goal.memory_fraction", "a share above 0, below 1"));
        }
        if !is_share(self.memory_total_fraction) {
            return Some(("goal.memory_total_fraction", "a share above 0, at most 1"));
        }
        if !is_share(self.cache_fraction) {
            return Some(("goal.cache_fraction", "a share above 0, at most 1"));
        }
        if !(zone(self.stable_zone) && zone(self.mixed_zone)) {
            return Some(("goal.stable_zone, goal.mixed_zone", "shares from 0 to 1"));
        }
        if !(1..=60).contains(&self.cache_wait_minutes) || !(2..=60).contains(&self.cache_window_minutes) {
            return Some(("goal.cache_wait_minutes, goal.cache_window_minutes", "minutes: 1 (2) to 60"));
        }
        unit(self.unit_cpu, self.unit_memory).map(|(_, expected)| ("goal.unit_cpu, goal.unit_memory", expected))
    }
}

impl Ahead {
    fn wrong(&self) -> Wrong {
        let shares = [self.memory_some, self.memory_full, self.in_use];
        if !shares.into_iter().all(is_share) {
            return Some(("ahead.memory_some, ahead.memory_full, ahead.in_use", "shares above 0, at most 1"));
        }
        (self.growth_s > 300 || self.wait_s > 3600)
            .then_some(("ahead.growth_s, ahead.wait_s", "seconds: at most 300 (3600)"))
    }
}

impl Rules {
    fn wrong(&self) -> Wrong {
        if [self.demand_s, self.denied_s, self.stale_s, self.hold_s].into_iter().any(|seconds| seconds > 3600) {
            return Some(("rules.demand_s, denied_s, stale_s, hold_s", "seconds: at most 3600"));
        }
        if self.stale_s == 0 {
            return Some(("rules.stale_s", "seconds: at least 1"));
        }
        unit(self.cpu_step, self.memory_step).map(|(_, expected)| ("rules.cpu_step, rules.memory_step", expected))
    }
}

fn is_share(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

/// From 1m to 64 CPUs, from 1 MiB to 1 TiB.
fn unit(cpu: MilliCpu, memory: Bytes) -> Wrong {
    let fits = (1..=64_000).contains(&cpu.0) && (Bytes::MIB..=1024 * Bytes::GIB).contains(&memory.0);
    (!fits).then_some(("", "1m to 64 CPUs and 1MiB to 1TiB"))
}

/// `0.25`, `2`, `"250m"`.
pub(super) fn cpu<'de, D: Deserializer<'de>>(from: D) -> Result<MilliCpu, D::Error> {
    parse_cpu(&text(from)?).map_err(D::Error::custom)
}

/// `"1GiB"`, `1073741824`.
pub(super) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    parse_bytes(&text(from)?).map_err(D::Error::custom)
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    match Value::deserialize(from)? {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err(D::Error::custom("an amount is a number or a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<Policy, String> {
        let table: toml::Table = text.parse().unwrap();
        parse(name, Some(&Value::Table(table))).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        assert_eq!(parse("compute-unit", None), Ok(Policy::ComputeUnit(ComputeUnit::default())));
        assert_eq!(of("pressure", ""), Ok(Policy::Pressure(Pressure::default())));
        let text = "goal = { unit_cpu = 0.5, unit_memory = '2GiB', load_fraction = 0.8 }\nrules.denied_s = 4\n\
                    rules.cpu_step = '250m'\nahead.growth_s = 0";
        let Ok(Policy::ComputeUnit(config)) = of("compute-unit", text) else {
            panic!("{:?}", of("compute-unit", text))
        };
        assert_eq!((config.goal.unit_cpu, config.goal.unit_memory), (MilliCpu(500), Bytes::gib(2)));
        assert_eq!(
            (config.rules.denied_s, config.rules.demand_s, config.rules.cpu_step, config.ahead.growth_s),
            (4, 10, MilliCpu(250), 0)
        );
    }

    #[test]
    fn one_line_that_says_what_to_do() {
        for (name, text, error) in [
            ("best", "", "`scaling.policy` must be \"compute-unit\" or \"pressure\""),
            (
                "compute-unit",
                "goal.load_fraction = 0",
                "`scaling.compute-unit.goal.load_fraction` must be above 0, below 2",
            ),
            (
                "compute-unit",
                "goal.memory_fraction = nan",
                "`scaling.compute-unit.goal.memory_fraction` must be a share above 0, below 1",
            ),
            (
                "compute-unit",
                "goal.unit_memory = 4",
                "`scaling.compute-unit.goal.unit_cpu, goal.unit_memory` must be 1m to 64 CPUs and 1MiB to 1TiB",
            ),
            (
                "compute-unit",
                "goal.unit_memory = '4GB'",
                "`scaling.compute-unit`: no amount of memory: write 2GiB, 1536MiB or a number of bytes",
            ),
            ("pressure", "slack = 0.9", "`scaling.pressure.slack` must be a share above 0, at most `tight`"),
            (
                "pressure",
                "tight = 0.9",
                "`scaling.pressure.tight` must be a share above 0, at most 0.85: the guest agrees to no more",
            ),
            ("pressure", "rules.stale_s = 0", "`scaling.pressure.rules.stale_s` must be seconds: at least 1"),
        ] {
            assert_eq!(of(name, text), Err(error.to_owned()), "{text}");
        }
        let unknown = of("pressure", "\"slak\\u001b\" = 3").unwrap_err();
        assert!(unknown.starts_with("`scaling.pressure`: unknown field `slak\\u{1b}`, expected one of"), "{unknown}");
        assert_eq!(unknown.lines().count(), 1);
    }
}
