//! `/proc/meminfo`, pitfalls B.

use super::tree::Tree;
use informant_wire::event::{Changed, EventKind};

const FILE: &str = "proc/meminfo";
const KIB: f64 = 1024.0;

fn sample(meminfo: &str) -> super::tree::Line {
    Tree::with(&[(FILE, meminfo)]).sample()
}

#[test]
fn an_unknown_or_odd_field_is_lost_alone() {
    sample("MemTotal:  4026532 kB\nMemFree: 100 kB\nNewFieldFromVendor: n/a\n\nBuffers: x kB\nCached: 1120044 kB\nSlab: 5 MB\nDirty 7 kB\n").check(&[
        ("node_memory_MemTotal_bytes", Some(4_026_532.0 * KIB)),
        ("node_memory_Cached_bytes", Some(1_120_044.0 * KIB)),
        ("node_memory_Buffers_bytes", None),
        ("node_memory_Slab_bytes", None),
        ("node_memory_Dirty_bytes", None),
    ]);
}

#[test]
fn names_match_whole() {
    sample("CachedX: 99999999 kB\nSwapCached: 0 kB\nWritebackTmpX: 7 kB\nCached: 1120044 kB\nWriteback: 0 kB\n").check(
        &[
            ("node_memory_Cached_bytes", Some(1_120_044.0 * KIB)),
            ("node_memory_Writeback_bytes", Some(0.0)),
            ("node_memory_SwapCached_bytes", Some(0.0)),
            ("node_memory_WritebackTmp_bytes", None),
        ],
    );
}

#[test]
fn huge_values() {
    sample("VmallocTotal: 34359738367 kB\nDirectMap2M: 2147483648 kB\nVmallocUsed: 99999999999999999999 kB\n").check(
        &[
            ("node_memory_VmallocTotal_bytes", Some(35_184_372_087_808.0)),
            ("node_memory_DirectMap2M_bytes", Some(2_199_023_255_552.0)),
            ("node_memory_VmallocUsed_bytes", None),
        ],
    );
}

const WITHOUT_AVAILABLE: &str = "MemTotal: 4026532 kB\nMemFree: 500000 kB\nBuffers: 30000 kB\nCached: 1120044 kB\nShmem: 900000 kB\nKReclaimable: 90000 kB\nSReclaimable: 88012 kB\n";

#[test]
fn mem_available_missing_gives_an_estimate_under_its_own_name() {
    let line = sample(WITHOUT_AVAILABLE);
    assert_eq!(line.get("node_memory_MemAvailable_bytes"), None);
    assert!(line.has("informant_memory_available_estimate_bytes"));
    let line = sample(&format!("{WITHOUT_AVAILABLE}MemAvailable: 700000 kB\n"));
    assert_eq!(line.get("node_memory_MemAvailable_bytes"), Some(700_000.0 * KIB));
    assert!(!line.has("informant_memory_available_estimate_bytes"));
}

#[test]
fn shmem_is_subtracted_and_sreclaimable_added_once() {
    let estimate = 500_000.0 + 30_000.0 + 1_120_044.0 + 88_012.0 - 900_000.0;
    assert_eq!(sample(WITHOUT_AVAILABLE).get("informant_memory_available_estimate_bytes"), Some(estimate * KIB));
}

#[test]
fn impossible_numbers_from_lxcfs() {
    sample("MemTotal: 1000 kB\nMemFree: 1001 kB\nMemAvailable: 2000 kB\nBuffers: 10 kB\nSwapTotal: 0 kB\nSwapFree: 18446744073709551488 kB\n").check(&[
        ("node_memory_MemTotal_bytes", Some(1000.0 * KIB)),
        ("node_memory_MemFree_bytes", None),
        ("node_memory_MemAvailable_bytes", None),
        ("node_memory_Buffers_bytes", Some(10.0 * KIB)),
        ("node_memory_SwapTotal_bytes", Some(0.0)),
        ("node_memory_SwapFree_bytes", None),
        ("informant_memory_available_estimate_bytes", None),
    ]);
    let line = sample("MemTotal: 0 kB\nMemFree: 5 kB\n");
    line.check(&[("node_memory_MemTotal_bytes", None), ("node_memory_MemFree_bytes", Some(5.0 * KIB))]);
}

#[test]
fn more_bytes_than_64_bits_hold_are_absent() {
    sample("MemTotal: 1000 kB\nDirty: 18014398509481984 kB\nMapped: 18014398509481983 kB\nSwapTotal: 9223372036854775807 kB\n").check(&[
        ("node_memory_MemTotal_bytes", Some(1000.0 * KIB)),
        ("node_memory_Dirty_bytes", None),
        ("node_memory_Mapped_bytes", Some(18_014_398_509_481_983.0 * KIB)),
        ("node_memory_SwapTotal_bytes", None),
    ]);
    // Sectors are multiplied as well.
    let tree =
        Tree::with(&[("proc/diskstats", " 254 0 vda 1 2 36028797018963968 4 5 6 36028797018963967 8 9 10 11\n")]);
    tree.sample().check(&[
        ("node_disk_read_bytes_total{device=vda}", None),
        ("node_disk_written_bytes_total{device=vda}", Some(36_028_797_018_963_967.0 * 512.0)),
    ]);
}

#[test]
fn swapoff_in_progress() {
    let tree = Tree::with(&[(FILE, "SwapTotal: 200 kB\nSwapFree: 0 kB\n")]);
    let lines = tree.samples(2, |_, tree| {
        tree.put(FILE, "SwapTotal: 0 kB\nSwapFree: 0 kB\n");
    });
    lines[0].check(&[("node_memory_SwapTotal_bytes", Some(200.0 * KIB)), ("node_memory_SwapFree_bytes", Some(0.0))]);
    lines[1].check(&[("node_memory_SwapTotal_bytes", Some(0.0)), ("node_memory_SwapFree_bytes", Some(0.0))]);
}

#[test]
fn zfs_arc_is_not_added_to_what_the_kernel_says() {
    let tree = Tree::with(&[
        (FILE, "MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n"),
        ("proc/spl/kstat/zfs/arcstats", "size 4 2000000000\nc_min 4 500000000\n"),
    ]);
    assert_eq!(tree.sample().get("node_memory_MemAvailable_bytes"), Some(100_000.0 * KIB));
}

#[test]
fn parts_larger_than_the_total_never_make_a_negative_or_more_than_all() {
    let line = sample("MemTotal: 1000 kB\nMemFree: 900 kB\nBuffers: 900 kB\nCached: 900 kB\nShmem: 0 kB\n");
    assert_eq!(line.get("informant_memory_available_estimate_bytes"), Some(1000.0 * KIB));
    let line = sample("MemTotal: 1000 kB\nMemFree: 1 kB\nBuffers: 0 kB\nCached: 5 kB\nShmem: 900 kB\n");
    assert_eq!(line.get("informant_memory_available_estimate_bytes"), Some(0.0));
}

#[test]
fn mem_total_is_read_again_and_each_change_is_one_event() {
    let meminfo = |total: u64| format!("MemTotal: {total} kB\nMemFree: 1 kB\n");
    let tree = Tree::with(&[(FILE, &meminfo(4_026_532))]);
    let next = [4_681_892, 4_681_892, 4_026_532, 4_026_532];
    let events = tree.events(4, |n, tree| {
        tree.put(FILE, meminfo(next[n]));
    });
    let changes: Vec<_> = events
        .iter()
        .filter(|(kind, _)| *kind == EventKind::MEMORY_CHANGED)
        .map(|(_, body)| postcard::from_bytes::<Changed>(body).unwrap())
        .collect();
    let (small, large) = (4_026_532 * 1024, 4_681_892 * 1024);
    assert_eq!(changes, [Changed { old: small, new: large }, Changed { old: large, new: small }]);
}

#[test]
fn huge_pages_are_counts() {
    sample("HugePages_Total:       4\nHugePages_Free: 3\nHugepagesize: 2048 kB\n").check(&[
        ("node_memory_HugePages_Total", Some(4.0)),
        ("node_memory_HugePages_Free", Some(3.0)),
        ("node_memory_Hugepagesize_bytes", Some(2048.0 * KIB)),
    ]);
    assert!(!sample("").has("node_memory"));
    assert!(!Tree::new().sample().has("node_memory"));
}
