//! Where in a status document the scaling stands: every name of its fields that these tests use is here.

use serde_json::Value;

/// What a side has, as the host shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) cpu_milli: u64,
    /// Bytes.
    pub(crate) memory: u64,
}

impl Amount {
    /// Whole CPUs that give so much.
    pub(crate) fn cpus(self) -> u64 {
        self.cpu_milli.div_ceil(1000)
    }
}

fn amount(value: &Value) -> Option<Amount> {
    Some(Amount { cpu_milli: value["cpu_milli"].as_u64()?, memory: value["memory_bytes"].as_u64()? })
}

/// What the host has decided.
pub(crate) fn wanted(status: &Value) -> Option<Amount> {
    amount(&status["scaling"]["wanted"])
}

/// What the VMM said when it was last asked.
pub(crate) fn vmm(status: &Value) -> Option<Amount> {
    amount(&status["scaling"]["vmm_has"])
}

/// Demands that are neither answered nor expired.
pub(crate) fn open_demands(status: &Value) -> Option<usize> {
    status["scaling"].as_object().map(|scaling| usize::from(scaling.contains_key("demand")))
}

/// What became of the newest demand: `granted`, `at_maximum`.
pub(crate) fn last_demand_outcome(status: &Value) -> Option<&str> {
    status["scaling"]["demand"]["answer"].as_str()
}

/// Messages of a type by result: `demand`, `downscale`, `resized`.
fn counter(status: &Value, message: &str, result: &str) -> Option<u64> {
    status["scaling"]["counters"]["messages"][message][result].as_u64()
}

/// Demands that came, repeats included.
pub(crate) fn demands_received(status: &Value) -> Option<u64> {
    let results = status["scaling"]["counters"]["messages"]["demand"].as_object()?;
    Some(results.values().filter_map(Value::as_u64).sum())
}

/// Downscale questions that were asked.
pub(crate) fn questions_asked(status: &Value) -> Option<u64> {
    counter(status, "downscale", "asked")
}

/// Downscale questions that the guest denied.
pub(crate) fn questions_denied(status: &Value) -> Option<u64> {
    counter(status, "downscale", "denied")
}
