//! CPU and memory hot-plug, pitfalls K.

use super::tree::Tree;
use informant_guest::collect::OwnFigures;
use informant_wire::event::{Changed, EventKind};
use informant_wire::metric::id;

const ONLINE: &str = "sys/devices/system/cpu/online";

#[test]
fn plugged_memory_that_stays_offline_and_sizes_in_hexadecimal() {
    let tree = Tree::with(&[("sys/devices/system/memory/block_size_bytes", "8000000\n")]);
    for block in (0..3).chain(35..40) {
        let state = if block < 3 { "online\n" } else { "offline\n" };
        tree.put(format!("sys/devices/system/memory/memory{block}/state"), state);
    }
    tree.sample().check(&[
        ("informant_memory_block_size_bytes", Some(134_217_728.0)),
        ("informant_memory_online_bytes", Some(3.0 * 134_217_728.0)),
        ("informant_memory_offline_bytes", Some(671_088_640.0)),
    ]);
    tree.put("sys/devices/system/memory/block_size_bytes", "x\n");
    assert!(!tree.sample().has("informant_memory_o"));
}

#[test]
fn cpulist_strings() {
    for (list, expected) in [
        ("0", Some(1.0)),
        ("0-3\n", Some(4.0)),
        ("0-1,3-5, 9\n", Some(6.0)),
        ("0-\n", None),
        ("3-1\n", None),
        ("1-4294967294\n", None),
        ("all\n", None),
    ] {
        let tree = Tree::with(&[("sys/devices/system/cpu/possible", list)]);
        assert_eq!(tree.sample().get("informant_cpus_possible"), expected, "{list:?}");
    }
    // Nothing is offline: a lone newline is the empty set.
    let tree = Tree::with(&[("sys/fs/cgroup/cgroup.controllers", ""), ("sys/fs/cgroup/a/cpuset.cpus.effective", "\n")]);
    assert_eq!(tree.sample().get("informant_cgroup_cpuset_effective_cpus{id=/a}"), Some(0.0));
}

#[test]
fn a_change_between_two_samples_that_keeps_the_count() {
    let tree = Tree::with(&[(ONLINE, "0-4\n")]);
    let events = tree.events(2, |n, tree| {
        tree.put(ONLINE, if n == 0 { "0-1,3-5\n" } else { "0,1,3,4,5\n" });
    });
    let changes: Vec<_> = events.iter().filter(|(kind, _)| *kind == EventKind::CPUS_CHANGED).collect();
    assert_eq!(changes.len(), 1, "the same set written otherwise is no change");
    assert_eq!(postcard::from_bytes::<Changed>(&changes[0].1), Ok(Changed { old: 5, new: 5 }));
}

#[test]
fn a_cpu_that_goes_and_comes_keeps_its_series() {
    let tree = Tree::with(&[("proc/stat", "cpu0 100 0 0 0\ncpu1 100 0 0 0\n")]);
    let lines = tree.samples(3, |n, tree| {
        tree.put("proc/stat", if n == 0 { "cpu0 200 0 0 0\n" } else { "cpu0 300 0 0 0\ncpu1 150 0 0 0\n" });
    });
    let seen: Vec<_> = lines.iter().map(|line| line.get("node_cpu_seconds_total{cpu=1,mode=user}")).collect();
    assert_eq!(seen, [Some(1.0), None, Some(1.5)]);
}

#[test]
fn the_agent_sees_a_block_that_goes_offline_or_is_plugged() {
    let tree = Tree::with(&[("sys/devices/system/memory/block_size_bytes", "1000\n")]);
    let state = |tree: &Tree, block: u32, state: &str| {
        _ = tree.put(format!("sys/devices/system/memory/memory{block}/state"), state);
    };
    let total = |tree: &Tree, kib: u64| _ = tree.put("proc/meminfo", format!("MemTotal: {kib} kB\n"));
    // More than one sample reads.
    (0..300).for_each(|block| state(&tree, block, "online\n"));
    total(&tree, 1200);
    let mut sensors = tree.sensors(false, informant_guest::collect::probe::statvfs(tree.path()));
    let mut after = |samples: u32| {
        for _ in 0..samples {
            sensors.sample(&OwnFigures::default());
            if sensors.wants_schema() {
                sensors.reschema();
            }
        }
        let ids = sensors.subjects().next().unwrap().metrics;
        let ids = ids.iter().flat_map(|range| range.first.0..range.first.0 + range.count);
        let values: std::collections::BTreeMap<_, _> = ids.zip(sensors.row().values.iter().copied()).collect();
        [id::MEMORY_ONLINE, id::MEMORY_OFFLINE].map(|id| values[&id.0] / 0x1000)
    };
    assert_eq!(after(10), [300, 0]);
    state(&tree, 7, "offline\n");
    total(&tree, 1196);
    assert_eq!(after(10), [299, 1], "MemTotal moved");
    state(&tree, 300, "offline\n");
    assert_eq!(after(10), [299, 2], "a block more, which is not online yet");
}
