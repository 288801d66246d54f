//! Pressure files, pitfalls H.

use super::tree::Tree;

const SOME: &str = "some avg10=12.34 avg60=0.00 avg300=0.00 total=18446744073709\n";
const FULL: &str = "full avg10=0.50 avg60=0.00 avg300=0.00 total=1000000\n";

#[test]
fn directory_missing() {
    let line = Tree::with(&[("proc/loadavg", "1.00 1.00 1.00 1/1 1\n")]).sample();
    assert!(!line.has("node_pressure") && !line.has("informant_pressure"));
    assert_eq!(line.get("node_load1"), Some(1.0));
}

#[test]
fn each_line_stands_for_itself() {
    let tree = Tree::with(&[
        ("proc/pressure/cpu", SOME),
        ("proc/pressure/memory", &format!("{SOME}{FULL}")),
        ("proc/pressure/io", "some avg10=x total=7\nfull total=-1 avg10=1.00\nother total=1\n"),
        ("proc/pressure/irq", FULL),
    ]);
    tree.sample().check(&[
        ("node_pressure_cpu_waiting_seconds_total", Some(18_446_744.073_709)),
        ("node_pressure_cpu_stalled_seconds_total", None),
        ("informant_pressure_avg10_ratio{resource=cpu,stall=some}", Some(0.1234)),
        ("informant_pressure_avg10_ratio{resource=cpu,stall=full}", None),
        ("node_pressure_memory_stalled_seconds_total", Some(1.0)),
        ("node_pressure_io_waiting_seconds_total", Some(0.000_007)),
        ("informant_pressure_avg10_ratio{resource=io,stall=some}", None),
        ("node_pressure_io_stalled_seconds_total", None),
        ("informant_pressure_avg10_ratio{resource=io,stall=full}", Some(0.01)),
        ("node_pressure_irq_stalled_seconds_total", Some(1.0)),
    ]);
}

#[test]
fn total_is_microseconds_and_64_bits() {
    let line = Tree::with(&[("proc/pressure/memory", SOME)]).sample();
    assert_eq!(line.get("node_pressure_memory_waiting_seconds_total"), Some(18_446_744.073_709));
}

#[test]
fn a_cgroup_without_pressure_files_lacks_them_alone() {
    let tree = Tree::with(&[
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/a.slice/memory.pressure", SOME),
        ("sys/fs/cgroup/nomem.slice/cgroup.pressure", "0\n"),
        ("sys/fs/cgroup/nomem.slice/memory.current", "4096\n"),
    ]);
    tree.sample().check(&[
        ("container_pressure_memory_waiting_seconds_total{id=/a.slice}", Some(18_446_744.073_709)),
        ("container_pressure_memory_waiting_seconds_total{id=/nomem.slice}", None),
        ("container_memory_usage_bytes{id=/nomem.slice}", Some(4096.0)),
    ]);
}
