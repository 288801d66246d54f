//! Why a size was chosen, with its numbers, for people.

use informant_wire::size::{Bytes, MilliCpu, Size};
use std::fmt;

/// The rule that spoke last.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// CPU in use.
    Load {
        /// The load that counts.
        load: f64,
        /// What it needs.
        needs: Amount,
    },
    /// Memory in use.
    Memory {
        /// MemTotal less MemAvailable.
        used: Bytes,
        /// MemTotal.
        total: Bytes,
        /// What it needs.
        needs: Amount,
    },
    /// The working set of the workload's cache.
    Cache {
        /// How large it is.
        working_set: Bytes,
        /// What it needs.
        needs: Amount,
    },
    /// Used memory grows.
    Growth {
        /// MemTotal less MemAvailable.
        used: Bytes,
        /// In a second.
        per_second: Bytes,
        /// That is looked ahead.
        seconds: u32,
    },
    /// Tasks wait for memory.
    MemoryPressure {
        /// Share of time in which some did.
        some: f64,
        /// Share of time in which all did.
        full: f64,
    },
    /// Tasks wait for a CPU.
    CpuPressure {
        /// Share of time in which some did.
        some: f64,
    },
    /// What there is is enough, and not too much.
    Enough {
        /// What it is.
        present: Size,
    },
    /// The guest has asked for it.
    Demand {
        /// CPU in all.
        cpu: Option<MilliCpu>,
        /// Memory in all.
        memory: Option<Bytes>,
    },
    /// The guest could not do with less a moment ago.
    Denied {
        /// What it could not do with.
        size: Size,
    },
    /// What is not known can not be taken away.
    Missing {
        /// What is missing.
        what: &'static str,
    },
    /// It grew a moment ago.
    Held {
        /// For so many seconds nothing is taken.
        seconds: u32,
    },
    /// It is outside of its bounds.
    Bounds {
        /// What it has.
        present: Size,
    },
}

/// In the terms of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Compute units.
    Units(u32),
    /// CPU.
    Cpu(MilliCpu),
    /// Memory.
    Memory(Bytes),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(1) => f.write_str("1 compute unit"),
            Self::Units(units) => write!(f, "{units} compute units"),
            Self::Cpu(cpu) => cpu.fmt(f),
            Self::Memory(memory) => memory.fmt(f),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        match self {
            Self::Load { load, needs } => write!(f, "load {load:.2}: {needs}"),
            Self::Memory { used, total, needs } => write!(f, "memory {used} used of {total}: {needs}"),
            Self::Cache { working_set, needs } => write!(f, "cache with a working set of {working_set}: {needs}"),
            Self::Growth { used, per_second, seconds } => {
                write!(f, "memory {used} used, growing by {per_second} a second: ready for {seconds} s more of that")
            }
            Self::MemoryPressure { some, full } => {
                write!(
                    f,
                    "tasks waited for memory in {} % of the time, all of them in {} %",
                    percent(*some),
                    percent(*full)
                )
            }
            Self::CpuPressure { some } => write!(f, "tasks waited for a CPU in {} % of the time", percent(*some)),
            Self::Enough { present } => write!(f, "{present} is enough, and not too much"),
            Self::Demand { cpu, memory } => match (cpu, memory) {
                (Some(cpu), Some(memory)) => write!(f, "the guest wants {cpu}, {memory}"),
                (Some(cpu), None) => write!(f, "the guest wants {cpu}"),
                (None, Some(memory)) => write!(f, "the guest wants {memory}"),
                (None, None) => f.write_str("the guest wants more"),
            },
            Self::Denied { size } => write!(f, "the guest could not do with {size} a moment ago"),
            Self::Missing { what } => write!(f, "{what} missing: nothing is taken away"),
            Self::Held { seconds } => write!(f, "grown less than {seconds} s ago: nothing is taken away"),
            Self::Bounds { present } => write!(f, "{present} is outside of the bounds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_their_numbers() {
        let (used, total) = (Bytes::mib(1536), Bytes::gib(2));
        for (reason, text) in [
            (Reason::Memory { used, total, needs: Amount::Units(3) }, "memory 1536 MiB used of 2 GiB: 3 compute units"),
            (Reason::Load { load: 0.2, needs: Amount::Units(1) }, "load 0.20: 1 compute unit"),
            (
                Reason::MemoryPressure { some: 0.125, full: 0.0 },
                "tasks waited for memory in 13 % of the time, all of them in 0 %",
            ),
            (Reason::Demand { cpu: None, memory: Some(total) }, "the guest wants 2 GiB"),
            (
                Reason::Denied { size: Size { cpu: MilliCpu(1000), memory: total } },
                "the guest could not do with 1 CPU, 2 GiB a moment ago",
            ),
        ] {
            assert_eq!(reason.to_string(), text);
        }
    }
}
