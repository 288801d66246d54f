//! A steady tick allocates nothing: collecting and encoding touch no allocator while subjects stay the same.
//!
//! A process of its own, because it replaces the global allocator; the one test runs alone in it.
#![expect(unsafe_code, reason = "a counting global allocator is an unsafe trait; it only forwards to the system's")]

use informant_guest::collect::{Config, OwnFigures, Sensors};
use informant_wire::bits::bytes_for;
use informant_wire::limits::max_sample_body;
use informant_wire::sample::{Base, SampleHead, encode};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

/// Forwards to the system's allocator and counts calls of threads that asked for it.
struct Counting;

thread_local! {
    static CALLS: Cell<Option<u64>> = const { Cell::new(None) };
}

fn count() {
    let _ = CALLS.try_with(|calls| calls.set(calls.get().map(|n| n + 1)));
}

// SAFETY: every call goes to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the same.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of this thread to the allocator during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    CALLS.set(Some(0));
    work();
    CALLS.replace(None).unwrap_or(0)
}

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// This machine's files, and a cgroup2 with more cgroups than are kept, which it may not have.
fn tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in ["stat", "meminfo", "vmstat", "loadavg", "uptime", "diskstats", "net/dev", "self/mountinfo"] {
        let content = fs::read_to_string(Path::new("/proc").join(file)).unwrap();
        put(root.path(), &format!("proc/{file}"), &content);
    }
    for i in 0..80 {
        let group = format!("sys/fs/cgroup/g{i}");
        put(root.path(), &format!("{group}/memory.current"), "4096\n");
        put(root.path(), &format!("{group}/memory.stat"), "anon 1\nfile 2\ninactive_file 1\n");
        put(root.path(), &format!("{group}/memory.max"), "max\n");
        put(root.path(), &format!("{group}/cpu.max"), "max 100000\n");
        put(root.path(), &format!("{group}/io.stat"), "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n");
        put(root.path(), &format!("{group}/below/cpu.stat"), "usage_usec 5\n");
    }
    put(root.path(), "sys/fs/cgroup/cgroup.controllers", "cpu memory io\n");
    put(root.path(), "sys/fs/cgroup/cgroup.stat", "nr_descendants 160\n");
    for i in 0..40 {
        put(root.path(), &format!("sys/devices/system/memory/memory{i}/state"), "online\n");
    }
    put(root.path(), "sys/devices/system/memory/block_size_bytes", "8000000\n");
    root
}

/// Allocator calls of some ticks; `None` when something new turned up meanwhile.
fn calls_of_steady_ticks(root: &Path) -> Option<u64> {
    let config = Config { root: root.to_owned(), cgroup: Some("/g1".into()), all_fresh: false };
    let mut sensors = Sensors::new(&config);
    let mut boot_us = 1_000_000;
    // Until nothing is new any more; a round of the slow part takes five ticks.
    let mut quiet = 0;
    for _ in 0..200 {
        sensors.sample(&OwnFigures { cpu_us: Some(0), ..OwnFigures::default() });
        sensors.settle(std::time::Duration::from_millis(100));
        boot_us += 1_000_000;
        quiet += 1;
        if sensors.wants_schema() {
            sensors.reschema();
            quiet = 0;
        }
        if quiet > 10 {
            break;
        }
    }
    assert!(quiet > 10, "subjects never come to rest");
    let series = sensors.series();
    assert!(series > 100, "{series}");
    let mut out = vec![0; 3 + max_sample_body(series)];
    let (mut values, mut present) = (vec![0; series], vec![0; bytes_for(series)]);
    let generation = sensors.generation();
    let mut lengths = [0_usize; 11];
    let calls = allocations(|| {
        for (sequence, length) in (1..).zip(&mut lengths) {
            sensors.sample(&OwnFigures { cpu_us: Some(sequence), ..OwnFigures::default() });
            sensors.take_event(&mut |_, _| {});
            let head = SampleHead { generation, sequence, boot_time_us: boot_us };
            let mut base = Base { values: &mut values, present: &mut present };
            *length = encode(&mut out, head, sequence == 1, sensors.row(), &mut base).unwrap();
            boot_us += 1_000_000;
        }
    });
    assert!(lengths.iter().all(|length| *length > 10));
    (!sensors.wants_schema()).then_some(calls)
}

#[test]
fn a_steady_tick_allocates_nothing() {
    let root = tree();
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1_u8; 10]))), 2, "the allocator counts");
    assert_eq!(calls_of_steady_ticks(root.path()), Some(0));
    // On a live machine a mount may come at any moment; not every time.
    let live = (0..10).find_map(|_| calls_of_steady_ticks(Path::new("/")));
    assert_eq!(live, Some(0));
}
