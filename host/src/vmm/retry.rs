//! When a resize that failed is tried again. Pure: times and chance are arguments.
//!
//! A wait is a moment, never "time since the failure", which would be over for ever once it was over.

use super::error::VmmError;
use crate::model::{Now, SECOND_US};
use informant_wire::size::Size;

/// After a failure that may pass.
const FAILED_US: u64 = 5 * SECOND_US;
/// After "not yet".
const NOT_YET_US: u64 = 2 * SECOND_US;
/// After a refusal: only a person who changes the VM's definition makes a difference.
const REFUSED_US: u64 = 60 * SECOND_US;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retry {
    /// When, in [`Now::mono_us`], and for a refusal of which size.
    wait: Option<(u64, Option<Size>)>,
}

impl Retry {
    /// A resize to `wanted` failed. `chance` is any random number: it adds up to a quarter, so that a thousand VMs of a
    /// host that hung for a moment do not come back in step.
    pub fn failed(&mut self, wanted: Size, error: &VmmError, now: Now, chance: u32) {
        let (base, refused) = match error {
            VmmError::NotYet(_) => (NOT_YET_US, None),
            error if error.is_transient() => (FAILED_US, None),
            _ => (REFUSED_US, Some(wanted)),
        };
        let jitter = (base / 4).saturating_mul(u64::from(chance)) >> u32::BITS;
        self.wait = Some((now.mono_us.saturating_add(base).saturating_add(jitter), refused));
    }

    /// One was accepted.
    pub fn succeeded(&mut self) {
        self.wait = None;
    }

    /// Microseconds until a resize to `wanted` may be tried; 0 if it may be now. Another size than a refused one waits
    /// for nothing.
    #[must_use]
    pub fn wait_us(&self, wanted: Size, now: Now) -> u64 {
        match self.wait {
            Some((until, refused)) if refused.is_none_or(|size| size == wanted) => until.saturating_sub(now.mono_us),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::size::{Bytes, MilliCpu};

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_ms: 0 }
    }

    #[test]
    fn each_failure_has_its_wait_and_every_wait_ends() {
        let text = String::new;
        let one = Size { cpu: MilliCpu(1000), memory: Bytes::gib(1) };
        let other = Size { cpu: MilliCpu(1000), memory: Bytes::gib(2) };
        let mut retry = Retry::default();
        assert_eq!(retry.wait_us(one, at(0)), 0);
        for (error, least, most) in [
            (VmmError::Timeout(text()), 5_000_000, 6_249_999),
            (VmmError::Unreachable(text()), 5_000_000, 6_249_999),
            (VmmError::Protocol(text()), 5_000_000, 6_249_999),
            (VmmError::NotYet(text()), 2_000_000, 2_499_999),
            (VmmError::Refused(text()), 60_000_000, 74_999_999),
            (VmmError::Unsupported(text()), 60_000_000, 74_999_999),
        ] {
            for (chance, wait) in [(0, least), (u32::MAX, most)] {
                retry.failed(one, &error, at(100), chance);
                assert_eq!(retry.wait_us(one, at(100)), wait, "{}", error.kind());
                assert_eq!(retry.wait_us(one, at(100 + wait - 1)), 1);
                assert_eq!(retry.wait_us(one, at(100 + wait)), 0);
                assert_eq!(retry.wait_us(one, at(u64::MAX)), 0);
                let expected = if error.is_transient() { wait } else { 0 };
                assert_eq!(retry.wait_us(other, at(100)), expected, "{}", error.kind());
            }
        }
        retry.succeeded();
        assert_eq!(retry.wait_us(one, at(100)), 0);
        retry.failed(one, &VmmError::Timeout(text()), at(u64::MAX), 7);
        assert_eq!(retry.wait_us(one, at(u64::MAX)), 0, "saturates");
    }
}
