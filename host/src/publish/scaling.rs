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

/// How an instance scales. What is not known or not there is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scaling {
    /// The actuator (`qemu`, `cloud-hypervisor`, `firecracker`, `command`); `None`: this host can not resize it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actuator: Option<String>,
    /// The policy (`compute-unit`, `pressure`, `none`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The least it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Amount>,
    /// The most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Amount>,
    /// This daemon decides: the agent made it the current controller.
    pub current: bool,
    /// The turn it was given; valid on this session alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// `idle`, `asking` (the guest, whether it may be smaller), `resizing` (the VMM), `settling` (until VMM and guest have
    /// it), `off`.
    pub state: String,
    /// Milliseconds in that state.
    pub state_age_ms: u64,
    /// What the state leads to; idle: what the VMM was asked to give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Amount>,
    /// What the VMM says it gives now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmm_has: Option<Amount>,
    /// What it was asked to give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmm_wish: Option<Amount>,
    /// Age of both, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmm_age_ms: Option<u64>,
    /// What was wrong when it was asked last, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmm_error: Option<String>,
    /// CPUs online and MemTotal, as the guest said last in this conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_cpus: Option<u32>,
    /// See [`Self::guest_cpus`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_memory_bytes: Option<u64>,
    /// The last decision that was another than to leave it as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<Decided>,
    /// What the guest wants and has not got or taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demanded>,
    /// The last refusal of the guest to become smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// The size is held where a person put it until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Stamp>,
    /// Why the last change of size did not come to its end, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// Counts since the daemon started; not where nothing resizes the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Box<Counters>>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Messages received and sent, by type and result (`demand` → `granted` → 3).
    pub messages: Messages,
    /// What the policy or a person wanted.
    pub requested: Directions,
    /// What was let through: by the guest where it becomes smaller.
    pub approved: Directions,
    /// What the guest refused.
    pub denied: Directions,
    /// What VMM and guest have said is there.
    pub applied: Directions,
    /// Changes that did not come to their end, by reason.
    pub stuck: Stuck,
    /// From the arrival of a demand for more than the VMM was asked to give, to the call to it.
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
const RESULTS: usize = 26;

/// Counts of messages; as JSON a table of tables. Ten thousand instances have one each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, BTreeMap<String, u64>>", into = "BTreeMap<String, BTreeMap<String, u64>>")]
pub struct Messages([u64; RESULTS]);

impl Messages {
    /// Where a result stands; `other` for one that is not known beforehand: a guest can not make new ones.
    fn place(name: &str, result: &str) -> Option<usize> {
        let mut before = 0;
        for (known, results) in MESSAGES {
            if known == name {
                let at = results.iter().position(|known| *known == result);
                let at = at.or_else(|| results.iter().position(|known| *known == "other"))?;
                return Some(before + at);
            }
            before += results.len();
        }
        None
    }

    /// How often.
    #[must_use]
    pub fn get(&self, name: &str, result: &str) -> u64 {
        Self::place(name, result).and_then(|at| self.0.get(at).copied()).unwrap_or_default()
    }
}

impl From<Messages> for BTreeMap<String, BTreeMap<String, u64>> {
    fn from(counts: Messages) -> Self {
        let of = |name: &str, results: &[&str]| {
            results.iter().map(|result| ((*result).to_owned(), counts.get(name, result))).collect()
        };
        MESSAGES.iter().map(|(name, results)| ((*name).to_owned(), of(name, results))).collect()
    }
}

impl From<BTreeMap<String, BTreeMap<String, u64>>> for Messages {
    fn from(table: BTreeMap<String, BTreeMap<String, u64>>) -> Self {
        let mut counts = Self::default();
        for (name, results) in &table {
            for (result, count) in results {
                if let Some(slot) = Self::place(name, result).and_then(|at| counts.0.get_mut(at)) {
                    *slot = slot.saturating_add(*count);
                }
            }
        }
        counts
    }
}

/// Why a change may come to no end.
const STUCK: [&str; 6] =
    ["vmm_refused", "vmm_unreachable", "vmm_did_not_give", "vmm_did_not_take", "guest_failed", "guest_silent"];

/// Counts by reason; as JSON a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, u64>", into = "BTreeMap<String, u64>")]
pub struct Stuck([u64; STUCK.len()]);

impl Stuck {
    /// How often.
    #[must_use]
    pub fn get(&self, reason: &str) -> u64 {
        STUCK.iter().position(|known| *known == reason).and_then(|at| self.0.get(at).copied()).unwrap_or_default()
    }

    fn slot(&mut self, reason: &str) -> Option<&mut u64> {
        STUCK.iter().position(|known| *known == reason).and_then(|at| self.0.get_mut(at))
    }
}

impl From<Stuck> for BTreeMap<String, u64> {
    fn from(counts: Stuck) -> Self {
        STUCK.iter().map(|reason| ((*reason).to_owned(), counts.get(reason))).collect()
    }
}

impl From<BTreeMap<String, u64>> for Stuck {
    fn from(table: BTreeMap<String, u64>) -> Self {
        let mut counts = Self::default();
        for (reason, count) in &table {
            if let Some(slot) = counts.slot(reason) {
                *slot = *count;
            }
        }
        counts
    }
}

impl Counters {
    /// Counts a message.
    pub fn message(&mut self, name: &str, result: &str) {
        if let Some(count) = Messages::place(name, result).and_then(|at| self.messages.0.get_mut(at)) {
            *count += 1;
        }
    }

    /// Counts a change that came to no end.
    pub fn stuck(&mut self, reason: &str) {
        if let Some(count) = self.stuck.slot(reason) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there_from_the_start_and_none_is_made_by_a_guest() {
        assert_eq!(RESULTS, MESSAGES.iter().map(|(_, results)| results.len()).sum::<usize>());
        let mut counters = Counters::default();
        counters.message("demand", "granted");
        counters.message("resized", "never heard of");
        counters.message("demand", "never heard of");
        counters.message("nobody", "granted");
        counters.stuck("guest_silent");
        counters.stuck("nobody");
        let json = serde_json::to_value(&counters).unwrap();
        assert_eq!(
            (&json["messages"]["demand"]["granted"], &json["messages"]["resized"]["other"]),
            (&1.into(), &1.into())
        );
        assert_eq!(json["messages"]["demand"].as_object().unwrap().values().filter(|count| **count != 0).count(), 1);
        assert_eq!((&json["stuck"]["guest_silent"], &json["stuck"]["vmm_refused"]), (&1.into(), &0.into()));
        assert_eq!(serde_json::from_value::<Counters>(json).unwrap(), counters);
    }
}
