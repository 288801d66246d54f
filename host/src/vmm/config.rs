//! The `[actuator]` table of an `instance.toml`: which VMM, and where. Touches no file.

use crate::config::{nearest, shown};
use std::path::PathBuf;
use toml::Value;

/// Words of a command.
const MAX_WORDS: usize = 64;

/// Exactly one of the actuators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// `qemu = "/run/vm/qmp.sock"`: a QMP monitor that nobody else uses.
    Qemu(PathBuf),
    /// `cloud-hypervisor = "/run/vm/api.sock"`.
    CloudHypervisor(PathBuf),
    /// `firecracker = "/run/vm/api.sock"`.
    Firecracker(PathBuf),
    /// `command = ["program", "argument"]`.
    Command(Vec<String>),
}

impl Config {
    /// As in `instance.toml`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Qemu(_) => KEYS[0],
            Self::CloudHypervisor(_) => KEYS[1],
            Self::Firecracker(_) => KEYS[2],
            Self::Command(_) => KEYS[3],
        }
    }
}

/// What is wrong with the table, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is something else, or has none or more than one.
    #[error("`actuator` must be a table with exactly one of `qemu`, `cloud-hypervisor`, `firecracker` and `command`")]
    One,
    /// A key that does not exist.
    #[error("unknown key `actuator.{key}`{}", suggestion.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest that does.
        suggestion: Option<&'static str>,
    },
    /// A value that does not fit.
    #[error("`actuator.{key}` must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
}

const KEYS: [&str; 4] = ["qemu", "cloud-hypervisor", "firecracker", "command"];

/// Reads and checks the value of `actuator`.
pub fn parse(value: &Value) -> Result<Config, ConfigError> {
    let table = value.as_table().ok_or(ConfigError::One)?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(ConfigError::UnknownKey { key: shown(key), suggestion: nearest(key, &KEYS) });
    }
    let mut entries = table.iter();
    let (Some((key, value)), None) = (entries.next(), entries.next()) else { return Err(ConfigError::One) };
    match key.as_str() {
        "qemu" => path("qemu", value).map(Config::Qemu),
        "cloud-hypervisor" => path("cloud-hypervisor", value).map(Config::CloudHypervisor),
        "firecracker" => path("firecracker", value).map(Config::Firecracker),
        _ => words(value).map(Config::Command),
    }
}

/// Nothing that no name has, or that would garble a log.
fn is_clean(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

fn path(key: &'static str, value: &Value) -> Result<PathBuf, ConfigError> {
    let error = ConfigError::Value { key, expected: "an absolute path of a socket, without control characters" };
    match value.as_str().filter(|text| is_clean(text)).map(PathBuf::from) {
        Some(path) if path.is_absolute() && path.file_name().is_some() => Ok(path),
        _ => Err(error),
    }
}

fn words(value: &Value) -> Result<Vec<String>, ConfigError> {
    let expected = "a list of a program and its arguments: 1 to 64 strings, none empty, without control characters";
    let error = || ConfigError::Value { key: "command", expected };
    let list = value.as_array().filter(|list| (1..=MAX_WORDS).contains(&list.len())).ok_or_else(error)?;
    let word = |value: &Value| value.as_str().filter(|text| is_clean(text)).map(str::to_owned);
    list.iter().map(word).collect::<Option<_>>().ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Config, String> {
        let table: toml::Table = text.parse().unwrap();
        parse(&table["actuator"]).map_err(|error| error.to_string())
    }

    #[test]
    fn each_actuator_has_one_line() {
        assert_eq!(of("actuator.qemu = '/run/q.sock'"), Ok(Config::Qemu("/run/q.sock".into())));
        let config = Config::CloudHypervisor("/run/c.sock".into());
        assert_eq!(of("[actuator]\ncloud-hypervisor = '/run/c.sock'"), Ok(config));
        assert_eq!(of("[actuator]\nfirecracker = '/run/f.sock'"), Ok(Config::Firecracker("/run/f.sock".into())));
        let config = Config::Command(vec!["scale".into(), "--vm=a".into()]);
        assert_eq!(of("[actuator]\ncommand = ['scale', '--vm=a']"), Ok(config));
    }

    #[test]
    fn one_line_that_says_what_to_do() {
        let one =
            "`actuator` must be a table with exactly one of `qemu`, `cloud-hypervisor`, `firecracker` and `command`";
        let path = |key| format!("`actuator.{key}` must be an absolute path of a socket, without control characters");
        let words = "`actuator.command` must be a list of a program and its arguments: 1 to 64 strings, none empty, without control characters";
        for (text, error) in [
            ("actuator = 'qemu'", one.to_owned()),
            ("[actuator]", one.to_owned()),
            ("[actuator]\nqemu = '/a'\nfirecracker = '/b'", one.to_owned()),
            ("actuator.quemu = '/a'", "unknown key `actuator.quemu`: did you mean `qemu`?".to_owned()),
            ("actuator.libvirt = '/a'", "unknown key `actuator.libvirt`".to_owned()),
            ("actuator.qemu = 'q.sock'", path("qemu")),
            ("actuator.firecracker = 3", path("firecracker")),
            ("actuator.cloud-hypervisor = '/'", path("cloud-hypervisor")),
            ("actuator.command = 'scale'", words.to_owned()),
            ("actuator.command = []", words.to_owned()),
            ("actuator.command = ['scale', '']", words.to_owned()),
        ] {
            assert_eq!(of(text), Err(error), "{text}");
        }
    }
}
