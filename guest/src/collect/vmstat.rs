//! `/proc/vmstat`: the counters worth a series. See `proc_vmstat(5)`.

use super::Context;
use crate::kfile::KFile;
use crate::parse::{Keys, Places};
use informant_wire::metric::{MetricId, id};

static KEYS: Keys<MetricId> = Keys::new(KEY_TABLE, b' ');

/// The collector.
#[derive(Debug)]
pub struct Vmstat {
    file: KFile,
    places: Places,
}

impl Default for Vmstat {
    fn default() -> Self {
        Self { file: KFile::new(b"proc/vmstat"), places: Places::default() }
    }
}

impl Vmstat {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        let (row, vm) = (&mut *cx.row, cx.vm);
        row.absent(vm, id::VMSTAT_OOM_KILL, id::PAGED_OUT);
        // A kernel prints the same lines for as long as it runs, and nine in ten are not wanted.
        let as_before = !cx.files.recheck;
        let Some(bytes) = cx.files.read(&mut self.file) else { return };
        let mut found = |id, value| {
            row.set(vm, id, value);
            // These two count KiB, unlike all the others; they have a second row in bytes.
            match id {
                id::VMSTAT_PGPGIN => row.set(vm, id::PAGED_IN, value),
                id::VMSTAT_PGPGOUT => row.set(vm, id::PAGED_OUT, value),
                _ => {}
            }
        };
        if !(as_before && KEYS.read_at(bytes, &mut self.places, &mut found)) {
            KEYS.read_and_note(bytes, &mut self.places, found);
        }
    }
}

#[rustfmt::skip]
const KEY_TABLE: &[(&[u8], MetricId)] = &[
    (b"workingset_nodes", id::VMSTAT_WORKINGSET_NODES),
    (b"workingset_refault_anon", id::VMSTAT_WORKINGSET_REFAULT_ANON),
    (b"workingset_refault_file", id::VMSTAT_WORKINGSET_REFAULT_FILE),
    (b"pgpgin", id::VMSTAT_PGPGIN),
    (b"pgpgout", id::VMSTAT_PGPGOUT),
    (b"pswpin", id::VMSTAT_PSWPIN),
    (b"pswpout", id::VMSTAT_PSWPOUT),
    (b"allocstall_normal", id::VMSTAT_ALLOCSTALL_NORMAL),
    (b"allocstall_movable", id::VMSTAT_ALLOCSTALL_MOVABLE),
    (b"pgfault", id::VMSTAT_PGFAULT),
    (b"pgmajfault", id::VMSTAT_PGMAJFAULT),
    (b"pgsteal_kswapd", id::VMSTAT_PGSTEAL_KSWAPD),
    (b"pgsteal_direct", id::VMSTAT_PGSTEAL_DIRECT),
    (b"pgscan_kswapd", id::VMSTAT_PGSCAN_KSWAPD),
    (b"pgscan_direct", id::VMSTAT_PGSCAN_DIRECT),
    (b"oom_kill", id::VMSTAT_OOM_KILL),
    (b"compact_stall", id::VMSTAT_COMPACT_STALL),
    (b"thp_fault_alloc", id::VMSTAT_THP_FAULT_ALLOC),
    (b"balloon_inflate", id::VMSTAT_BALLOON_INFLATE),
    (b"balloon_deflate", id::VMSTAT_BALLOON_DEFLATE),
];
