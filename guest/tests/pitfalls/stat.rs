//! `/proc/stat`, pitfalls A.

use super::tree::Tree;
use informant_wire::event::{Changed, EventKind};
use std::fmt::Write;

const FILE: &str = "proc/stat";

fn cpu(line: &super::tree::Line, number: u32, mode: &str) -> Option<f64> {
    line.get(&format!("node_cpu_seconds_total{{cpu={number},mode={mode}}}"))
}

#[test]
fn cpu_ids_have_gaps() {
    let stat = "cpu 9 9 9 9\ncpu0 100 0 0 0 0 0 0 0 0 0\ncpu1 200 0 0 0 0 0 0 0 0 0\ncpu2 300 0 0 0 0 0 0 0 0 0\ncpu4 400 0 0 0 0 0 0 0 0 0\ncpu6 500 0 0 0 0 0 0 0 0 0\n";
    let line = Tree::with(&[(FILE, stat)]).sample();
    let user: Vec<_> = (0..8).map(|n| cpu(&line, n, "user")).collect();
    assert_eq!(user, [Some(1.0), Some(2.0), Some(3.0), None, Some(4.0), None, Some(5.0), None]);
    assert_eq!(line.get("informant_cpus_online"), Some(5.0));
    assert_eq!(line.starting("node_cpu_seconds_total{cpu=,").len(), 0, "the sum of all is no CPU");
}

#[test]
fn hundreds_of_cpus_with_a_gap_behind_each() {
    let ids = || (0..640).step_by(2);
    let stat: String = ids().map(|id| format!("cpu{id} 100 0 0 0 0 0 0 0 0 0\n")).collect();
    let list = ids().map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let line = Tree::with(&[(FILE, &stat), ("sys/devices/system/cpu/online", &list)]).sample();
    assert_eq!(line.get("informant_cpus_online"), Some(320.0));
    assert!(ids().all(|id| cpu(&line, id, "user") == Some(1.0)));
}

#[test]
fn the_cpu_set_grows_and_shrinks_between_samples() {
    let two = "cpu0 100 0 0 0\ncpu1 100 0 0 0\n";
    let four = "cpu0 200 0 0 0\ncpu1 200 0 0 0\ncpu2 200 0 0 0\ncpu3 200 0 0 0\n";
    let tree = Tree::with(&[(FILE, two)]);
    let lines = tree.samples(3, |n, tree| {
        tree.put(FILE, if n == 0 { four } else { two });
    });
    let counts: Vec<_> = lines.iter().map(|line| (0..4).filter(|n| cpu(line, *n, "user").is_some()).count()).collect();
    assert_eq!(counts, [2, 4, 2]);
}

#[test]
fn one_column_steps_backwards_and_the_others_stay_right() {
    let stat = |user, iowait, steal: u64| format!("cpu0 {user} 0 50 1000 {iowait} 0 0 {steal} 0 0\n");
    let tree = Tree::with(&[(FILE, &stat(100, 9000, 35_312_117_399))]);
    let next = [stat(200, 8990, 35_312_117_390), stat(300, 9010, 35_312_117_490)];
    let lines = tree.samples(3, |n, tree| {
        if let Some(stat) = next.get(n) {
            tree.put(FILE, stat);
        }
    });
    let all = |mode| lines.iter().map(|line| cpu(line, 0, mode).unwrap()).collect::<Vec<_>>();
    assert_eq!(all("user"), [1.0, 2.0, 3.0]);
    assert_eq!(all("iowait"), [90.0, 90.0, 90.2], "clamped, then normal from the new baseline");
    assert_eq!(all("steal"), [353_121_173.99, 353_121_173.99, 353_121_174.99]);
    assert_eq!(all("system"), [0.5; 3]);
}

#[test]
fn every_column_has_its_mode() {
    let line = Tree::with(&[(FILE, "cpu0 100 200 300 400 500 600 700 800 900 1000\n")]).sample();
    for (i, mode) in ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"].into_iter().enumerate() {
        assert_eq!(cpu(&line, 0, mode), Some(i as f64 + 1.0), "{mode}");
    }
    line.check(&[
        ("node_cpu_guest_seconds_total{cpu=0,mode=user}", Some(9.0)),
        ("node_cpu_guest_seconds_total{cpu=0,mode=nice}", Some(10.0)),
    ]);
}

#[test]
fn an_intr_line_of_thousands_of_numbers_and_hundreds_of_cpus() {
    let mut stat = String::from("cpu 1 2 3 4\n");
    for n in 0..320 {
        writeln!(stat, "cpu{n} {n}00 2 3 4 5 6 7 8 9 10").unwrap();
    }
    writeln!(stat, "intr 123456789012{}", " 17".repeat(3500)).unwrap();
    stat += "ctxt 5000000000\nbtime 1712345678\nprocesses 77\nprocs_running 3\nprocs_blocked 0\nsoftirq 1 2 3\n";
    assert!(stat.find("btime").unwrap() > 20_000);
    let line = Tree::with(&[(FILE, &stat)]).sample();
    assert_eq!(cpu(&line, 319, "user"), Some(319.0));
    line.check(&[
        ("informant_cpus_online", Some(320.0)),
        ("node_intr_total", Some(123_456_789_012.0)),
        ("node_context_switches_total", Some(5_000_000_000.0)),
        ("node_boot_time_seconds", Some(1_712_345_678.0)),
        ("node_forks_total", Some(77.0)),
        ("node_procs_running", Some(3.0)),
        ("node_procs_blocked", Some(0.0)),
    ]);
}

#[test]
fn cpus_are_counted_from_the_lists_not_from_affinity() {
    let tree = Tree::with(&[
        ("sys/devices/system/cpu/possible", "0-7\n"),
        ("sys/devices/system/cpu/present", "0-6\n"),
        ("sys/devices/system/cpu/online", "0-2,4,6\n"),
    ]);
    tree.sample().check(&[
        ("informant_cpus_online", Some(5.0)),
        ("informant_cpus_present", Some(7.0)),
        ("informant_cpus_possible", Some(8.0)),
    ]);
}

#[test]
fn the_cpu_count_is_read_again_and_each_change_is_one_event() {
    let list = "sys/devices/system/cpu/online";
    let tree = Tree::with(&[(list, "0-1\n")]);
    let events = tree.events(4, |n, tree| {
        tree.put(list, ["0-3\n", "0-3\n", "0\n", "0\n"][n]);
    });
    let changes: Vec<_> = events
        .iter()
        .filter(|(kind, _)| *kind == EventKind::CPUS_CHANGED)
        .map(|(_, body)| postcard::from_bytes::<Changed>(body).unwrap())
        .collect();
    assert_eq!(changes, [Changed { old: 2, new: 4 }, Changed { old: 4, new: 1 }]);
}

#[test]
fn odd_lines_lose_only_themselves() {
    let stat = "cpu0 x 2 3\ncpux 1 2 3\ncpu01 1 1\ncpu1 100\n\ncpu99999999999 1\nbtime x\nctxt 5 6\nprocesses 4\n";
    let line = Tree::with(&[(FILE, stat)]).sample();
    assert_eq!((cpu(&line, 0, "user"), cpu(&line, 0, "nice")), (None, Some(0.02)));
    assert_eq!((cpu(&line, 1, "user"), cpu(&line, 1, "nice")), (Some(1.0), None));
    line.check(&[
        ("node_boot_time_seconds", None),
        ("node_context_switches_total", None),
        ("node_forks_total", Some(4.0)),
        ("informant_cpus_online", Some(2.0)),
    ]);
    let nothing = Tree::new().sample();
    assert!(!nothing.has("node_cpu") && !nothing.has("node_forks"));
}
