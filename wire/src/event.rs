//! Events: something that happened, with a time and a sequence number. Kinds are open: an unknown one is stored,
//! acknowledged and shown as unknown.

use crate::frame::{DecodeError, EncodeError, decode, encode, kind};
use crate::limits::MAX_EVENT_BODY;
use crate::scale::AdvisorFault;
use serde::{Deserialize, Serialize};

/// What happened. The body's form belongs to the kind and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EventKind(pub u16);

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $id:literal $const:ident $name:literal;)*) => {
        impl EventKind {
            $($(#[$doc])* pub const $const: Self = Self($id);)*

            /// Every kind this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$const),*];

            /// The kind's name in logs and JSON; `None` for one that this version does not know.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($id => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

event_kinds! {
    /// The agent began; body [`AgentStarted`].
    1 AGENT_STARTED "agent_started";
    /// Events were lost before they could be delivered; body [`Dropped`].
    2 DROPPED "events_dropped";
    /// There were more series than one session may have; body [`SchemaCut`].
    3 SCHEMA_CUT "schema_cut";
    /// A file system did not answer statvfs for 2 s; body: the mount point's bytes.
    4 MOUNT_HUNG "mount_hung";
    /// A hung file system answers again; body: the mount point's bytes.
    5 MOUNT_RECOVERED "mount_recovered";
    /// The agent cost more than its budget and samples at half the rate; body [`RateChanged`].
    6 RATE_REDUCED "rate_reduced";
    /// The agent samples at its configured rate again; body [`RateChanged`].
    7 RATE_RESTORED "rate_restored";
    /// The set of online CPUs changed; body [`Changed`], counts of CPUs.
    8 CPUS_CHANGED "cpus_changed";
    /// The memory the kernel manages changed; body [`Changed`], bytes.
    9 MEMORY_CHANGED "memory_changed";
    /// The wall clock was stepped against the boot clock; body [`ClockStepped`].
    10 CLOCK_STEPPED "clock_stepped";
    /// The agent was told to end and ends; empty body.
    11 AGENT_STOPPING "agent_stopping";
    /// Something that should advise on scaling did not, or may not; body [`AdvisorFailed`].
    12 ADVISOR_FAILED "advisor_failed";
}

/// Guest to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event<'a> {
    /// Counts from 1 within a stream, without gaps.
    pub sequence: u64,
    /// `CLOCK_BOOTTIME` when it happened, microseconds.
    pub boot_time_us: u64,
    /// What happened.
    pub kind: EventKind,
    /// At most 512 bytes, in the form of the kind.
    pub body: &'a [u8],
}

impl<'a> Event<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let event: Self = decode(body)?;
        if event.body.len() <= MAX_EVENT_BODY && event.sequence > 0 { Ok(event) } else { Err(DecodeError::Malformed) }
    }

    /// Writes the frame.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        if self.body.len() > MAX_EVENT_BODY {
            return Err(EncodeError);
        }
        encode(out, kind::EVENT, self)
    }
}

/// Body of [`EventKind::AGENT_STARTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStarted<'a> {
    /// The agent's process id in the guest.
    pub pid: u32,
    /// True when it continues the event stream of an earlier process of this boot.
    pub continued: bool,
    /// Its version.
    pub version: &'a str,
}

/// Body of [`EventKind::DROPPED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// How many, where that is known: a new stream after an unreadable outbox does not know.
    pub count: Option<u64>,
}

/// Body of [`EventKind::SCHEMA_CUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaCut {
    /// Series that are reported.
    pub kept: u32,
    /// Series that are not.
    pub dropped: u32,
}

/// Body of [`EventKind::RATE_REDUCED`] and [`EventKind::RATE_RESTORED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateChanged {
    /// The interval from here on, milliseconds.
    pub interval_ms: u32,
    /// What the agent cost over the last minute, millionths of one CPU.
    pub cost_ppm: u32,
}

/// Body of events that tell an old and a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Before.
    pub old: u64,
    /// After.
    pub new: u64,
}

/// Body of [`EventKind::CLOCK_STEPPED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStepped {
    /// How far the wall clock moved beyond the boot clock, microseconds; negative: backwards.
    pub step_us: i64,
}

/// Body of [`EventKind::ADVISOR_FAILED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisorFailed<'a> {
    /// What it did.
    pub what: AdvisorFault,
    /// Its file's name, or the name of its Hello; at most 64 bytes.
    pub name: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_unknown_kinds_have_none() {
        for (i, kind) in EventKind::ALL.iter().enumerate() {
            assert!(EventKind::ALL[i + 1..].iter().all(|other| other.name() != kind.name()));
        }
        assert_eq!(EventKind(60_000).name(), None);
    }

    #[test]
    fn sequence_zero_and_long_bodies_are_refused() {
        let mut out = [0; 1024];
        let event = Event { sequence: 7, boot_time_us: 5, kind: EventKind(999), body: b"xyz" };
        let end = event.encode(&mut out).unwrap();
        assert_eq!(Event::decode(&out[3..end]), Ok(event));
        assert_eq!(Event::decode(&out[3..=end]), Err(DecodeError::Trailing));
        assert!(Event { body: &[0; 513], ..event }.encode(&mut out).is_err());
        let end = Event { sequence: 0, ..event }.encode(&mut out).unwrap();
        assert_eq!(Event::decode(&out[3..end]), Err(DecodeError::Malformed));
    }
}
