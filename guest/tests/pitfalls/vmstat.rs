//! `/proc/vmstat`, pitfalls C.

use super::tree::Tree;

const FILE: &str = "proc/vmstat";

#[test]
fn pgpgin_and_pgpgout_count_kib() {
    Tree::with(&[(FILE, "pgpgin 6233177\npgpgout 2\npswpin 5\n")]).sample().check(&[
        ("informant_paged_in_bytes_total", Some(6_382_773_248.0)),
        ("node_vmstat_pgpgin", Some(6_233_177.0)),
        ("informant_paged_out_bytes_total", Some(2048.0)),
        ("node_vmstat_pswpin", Some(5.0)),
    ]);
}

#[test]
fn every_value_reaches_its_own_field() {
    let keys = [
        "workingset_nodes",
        "workingset_refault_anon",
        "workingset_refault_file",
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "allocstall_normal",
        "allocstall_movable",
        "pgfault",
        "pgmajfault",
        "pgsteal_kswapd",
        "pgsteal_direct",
        "pgscan_kswapd",
        "pgscan_direct",
        "oom_kill",
        "compact_stall",
        "thp_fault_alloc",
        "balloon_inflate",
        "balloon_deflate",
    ];
    // In the kernel's order, in reverse, and with unknown keys between.
    for order in [keys.to_vec(), keys.iter().rev().copied().collect()] {
        let file: String = order
            .iter()
            .map(|key| format!("nr_{key} 7\n{key} {}\n{key}_x 9\n", 1000 + keys.iter().position(|k| k == key).unwrap()))
            .collect();
        let line = Tree::with(&[(FILE, &file)]).sample();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(line.get(&format!("node_vmstat_{key}")), Some(1000.0 + i as f64), "{key}");
        }
        assert_eq!(line.starting("node_vmstat_").len(), keys.len());
    }
}

#[test]
fn a_negative_number_printed_unsigned_is_lost_alone() {
    Tree::with(&[(FILE, "workingset_nodes 18446744073709551615\npgfault 3\noom_kill -1\n")]).sample().check(&[
        ("node_vmstat_workingset_nodes", None),
        ("node_vmstat_pgfault", Some(3.0)),
        ("node_vmstat_oom_kill", None),
    ]);
}

#[test]
fn file_missing() {
    let tree = Tree::with(&[(FILE, "pgfault 3\n"), ("proc/loadavg", "0.50 0.25 0.10 1/100 42\n")]);
    let lines = tree.samples(3, |n, tree| if n == 0 { tree.remove(FILE) } else { _ = tree.put(FILE, "pgfault 4\n") });
    let seen: Vec<_> = lines.iter().map(|line| line.get("node_vmstat_pgfault")).collect();
    assert_eq!(seen, [Some(3.0), None, Some(4.0)]);
    lines[1].check(&[("node_load1", Some(0.5)), ("node_load5", Some(0.25)), ("node_load15", Some(0.1))]);
}
