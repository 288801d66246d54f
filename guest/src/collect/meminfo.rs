//! `/proc/meminfo`. See `proc_meminfo(5)` and Documentation/filesystems/proc.rst.
//!
//! Names match whole; a line that is not understood is lost alone. A value that can not be true beside the total
//! (lxcfs gives such) is absent.

use super::Context;
use crate::kfile::KFile;
use crate::parse::Keys;
use informant_wire::event::{Changed, EventKind};
use informant_wire::metric::{MetricId, id};

static KEYS: Keys<MetricId> = Keys::new(KEY_TABLE, b':');

/// Ids from the first of the file to the last.
const MEM_IDS: usize = (id::MEM_DIRECT_MAP1_G.0 - id::MEM_TOTAL.0) as usize + 1;
/// Parts of a whole: never larger than it.
const PARTS: [(MetricId, MetricId); 6] = [
    (id::MEM_FREE, id::MEM_TOTAL),
    (id::MEM_AVAILABLE, id::MEM_TOTAL),
    (id::MEM_BUFFERS, id::MEM_TOTAL),
    (id::MEM_CACHED, id::MEM_TOTAL),
    (id::MEM_SHMEM, id::MEM_TOTAL),
    (id::MEM_SWAP_FREE, id::MEM_SWAP_TOTAL),
];

/// The collector.
#[derive(Debug)]
pub struct Meminfo {
    file: KFile,
    total_kib: Option<u64>,
}

impl Default for Meminfo {
    fn default() -> Self {
        Self { file: KFile::new(b"proc/meminfo"), total_kib: None }
    }
}

impl Meminfo {
    /// MemTotal as last seen.
    #[must_use]
    pub const fn total_kib(&self) -> Option<u64> {
        self.total_kib
    }

    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        let (row, vm) = (&mut *cx.row, cx.vm);
        row.absent(vm, id::MEM_TOTAL, id::MEM_DIRECT_MAP1_G);
        row.absent(vm, id::MEMORY_AVAILABLE_ESTIMATE, id::MEMORY_AVAILABLE_ESTIMATE);
        let Some(bytes) = cx.files.read(&mut self.file) else { return };
        let mut seen = Seen([None; MEM_IDS]);
        let mut lines = 0;
        KEYS.read(bytes, |id, value| {
            lines += 1;
            if value > u64::MAX / 1024 {
                // More bytes than can be counted: nothing that memory has.
                return;
            }
            seen.note(id, value);
            row.set(vm, id, value);
        });
        if lines == 0 {
            cx.files.count_error();
            return;
        }
        let lacks_available = seen.get(id::MEM_AVAILABLE).is_none();
        if seen.get(id::MEM_TOTAL) == Some(0) {
            seen.forget(id::MEM_TOTAL);
            row.absent(vm, id::MEM_TOTAL, id::MEM_TOTAL);
        }
        for (part, whole) in PARTS {
            if let (Some(value), Some(bound)) = (seen.get(part), seen.get(whole))
                && value > bound
            {
                seen.forget(part);
                row.absent(vm, part, part);
            }
        }
        if lacks_available && let Some(estimate) = seen.available_bytes() {
            row.set(vm, id::MEMORY_AVAILABLE_ESTIMATE, estimate);
        }
        if let Some(total) = seen.get(id::MEM_TOTAL) {
            if let Some(old) = self.total_kib.filter(|old| *old != total) {
                let bytes = |kib: u64| kib.saturating_mul(1024);
                cx.events.push(EventKind::MEMORY_CHANGED, &Changed { old: bytes(old), new: bytes(total) });
            }
            self.total_kib = Some(total);
        }
    }
}

/// What tells how much memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// MemTotal, bytes.
    pub total_bytes: u64,
    /// MemAvailable, bytes, or what it is estimated at where the kernel does not tell.
    pub available_bytes: u64,
}

/// Reads these alone, from a file's bytes; `None` where they are not there or can not be true.
#[must_use]
pub fn figures(bytes: &[u8]) -> Option<Figures> {
    let mut seen = Seen([None; MEM_IDS]);
    KEYS.read(bytes, |id, value| {
        if value <= u64::MAX / 1024 {
            seen.note(id, value);
        }
    });
    let total = seen.get(id::MEM_TOTAL).filter(|total| *total > 0)?;
    let available_bytes = match seen.get(id::MEM_AVAILABLE) {
        Some(available) => (available <= total).then_some(available * 1024)?,
        None => seen.available_bytes()?,
    };
    Some(Figures { total_bytes: total * 1024, available_bytes })
}

/// The values of one file, KiB: some are looked at together with others before they count.
#[derive(Debug)]
struct Seen([Option<u64>; MEM_IDS]);

impl Seen {
    fn slot(&mut self, id: MetricId) -> Option<&mut Option<u64>> {
        self.0.get_mut(usize::from(id.0.checked_sub(id::MEM_TOTAL.0)?))
    }

    fn note(&mut self, id: MetricId, value: u64) {
        if let Some(slot) = self.slot(id) {
            *slot = Some(value);
        }
    }

    fn forget(&mut self, id: MetricId) {
        if let Some(slot) = self.slot(id) {
            *slot = None;
        }
    }

    fn get(&self, id: MetricId) -> Option<u64> {
        *self.0.get(usize::from(id.0.checked_sub(id::MEM_TOTAL.0)?))?
    }

    /// Shmem is part of Cached but can not be reclaimed; KReclaimable contains SReclaimable and is not added to it.
    fn available_bytes(&self) -> Option<u64> {
        let sum = self
            .get(id::MEM_FREE)?
            .saturating_add(self.get(id::MEM_BUFFERS)?)
            .saturating_add(self.get(id::MEM_CACHED)?)
            .saturating_add(self.get(id::MEM_SRECLAIMABLE).unwrap_or(0))
            .saturating_sub(self.get(id::MEM_SHMEM).unwrap_or(0));
        Some(sum.min(self.get(id::MEM_TOTAL)?).saturating_mul(1024))
    }
}

#[rustfmt::skip]
const KEY_TABLE: &[(&[u8], MetricId)] = &[
    (b"MemTotal", id::MEM_TOTAL),
    (b"MemFree", id::MEM_FREE),
    (b"MemAvailable", id::MEM_AVAILABLE),
    (b"Buffers", id::MEM_BUFFERS),
    (b"Cached", id::MEM_CACHED),
    (b"SwapCached", id::MEM_SWAP_CACHED),
    (b"Active", id::MEM_ACTIVE),
    (b"Inactive", id::MEM_INACTIVE),
    (b"Active(anon)", id::MEM_ACTIVE_ANON),
    (b"Inactive(anon)", id::MEM_INACTIVE_ANON),
    (b"Active(file)", id::MEM_ACTIVE_FILE),
    (b"Inactive(file)", id::MEM_INACTIVE_FILE),
    (b"Unevictable", id::MEM_UNEVICTABLE),
    (b"Mlocked", id::MEM_MLOCKED),
    (b"SwapTotal", id::MEM_SWAP_TOTAL),
    (b"SwapFree", id::MEM_SWAP_FREE),
    (b"Zswap", id::MEM_ZSWAP),
    (b"Zswapped", id::MEM_ZSWAPPED),
    (b"Dirty", id::MEM_DIRTY),
    (b"Writeback", id::MEM_WRITEBACK),
    (b"AnonPages", id::MEM_ANON_PAGES),
    (b"Mapped", id::MEM_MAPPED),
    (b"Shmem", id::MEM_SHMEM),
    (b"KReclaimable", id::MEM_KRECLAIMABLE),
    (b"Slab", id::MEM_SLAB),
    (b"SReclaimable", id::MEM_SRECLAIMABLE),
    (b"SUnreclaim", id::MEM_SUNRECLAIM),
    (b"KernelStack", id::MEM_KERNEL_STACK),
    (b"ShadowCallStack", id::MEM_SHADOW_CALL_STACK),
    (b"PageTables", id::MEM_PAGE_TABLES),
    (b"SecPageTables", id::MEM_SEC_PAGE_TABLES),
    (b"NFS_Unstable", id::MEM_NFS_UNSTABLE),
    (b"Bounce", id::MEM_BOUNCE),
    (b"WritebackTmp", id::MEM_WRITEBACK_TMP),
    (b"CommitLimit", id::MEM_COMMIT_LIMIT),
    (b"Committed_AS", id::MEM_COMMITTED_AS),
    (b"VmallocTotal", id::MEM_VMALLOC_TOTAL),
    (b"VmallocUsed", id::MEM_VMALLOC_USED),
    (b"VmallocChunk", id::MEM_VMALLOC_CHUNK),
    (b"Percpu", id::MEM_PERCPU),
    (b"EarlyMemtestBad", id::MEM_EARLY_MEMTEST_BAD),
    (b"HardwareCorrupted", id::MEM_HARDWARE_CORRUPTED),
    (b"AnonHugePages", id::MEM_ANON_HUGE_PAGES),
    (b"ShmemHugePages", id::MEM_SHMEM_HUGE_PAGES),
    (b"ShmemPmdMapped", id::MEM_SHMEM_PMD_MAPPED),
    (b"FileHugePages", id::MEM_FILE_HUGE_PAGES),
    (b"FilePmdMapped", id::MEM_FILE_PMD_MAPPED),
    (b"CmaTotal", id::MEM_CMA_TOTAL),
    (b"CmaFree", id::MEM_CMA_FREE),
    (b"Unaccepted", id::MEM_UNACCEPTED),
    (b"Balloon", id::MEM_BALLOON),
    (b"GPUActive", id::MEM_GPUACTIVE),
    (b"GPUReclaim", id::MEM_GPURECLAIM),
    (b"HugePages_Total", id::MEM_HUGE_PAGES_TOTAL),
    (b"HugePages_Free", id::MEM_HUGE_PAGES_FREE),
    (b"HugePages_Rsvd", id::MEM_HUGE_PAGES_RSVD),
    (b"HugePages_Surp", id::MEM_HUGE_PAGES_SURP),
    (b"Hugepagesize", id::MEM_HUGEPAGESIZE),
    (b"Hugetlb", id::MEM_HUGETLB),
    (b"DirectMap4k", id::MEM_DIRECT_MAP4K),
    (b"DirectMap2M", id::MEM_DIRECT_MAP2_M),
    (b"DirectMap4M", id::MEM_DIRECT_MAP4_M),
    (b"DirectMap1G", id::MEM_DIRECT_MAP1_G),
];
