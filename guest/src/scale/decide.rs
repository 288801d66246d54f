//! May the VM become smaller? Pure, and exact: integers of 128 bits, so that neither a rounding nor a size that nobody
//! has decides.
//!
//! Approved if usage + headroom <= 0.85 x what would be usable; equal is approved. A missing figure is "not ready" or
//! "failed", never an error that makes the host come back at once and for ever.

use super::usage::Usage;
use informant_wire::scale::{DownscaleOutcome, DownscaleReason};
use informant_wire::size::{Bytes, Size};

/// Of what is usable, this share may be used: 17/20 is 0.85.
pub const SHARE: (u64, u64) = (17, 20);
/// What must stay free beside it: a tenth of the wanted size, but not less than this …
const HEADROOM_LEAST: u64 = 16 * Bytes::MIB;
/// … and not more.
const HEADROOM_MOST: u64 = 100 * Bytes::MIB;
/// Asking sooner gives the same answer, milliseconds: usage does not fall at once.
const DENIED_AGAIN_MS: u32 = 4_000;
/// Two looks are there after so long.
const NOT_READY_AGAIN_MS: u32 = 300;
/// A sensor that is dead may need a person.
const FAILED_AGAIN_MS: u32 = 5_000;

/// What is known when the question comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Memory in use.
    pub usage: Usage,
    /// MemTotal now, bytes.
    pub total: u64,
    /// An approved shrink of which the kernel does not know yet.
    pub approved: Option<Approved>,
    /// What an open demand wants; zero: as it is.
    pub demanded: Size,
}

/// A shrink that was approved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Approved {
    /// When, boot time.
    pub at_us: u64,
    /// The memory that the VMM is to give then, bytes.
    pub memory: u64,
    /// The MemTotal that will be left, bytes.
    pub total: u64,
}

/// The question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What the VMM gives.
    pub present: Size,
    /// What it is to give.
    pub wanted: Size,
    /// It will be done whatever the answer.
    pub forced: bool,
}

/// The answer, with the numbers that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What.
    pub outcome: DownscaleOutcome,
    /// Why.
    pub reason: DownscaleReason,
    /// Memory in use.
    pub usage: Bytes,
    /// What must stay free beside it.
    pub headroom: Bytes,
    /// What both may come to.
    pub limit: Bytes,
    /// MemTotal afterwards, bytes.
    pub usable_after: u64,
    /// Asking sooner gives the same answer.
    pub retry_after_ms: u32,
}

/// 0.85 of it, rounded down; for people, not for deciding.
#[must_use]
pub fn share_of(usable: u64) -> u64 {
    let share = u128::from(usable) * u128::from(SHARE.0) / u128::from(SHARE.1);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Whether this much, and nothing beside it, fits into 0.85 of what is usable.
#[must_use]
pub fn fits(bytes: u128, usable: u64) -> bool {
    bytes * u128::from(SHARE.1) <= u128::from(usable) * u128::from(SHARE.0)
}

/// What must stay free when the VM has `wanted` bytes.
#[must_use]
pub fn headroom(wanted: u64) -> u64 {
    (wanted / 10).clamp(HEADROOM_LEAST, HEADROOM_MOST)
}

/// MemTotal once the question, and what was approved before it, have been carried out.
#[must_use]
pub fn usable_after(total: u64, approved: Option<Approved>, question: &Question) -> u64 {
    let (present, wanted) = (question.present.memory.0, question.wanted.memory.0);
    let plain = total.saturating_sub(present.saturating_sub(wanted));
    // The same memory is not counted twice when the host asks again, and not forgotten when it asks from the new size.
    let promised = approved.map(|before| before.total.saturating_sub(before.memory.saturating_sub(wanted)));
    promised.map_or(plain, |promised| plain.min(promised))
}

/// Decides.
#[must_use]
pub fn decide(facts: &Facts, question: &Question) -> Decision {
    let takes_memory = question.wanted.memory < question.present.memory;
    let takes_cpu = question.wanted.cpu < question.present.cpu;
    let usable = usable_after(facts.total, facts.approved, question);
    let headroom = headroom(question.wanted.memory.0);
    let usage = match facts.usage {
        Usage::Known(usage) => usage,
        Usage::Dead | Usage::TooFew => 0,
    };
    let (outcome, reason, retry_after_ms) = if question.forced {
        (DownscaleOutcome::APPROVED, DownscaleReason::FORCED, 0)
    } else if takes_cpu && facts.demanded.cpu > question.wanted.cpu
        || takes_memory && facts.demanded.memory > question.wanted.memory
    {
        (DownscaleOutcome::DENIED, DownscaleReason::DEMAND_OPEN, DENIED_AGAIN_MS)
    } else if !takes_memory {
        (DownscaleOutcome::APPROVED, DownscaleReason::NO_MEMORY_TAKEN, 0)
    } else {
        match facts.usage {
            Usage::Dead => (DownscaleOutcome::FAILED, DownscaleReason::NO_SAMPLES, FAILED_AGAIN_MS),
            Usage::TooFew => (DownscaleOutcome::NOT_READY, DownscaleReason::TOO_FEW_SAMPLES, NOT_READY_AGAIN_MS),
            Usage::Known(_) if fits(u128::from(usage) + u128::from(headroom), usable) => {
                (DownscaleOutcome::APPROVED, DownscaleReason::ROOM, 0)
            }
            Usage::Known(_) => (DownscaleOutcome::DENIED, DownscaleReason::MEMORY_IN_USE, DENIED_AGAIN_MS),
        }
    };
    Decision {
        outcome,
        reason,
        usage: Bytes(usage),
        headroom: Bytes(headroom),
        limit: Bytes(share_of(usable)),
        usable_after: usable,
        retry_after_ms,
    }
}

#[cfg(test)]
mod tests;
