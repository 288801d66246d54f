//! `instance.toml` to checked types. Unknown keys are errors with a suggestion; touches no file.

use crate::scale::settings::{self, Scaling, ScalingError};
use crate::vmm;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use toml::{Table, Value};

/// Largest `instance.toml` that is read, bytes.
pub const MAX_BYTES: u64 = 64 * 1024;
/// Labels of an instance.
const MAX_LABELS: usize = 64;
/// Bytes of a label's key and of its value.
const MAX_LABEL_KEY: usize = 64;
/// See [`MAX_LABEL_KEY`].
const MAX_LABEL_VALUE: usize = 256;
/// Characters of an instance's name.
pub const MAX_NAME: usize = 64;

/// What a folder that is no instance's breaks.
pub const NAME_RULE: &str =
    "an instance is a folder (no link) whose name is 1 to 64 of A-Z a-z 0-9 . _ -, no dot first";

/// Whether a folder's name can be an instance's: `[A-Za-z0-9._-]{1,64}`, not beginning with a dot.
#[must_use]
pub fn is_instance_name(name: &str) -> bool {
    let fits = (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.');
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// How an instance is reached; its identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A hybrid vsock: the VMM's unix socket; guests reach `PATH_PORT`.
    Uds(PathBuf),
    /// A guest's CID.
    Cid(u32),
    /// A plain unix socket.
    Unix(PathBuf),
}

impl Address {
    /// As in `instance.toml`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Uds(_) => "uds",
            Self::Cid(_) => "cid",
            Self::Unix(_) => "unix",
        }
    }
}

impl fmt::Display for Address {
    /// The path or the CID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uds(path) | Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Cid(cid) => write!(f, "{cid}"),
        }
    }
}

/// Who may speak for the VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Root in the guest, proven.
    #[default]
    Root,
    /// Anybody in the guest.
    Any,
}

/// The owner of a socket, by name or number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user; `None`: as it is.
    pub user: Option<String>,
    /// The group; `None`: as it is.
    pub group: Option<String>,
}

/// A checked `instance.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How it is reached.
    pub address: Address,
    /// The daemon dials this port of the guest instead of listening.
    pub dial: Option<u32>,
    /// Who may speak for the VM.
    pub trust: Trust,
    /// Permissions of the socket.
    pub socket_mode: u32,
    /// Its owner; `None`: the owner of its directory.
    pub socket_owner: Option<Owner>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// What resizes it; `None`: nothing here can.
    pub actuator: Option<vmm::Config>,
    /// Which policy, between which sizes.
    pub scaling: Scaling,
}

impl Config {
    /// Whether another one reaches the same VM in the same way: only what readers see of it may differ.
    #[must_use]
    pub fn is_same_link(&self, other: &Self) -> bool {
        let Self { address, dial, trust, socket_mode, socket_owner, labels: _, actuator: _, scaling: _ } = self;
        let theirs = (&other.address, &other.dial, &other.trust, &other.socket_mode, &other.socket_owner);
        (address, dial, trust, socket_mode, socket_owner) == theirs
    }
}

/// What is wrong with an `instance.toml`, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is no TOML.
    #[error("line {line}: {message}")]
    Syntax {
        /// Where.
        line: usize,
        /// What.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}`{}", suggestion.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest that does.
        suggestion: Option<&'static str>,
    },
    /// None or more than one address.
    #[error("{0}: exactly one of `uds`, `cid` and `unix` says how the VM is reached")]
    Address(&'static str),
    /// A value that does not fit.
    #[error("`{key}` must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The `[actuator]` table.
    #[error(transparent)]
    Actuator(#[from] vmm::ConfigError),
    /// The `[scaling]` table.
    #[error(transparent)]
    Scaling(#[from] ScalingError),
    /// Nobody would carry out what it says.
    #[error("`scaling` without `actuator`: nothing could resize the VM")]
    NoActuator,
}

const KEYS: [&str; 10] =
    ["uds", "cid", "unix", "dial", "trust", "socket_mode", "socket_owner", "labels", "actuator", "scaling"];

/// Reads and checks the text of an `instance.toml`.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| syntax(text, &error))?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(ConfigError::UnknownKey { key: shown(key), suggestion: nearest(key, &KEYS) });
    }
    let address = address(&table)?;
    let owner = match table.get("socket_owner") {
        None => None,
        Some(value) => Some(owner(value)?),
    };
    let actuator = table.get("actuator").map(vmm::parse).transpose()?;
    let scaling = table.get("scaling").map(settings::parse).transpose()?;
    if scaling.is_some() && actuator.is_none() {
        return Err(ConfigError::NoActuator);
    }
    Ok(Config {
        dial: port(&table, "dial")?,
        trust: match table.get("trust").map(Value::as_str) {
            None | Some(Some("root")) => Trust::Root,
            Some(Some("any")) => Trust::Any,
            Some(_) => return Err(ConfigError::Value { key: "trust", expected: "\"root\" or \"any\"" }),
        },
        socket_mode: mode(table.get("socket_mode"))?,
        socket_owner: owner,
        labels: labels(table.get("labels"))?,
        actuator,
        scaling: scaling.unwrap_or_default(),
        address,
    })
}

fn syntax(text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    // TOML has no number with a leading zero, and people write permissions with one.
    if text.lines().nth(line - 1).is_some_and(|line| line.trim_start().starts_with("socket_mode")) {
        return MODE;
    }
    ConfigError::Syntax { line, message: error.message().lines().next().unwrap_or("not TOML").into() }
}

/// Nothing that no path has, or that would garble a log.
fn is_clean(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.chars().any(char::is_control))
}

fn address(table: &Table) -> Result<Address, ConfigError> {
    let path = |key, value: &Value| match value.as_str().map(PathBuf::from) {
        Some(path) if path.is_absolute() && path.file_name().is_some() && is_clean(value) => Ok(path),
        _ => Err(ConfigError::Value { key, expected: "an absolute path of a socket, without control characters" }),
    };
    match (table.get("uds"), table.get("cid"), table.get("unix")) {
        (Some(value), None, None) => Ok(Address::Uds(path("uds", value)?)),
        (None, None, Some(value)) => Ok(Address::Unix(path("unix", value)?)),
        (None, Some(value), None) => {
            let cid = value.as_integer().and_then(|cid| u32::try_from(cid).ok());
            // 0 and 2 are hosts, 2^32 - 1 is the wildcard. 1 is this machine itself, over loopback.
            match cid {
                Some(cid) if cid == 1 || (3..u32::MAX).contains(&cid) => Ok(Address::Cid(cid)),
                _ => Err(ConfigError::Value {
                    key: "cid",
                    expected: "a guest's CID: 3 to 4294967294, or 1 for this machine",
                }),
            }
        }
        (None, None, None) => Err(ConfigError::Address("no address")),
        _ => Err(ConfigError::Address("more than one address")),
    }
}

fn port(table: &Table, key: &'static str) -> Result<Option<u32>, ConfigError> {
    let Some(value) = table.get(key) else { return Ok(None) };
    match value.as_integer().and_then(|port| u32::try_from(port).ok()) {
        Some(port) if port > 0 && port < u32::MAX => Ok(Some(port)),
        _ => Err(ConfigError::Value { key, expected: "a port: 1 to 4294967294" }),
    }
}

const MODE: ConfigError =
    ConfigError::Value { key: "socket_mode", expected: "permissions in octal: \"0660\" or 0o660" };

fn mode(value: Option<&Value>) -> Result<u32, ConfigError> {
    let mode = match value {
        None => return Ok(0o660),
        Some(Value::String(text)) => u32::from_str_radix(text, 8).ok(),
        Some(value) => value.as_integer().and_then(|mode| u32::try_from(mode).ok()),
    };
    mode.filter(|mode| *mode <= 0o777).ok_or(MODE)
}

fn owner(value: &Value) -> Result<Owner, ConfigError> {
    let error = ConfigError::Value { key: "socket_owner", expected: "\"user\", \"user:group\" or \":group\"" };
    let Some(text) = value.as_str() else { return Err(error) };
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let part = |part: &str| (!part.is_empty()).then(|| part.to_owned());
    let owner = Owner { user: part(user), group: part(group) };
    if owner == Owner::default() || group.contains(':') { Err(error) } else { Ok(owner) }
}

fn labels(value: Option<&Value>) -> Result<BTreeMap<String, String>, ConfigError> {
    let error = || ConfigError::Value {
        key: "labels",
        expected: "a table of at most 64 strings; keys of letters, digits and `._/-`, at most 64; values of at most 256 bytes",
    };
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let table = value.as_table().filter(|table| table.len() <= MAX_LABELS).ok_or_else(error)?;
    let mut labels = BTreeMap::new();
    for (key, value) in table {
        let key_fits = (1..=MAX_LABEL_KEY).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte));
        let text = value.as_str().filter(|text| key_fits && text.len() <= MAX_LABEL_VALUE).ok_or_else(error)?;
        labels.insert(key.clone(), text.to_owned());
    }
    Ok(labels)
}

/// A key as it may stand in one line.
pub(crate) fn shown(key: &str) -> String {
    key.chars().take(40).flat_map(char::escape_debug).collect()
}

/// The known key that is at most two edits away; two letters that changed places are one.
pub(crate) fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    if key.len() > MAX_NAME {
        return None;
    }
    known
        .iter()
        .copied()
        .map(|known| (strsim::osa_distance(key, known), known))
        .filter(|(edits, _)| *edits <= 2)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file() {
        let text = r#"
            uds = "/run/vm/v.sock"
            dial = 1024
            trust = "any"
            socket_mode = "0600"
            socket_owner = "qemu:kvm"
            labels = { role = "web", "k8s.io/zone" = "a" }
        "#;
        let config = parse(text).unwrap();
        assert_eq!(config.address, Address::Uds("/run/vm/v.sock".into()));
        assert_eq!((config.dial, config.trust, config.socket_mode), (Some(1024), Trust::Any, 0o600));
        assert_eq!(config.socket_owner, Some(Owner { user: Some("qemu".into()), group: Some("kvm".into()) }));
        assert_eq!(config.labels["k8s.io/zone"], "a");
        assert_eq!(parse("cid = 42").unwrap().socket_mode, 0o660);
    }

    #[test]
    fn one_line_that_says_what_to_do() {
        let wrong = [
            ("udz = '/a/b'", "unknown key `udz`: did you mean `uds`?"),
            ("usd = '/a/b'", "unknown key `usd`: did you mean `uds`?"),
            ("uds = '/a/b'\nsocket_mod = 3", "unknown key `socket_mod`: did you mean `socket_mode`?"),
            ("uds = '/a/b'\nbanana = 3", "unknown key `banana`"),
            ("uds = '/a/b'\n\"\\u001b[2J\" = 3", "unknown key `\\u{1b}[2J`"),
            ("", "no address: exactly one of `uds`, `cid` and `unix` says how the VM is reached"),
            (
                "uds='/a/b'\ncid=3",
                "more than one address: exactly one of `uds`, `cid` and `unix` says how the VM is reached",
            ),
            ("uds = 'v.sock'", "`uds` must be an absolute path of a socket, without control characters"),
            ("cid = 2", "`cid` must be a guest's CID: 3 to 4294967294, or 1 for this machine"),
            ("cid = 7\ntrust = 'all'", "`trust` must be \"root\" or \"any\""),
            ("cid = 7\nsocket_mode = 0660", "`socket_mode` must be permissions in octal: \"0660\" or 0o660"),
            ("uds = \"/a\\u0000\"", "`uds` must be an absolute path of a socket, without control characters"),
            ("cid = 7\nsocket_mode = '0999'", "`socket_mode` must be permissions in octal: \"0660\" or 0o660"),
        ];
        for (text, message) in wrong {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
        assert!(matches!(parse("cid = 7\nuds = '").unwrap_err(), ConfigError::Syntax { line: 2, .. }));
    }

    #[test]
    fn names() {
        let long = "x".repeat(65);
        for (name, is) in
            [("vm-1.a_B", true), (".lock", false), ("", false), ("a/b", false), ("a b", false), (&long, false)]
        {
            assert_eq!(is_instance_name(name), is, "{name}");
        }
    }
}
