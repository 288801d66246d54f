//! cgroup v2 files and the tree of cgroups, pitfalls I.

use super::tree::Tree;
use informant_guest::collect::{OwnFigures, probe};
use informant_wire::event::{EventKind, SchemaCut};
use informant_wire::limits::MAX_SCHEMA_BYTES;
use informant_wire::metric::SubjectKind;
use informant_wire::schema::{SchemaPart, SchemaReader, SchemaWriter};

const ROOT: &str = "sys/fs/cgroup";

/// A tree with a cgroup2 and these files below it.
fn cgroups(files: &[(&str, &str)]) -> Tree {
    let tree = Tree::with(&[("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")]);
    for (path, content) in files {
        tree.put(format!("{ROOT}/{path}"), content);
    }
    tree
}

#[test]
fn the_limit_is_on_an_ancestor() {
    let tree = cgroups(&[
        ("g/memory.max", "805306368\n"),
        ("g/memory.current", "700000000\n"),
        ("g/cpu.max", "150000 100000\n"),
        ("g/p/memory.max", "1073741824\n"),
        ("g/p/memory.current", "500000000\n"),
        ("g/p/cpu.max", "max 100000\n"),
        ("g/p/leaf/memory.max", "max\n"),
        ("g/p/leaf/memory.current", "400000000\n"),
        ("g/p/leaf/cpu.max", "400000 100000\n"),
    ]);
    let line = tree.samples_of(1, Some("/g/p/leaf"), |_, _| {}).remove(0);
    line.check(&[
        ("container_spec_memory_limit_bytes{id=/g/p/leaf}", None),
        ("informant_cgroup_memory_limit_bytes{id=/g/p/leaf}", Some(805_306_368.0)),
        ("informant_cgroup_memory_limit_usage_bytes{id=/g/p/leaf}", Some(700_000_000.0)),
        ("informant_cgroup_memory_limit_bytes{id=/g/p}", Some(805_306_368.0)),
        ("informant_cgroup_cpu_limit_cores{id=/g/p/leaf}", Some(4.0)),
        ("informant_cgroup_cpu_limit_effective_cores{id=/g/p/leaf}", Some(1.5)),
        ("informant_cgroup_cpu_limit_effective_cores{id=/g/p}", Some(1.5)),
    ]);
}

#[test]
fn the_root_cgroup_has_no_memory_current_or_limits() {
    let tree = cgroups(&[("cpu.stat", "usage_usec 2100000\n"), ("a/memory.max", "max\n"), ("a/memory.current", "5\n")]);
    tree.sample().check(&[
        ("container_cpu_usage_seconds_total{id=/}", Some(2.1)),
        ("container_memory_usage_bytes{id=/}", None),
        ("informant_cgroup_memory_limit_bytes{id=/}", None),
        ("informant_cgroup_memory_limit_bytes{id=/a}", None),
        ("informant_cgroup_memory_limit_usage_bytes{id=/a}", None),
        ("container_memory_usage_bytes{id=/a}", Some(5.0)),
    ]);
}

#[test]
fn fractions_of_cpus() {
    let tree = cgroups(&[
        ("a/cpu.max", "50000 100000\n"),
        ("b/cpu.max", "150000 100000\n"),
        ("c/cpu.max", "1000 1000000\n"),
        ("d/cpu.max", "max 100000\n"),
    ]);
    tree.sample().check(&[
        ("informant_cgroup_cpu_limit_cores{id=/a}", Some(0.5)),
        ("informant_cgroup_cpu_limit_cores{id=/b}", Some(1.5)),
        ("informant_cgroup_cpu_limit_cores{id=/c}", Some(0.001)),
        ("informant_cgroup_cpu_limit_cores{id=/d}", None),
        ("container_spec_cpu_quota{id=/a}", Some(50_000.0)),
        ("container_spec_cpu_quota{id=/d}", None),
        ("container_spec_cpu_period{id=/d}", Some(100_000.0)),
    ]);
}

#[test]
fn files_of_newer_kernels_are_absent_in_older_ones() {
    let tree = cgroups(&[("a/memory.current", "10\n"), ("b/memory.current", "10\n"), ("b/memory.peak", "20\n")]);
    tree.sample().check(&[
        ("container_memory_max_usage_bytes{id=/a}", None),
        ("container_memory_max_usage_bytes{id=/b}", Some(20.0)),
    ]);
}

#[test]
fn memory_current_and_memory_stat_are_not_of_the_same_instant() {
    let tree = cgroups(&[("a/memory.current", "249856\n"), ("a/memory.stat", "file 270336\ninactive_file 262144\n")]);
    let line = tree.sample();
    line.check(&[
        ("container_memory_usage_bytes{id=/a}", Some(249_856.0)),
        ("container_memory_working_set_bytes{id=/a}", Some(0.0)),
    ]);
    let line = cgroups(&[("a/memory.current", "300\n"), ("a/memory.stat", "inactive_file 100\n")]).sample();
    assert_eq!(line.get("container_memory_working_set_bytes{id=/a}"), Some(200.0));
}

#[test]
fn negative_values_in_memory_stat() {
    let stat = "anon 7\nfile_mapped -4096\nfile_dirty 18446744073709547520\nshmem 9\n";
    cgroups(&[("a/memory.stat", stat)]).sample().check(&[
        ("container_memory_rss{id=/a}", Some(7.0)),
        ("container_memory_mapped_file{id=/a}", None),
        ("informant_cgroup_memory_stat_bytes{id=/a,stat=file_dirty}", None),
        ("informant_cgroup_memory_stat_bytes{id=/a,stat=shmem}", Some(9.0)),
    ]);
}

#[test]
fn io_stat_of_several_devices() {
    let stat = "7:7 7:6 7:5 7:4 rbytes=28672 wbytes=0 rios=5 wios=0 dbytes=0 dios=0\n7:3 \n\
                254:0 rbytes=135 wbytes=162379 rios=61 wios=81 dbytes=0 dios=0 cost.vrate=100.00\n252:0 ";
    let tree = cgroups(&[("a/io.stat", stat)]);
    tree.put("proc/diskstats", " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n");
    let line = tree.sample();
    line.check(&[
        ("container_fs_reads_bytes_total{device=7:4,id=/a}", Some(28_672.0)),
        ("container_fs_reads_bytes_total{device=vda,id=/a}", Some(135.0)),
        ("container_fs_writes_bytes_total{device=vda,id=/a}", Some(162_379.0)),
        ("container_fs_reads_total{device=vda,id=/a}", Some(61.0)),
        ("container_fs_writes_total{device=vda,id=/a}", Some(81.0)),
    ]);
    assert_eq!(line.starting("container_fs_reads_bytes_total").len(), 2);
}

#[test]
fn trailing_newline_cr_missing_newline_empty_file() {
    let tree = cgroups(&[
        ("a/memory.current", "100\n"),
        ("b/memory.current", "100"),
        ("c/memory.current", "100\r\n"),
        ("d/memory.current", ""),
        ("e/memory.current", "1 2\n"),
    ]);
    let line = tree.sample();
    let seen = ["a", "b", "c", "d", "e"].map(|name| line.get(&format!("container_memory_usage_bytes{{id=/{name}}}")));
    assert_eq!(seen, [Some(100.0), Some(100.0), Some(100.0), None, None]);
}

#[test]
fn names_of_cgroups() {
    let tree = cgroups(&[]);
    let long = "n".repeat(200);
    let names: [(&[u8], &str); 9] = [
        (br"dev-disk\x2dby.mount", r"dev-disk\x2dby.mount"),
        (b"a:b", "a:b"),
        (b"user@1000.service", "user@1000.service"),
        (b"with blank", "with blank"),
        (b"with\ttab", "with\ttab"),
        (b"qu\"ote", "qu\"ote"),
        (b"back\\slash", "back\\slash"),
        (b"odd\xe9", r"odd\xe9"),
        (long.as_bytes(), &long),
    ];
    for (i, (name, _)) in names.iter().enumerate() {
        tree.put([b"sys/fs/cgroup/", *name, b"/memory.current"].concat(), format!("{}\n", i + 1));
    }
    tree.put("sys/fs/cgroup/memory.current/memory.current", "77\n");
    let line = tree.sample();
    for (i, (_, shown)) in names.iter().enumerate() {
        assert_eq!(line.get(&format!("container_memory_usage_bytes{{id=/{shown}}}")), Some(i as f64 + 1.0), "{shown}");
    }
    line.check(&[
        ("container_memory_usage_bytes{id=/memory.current}", Some(77.0)),
        ("container_memory_usage_bytes{id=/}", None),
    ]);
}

#[test]
fn a_symbolic_link_is_no_cgroup() {
    let tree = cgroups(&[("a/memory.current", "5\n"), ("b/memory.current", "6\n")]);
    tree.link("sys/fs/cgroup/loop", ".").link("sys/fs/cgroup/a/up", "../b");
    let line = tree.sample();
    assert_eq!(
        line.starting("container_memory_usage_bytes"),
        ["container_memory_usage_bytes{id=/a}", "container_memory_usage_bytes{id=/b}"]
    );
    assert_eq!(line.get("informant_agent_cgroups_skipped"), Some(0.0));
}

#[test]
fn long_paths_stay_distinct() {
    let tree = cgroups(&[]);
    let (a, b) = ("x".repeat(200), "y".repeat(200));
    for end in ["1", "2"] {
        tree.put(format!("{ROOT}/{a}/{b}{end}/memory.current"), format!("{end}\n"));
    }
    let line = tree.sample();
    let series = line.starting("container_memory_usage_bytes{id=/x");
    assert_eq!(series.len(), 2, "{series:?}");
    let mut values: Vec<_> = series.iter().map(|series| line.get(series).unwrap()).collect();
    values.sort_by(f64::total_cmp);
    assert_eq!(values, [1.0, 2.0]);
}

#[test]
fn a_watched_path_that_climbs_or_is_missing_leaves_the_mount_root() {
    let tree = cgroups(&[("a/memory.current", "5\n")]);
    tree.put("sys/fs/outside/memory.current", "6\n");
    for watched in ["/../outside", "/kubepods/pod1/c1", "/"] {
        let line = tree.samples_of(1, Some(watched), |_, _| {}).remove(0);
        assert_eq!(line.starting("container_memory_usage_bytes"), ["container_memory_usage_bytes{id=/a}"], "{watched}");
    }
}

#[test]
fn a_frozen_ancestor() {
    let tree = cgroups(&[("a/b/cgroup.freeze", "0\n"), ("a/b/cgroup.events", "populated 1\nfrozen 1\n")]);
    tree.sample().check(&[
        ("informant_cgroup_frozen{id=/a/b}", Some(1.0)),
        ("informant_cgroup_freeze_requested{id=/a/b}", Some(0.0)),
        ("informant_cgroup_populated{id=/a/b}", Some(1.0)),
    ]);
}

#[test]
fn throttling_shows_as_a_count() {
    let events = |high: u64| format!("low 0\nhigh {high}\nmax 0\noom 3\noom_kill 0\noom_group_kill 1\n");
    let tree = cgroups(&[("a/memory.events", &events(0))]);
    let lines = tree.samples(2, |_, tree| {
        tree.put(format!("{ROOT}/a/memory.events"), events(100_000));
    });
    lines[1].check(&[
        ("informant_cgroup_memory_events_total{event=high,id=/a}", Some(100_000.0)),
        ("informant_cgroup_memory_events_total{event=oom,id=/a}", Some(3.0)),
        ("informant_cgroup_memory_events_total{event=oom_group_kill,id=/a}", Some(1.0)),
        ("container_oom_events_total{id=/a}", Some(0.0)),
    ]);
}

#[test]
fn units_of_v2() {
    let tree = cgroups(&[
        (
            "a/cpu.stat",
            "usage_usec 2100000\nuser_usec 2000000\nsystem_usec 100000\nnice_usec 5\nnr_periods 4\nnr_throttled 2\nthrottled_usec 500000\n",
        ),
        ("a/memory.swap.current", "100\n"),
        ("a/memory.current", "300\n"),
        ("a/pids.current", "12\n"),
        ("a/pids.max", "max\n"),
        ("a/cpu.weight", "100\n"),
    ]);
    tree.sample().check(&[
        ("container_cpu_usage_seconds_total{id=/a}", Some(2.1)),
        ("container_cpu_user_seconds_total{id=/a}", Some(2.0)),
        ("container_cpu_system_seconds_total{id=/a}", Some(0.1)),
        ("container_cpu_cfs_periods_total{id=/a}", Some(4.0)),
        ("container_cpu_cfs_throttled_periods_total{id=/a}", Some(2.0)),
        ("container_cpu_cfs_throttled_seconds_total{id=/a}", Some(0.5)),
        ("container_memory_swap{id=/a}", Some(100.0)),
        ("container_memory_usage_bytes{id=/a}", Some(300.0)),
        ("container_threads{id=/a}", Some(12.0)),
        ("container_threads_max{id=/a}", None),
        ("informant_cgroup_cpu_weight{id=/a}", Some(100.0)),
    ]);
}

#[test]
fn cpuset_lags_behind_online_cpus() {
    let tree = cgroups(&[("a/cpuset.cpus.effective", "0-1\n")]);
    tree.put("sys/devices/system/cpu/online", "0-3\n");
    tree.sample()
        .check(&[("informant_cgroup_cpuset_effective_cpus{id=/a}", Some(2.0)), ("informant_cpus_online", Some(4.0))]);
}

#[test]
fn hybrid_mounts_and_mounts_elsewhere() {
    let tree = Tree::with(&[
        ("sys/fs/cgroup/unified/cgroup.controllers", ""),
        ("sys/fs/cgroup/unified/a/memory.current", "5\n"),
        ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "6\n"),
    ]);
    assert_eq!(tree.sample().get("container_memory_usage_bytes{id=/a}"), Some(5.0));
    tree.put("cg two/cgroup.controllers", "").put("cg two/b/memory.current", "7\n");
    tree.put("proc/self/mountinfo", "30 1 0:26 / /cg\\040two rw - cgroup2 none rw\n");
    tree.sample()
        .check(&[("container_memory_usage_bytes{id=/a}", None), ("container_memory_usage_bytes{id=/b}", Some(7.0))]);
}

#[test]
fn a_hidden_mount_of_the_hierarchy_is_passed_over() {
    // The first on its path is under the second; the path of the third leads elsewhere, as something is mounted above it.
    let table = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n31 30 0:40 / /sys/fs/cgroup rw - tmpfs none rw\n\
                 32 1 0:26 / /mnt/under rw - cgroup2 none rw\n33 1 0:26 / /cg rw - cgroup2 none rw\n";
    let tree = Tree::with(&[
        ("proc/self/mountinfo", table),
        ("sys/fs/cgroup/cgroup.controllers", "left over\n"),
        ("sys/fs/cgroup/a/memory.current", "5\n"),
        ("cg/cgroup.controllers", ""),
        ("cg/b/memory.current", "7\n"),
    ]);
    tree.sample()
        .check(&[("container_memory_usage_bytes{id=/a}", None), ("container_memory_usage_bytes{id=/b}", Some(7.0))]);
}

#[test]
fn two_levels_and_64_cgroups_and_the_rest_is_counted() {
    let tree = cgroups(&[
        ("a/b/memory.current", "2\n"),
        ("a/b/c/memory.current", "3\n"),
        ("cgroup.stat", "nr_descendants 3\n"),
    ]);
    let line = tree.sample();
    line.check(&[
        ("container_memory_usage_bytes{id=/a/b}", Some(2.0)),
        ("container_memory_usage_bytes{id=/a/b/c}", None),
        ("informant_agent_cgroups_skipped", Some(1.0)),
    ]);
    for i in 0..100 {
        tree.put(format!("{ROOT}/g{i}/memory.current"), "1\n");
    }
    tree.put(format!("{ROOT}/cgroup.stat"), "nr_descendants 103\n");
    let line = tree.samples_of(1, Some("a/b/c"), |_, _| {}).remove(0);
    assert_eq!(line.get("container_memory_usage_bytes{id=/a/b/c}"), Some(3.0), "the watched one comes first");
    // 64 with the root, which has no such file.
    assert!(line.starting("container_memory_usage_bytes").len() >= 62);
    assert_eq!(line.get("informant_agent_cgroups_skipped"), Some(104.0 - 64.0));
}

#[test]
fn a_cgroup_made_anew_under_its_name_is_another() {
    let tree = cgroups(&[("a/memory.current", "5\n"), ("a/cpu.stat", "usage_usec 9000000\n")]);
    let lines = tree.samples(3, |n, tree| {
        if n == 0 {
            // Kept beside it, so that the inode is not used again.
            std::fs::rename(tree.path().join(ROOT).join("a"), tree.path().join("old")).unwrap();
        }
        tree.put(format!("{ROOT}/a/memory.current"), "6\n");
        tree.put(format!("{ROOT}/a/cpu.stat"), format!("usage_usec {}000000\n", n + 1));
    });
    let cpu: Vec<_> = lines.iter().map(|line| line.get("container_cpu_usage_seconds_total{id=/a}")).collect();
    assert_eq!(cpu, [Some(9.0), Some(9.0), Some(10.0)]);
    assert_eq!(lines[1].get("container_memory_usage_bytes{id=/a}"), Some(6.0));
}

#[test]
fn a_removed_cgroup_is_absent_and_a_new_one_is_there_with_the_next_line() {
    let tree = cgroups(&[("a/memory.current", "5\n"), ("a/io.stat", "8:0 rbytes=1\n")]);
    let lines = tree.samples(2, |n, tree| {
        tree.put(format!("{ROOT}/b/memory.current"), "6\n");
        if n == 0 {
            tree.remove(format!("{ROOT}/a"));
        }
    });
    assert!(lines[0].has("container_fs_reads_bytes_total"));
    assert!(!lines[1].has("container_fs_reads_bytes_total"));
    lines[1]
        .check(&[("container_memory_usage_bytes{id=/a}", None), ("container_memory_usage_bytes{id=/b}", Some(6.0))]);
}

#[test]
fn a_schema_of_long_names_and_many_disks_is_cut_to_the_bytes_that_a_host_takes() {
    let tree = cgroups(&[]);
    let io: String = (0..13).map(|i| format!("253:{i} rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n")).collect();
    for i in 0..63 {
        let name = format!("{i:02}-{}", "n".repeat(237));
        tree.put(format!("{ROOT}/{name}/io.stat"), &io).put(format!("{ROOT}/{name}/memory.current"), "1\n");
    }
    let mut sensors = tree.sensors(true, probe::statvfs(tree.path()));
    for _ in 0..3 {
        sensors.sample(&OwnFigures::default());
        sensors.reschema();
    }
    let (mut writer, mut reader, mut out) = (SchemaWriter::new(3), SchemaReader::default(), vec![0; 4096]);
    let (mut written, mut bytes) = (0, 0);
    let total = sensors.subjects().count();
    while written < total {
        let (length, taken) = writer.part(&mut out, sensors.subjects().skip(written)).unwrap();
        let body = &out[3..length];
        reader.part(&SchemaPart::decode(body).unwrap(), body).unwrap();
        (written, bytes) = (written + taken, bytes + body.len());
    }
    assert!(bytes <= MAX_SCHEMA_BYTES && bytes > MAX_SCHEMA_BYTES - 2048, "{bytes}");
    let kind = |kind| sensors.subjects().filter(|subject| subject.kind == kind).count();
    assert_eq!(kind(SubjectKind::CGROUP), 64, "the disks go first");
    let cut = 63 * 13 - kind(SubjectKind::CGROUP_DISK);
    assert!(cut > 0);
    assert_eq!(sensors.series_dropped() as usize, cut * 6);
    let mut told = None;
    sensors.take_event(&mut |kind, body| {
        if kind == EventKind::SCHEMA_CUT {
            told = Some(postcard::from_bytes::<SchemaCut>(body).unwrap().dropped);
        }
    });
    assert_eq!(told, Some(sensors.series_dropped()));
}
