//! Reading in general, pitfalls N.

use super::tree::Tree;
use informant_guest::collect::{Config, OwnFigures, Sensors};
use std::path::{Path, PathBuf};

#[test]
fn a_short_read_is_not_the_end() {
    // A hundred times what a seq_file gives at once, and more than the buffer at its start.
    let mut vmstat: String = (0..20_000).map(|i| format!("nr_unknown_{i} {i}\n")).collect();
    vmstat += "oom_kill 7\n";
    assert_eq!(Tree::with(&[("proc/vmstat", &vmstat)]).sample().get("node_vmstat_oom_kill"), Some(7.0));
    // The kernel's own files come in pieces of less than 4 KiB, whatever the buffer.
    let whole = std::fs::read("/proc/kallsyms").unwrap();
    let mut files = informant_guest::kfile::Files::new(Path::new("/"));
    if whole.len() < 4_000_000 {
        assert_eq!(files.read_once(None, b"proc/kallsyms").unwrap().len(), whole.len());
    }
    let cpuinfo = std::fs::read("/proc/cpuinfo").unwrap();
    let ours = files.read_once(None, b"proc/cpuinfo").unwrap();
    assert_eq!(
        ours.iter().filter(|byte| **byte == b'\n').count(),
        cpuinfo.iter().filter(|byte| **byte == b'\n').count()
    );
}

#[test]
fn a_file_above_the_bound_is_an_error_for_that_file_alone() {
    let tree = Tree::with(&[("proc/loadavg", "0.10 0.20 0.30 1/1 1\n")]);
    tree.put("proc/vmstat", vec![b'x'; 5 << 20]);
    let line = tree.sample();
    assert!(!line.has("node_vmstat") && line.get("node_load1") == Some(0.1));
    assert!(line.get("informant_agent_read_errors_total").unwrap() > 0.0);
}

#[test]
fn a_file_that_is_replaced_or_rewritten_is_read_anew() {
    let tree = Tree::with(&[("proc/loadavg", "1.00 0 0 1/1 1\n")]);
    let lines = tree.samples(5, |n, tree| match n {
        0 => _ = tree.put("proc/loadavg", "2.00 0 0 1/1 1\n"),
        1 => tree.replace("proc/loadavg", "3.00 0 0 1/1 1\n"),
        2 => tree.remove("proc/loadavg"),
        _ => _ = tree.put("proc/loadavg", "5.00 0 0 1/1 1\n"),
    });
    let seen: Vec<_> = lines.iter().map(|line| line.get("node_load1")).collect();
    assert_eq!(seen, [Some(1.0), Some(2.0), Some(3.0), None, Some(5.0)]);
}

#[test]
fn the_agent_finds_a_replaced_file_within_five_samples() {
    let tree = Tree::with(&[("proc/loadavg", "1.00 0 0 1/1 1\n")]);
    let mut sensors = Sensors::new(&Config { root: tree.path().to_owned(), cgroup: None, all_fresh: false });
    let mut load = || {
        sensors.sample(&OwnFigures::default());
        if sensors.wants_schema() {
            sensors.reschema();
        }
        sensors.row().values.first().copied()
    };
    load();
    assert_eq!(load(), Some(100));
    tree.replace("proc/loadavg", "3.00 0 0 1/1 1\n");
    assert!((0..5).any(|_| load() == Some(300)));
}

#[test]
fn nothing_comes_from_outside_the_root() {
    let line = Tree::new().sample();
    let own: Vec<_> = line.starting("").into_iter().filter(|series| !series.starts_with("informant_")).collect();
    assert!(own.is_empty(), "{own:?}");
    assert!(!line.has("informant_uptime") && !line.has("informant_cpus") && !line.has("informant_memory"));
    let tree = Tree::with(&[
        ("proc/uptime", "123.45 1.00\n"),
        ("proc/meminfo", "MemTotal: 11 kB\n"),
        ("proc/stat", "cpu0 1 1 1 1\nbtime 5\n"),
        ("proc/self/mountinfo", "1 0 0:2 / / rw - ext4 /dev/fixture rw\n"),
    ]);
    tree.sample().check(&[
        ("informant_uptime_seconds", Some(123.45)),
        ("node_memory_MemTotal_bytes", Some(11.0 * 1024.0)),
        ("node_boot_time_seconds", Some(5.0)),
        ("node_filesystem_readonly{device=/dev/fixture,fstype=ext4,mountpoint=/}", Some(0.0)),
    ]);
}

/// As many steps up as lead to `/` from any temporary directory, and then down to `path`.
fn climbing(path: &Path) -> String {
    format!("{}{}", "../".repeat(30), path.strip_prefix("/").unwrap().display())
}

#[test]
fn no_link_leads_out_of_the_root() {
    let outside = Tree::with(&[("loadavg", "9.00 9.00 9.00 1/1 1\n"), ("cg/memory.current", "4096\n")]);
    let tree = Tree::with(&[
        ("real/meminfo", "MemTotal: 11 kB\n"),
        ("real/uptime", "123.45 1.00\n"),
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/in/memory.current", "8192\n"),
    ]);
    tree.link("proc/loadavg", outside.path().join("loadavg"));
    tree.link("sys/fs/cgroup/absolute", outside.path().join("cg"));
    tree.link("sys/fs/cgroup/climbing", climbing(&outside.path().join("cg")));
    // Those that stay inside are followed as in the VM that the tree is of.
    tree.link("proc/meminfo", "/real/meminfo").link("proc/uptime", "../../../real/uptime");
    let line = tree.sample();
    assert!(!line.has("node_load"), "an absolute link");
    assert_eq!(line.starting("container_memory_usage_bytes"), ["container_memory_usage_bytes{id=/in}"]);
    line.check(&[("node_memory_MemTotal_bytes", Some(11.0 * 1024.0)), ("informant_uptime_seconds", Some(123.45))]);

    tree.remove("proc/loadavg");
    tree.link("proc/loadavg", climbing(&outside.path().join("loadavg")));
    assert!(!tree.sample().has("node_load"), "a relative link");
}

#[test]
fn a_link_that_climbs_leads_to_the_same_file_whichever_way_it_is_read() {
    let tree = Tree::with(&[
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
        ("store/current", "11\n"),
        ("store/max", "22\n"),
        ("store/state", "online\n"),
    ]);
    tree.link("sys/fs/cgroup/a/memory.current", "../../../../store/current");
    tree.link("sys/fs/cgroup/a/memory.max", "../../../../store/max");
    tree.link("sys/devices/system/memory/memory0/state", "../../../../../store/state");
    tree.sample().check(&[
        ("container_memory_usage_bytes{id=/a}", Some(11.0)),
        ("container_spec_memory_limit_bytes{id=/a}", Some(22.0)),
        ("informant_memory_online_bytes", Some(134_217_728.0)),
    ]);
}

#[test]
fn no_mount_point_lies_outside_the_root() {
    let outside = Tree::with(&[("cgroup.controllers", "memory\n"), ("cg/memory.current", "4096\n")]);
    let up = climbing(outside.path());
    let tree = Tree::new();
    tree.directory("inside").directory("a").link("linked", outside.path());
    let mounts = format!(
        "1 0 8:1 / /inside rw - ext4 in rw\n2 0 8:2 / /a/../{up} rw - ext4 up rw\n3 0 8:3 / /linked rw - ext4 link rw\n\
         4 0 0:9 / /{up} rw - cgroup2 none rw\n"
    );
    tree.put("proc/self/mountinfo", mounts);
    let line = tree.sample();
    let sizes = line.starting("node_filesystem_size_bytes");
    assert_eq!(sizes, ["node_filesystem_size_bytes{device=in,fstype=ext4,mountpoint=/inside}"]);
    assert!(!line.has("container_"), "cgroups of another tree");
}

#[test]
fn no_series_is_there_twice_whatever_the_kernel_repeats() {
    let tree = Tree::with(&[
        ("proc/stat", "cpu0 1 1 1 1\ncpu0 2 2 2 2\n"),
        ("proc/diskstats", " 8 0 sda 1 1 1 1 1 1 1 1 1 1 1\n 8 0 sda 2 2 2 2 2 2 2 2 2 2 2\n"),
        ("proc/net/dev", "eth0: 1 1 1\neth0: 2 2 2\n"),
        ("proc/self/mountinfo", "1 0 8:1 / /a rw - ext4 /dev/sda rw\n2 0 8:1 / /a rw - ext4 /dev/sda rw\n"),
        ("sys/fs/cgroup/cgroup.controllers", ""),
        ("sys/fs/cgroup/a/io.stat", "8:0 rbytes=1\n8:0 rbytes=2\n"),
    ]);
    // The reader of lines refuses a series that is there twice.
    let line = tree.sample();
    for series in ["node_cpu_seconds_total", "node_disk_", "node_network_", "node_filesystem_", "container_fs_"] {
        assert!(line.has(series), "{series}");
    }
}

#[test]
fn lxcfs_and_cgroups_each_name_their_source() {
    let tree = Tree::with(&[
        ("proc/meminfo", "MemTotal: 998384 kB\n"),
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/a/memory.max", "2147483648\n"),
    ]);
    tree.sample().check(&[
        ("node_memory_MemTotal_bytes", Some(998_384.0 * 1024.0)),
        ("container_spec_memory_limit_bytes{id=/a}", Some(2_147_483_648.0)),
    ]);
}

#[test]
fn pipes_directories_and_loops_in_the_place_of_files_block_nothing() {
    let tree = Tree::new();
    tree.directory("proc/meminfo");
    nix::unistd::mkfifo(&tree.path().join("proc/stat"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("vmstat", tree.path().join("proc/vmstat")).unwrap();
    std::os::unix::fs::symlink(PathBuf::from("/dev/zero"), tree.path().join("proc/diskstats")).unwrap();
    tree.put("proc/loadavg", "0.10 0 0 1/1 1\n");
    assert_eq!(tree.sample().get("node_load1"), Some(0.1));
}

#[test]
fn the_first_row_of_a_schema_has_what_is_read_now_and_then() {
    let tree = Tree::with(&[
        ("sys/devices/system/cpu/present", "0-1\n"),
        ("sys/devices/system/memory/block_size_bytes", "1000\n"),
        ("sys/devices/system/memory/memory0/state", "online\n"),
        ("proc/diskstats", " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n"),
        ("sys/class/block/vda/size", "8\n"),
        ("proc/net/dev", "eth0: 1 1 1\n"),
        ("sys/class/net/eth0/mtu", "1500\n"),
        ("sys/fs/cgroup/cgroup.controllers", ""),
        ("sys/fs/cgroup/a/memory.max", "4096\n"),
        ("sys/fs/cgroup/a/io.stat", "254:0 rbytes=5\n"),
    ]);
    let mut sensors = Sensors::new(&Config { root: tree.path().to_owned(), cgroup: None, all_fresh: false });
    // As the agent does it.
    sensors.sample(&OwnFigures::default());
    sensors.reschema();
    sensors.sample(&OwnFigures::default());
    let mut missing = Vec::new();
    let mut at = 0;
    for subject in sensors.subjects() {
        for id in subject.metrics.iter().flat_map(|range| range.first.0..range.first.0 + range.count) {
            let is_wanted = [12, 14, 15, 1117, 1218, 1407, 1600].contains(&id);
            // The root cgroup has no limit.
            if is_wanted && subject.name != b"/" && !informant_wire::bits::get(sensors.row().present, at) {
                missing.push(id);
            }
            at += 1;
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(sensors.subjects().any(|subject| subject.kind == informant_wire::metric::SubjectKind::CGROUP_DISK));
}
