//! The `[scaling]` table of an `instance.toml`: which policy, and between which sizes. Touches no file.

use super::policy::{self, Bounds, Policy};
use crate::config::{nearest, shown};
use crate::quantity::{parse_bytes, parse_cpu};
use informant_wire::size::Size;
use toml::{Table, Value};

/// The checked table.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// `None`: only people resize the VM.
    pub policy: Option<Policy>,
    /// Beyond what the VMM can do they mean what it can.
    pub bounds: Bounds,
}

impl Default for Scaling {
    /// Without the table: nothing decides by itself.
    fn default() -> Self {
        Self { policy: None, bounds: Bounds::NONE }
    }
}

/// What is wrong with the table, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScalingError {
    /// It is something else.
    #[error("`scaling` must be a table")]
    Table,
    /// A key that does not exist.
    #[error("unknown key `scaling.{key}`{}", suggestion.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest that does.
        suggestion: Option<&'static str>,
    },
    /// A value that does not fit.
    #[error("`scaling.{key}` must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// Less than the least.
    #[error("`scaling.max` is less than `scaling.min`")]
    Crossed,
    /// A number of the policy.
    #[error(transparent)]
    Policy(#[from] policy::PolicyError),
}

const KEYS: [&str; 5] = ["policy", "min", "max", "compute-unit", "pressure"];

/// Reads and checks the value of `scaling`.
///
/// # Errors
/// See [`ScalingError`].
pub fn parse(value: &Value) -> Result<Scaling, ScalingError> {
    let table = value.as_table().ok_or(ScalingError::Table)?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(ScalingError::UnknownKey { key: shown(key), suggestion: nearest(key, &KEYS) });
    }
    let bounds = Bounds { min: size(table, "min", Bounds::NONE.min)?, max: size(table, "max", Bounds::NONE.max)? };
    if !bounds.max.covers(bounds.min) {
        return Err(ScalingError::Crossed);
    }
    let name = match table.get("policy").map(Value::as_str) {
        None => "compute-unit",
        Some(Some(name @ ("compute-unit" | "pressure" | "none"))) => name,
        Some(_) => {
            let expected = "\"compute-unit\", \"pressure\" or \"none\"";
            return Err(ScalingError::Value { key: "policy", expected });
        }
    };
    let policy = match name {
        "none" => None,
        name => Some(policy::parse(name, table.get(name))?),
    };
    Ok(Scaling { policy, bounds })
}

/// `{ cpu = 2, memory = "4GiB" }`; what is left out has no bound.
fn size(table: &Table, key: &'static str, any: Size) -> Result<Size, ScalingError> {
    let expected = "a table like { cpu = 2, memory = \"4GiB\" }";
    let error = || ScalingError::Value { key, expected };
    let Some(value) = table.get(key) else { return Ok(any) };
    let size = value.as_table().ok_or_else(error)?;
    if size.keys().any(|key| !["cpu", "memory"].contains(&key.as_str())) {
        return Err(error());
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let cpu = match size.get("cpu") {
        None => any.cpu,
        Some(value) => text(value).and_then(|text| parse_cpu(&text).ok()).ok_or_else(error)?,
    };
    let memory = match size.get("memory") {
        None => any.memory,
        Some(value) => text(value).and_then(|text| parse_bytes(&text).ok()).ok_or_else(error)?,
    };
    Ok(Size { cpu, memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::size::{Bytes, MilliCpu};

    fn of(text: &str) -> Result<Scaling, String> {
        let table: Table = text.parse().unwrap();
        parse(&table["scaling"]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_table() {
        let scaling =
            of("[scaling]\npolicy = 'pressure'\nmin = { cpu = 1, memory = '512MiB' }\nmax = { cpu = 2.5 }").unwrap();
        assert_eq!(scaling.policy.unwrap().name(), "pressure");
        assert_eq!(scaling.bounds.min, Size { cpu: MilliCpu(1000), memory: Bytes::mib(512) });
        assert_eq!(scaling.bounds.max, Size { cpu: MilliCpu(2500), memory: Bytes(u64::MAX) });
        assert_eq!(of("[scaling]").unwrap().policy.unwrap().name(), "compute-unit");
        assert_eq!(of("[scaling]\npolicy = 'none'").unwrap().policy, None);
    }

    #[test]
    fn one_line_that_says_what_to_do() {
        for (text, error) in [
            ("scaling = 3", "`scaling` must be a table"),
            ("scaling.polici = 'none'", "unknown key `scaling.polici`: did you mean `policy`?"),
            ("scaling.policy = 'best'", "`scaling.policy` must be \"compute-unit\", \"pressure\" or \"none\""),
            ("scaling.min = 3", "`scaling.min` must be a table like { cpu = 2, memory = \"4GiB\" }"),
            ("scaling.max.memory = '4GB'", "`scaling.max` must be a table like { cpu = 2, memory = \"4GiB\" }"),
            ("scaling.max.cpus = 4", "`scaling.max` must be a table like { cpu = 2, memory = \"4GiB\" }"),
            ("[scaling]\nmin.cpu = 2\nmax.cpu = 1", "`scaling.max` is less than `scaling.min`"),
        ] {
            assert_eq!(of(text), Err(error.to_owned()), "{text}");
        }
    }
}
