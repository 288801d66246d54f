//! `/proc/diskstats` and `/sys/block`, pitfalls D.

use super::tree::Tree;

const FILE: &str = "proc/diskstats";

/// A line whose counters are all `n`.
fn disk(major: u32, minor: u32, name: &str, n: u64) -> String {
    format!("{major:4} {minor:7} {name}{}\n", format!(" {n}").repeat(17))
}

fn reads(line: &super::tree::Line, name: &str) -> Option<f64> {
    line.get(&format!("node_disk_reads_completed_total{{device={name}}}"))
}

#[test]
fn a_disk_whose_name_is_a_prefix_of_another() {
    let names = ["sda", "sda1", "sdaa", "nvme0n1", "nvme0n1p1", "nvme0n10", "nvme1c1n1", "mmcblk0p1"];
    let file: String = names.iter().zip(1_u32..).map(|(name, n)| disk(8, n, name, u64::from(n))).collect();
    let tree = Tree::with(&[(FILE, &file), ("sys/block/sda/size", "2048\n"), ("sys/class/block/sdaa/size", "4096\n")]);
    let line = tree.sample();
    // Partitions of ordinary disks are left out, as node_exporter does.
    let expected = [Some(1.0), None, Some(3.0), Some(4.0), None, Some(6.0), Some(7.0), Some(8.0)];
    assert_eq!(names.map(|name| reads(&line, name)), expected);
    line.check(&[
        ("informant_disk_size_bytes{device=sda}", Some(2048.0 * 512.0)),
        ("informant_disk_size_bytes{device=sdaa}", Some(4096.0 * 512.0)),
        ("informant_disk_size_bytes{device=nvme0n1}", None),
    ]);
}

#[test]
fn a_slash_in_a_device_name() {
    let tree = Tree::with(&[(FILE, &disk(104, 0, "cciss/c0d0", 5)), ("sys/block/cciss!c0d0/size", "16\n")]);
    tree.sample().check(&[
        ("node_disk_reads_completed_total{device=cciss/c0d0}", Some(5.0)),
        ("informant_disk_size_bytes{device=cciss/c0d0}", Some(8192.0)),
    ]);
}

#[test]
fn every_column_has_its_unit() {
    let tree = Tree::with(&[(FILE, " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n")]);
    let line = tree.sample();
    for (name, value) in [
        ("reads_completed_total", 1.0),
        ("reads_merged_total", 2.0),
        ("read_bytes_total", 3.0 * 512.0),
        ("read_time_seconds_total", 0.004),
        ("writes_completed_total", 5.0),
        ("writes_merged_total", 6.0),
        ("written_bytes_total", 7.0 * 512.0),
        ("write_time_seconds_total", 0.008),
        ("io_now", 9.0),
        ("io_time_seconds_total", 0.01),
        ("io_time_weighted_seconds_total", 0.011),
        ("discards_completed_total", 12.0),
        ("discards_merged_total", 13.0),
        ("discarded_sectors_total", 14.0),
        ("discard_time_seconds_total", 0.015),
        ("flush_requests_total", 16.0),
        ("flush_requests_time_seconds_total", 0.017),
    ] {
        assert_eq!(line.get(&format!("node_disk_{name}{{device=vda}}")), Some(value), "{name}");
    }
    // Linux before 4.18 has eleven columns.
    let line = Tree::with(&[(FILE, " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n")]).sample();
    assert_eq!(line.starting("node_disk_").len(), 11);
}

#[test]
fn stacked_devices_stand_for_themselves() {
    let file = disk(254, 0, "vda", 7) + &disk(253, 0, "dm-0", 7) + &disk(7, 0, "loop0", 7);
    let line = Tree::with(&[(FILE, &file)]).sample();
    assert_eq!(["vda", "dm-0", "loop0"].map(|name| reads(&line, name)), [Some(7.0), Some(7.0), None]);
    assert_eq!(line.starting("node_disk_reads_completed_total").len(), 2, "there is no total to count twice");
}

#[test]
fn a_single_counter_wraps_at_32_bits() {
    let line = |reads: u64, ticks: u64| format!(" 254 0 vda {reads} 2 3 4 5 6 7 8 0 {ticks} 11\n");
    let tree = Tree::with(&[(FILE, &line(4_294_967_290, 4_294_960_000))]);
    let lines = tree.samples(2, |_, tree| {
        tree.put(FILE, line(4, 2000));
    });
    assert_eq!(reads(&lines[1], "vda"), Some(4_294_967_300.0));
    let ticks = "node_disk_io_time_seconds_total{device=vda}";
    let busy = lines[1].get(ticks).unwrap() - lines[0].get(ticks).unwrap();
    assert!((busy - 9.296).abs() < 1e-6, "{busy}");
}

#[test]
fn a_device_number_used_again_is_a_new_series_without_a_jump() {
    let tree = Tree::with(&[(FILE, &disk(253, 3, "dm-3", 500))]);
    let lines = tree.samples(3, |n, tree| {
        tree.put(FILE, disk(253, 3, "dm-3", [2, 12][n.min(1)]));
    });
    let seen: Vec<_> = lines.iter().map(|line| reads(line, "dm-3")).collect();
    assert_eq!(seen, [Some(500.0), Some(500.0), Some(510.0)]);

    let mut sensors = tree.sensors(true, informant_guest::collect::probe::statvfs(tree.path()));
    let mut incarnation = || {
        sensors.sample(&Default::default());
        sensors.reschema();
        let disks = sensors.subjects().filter(|subject| subject.name == b"dm-3").map(|subject| subject.incarnation);
        disks.collect::<Vec<_>>()
    };
    tree.put(FILE, disk(253, 3, "dm-3", 500));
    let before = incarnation();
    assert_eq!(before, incarnation());
    tree.put(FILE, disk(253, 3, "dm-3", 2));
    let after = incarnation();
    assert!(after.len() == 1 && after != before);
    // The kernel's own sequence number tells as well, even when the counters grew.
    tree.put("sys/block/dm-3/diskseq", "7\n");
    let seven = incarnation();
    tree.put("sys/block/dm-3/diskseq", "8\n");
    assert!(incarnation() != seven);
}

#[test]
fn file_absent_or_empty() {
    let tree = Tree::with(&[(FILE, &disk(254, 0, "vda", 1))]);
    let lines = tree.samples(4, |n, tree| match n {
        0 => tree.remove(FILE),
        1 => _ = tree.put(FILE, ""),
        _ => _ = tree.put(FILE, disk(254, 0, "vda", 3)),
    });
    let seen: Vec<_> = lines.iter().map(|line| reads(line, "vda")).collect();
    assert_eq!(seen, [Some(1.0), None, None, Some(3.0)]);
    assert!(!lines[1].has("node_disk"));
}

#[test]
fn odd_lines_lose_only_themselves() {
    let file =
        format!("x 0 sdb 1 2\n8 y sdc 1\n8 16\n8 32 sdd x 2 3\n\n{}{}", disk(8, 0, "sda", 4), disk(8, 0, "sda", 5));
    let line = Tree::with(&[(FILE, &file)]).sample();
    assert_eq!(["sda", "sdb", "sdc", "sdd"].map(|name| reads(&line, name)), [Some(4.0), None, None, None]);
    assert_eq!(line.get("node_disk_reads_merged_total{device=sdd}"), Some(2.0));
}
