//! How large a VM is: CPU and memory, and amounts of them. Units live in the types; arithmetic saturates.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Thousandths of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MilliCpu(pub u32);

impl MilliCpu {
    /// Whole CPUs.
    #[must_use]
    pub const fn from_cpus(cpus: u32) -> Self {
        Self(cpus.saturating_mul(1000))
    }

    /// The whole CPUs that give at least this much.
    #[must_use]
    pub const fn cpus(self) -> u32 {
        self.0.div_ceil(1000)
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1000 => f.write_str("1 CPU"),
            milli if milli.is_multiple_of(1000) => write!(f, "{} CPUs", milli / 1000),
            milli => write!(f, "{milli}m CPU"),
        }
    }
}

/// Bytes of memory or disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 1,024 bytes.
    pub const KIB: u64 = 1024;
    /// 1,024 KiB.
    pub const MIB: u64 = 1024 * Self::KIB;
    /// 1,024 MiB.
    pub const GIB: u64 = 1024 * Self::MIB;

    /// So many MiB.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(Self::MIB))
    }

    /// So many GiB.
    #[must_use]
    pub const fn gib(gib: u64) -> Self {
        Self(gib.saturating_mul(Self::GIB))
    }

    /// Zero at the least.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The largest number at the most.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Bytes {
    /// To the nearest MiB (KiB below one): sizes of VMs are read by people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= Self::GIB && bytes.is_multiple_of(Self::GIB) => write!(f, "{} GiB", bytes / Self::GIB),
            bytes if bytes >= Self::MIB => write!(f, "{} MiB", bytes.saturating_add(Self::MIB / 2) / Self::MIB),
            bytes if bytes >= Self::KIB => write!(f, "{} KiB", bytes / Self::KIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

/// The resources of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// CPU time it may use.
    pub cpu: MilliCpu,
    /// Memory it has.
    pub memory: Bytes,
}

impl Size {
    /// The larger of both, each by itself.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    /// The smaller of both, each by itself.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), memory: self.memory.min(other.memory) }
    }

    /// Whether it has at least as much of each.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.cpu >= other.cpu && self.memory >= other.memory
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.cpu, self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sizes_read_well() {
        assert_eq!(Size { cpu: MilliCpu(1000), memory: Bytes::gib(2) }.to_string(), "1 CPU, 2 GiB");
        assert_eq!(Size { cpu: MilliCpu(2000), memory: Bytes::mib(1536) }.to_string(), "2 CPUs, 1536 MiB");
        assert_eq!(Size { cpu: MilliCpu(250), memory: Bytes(1_146_884 * 1024) }.to_string(), "250m CPU, 1120 MiB");
        assert_eq!(Bytes(1023).to_string(), "1023 bytes");
        assert_eq!(MilliCpu(0).to_string(), "0 CPUs");
    }

    #[test]
    fn a_part_of_a_cpu_needs_a_whole_one() {
        assert_eq!((MilliCpu(250).cpus(), MilliCpu(1000).cpus(), MilliCpu(1001).cpus()), (1, 1, 2));
        assert_eq!(MilliCpu::from_cpus(u32::MAX), MilliCpu(u32::MAX));
    }
}
