//! stub
use informant_wire::size::{Bytes, MilliCpu, Size};
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: Size,
    pub max: Size,
}
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub taken_us: u64,
    pub load1: f64,
    pub load5: f64,
    pub cpus_online: u32,
    pub memory_total: Bytes,
    pub memory_available: Bytes,
    pub cached: Option<Bytes>,
    pub psi_memory_some_avg10: Option<f64>,
    pub psi_memory_full_avg10: Option<f64>,
    pub psi_cpu_some_avg10: Option<f64>,
}
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    pub cpu: Option<MilliCpu>,
    pub memory: Option<Bytes>,
    pub urgency: u8,
    pub at_us: u64,
}
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Denied {
    pub at_us: u64,
    pub size: Size,
}
#[derive(Clone, Debug)]
pub struct Inputs {
    pub now_us: u64,
    pub sample: Option<Sample>,
    pub present: Size,
    pub bounds: Bounds,
    pub demand: Option<Wanted>,
    pub denied: Option<Denied>,
}
pub struct Decision {
    pub wanted: Size,
    pub reason: String,
}
#[derive(Clone, Debug, PartialEq)]
pub struct Policy;
impl Policy {
    pub fn name(&self) -> &'static str {
        "compute-unit"
    }
    pub fn decide(&self, i: &Inputs) -> Option<Decision> {
        let mut w = i.present;
        if let Some(d) = i.demand {
            w = Size { cpu: d.cpu.unwrap_or(w.cpu).max(w.cpu), memory: d.memory.unwrap_or(w.memory).max(w.memory) }
        }
        Some(Decision { wanted: w.min(i.bounds.max).max(i.bounds.min), reason: "x".into() })
    }
}
pub fn parse(_n: &str, _v: Option<&toml::Value>) -> Result<Policy, String> {
    Ok(Policy)
}
