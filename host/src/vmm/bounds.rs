//! What a VM can be made, and which of these sizes a wanted one is. Pure.

use super::error::VmmError;
use informant_wire::size::{Bytes, MilliCpu, Size};

/// The CPUs that a VM can have; fixed where both ends are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuRange {
    /// The fewest.
    pub min: MilliCpu,
    /// The most.
    pub max: MilliCpu,
    /// They come in so many at once, counted from none: whole CPUs, except where a program scales them.
    pub step: MilliCpu,
}

impl CpuRange {
    /// Whole CPUs.
    #[must_use]
    pub const fn whole(min: u32, max: u32) -> Self {
        Self { min: MilliCpu::from_cpus(min), max: MilliCpu::from_cpus(max), step: MilliCpu(1000) }
    }

    /// Whether nothing changes them.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.min >= self.max
    }
}

/// The memory that a VM can have; fixed where both ends are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The least.
    pub min: Bytes,
    /// The most.
    pub max: Bytes,
    /// It comes in blocks of this size, counted from the least.
    pub block: Bytes,
}

impl MemoryRange {
    /// No more and no less.
    #[must_use]
    pub const fn fixed(memory: Bytes) -> Self {
        Self { min: memory, max: memory, block: Bytes(1) }
    }

    /// Whether nothing changes it.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.min >= self.max
    }
}

/// What a VM can be made while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// CPUs.
    pub cpu: CpuRange,
    /// Memory.
    pub memory: MemoryRange,
    /// Memory comes and goes by a balloon: none is added beyond what the VM started with, and MemTotal may not move.
    pub balloon: bool,
}

impl Capabilities {
    /// The smallest size within reach that has at least `wanted` of each.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] where what is fixed would have to change, [`VmmError::Refused`] beyond either end:
    /// nothing is clamped in silence.
    pub fn target(&self, wanted: Size) -> Result<Size, VmmError> {
        Ok(Size { cpu: self.cpu(wanted.cpu)?, memory: self.memory(wanted.memory)? })
    }

    /// The nearest size within reach: what a policy asks for instead of meeting a refusal.
    #[must_use]
    pub fn clamp(&self, wanted: Size) -> Size {
        let least = Size { cpu: self.cpu.min, memory: self.memory.min };
        let most = Size { cpu: self.cpu.max, memory: self.memory.max };
        let within = wanted.min(most).max(least);
        self.target(within).unwrap_or(within)
    }

    fn cpu(&self, wanted: MilliCpu) -> Result<MilliCpu, VmmError> {
        let CpuRange { min, max, step } = self.cpu;
        let step = step.0.max(1);
        let rounded = MilliCpu(wanted.0.div_ceil(step).saturating_mul(step));
        if self.cpu.is_fixed() {
            return if rounded == min {
                Ok(min)
            } else {
                Err(VmmError::Unsupported(format!("the VM's CPUs are fixed at {min}, {wanted} wanted")))
            };
        }
        if rounded < min {
            return Err(VmmError::Refused(format!("{wanted} wanted, and the VM cannot go below {min}")));
        }
        if rounded > max {
            return Err(VmmError::Refused(format!("{wanted} wanted, and the VM cannot go above {max}")));
        }
        Ok(rounded)
    }

    fn memory(&self, wanted: Bytes) -> Result<Bytes, VmmError> {
        let MemoryRange { min, max, block } = self.memory;
        let bytes = |bytes: Bytes| format!("{bytes} ({} bytes)", bytes.0);
        if self.memory.is_fixed() {
            return if wanted == min {
                Ok(min)
            } else {
                let (min, wanted) = (bytes(min), bytes(wanted));
                Err(VmmError::Unsupported(format!("the VM's memory is fixed at {min}, {wanted} wanted")))
            };
        }
        if wanted < min {
            let (min, wanted) = (bytes(min), bytes(wanted));
            return Err(VmmError::Refused(format!("{wanted} wanted, and the VM cannot go below {min}")));
        }
        if wanted > max {
            let (max, wanted) = (bytes(max), bytes(wanted));
            return Err(VmmError::Refused(format!("{wanted} wanted, and the VM cannot go above {max}")));
        }
        let block = block.0.max(1);
        let above = wanted.saturating_sub(min).0.div_ceil(block).saturating_mul(block);
        Ok(min.saturating_add(Bytes(above)).min(max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn can() -> Capabilities {
        Capabilities {
            cpu: CpuRange::whole(1, 4),
            memory: MemoryRange { min: Bytes::mib(512), max: Bytes::mib(2560), block: Bytes::mib(2) },
            balloon: false,
        }
    }

    fn size(milli: u32, bytes: u64) -> Size {
        Size { cpu: MilliCpu(milli), memory: Bytes(bytes) }
    }

    #[test]
    fn sizes_are_rounded_up_and_never_clamped() {
        let mib = Bytes::MIB;
        for (milli, bytes, is) in [
            (250, 512 * mib, Ok(size(1000, 512 * mib))),
            (1001, 512 * mib + 1, Ok(size(2000, 514 * mib))),
            (4000, 2560 * mib, Ok(size(4000, 2560 * mib))),
            (4001, 512 * mib, Err("4001m CPU wanted, and the VM cannot go above 4 CPUs")),
            (0, 512 * mib, Err("0 CPUs wanted, and the VM cannot go below 1 CPU")),
            (
                1000,
                512 * mib - 1,
                Err("512 MiB (536870911 bytes) wanted, and the VM cannot go below 512 MiB (536870912 bytes)"),
            ),
            (
                1000,
                2560 * mib + 1,
                Err("2560 MiB (2684354561 bytes) wanted, and the VM cannot go above 2560 MiB (2684354560 bytes)"),
            ),
        ] {
            let got = can().target(size(milli, bytes)).map_err(|error| {
                assert_eq!(error.kind(), "refused");
                error.to_string()
            });
            assert_eq!(got, is.map_err(str::to_owned), "{milli} {bytes}");
        }
    }

    #[test]
    fn what_is_fixed_may_stay_as_it_is() {
        let fixed = Capabilities {
            cpu: CpuRange::whole(2, 2),
            memory: MemoryRange::fixed(Bytes(1_000_000_007)),
            balloon: false,
        };
        let is = size(2000, 1_000_000_007);
        assert_eq!(fixed.target(size(1250, 1_000_000_007)), Ok(is), "a part of a CPU is the whole one that gives it");
        let error = fixed.target(size(3000, 1_000_000_007)).unwrap_err();
        assert_eq!(error, VmmError::Unsupported("the VM's CPUs are fixed at 2 CPUs, 3 CPUs wanted".into()));
        assert_eq!(fixed.target(size(2000, 1)).unwrap_err().kind(), "unsupported");
        assert_eq!(fixed.clamp(size(9000, 1)), is);
    }

    proptest! {
        #[test]
        fn a_target_covers_what_is_wanted_and_is_a_target_itself(
            milli in any::<u32>(), bytes in any::<u64>(), low in 0u64..1 << 40, more in 0u64..1 << 40, block in 0u64..1 << 30,
        ) {
            let mut can = can();
            can.memory = MemoryRange { min: Bytes(low), max: Bytes(low + more), block: Bytes(block) };
            let wanted = size(milli, bytes);
            if let Ok(target) = can.target(wanted) {
                prop_assert!(target.covers(wanted));
                prop_assert_eq!(can.target(target), Ok(target));
            }
            let clamped = can.clamp(wanted);
            prop_assert_eq!(can.target(clamped), Ok(clamped));
        }
    }
}
