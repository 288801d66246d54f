//! The scaling part of [`super::status::Status`]: who decides, what is wanted, what the VMM and the guest have, and what
//! was counted. Only types.

use super::status::Stamp;
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Resources in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amount {
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// Bytes.
    pub memory_bytes: u64,
}

impl From<Size> for Amount {
    fn from(size: Size) -> Self {
        Self { cpu_milli: size.cpu.0, memory_bytes: size.memory.0 }
    }
}

impl From<Amount> for Size {
    fn from(amount: Amount) -> Self {
        Self { cpu: MilliCpu(amount.cpu_milli), memory: Bytes(amount.memory_bytes) }
    }
}

/// How an instance scales.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scaling {
    /// The actuator (`qemu`, `cloud-hypervisor`, `firecracker`, `command`); `None`: this host can not resize it.
    pub actuator: Option<String>,
    /// The policy (`compute-unit`, `pressure`, `none`).
    pub policy: Option<String>,
    /// The least it is given.
    pub min: Option<Amount>,
    /// The most.
    pub max: Option<Amount>,
    /// This daemon decides: the agent made it the current controller.
    pub current: bool,
    /// The turn it was given; valid on this session alone.
    pub epoch: Option<u64>,
    /// `idle`, `asking` (the guest, whether it may be smaller), `resizing` (the VMM), `settling` (until VMM and guest have
    /// it), `off`.
    pub state: String,
    /// Milliseconds in that state.
    pub state_age_ms: u64,
    /// What the state leads to; idle: what the VMM was asked to give.
    pub wanted: Option<Amount>,
    /// What the VMM says it gives now.
    pub vmm_has: Option<Amount>,
    /// What it was asked to give.
    pub vmm_wish: Option<Amount>,
    /// Age of both, milliseconds.
    pub vmm_age_ms: Option<u64>,
    /// What was wrong when it was asked last, in one line.
    pub vmm_error: Option<String>,
    /// CPUs online and MemTotal, as the guest said last in this conversation.
    pub guest_cpus: Option<u32>,
    /// See [`Self::guest_cpus`].
    pub guest_memory_bytes: Option<u64>,
    /// The last decision that was another than to leave it as it is.
    pub last_decision: Option<Decided>,
    /// What the guest wants and has not got or taken back.
    pub demand: Option<Demanded>,
    /// The last refusal of the guest to become smaller.
    pub denied: Option<Denial>,
    /// The size is held where a person put it until then.
    pub held_until: Option<Stamp>,
    /// Why the last change of size did not come to its end, in one line.
    pub stuck: Option<String>,
    /// Counts since the daemon started.
    pub counters: Counters,
}

/// A decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decided {
    /// When.
    pub at: Stamp,
    /// What.
    pub wanted: Amount,
    /// From where.
    pub from: Amount,
    /// Why, with its numbers, in one line.
    pub reason: String,
}

/// An open demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Demanded {
    /// Which, 16 hexadecimal digits.
    pub id: String,
    /// Thousandths of a CPU in all.
    pub cpu_milli: Option<u32>,
    /// Bytes of memory in all.
    pub memory_bytes: Option<u64>,
    /// A mount point (the guest's own bytes, `\xNN` where they are not UTF-8) and the bytes that it should have.
    pub disk: Option<(String, u64)>,
    /// 0 to 100.
    pub urgency: u8,
    /// Why.
    pub reason: String,
    /// What was answered last.
    pub answer: Option<String>,
    /// Milliseconds since it was asked for first.
    pub age_ms: u64,
}

/// A refusal of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Denial {
    /// When.
    pub at: Stamp,
    /// What it was to become.
    pub wanted: Amount,
    /// Why, with its numbers, in one line. The guest's own words may be in it: escape before showing.
    pub reason: String,
}

/// Counts of one resource and both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Directions {
    /// Changes to more CPU.
    pub cpu_up: u64,
    /// Changes to less CPU.
    pub cpu_down: u64,
    /// Changes to more memory.
    pub memory_up: u64,
    /// Changes to less memory.
    pub memory_down: u64,
}

impl Directions {
    /// Counts a change.
    pub fn count(&mut self, from: Size, to: Size) {
        self.cpu_up += u64::from(to.cpu > from.cpu);
        self.cpu_down += u64::from(to.cpu < from.cpu);
        self.memory_up += u64::from(to.memory > from.memory);
        self.memory_down += u64::from(to.memory < from.memory);
    }
}

/// How long one leg of the way takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leg {
    /// How often it was gone.
    pub count: u64,
    /// All of them, microseconds.
    pub sum_us: u64,
    /// The longest.
    pub max_us: u64,
    /// The last.
    pub last_us: u64,
}

impl Leg {
    /// Counts one.
    pub fn took(&mut self, us: u64) {
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
        self.last_us = us;
    }
}

/// What was counted since the daemon started. Every key is there from the start, so that nothing is told from never.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Messages received and sent, by type and result (`demand` → `granted` → 3).
    pub messages: BTreeMap<String, BTreeMap<String, u64>>,
    /// What the policy or a person wanted.
    pub requested: Directions,
    /// What was let through: by the guest where it becomes smaller.
    pub approved: Directions,
    /// What the guest refused.
    pub denied: Directions,
    /// What VMM and guest have said is there.
    pub applied: Directions,
    /// Changes that did not come to their end, by reason.
    pub stuck: BTreeMap<String, u64>,
    /// From a demand's arrival to the call to the VMM.
    pub demand_to_vmm: Leg,
    /// From the call to the VMM to its answer.
    pub vmm_answer: Leg,
    /// From that to the guest's "applied".
    pub vmm_to_applied: Leg,
    /// From the question to the guest, whether it may be smaller, to its answer.
    pub question: Leg,
}

/// Messages and their results: what can be counted.
const MESSAGES: [(&str, &[&str]); 7] = [
    ("resume", &["accepted"]),
    ("suspend", &["drained"]),
    ("demand", &["granted", "partial", "denied", "unsupported", "at_maximum", "withdrawn", "ignored"]),
    ("downscale", &["asked", "approved", "denied", "not_ready", "failed", "timeout", "void", "other"]),
    ("resized", &["told", "applied", "not_yet", "failed", "timeout", "void", "other"]),
    ("stale", &["received"]),
    ("late", &["ignored"]),
];

/// Why a change may come to no end.
const STUCK: [&str; 7] = [
    "vmm_refused",
    "vmm_unreachable",
    "vmm_did_not_give",
    "vmm_did_not_take",
    "guest_failed",
    "guest_silent",
    "no_agent",
];

impl Default for Counters {
    fn default() -> Self {
        let zeros = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), 0)).collect();
        Self {
            messages: MESSAGES.iter().map(|(name, results)| ((*name).to_owned(), zeros(results))).collect(),
            requested: Directions::default(),
            approved: Directions::default(),
            denied: Directions::default(),
            applied: Directions::default(),
            stuck: zeros(&STUCK),
            demand_to_vmm: Leg::default(),
            vmm_answer: Leg::default(),
            vmm_to_applied: Leg::default(),
            question: Leg::default(),
        }
    }
}

impl Counters {
    /// Counts a message. Only of the results that are known beforehand: a guest can not make new ones.
    pub fn message(&mut self, name: &str, result: &str) {
        let results = self.messages.get_mut(name);
        if let Some(count) = results.and_then(|results| {
            let known = if results.contains_key(result) { result } else { "other" };
            results.get_mut(known)
        }) {
            *count += 1;
        }
    }

    /// Counts a change that came to no end.
    pub fn stuck(&mut self, reason: &str) {
        if let Some(count) = self.stuck.get_mut(reason) {
            *count += 1;
        }
    }
}

/// The answer of `GET /v1/instances/NAME/controllers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerList {
    /// [`super::status::SCHEMA`].
    pub schema: u32,
    /// Hosts that have a session with the agent, the oldest first.
    pub controllers: Vec<Controller>,
}

/// A host that has a session with the agent. Names are their own words: escape before showing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Controller {
    /// Its process, 32 hexadecimal digits.
    pub id: String,
    /// `controller`, `observer`.
    pub role: String,
    /// Its name.
    pub name: String,
    /// It decides now.
    pub current: bool,
    /// The last turn it was given; 0 for none.
    pub epoch: u64,
    /// Milliseconds since the agent heard it.
    pub heard_ms: u64,
}

/// The body of `POST /v1/instances/NAME/resize`. What is not there stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// Thousandths of a CPU.
    #[serde(default)]
    pub cpu_milli: Option<u32>,
    /// Bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Whatever the guest says, and beyond the bounds.
    #[serde(default)]
    pub force: bool,
}

/// A line of its answer; the last one has [`Self::done`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResizeStep {
    /// Milliseconds since the request came.
    pub after_ms: u64,
    /// What happened, in one line.
    pub step: String,
    /// Of the last line: whether the size is there.
    pub done: Option<bool>,
}
