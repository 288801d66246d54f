//! Captured trees of real kernels: every reader succeeds, and gives what `procfs` reads from the same files.

use informant_guest::sample;
use procfs::{FromRead, FromReadSI};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn trees() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(here).unwrap().map(|entry| entry.unwrap().path());
    let trees: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!trees.is_empty());
    trees
}

/// Values by name and label values, joined with blanks.
fn values(root: &Path) -> HashMap<String, f64> {
    let mut line = Vec::new();
    sample::run(root, 1, Duration::ZERO, None, &mut line, &mut |_| {}).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
    let series = json["metrics"].as_array().unwrap().iter().map(|metric| {
        let mut name = metric["name"].as_str().unwrap().to_owned();
        for value in metric["labels"].as_object().unwrap().values() {
            name = format!("{name} {}", value.as_str().unwrap());
        }
        (name, metric["value"].as_f64().unwrap())
    });
    series.collect()
}

#[test]
fn every_reader_agrees_with_procfs() {
    for root in trees() {
        let ours = values(&root);
        let at = |file: &str| root.join("proc").join(file);
        let check = |name: &str, value: f64| assert_eq!(ours.get(name), Some(&value), "{name} in {}", root.display());

        let meminfo = procfs::Meminfo::from_file(at("meminfo")).unwrap();
        for (name, value) in [
            ("MemTotal", Some(meminfo.mem_total)),
            ("MemFree", Some(meminfo.mem_free)),
            ("MemAvailable", meminfo.mem_available),
            ("Cached", Some(meminfo.cached)),
            ("Active_anon", meminfo.active_anon),
            ("SReclaimable", meminfo.s_reclaimable),
            ("Committed_AS", Some(meminfo.committed_as)),
        ] {
            check(&format!("node_memory_{name}_bytes"), value.unwrap() as f64);
        }
        let info = procfs::current_system_info();
        let stat = procfs::KernelStats::from_file(at("stat"), info).unwrap();
        check("node_context_switches_total", stat.ctxt as f64);
        check("node_boot_time_seconds", stat.btime as f64);
        for (n, cpu) in stat.cpu_time.iter().enumerate() {
            for (mode, ticks) in [
                ("user", cpu.user),
                ("system", cpu.system),
                ("idle", cpu.idle),
                ("iowait", cpu.iowait.unwrap()),
                ("steal", cpu.steal.unwrap()),
            ] {
                check(&format!("node_cpu_seconds_total {n} {mode}"), ticks as f64 / 100.0);
            }
        }
        let load = procfs::LoadAverage::from_file(at("loadavg")).unwrap();
        assert!((ours["node_load5"] - f64::from(load.five)).abs() < 0.001);
        for disk in procfs::DiskStats::from_file(at("diskstats")).unwrap().0 {
            if disk.name == "vda" {
                check("node_disk_reads_completed_total vda", disk.reads as f64);
                check("node_disk_written_bytes_total vda", disk.sectors_written as f64 * 512.0);
                check("node_disk_flush_requests_total vda", disk.flushes.unwrap() as f64);
            }
        }
        for (name, device) in procfs::net::InterfaceDeviceStatus::from_file(at("net/dev")).unwrap().0 {
            check(&format!("node_network_receive_bytes_total {name}"), device.recv_bytes as f64);
            check(&format!("node_network_transmit_packets_total {name}"), device.sent_packets as f64);
        }
        for resource in ["memory", "io"] {
            // The two types of procfs are of the same form.
            let pressure = procfs::IoPressure::from_file(at("pressure").join(resource)).unwrap();
            check(&format!("node_pressure_{resource}_waiting_seconds_total"), pressure.some.total as f64 / 1e6);
            check(&format!("node_pressure_{resource}_stalled_seconds_total"), pressure.full.total as f64 / 1e6);
        }
    }
}

#[test]
fn nothing_that_was_captured_is_an_error() {
    for root in trees() {
        let ours = values(&root);
        assert_eq!(ours["informant_agent_read_errors_total"], 0.0, "{}", root.display());
        let absent: Vec<_> = [
            "informant_uptime_",
            "informant_cpus_possible",
            "informant_disk_size_",
            "node_cpu_",
            "node_memory_",
            "node_vmstat_",
            "node_disk_",
            "node_network_",
            "node_pressure_",
            "container_",
        ]
        .into_iter()
        .filter(|prefix| !ours.keys().any(|name| name.starts_with(prefix)))
        .collect();
        assert!(absent.is_empty(), "{absent:?} in {}", root.display());
        // An interface that makes no statement has no value.
        for interface in std::fs::read_dir(root.join("sys/class/net")).unwrap() {
            let interface = interface.unwrap();
            let state = std::fs::read_to_string(interface.path().join("operstate")).unwrap();
            let up = format!("node_network_up {}", interface.file_name().display());
            assert_eq!(ours.contains_key(&up), state != "unknown\n", "{up} in {}", root.display());
        }
    }
}

#[test]
fn a_cgroup_with_controllers_has_its_limits_and_what_it_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/linux-6.1");
    let ours = values(&root);
    let text = |file: &str| std::fs::read_to_string(root.join("sys/fs/cgroup/unit-0").join(file)).unwrap();
    let number = |file: &str| text(file).trim().parse::<f64>().unwrap();
    let line = |file: &str, key: &str| {
        let text = text(file);
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.unwrap().parse::<f64>().unwrap()
    };
    for (name, value) in [
        ("container_memory_usage_bytes /unit-0", number("memory.current")),
        ("container_memory_working_set_bytes /unit-0", number("memory.current") - line("memory.stat", "inactive_file")),
        ("container_spec_memory_limit_bytes /unit-0", 100.0 * 1024.0 * 1024.0),
        ("container_cpu_usage_seconds_total /unit-0", line("cpu.stat", "usage_usec") / 1e6),
        ("container_spec_cpu_quota /unit-0", 50_000.0),
        ("container_fs_reads_bytes_total vda /unit-0", 4_325_376.0),
        ("container_fs_reads_total vda /unit-0", 33.0),
    ] {
        assert_eq!(ours.get(name), Some(&value), "{name}");
    }
    // The uppermost has no limit and no use of its own.
    assert!(!ours.contains_key("container_memory_usage_bytes /"));
}
