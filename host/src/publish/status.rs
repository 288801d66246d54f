//! The form of `DIR/NAME/status.json` and of the JSON API on `DIR/informant.sock`. Only types: no file, no clock.
//!
//! `status.json` is one [`Status`], replaced atomically by the daemon that holds `DIR/.lock`: at once when a state changes
//! (when the states of very many instances change together, within seconds), else at the instance's pace, which is a
//! second with some dozens of instances and minutes with ten thousand. Without that lock held it is stale, and when
//! [`Status::next_write_by`] has passed; whoever needs the newest values at any scale asks the API.
//! Readers ignore fields they do not know; a field is never given another meaning within [`SCHEMA`].
//!
//! # Values
//! Every value is in its metric's published unit (seconds, bytes, ratios from 0 to 1). A value that the guest does
//! not have is not there; it is never 0 for that. A limit without a bound is the string `"max"`.
//!
//! # API, version 1 (HTTP/1.1 over the unix socket, JSON)
//! - `GET /v1/daemon`: [`Daemon`].
//! - `GET /v1/instances`: [`Instances`]; its statuses have empty `metrics`.
//! - `GET /v1/instances/NAME`: [`Status`].
//! - `GET /v1/instances/NAME/events?after=ID&limit=N`: [`Events`], oldest first; `after` is the id of the last event
//!   already read (default 0: from the oldest that is kept), `limit` at most and by default 1000.
//! - `GET /v1/instances/NAME/controllers`: [`super::scaling::ControllerList`], as the agent answers within 2 s.
//! - `POST /v1/instances/NAME/resize` with a [`super::scaling::ResizeRequest`]: a stream of
//!   [`super::scaling::ResizeStep`]s, one JSON text a line; the last one has `done`. Who closes early gives it up.
//! - `POST /v1/take-over/ready`, then `.../go`: another daemon follows this one; only `serve --take-over` asks.
//! - `GET /v1/watch?name=NAME&name=NAME`: a stream of [`WatchLine`]s, one JSON text a line, until the reader closes.
//!   Without a name: all instances. First a `status` line for each instance, then changes: at once when a state
//!   changes, else at most once a second an instance.
//!
//! Anything else answers with a status of 4xx or 5xx and [`ApiError`]; only what is no HTTP has an empty answer. A
//! request has 5 s for its head, an answer is read within 10 s or cut, and at most 32 watches are open (503 beyond),
//! fewer where the limit of open files is below 1024.

use super::scaling::Scaling;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Version of these documents; readers refuse a higher one.
pub const SCHEMA: u32 = 1;

/// A moment of the host's wall clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stamp {
    /// Milliseconds since 1970 (UTC).
    pub ms: u64,
    /// The same for people, in UTC.
    pub rfc3339: String,
}

impl Stamp {
    /// From milliseconds since 1970.
    #[must_use]
    pub fn from_ms(ms: u64) -> Self {
        let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        Self { ms, rfc3339: time.map(|time| format!("{time:.3}")).unwrap_or_default() }
    }
}

/// The merged truth about one instance. `M`: how the metrics are held; readers use the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "M: Deserialize<'de> + Default"))]
pub struct Status<M = Vec<Group>> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The instance's name: its folder's.
    pub name: String,
    /// When this was written (in a file) or taken (in an answer). All ages in it are ages at this moment.
    pub written: Stamp,
    /// The daemon writes again before this moment; a file that is older belongs to a daemon that is gone.
    pub next_write_by: Stamp,
    /// How the instance is reached; `None` when its `instance.toml` does not say.
    pub transport: Option<Transport>,
    /// Labels from `instance.toml`.
    pub labels: BTreeMap<String, String>,
    /// What is wrong with `instance.toml` or with the socket it names, in one line.
    pub config_error: Option<String>,
    /// The connection to the guest.
    pub link: State<Link>,
    /// The agent process in the guest.
    pub agent: State<Agent>,
    /// What the guest says of its own work. `unknown` until somebody in the guest reports it.
    pub workload: State<Workload>,
    /// The newest sample. Its age is the age of every value of this document that has none of its own.
    pub data: State<Data>,
    /// Who speaks for the VM, or did last; `None` when nobody has since the daemon started.
    pub guest: Option<Guest>,
    /// The few numbers for a table; `None` while there is no data.
    pub summary: Option<Summary>,
    /// Its size: who decides, what is wanted, what it has.
    pub scaling: Scaling,
    /// What the daemon counted on this instance's connections since it started.
    pub counters: Counters,
    /// The values of the newest sample, a group a subject, in the guest's order.
    pub metrics: M,
}

/// A state, since when, and how old its last evidence is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "S: Deserialize<'de> + Default"))]
pub struct State<S> {
    /// Which.
    pub state: S,
    /// Since when it has been so; `None` where that is not known, as of `workload` until somebody reports it.
    pub since: Option<Stamp>,
    /// Milliseconds from the last evidence (bytes for `link` and `agent`, a sample for `data`) to
    /// [`Status::written`]; `None` when there was none since the daemon started.
    pub age_ms: Option<u64>,
    /// Why, in one line for people, where there is more to say.
    pub detail: Option<String>,
}

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// Nothing is known, or a newer daemon says something that this version does not know.
            #[default]
            #[serde(other)]
            Unknown,
        }

        impl $name {
            /// The state as in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

states! {
    /// The connection.
    Link {
        /// `instance.toml` or its socket is unusable: see `config_error`.
        Off = "off",
        /// The daemon waits for something on the host: the socket's directory, or the VMM's socket when it dials.
        Waiting = "waiting",
        /// The daemon listens (or dials), and no guest has a session.
        Listening = "listening",
        /// A session is open and bytes arrive.
        Up = "up",
        /// A session was open and nothing arrived for 15 s. `since`: the last byte. Not a verdict: it may be paused.
        Silent = "silent",
        /// A session was open and has ended.
        Down = "down",
    }
}

states! {
    /// The agent process.
    Agent {
        /// It has a session, and no sample has arrived on it yet.
        Starting = "starting",
        /// It reports.
        Ready = "ready",
        /// It said that it stops.
        Stopped = "stopped",
        /// Its session ended without a word, or it is silent.
        Lost = "lost",
        /// It was told why there is no session: see `detail`.
        Refused = "refused",
    }
}

states! {
    /// The work that the VM is there for.
    Workload {
        /// Somebody in the guest reported that it runs.
        Running = "running",
        /// Somebody in the guest reported that it ended.
        Ended = "ended",
    }
}

states! {
    /// The data.
    Data {
        /// No sample since the daemon started.
        None = "none",
        /// The newest sample is at most three intervals (and at least 5 s) old. An interval is the shorter one by the
        /// guest's clock and by arrival here, and it is fresh for at most 15 s more than the one by arrival.
        Fresh = "fresh",
        /// It is older. A state, not a verdict.
        Stale = "stale",
    }
}

/// How an instance is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transport {
    /// `uds`, `cid` or `unix`, as in `instance.toml`.
    pub kind: String,
    /// The socket path, or the CID in decimal.
    pub address: String,
    /// The vsock port on which the daemon listens, or which it dials.
    pub port: u32,
    /// The daemon dials the guest.
    pub dial: bool,
    /// Who may speak for the VM: `root` (must be proven) or `any`.
    pub trust: String,
}

/// Who speaks for the VM. All strings are the guest's own words: escape before showing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guest {
    /// The name it gives itself. Never an identity.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Boot id, 32 hexadecimal digits.
    pub boot_id: String,
    /// The protocol version spoken.
    pub protocol: u16,
    /// Root in the guest is proven for this session, or nobody asks (`trust = "any"`).
    pub proven: bool,
    /// Another instance has a live session with the same boot id and nonce, or had when this session began.
    pub clone: bool,
    /// This session, 16 hexadecimal digits.
    pub session: String,
    /// When this session began.
    pub connected: Stamp,
    /// Open sessions of the instance, this one and reporters included.
    pub sessions: u32,
    /// How many of them are not proven.
    pub sessions_unproven: u32,
    /// The guest's `CLOCK_BOOTTIME` at the newest sample or heartbeat, microseconds.
    pub boot_time_us: u64,
    /// The guest's wall clock minus the host's at the newest heartbeat, milliseconds, transit included.
    pub clock_skew_ms: Option<i64>,
    /// The latest that the agent's loop woke up, by its newest heartbeat, microseconds.
    pub loop_lag_us: Option<u32>,
    /// CPU time of one sample, by its newest heartbeat, microseconds.
    pub sample_cost_us: Option<u32>,
    /// Time between the two newest samples by the guest's clock, milliseconds.
    pub interval_ms: Option<u64>,
}

/// The few numbers for a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Busy share of all CPUs between the two newest samples, 0 to 100. Idle and iowait are not busy, steal is.
    pub cpu_percent: Option<f64>,
    /// CPUs online.
    pub cpus: Option<u64>,
    /// `MemTotal`.
    pub memory_total_bytes: Option<u64>,
    /// `MemTotal` less what is available.
    pub memory_used_bytes: Option<u64>,
    /// `MemAvailable`, or its estimate where the kernel gives none.
    pub memory_available_bytes: Option<u64>,
    /// PSI `cpu some avg10`, 0 to 1.
    pub pressure_cpu_ratio: Option<f64>,
    /// PSI `memory some avg10`, 0 to 1.
    pub pressure_memory_ratio: Option<f64>,
    /// PSI `io some avg10`, 0 to 1.
    pub pressure_io_ratio: Option<f64>,
    /// Load average over a minute.
    pub load1: Option<f64>,
}

/// What the daemon counted on an instance's connections since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Connections accepted or dialled.
    pub connections: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Handshakes refused.
    pub refused: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Frames received.
    pub frames: u64,
    /// Samples taken.
    pub samples: u64,
    /// Samples that the guest took and that never arrived.
    pub samples_missed: u64,
    /// Schemas taken.
    pub schemas: u64,
    /// Events stored.
    pub events: u64,
    /// Events that were stored already and came again.
    pub events_repeated: u64,
    /// Events whose sequence numbers were skipped.
    pub events_missed: u64,
    /// Frames of a type that this version does not know, skipped.
    pub frames_unknown: u64,
    /// Frames that did not decode, skipped.
    pub frames_bad: u64,
    /// Series of key frames that differed from what was held.
    pub mismatches: u64,
    /// Sessions ended because the peer broke the protocol.
    pub protocol_errors: u64,
    /// Series of the newest schema whose metric this version does not know; not published.
    pub series_unknown: u64,
    /// Times that reading was paused because the guest sent more than its share.
    pub throttled: u64,
    /// Counter readings that were lower than the one before.
    pub counters_back: u64,
}

/// The values of one subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// `vm`, `cpu`, `disk`, `network`, `filesystem`, `cgroup`, `cgroup_disk`.
    pub subject: String,
    /// The labels that name the subject (`cpu`, `device`, `mountpoint`, `id`, ...); empty for the VM. Bytes that are
    /// not UTF-8 are `\xNN`. The guest's own words: escape before showing.
    pub labels: BTreeMap<String, String>,
    /// Who says so: `agent`.
    pub source: String,
    /// Age of these values at [`Status::written`], milliseconds.
    pub age_ms: u64,
    /// The values.
    pub values: Vec<Value>,
}

/// One series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Value {
    /// The metric's name.
    pub name: String,
    /// Labels besides the group's, such as `mode`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The value in its published unit. A counter's total never falls within one [`Status::guest`] boot.
    pub value: Number,
    /// For counters: growth a second between the two newest samples by the guest's clock, or for those of cgroups that
    /// are read at every fifth sample from one reading to the next; absent where that is not
    /// known (first sample of a session or subject, a step back).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
}

/// A value: a number, or a limit without a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A number. Whole ones below 2^53 are written without a fraction.
    Finite(f64),
    /// A limit without a bound, `"max"`.
    Max,
}

impl Default for Number {
    fn default() -> Self {
        Self::Finite(0.0)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match *self {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in 0..2^53")]
            Self::Finite(value) if value.fract() == 0.0 && (0.0..EXACT).contains(&value) => {
                serializer.serialize_u64(value as u64)
            }
            Self::Finite(value) => serializer.serialize_f64(value),
            Self::Max => serializer.serialize_str("max"),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        #[expect(clippy::cast_precision_loss, reason = "the published form is a double")]
        impl Visitor<'_> for NumberVisitor {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or \"max\"")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Finite(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number::Finite(value as f64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Finite(value as f64))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Number, E> {
                if value == "max" { Ok(Number::Max) } else { Err(E::invalid_value(de::Unexpected::Str(value), &self)) }
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// `GET /v1/daemon`, and part of [`Instances`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Daemon {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its version.
    pub version: String,
    /// Its process id on the host.
    pub pid: u32,
    /// When it started.
    pub started: Stamp,
    /// Its clock now.
    pub now: Stamp,
    /// The vsock port on which agents reach it.
    pub port: u32,
    /// Instances that it knows.
    pub instances: u64,
    /// Folders with an `instance.toml` whose names no instance can have: they are left alone.
    pub misnamed: Vec<String>,
    /// Open sessions.
    pub sessions: u64,
    /// Log lines over the rate limit.
    pub log_suppressed: u64,
}

/// `GET /v1/instances`, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instances {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Who answers.
    pub daemon: Daemon,
    /// All instances, without metrics.
    pub instances: Vec<Status>,
}

/// A line of `DIR/NAME/events.log` and an element of [`Events`].
///
/// The file has lines of a second kind, `checkpoint`, which the API leaves out: `time`, `source` (`host`), `kind` and,
/// for the daemon's own use, a `body` that says how far each stream has come. They are no events and have no `id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventLine {
    /// Rises within the instance; never used again, also not after a rotation or a restart.
    pub id: u64,
    /// When the host took it.
    pub time: Stamp,
    /// `agent`, `reporter`, or `host` for what the daemon itself saw.
    pub source: String,
    /// The reporter's or agent's name for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Root in the guest was proven for that session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proven: Option<bool>,
    /// The boot it belongs to, 32 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The event stream, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Its number in the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The guest's `CLOCK_BOOTTIME` when it happened, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_time_us: Option<u64>,
    /// What happened: a name, or `unknown(NUMBER)`.
    pub kind: String,
    /// The body of a known kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<serde_json::Value>,
    /// The body of an unknown kind, or one that does not decode, as hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_hex: Option<String>,
}

/// `GET /v1/instances/NAME/events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Oldest first.
    pub events: Vec<EventLine>,
    /// There are more: ask again with `after` the last one's id.
    pub more: bool,
}

/// A line of `GET /v1/watch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum WatchLine {
    /// An instance as it is now, without metrics.
    Status {
        /// The instance.
        status: Box<Status>,
    },
    /// Something happened.
    Event {
        /// The instance's name.
        instance: String,
        /// What.
        event: Box<EventLine>,
    },
    /// The instance's folder is gone.
    Removed {
        /// The instance's name.
        name: String,
    },
    /// The reader was too slow: events were left out; states follow as they are now.
    Lost {
        /// How many lines.
        count: u64,
    },
    /// The daemon ends.
    Stopping,
    /// A newer daemon says something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The body of every answer that is not 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiError {
    /// What is wrong, in one line.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_max_is_a_word() {
        let numbers = [Number::Finite(0.5), Number::Finite(3.0), Number::Finite(-2.0), Number::Max];
        let text = serde_json::to_string(&numbers).unwrap();
        assert_eq!(text, r#"[0.5,3,-2.0,"max"]"#);
        assert_eq!(serde_json::from_str::<[Number; 4]>(&text).unwrap(), numbers);
        assert!(serde_json::from_str::<Number>(r#""min""#).is_err());
    }

    #[test]
    fn a_newer_document_is_read_as_far_as_it_is_known() {
        let text = r#"{"schema":1,"name":"vm","link":{"state":"teleporting"},"moods":[1],"metrics":[{"mood":2}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.name.as_str(), status.link.state, status.metrics.len()), ("vm", Link::Unknown, 1));
        let line: WatchLine = serde_json::from_str(r#"{"type":"song","text":"la"}"#).unwrap();
        assert_eq!(line, WatchLine::Unknown);
    }
}
