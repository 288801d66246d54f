//! Whether a size that was told has arrived in the kernel. Pure: what is seen is an argument.
//!
//! The VMM's word is no evidence: memory may be plugged and offline, or online and MemTotal as it was
//! (as#593, as#1391).

use crate::collect::memory_blocks::Blocks;
use informant_wire::scale::{AppliedCause, AppliedOutcome, Seen};
use informant_wire::size::{Bytes, Size};

/// Where nothing else is known, a kernel keeps less than so much for itself …
const RESERVE_LEAST: u64 = 64 * Bytes::MIB;
/// … and this share of the memory.
const RESERVE_SHARE: u64 = 16;
/// What a VM may have beyond MemTotal at most: half as much, and this. More than that is something else, as memory that
/// is plugged and offline.
const RESERVE_MOST: u64 = 256 * Bytes::MIB;

/// What is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// CPUs online; 0: not known.
    pub cpus: u32,
    /// CPUs plugged; none: not known.
    pub cpus_present: Option<u32>,
    /// MemTotal, bytes; 0: not known.
    pub total: u64,
    /// Memory blocks; none: the kernel does not tell.
    pub blocks: Option<Blocks>,
    /// What the VM has beyond MemTotal, where that is known.
    pub reserve: Option<u64>,
}

impl View {
    /// As the host is told.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            cpus: self.cpus,
            memory_total: Bytes(self.total),
            memory_online: self.blocks.map(|blocks| Bytes(blocks.online_bytes)),
        }
    }
}

/// Whether a kernel with that MemTotal may keep all the rest of a VM's memory for itself, bytes.
#[must_use]
pub const fn may_keep(rest: u64, total: u64) -> bool {
    rest <= (total / 2).saturating_add(RESERVE_MOST)
}

/// Judges. `is_over`: it had its time.
#[must_use]
pub fn judge(was: Size, now: Size, view: &View, is_over: bool) -> (AppliedOutcome, AppliedCause) {
    match memory(was, now, view).or_else(|| cpus(was, now, view)) {
        None => (AppliedOutcome::APPLIED, AppliedCause::NONE),
        Some(cause) if is_over => (AppliedOutcome::FAILED, cause),
        Some(cause) => (AppliedOutcome::NOT_YET, cause),
    }
}

/// What keeps CPUs from being as told.
fn cpus(was: Size, now: Size, view: &View) -> Option<AppliedCause> {
    let wanted = now.cpu.cpus();
    if wanted < was.cpu.cpus() {
        return (view.cpus > wanted.max(1)).then_some(AppliedCause::NOT_UNPLUGGED);
    }
    if view.cpus >= wanted {
        None
    } else if view.cpus_present.is_some_and(|present| present >= wanted) {
        Some(AppliedCause::CPU_OFFLINE)
    } else {
        Some(AppliedCause::NOT_PLUGGED)
    }
}

/// What keeps memory from being as told.
fn memory(was: Size, now: Size, view: &View) -> Option<AppliedCause> {
    let (was, now) = (was.memory.0, now.memory.0);
    let step = was.abs_diff(now);
    // A quarter of the step is for what the kernel needs to manage it, and for hosts that round.
    let fuzz = (now / RESERVE_SHARE).saturating_add(RESERVE_LEAST);
    let (reserve, fuzz) = match view.reserve {
        Some(reserve) => (reserve, if step == 0 { fuzz } else { fuzz.min(step / 4) }),
        None => (0, fuzz),
    };
    let expected = now.saturating_sub(reserve);
    if now < was {
        // Blocks may stay where only parts of them were taken; MemTotal, and a balloon's, tells then.
        let blocks = view.blocks.is_some_and(|blocks| blocks.online_bytes <= now);
        let total =
            view.total > 0 && view.total <= expected.saturating_add(if view.reserve.is_some() { fuzz } else { 0 });
        return (!blocks && !total).then_some(AppliedCause::NOT_UNPLUGGED);
    }
    if view.total >= expected.saturating_sub(fuzz) {
        return None;
    }
    // With nothing to tell what the kernel keeps, memory that nobody changed is missing only where that can not be all.
    let is_unknown = view.reserve.is_none() && view.blocks.is_none() && view.total > 0;
    if step == 0 && is_unknown && may_keep(now.saturating_sub(view.total), view.total) {
        return None;
    }
    Some(match view.blocks {
        Some(blocks) if blocks.offline_bytes > 0 => AppliedCause::MEMORY_OFFLINE,
        Some(blocks) if blocks.online_bytes >= now => AppliedCause::MEMORY_TOTAL_STANDS,
        _ => AppliedCause::NOT_PLUGGED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::size::MilliCpu;
    use proptest::prelude::*;

    const MIB: u64 = Bytes::MIB;

    fn size(milli: u32, mib: u64) -> Size {
        Size { cpu: MilliCpu(milli), memory: Bytes::mib(mib) }
    }

    /// A VM of 512 MiB whose kernel keeps 40.
    fn view(total: u64, online: u64, offline: u64) -> View {
        let blocks = Blocks { size_bytes: 128 * MIB, online_bytes: online * MIB, offline_bytes: offline * MIB };
        View { cpus: 1, cpus_present: Some(1), total: total * MIB, blocks: Some(blocks), reserve: Some(40 * MIB) }
    }

    fn judged(was: Size, now: Size, view: View) -> (AppliedOutcome, AppliedCause) {
        judge(was, now, &view, false)
    }

    const APPLIED: (AppliedOutcome, AppliedCause) = (AppliedOutcome::APPLIED, AppliedCause::NONE);

    /// as#593, as#1391: granted is not there; the guest looks for itself, and says what is missing.
    #[test]
    fn memory_is_there_when_memtotal_says_so() {
        let (was, now) = (size(1000, 512), size(1000, 1024));
        let not_yet = |cause| (AppliedOutcome::NOT_YET, cause);
        assert_eq!(judged(was, now, view(472, 512, 0)), not_yet(AppliedCause::NOT_PLUGGED));
        assert_eq!(judged(was, now, view(472, 512, 512)), not_yet(AppliedCause::MEMORY_OFFLINE));
        assert_eq!(judged(was, now, view(728, 768, 256)), not_yet(AppliedCause::MEMORY_OFFLINE));
        assert_eq!(judged(was, now, view(472, 1024, 0)), not_yet(AppliedCause::MEMORY_TOTAL_STANDS));
        assert_eq!(judged(was, now, view(984, 1024, 0)), APPLIED);
        assert_eq!(
            judge(was, now, &view(472, 512, 0), true),
            (AppliedOutcome::FAILED, AppliedCause::NOT_PLUGGED),
            "in time"
        );
    }

    #[test]
    fn a_small_step_of_a_large_vm_is_seen() {
        let (was, now) = (size(1000, 65_536), size(1000, 65_664));
        let large = |total| View { reserve: Some(1024 * MIB), ..view(total, total + 1024, 0) };
        assert_eq!(judged(was, now, large(64_512)).0, AppliedOutcome::NOT_YET);
        assert_eq!(judged(was, now, large(64_640)), APPLIED);
        let unknown = |total| View { reserve: None, blocks: None, ..view(total, 0, 0) };
        assert_eq!(judged(size(1000, 512), size(1000, 1024), unknown(472)).0, AppliedOutcome::NOT_YET);
        assert_eq!(judged(size(1000, 512), size(1000, 1024), unknown(960)), APPLIED);
    }

    #[test]
    fn memory_is_gone_when_blocks_or_memtotal_say_so() {
        let (was, now) = (size(1000, 1024), size(1000, 512));
        let stays = (AppliedOutcome::NOT_YET, AppliedCause::NOT_UNPLUGGED);
        assert_eq!(judged(was, now, view(984, 1024, 0)), stays);
        assert_eq!(judged(was, now, view(728, 768, 0)), stays);
        assert_eq!(judged(was, now, view(472, 512, 0)), APPLIED);
        assert_eq!(judged(was, now, view(480, 1024, 0)), APPLIED, "a balloon");
        let near = (size(1000, 512), size(1000, 500));
        assert_eq!(judged(near.0, near.1, view(472, 512, 0)), stays, "less than the reserve is seen too");
    }

    /// as#23, as#350: success of an API is not taken for the state.
    #[test]
    fn cpus_are_there_when_they_are_online() {
        let at = |milli| size(milli, 512);
        let with = |cpus, present| View { cpus, cpus_present: Some(present), ..view(472, 512, 0) };
        let not_yet = |cause| (AppliedOutcome::NOT_YET, cause);
        assert_eq!(judged(at(1000), at(2000), with(1, 1)), not_yet(AppliedCause::NOT_PLUGGED));
        assert_eq!(judged(at(1000), at(2000), with(1, 2)), not_yet(AppliedCause::CPU_OFFLINE));
        assert_eq!(judged(at(1000), at(2000), with(2, 2)), APPLIED);
        assert_eq!(
            judged(at(1000), at(1250), with(1, 1)),
            not_yet(AppliedCause::NOT_PLUGGED),
            "a part needs a whole one"
        );
        assert_eq!(judged(at(2000), at(1000), with(2, 2)), not_yet(AppliedCause::NOT_UNPLUGGED));
        assert_eq!(judged(at(2000), at(1000), with(1, 1)), APPLIED);
        assert_eq!(judged(at(2000), at(0), with(1, 1)), APPLIED, "the last one stays");
    }

    /// as#23: memory that nobody changed does not fail CPUs that came. A kernel without memory blocks tells nothing of
    /// what it keeps, and may keep more than most.
    #[test]
    fn memory_that_stays_as_it_is_does_not_hold_up_cpus() {
        let keeps_much = View { reserve: None, blocks: None, cpus_present: None, ..view(824, 0, 0) };
        let (was, now) = (size(1000, 1024), size(2000, 1024));
        assert_eq!(judged(was, now, View { cpus: 2, ..keeps_much }), APPLIED);
        assert_eq!(
            judge(was, now, &View { cpus: 1, ..keeps_much }, true),
            (AppliedOutcome::FAILED, AppliedCause::NOT_PLUGGED)
        );
        // What was promised before this host's turn is looked for all the same.
        let again = size(1000, 1024);
        assert_eq!(judged(again, again, view(472, 512, 512)).1, AppliedCause::MEMORY_OFFLINE);
        assert_eq!(judged(again, again, view(472, 512, 0)).1, AppliedCause::NOT_PLUGGED);
        let halved = View { cpus: 1, ..view(300, 0, 0) };
        assert_eq!(judged(again, again, View { reserve: None, blocks: None, ..halved }).1, AppliedCause::NOT_PLUGGED);
    }

    proptest! {
        #[test]
        fn no_size_panics(was in any::<(u32, u64)>(), now in any::<(u32, u64)>(), total in any::<u64>(),
                          online in any::<u64>(), offline in any::<u64>(), reserve in any::<Option<u64>>()) {
            let size = |(milli, memory): (u32, u64)| Size { cpu: MilliCpu(milli), memory: Bytes(memory) };
            let blocks = Blocks { size_bytes: 1, online_bytes: online, offline_bytes: offline };
            let view = View { cpus: 1, cpus_present: None, total, blocks: Some(blocks), reserve };
            let late = judge(size(was), size(now), &view, true);
            let early = judge(size(was), size(now), &view, false);
            prop_assert_eq!(late.0 == AppliedOutcome::APPLIED, early.0 == AppliedOutcome::APPLIED);
        }
    }
}
