//! Between whole numbers and fractions, without a panic for any of them.

use informant_wire::size::{Bytes, MilliCpu};

/// What is before the point: none for less than nothing and for no number, the largest for more than that.
pub(super) fn whole(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and takes NaN as 0")]
    {
        value as u64
    }
}

/// Exact up to 2^53.
pub(super) const fn real(value: u64) -> f64 {
    value as f64
}

pub(super) fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(super) fn milli(value: u64) -> MilliCpu {
    MilliCpu(u32::try_from(value).unwrap_or(u32::MAX))
}

/// A multiple of `step` that is at least `value`.
pub(super) const fn round_up(value: u64, step: u64) -> u64 {
    let step = if step == 0 { 1 } else { step };
    value.div_ceil(step).saturating_mul(step)
}

/// A multiple of `step` that is at most `value`.
pub(super) const fn round_down(value: u64, step: u64) -> u64 {
    let step = if step == 0 { 1 } else { step };
    value / step * step
}

/// So many times as much.
pub(super) fn times(bytes: Bytes, factor: f64) -> Bytes {
    Bytes(whole(real(bytes.0) * factor))
}
