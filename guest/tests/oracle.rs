//! This machine's own files, read by us and by the `procfs` crate: the same values. A counter that `procfs` read before
//! and after lies between; a constant is equal.

use informant_guest::sample;
use procfs::{Current, CurrentSI};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

type Values = HashMap<String, f64>;

/// One line of `sample` on the live root: values by name and label values.
fn ours() -> Values {
    let mut line = Vec::new();
    sample::run(Path::new("/"), 1, Duration::ZERO, None, &mut line, &mut |_| {}).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
    let series = json["metrics"].as_array().unwrap().iter().map(|metric| {
        let mut labels: Vec<_> = metric["labels"].as_object().unwrap().iter().collect();
        labels.sort_by_key(|(key, _)| *key);
        let values: Vec<_> = labels.iter().map(|(_, value)| value.as_str().unwrap()).collect();
        (
            std::iter::once(metric["name"].as_str().unwrap()).chain(values).collect::<Vec<_>>().join(" "),
            metric["value"].as_f64().unwrap(),
        )
    });
    series.collect()
}

/// What procfs says of everything that can be compared: name, value, and whether it may move.
fn theirs() -> Values {
    let mut values = Values::new();
    let mut put = |name: String, value: f64| {
        values.insert(name, value);
    };
    let stat = procfs::KernelStats::current().unwrap();
    put("node_context_switches_total".into(), stat.ctxt as f64);
    put("node_forks_total".into(), stat.processes as f64);
    let ticks = procfs::ticks_per_second() as f64;
    for (n, cpu) in stat.cpu_time.iter().enumerate() {
        for (mode, value) in [
            ("user", Some(cpu.user)),
            ("nice", Some(cpu.nice)),
            ("system", Some(cpu.system)),
            ("softirq", cpu.softirq),
            ("steal", cpu.steal),
        ] {
            put(format!("node_cpu_seconds_total {n} {mode}"), value.unwrap() as f64 / ticks);
        }
    }
    for (key, value) in procfs::vmstat().unwrap() {
        if ["pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault", "oom_kill", "thp_fault_alloc"]
            .contains(&key.as_str())
        {
            put(format!("node_vmstat_{key}"), value as f64);
        }
    }
    for disk in procfs::diskstats().unwrap() {
        put(format!("node_disk_reads_completed_total {}", disk.name), disk.reads as f64);
        put(format!("node_disk_written_bytes_total {}", disk.name), disk.sectors_written as f64 * 512.0);
        put(format!("node_disk_io_time_seconds_total {}", disk.name), disk.time_in_progress as f64 / 1000.0);
        put(format!("node_disk_flush_requests_total {}", disk.name), disk.flushes.unwrap_or_default() as f64);
    }
    for (name, device) in procfs::net::dev_status().unwrap() {
        put(format!("node_network_receive_bytes_total {name}"), device.recv_bytes as f64);
        put(format!("node_network_transmit_packets_total {name}"), device.sent_packets as f64);
        put(format!("node_network_receive_drop_total {name}"), device.recv_drop as f64);
    }
    let uptime = procfs::Uptime::current().unwrap();
    put("informant_uptime_seconds".into(), uptime.uptime);
    if let Ok(pressure) = procfs::MemoryPressure::current() {
        put("node_pressure_memory_waiting_seconds_total".into(), pressure.some.total as f64 / 1e6);
        put("node_pressure_memory_stalled_seconds_total".into(), pressure.full.total as f64 / 1e6);
    }
    values
}

#[test]
fn counters_lie_between_two_readings_of_procfs() {
    let before = theirs();
    let ours = ours();
    let after = theirs();
    let mut compared = 0;
    for (name, low) in &before {
        let (Some(value), Some(high)) = (ours.get(name), after.get(name)) else { continue };
        // An uptime of procfs has 32 bits, and so less than a hundredth.
        let slack = if name == "informant_uptime_seconds" { 0.02 } else { 1e-6 };
        assert!(*low - slack <= *value && *value <= *high + slack, "{name}: {low} <= {value} <= {high}");
        compared += 1;
    }
    // CPUs, vmstat, at least one disk and one interface.
    assert!(compared >= 20, "{compared}");
}

#[test]
fn constants_are_equal() {
    let ours = ours();
    let meminfo = procfs::Meminfo::current().unwrap();
    let stat = procfs::KernelStats::current().unwrap();
    for (name, value) in [
        ("node_memory_MemTotal_bytes", meminfo.mem_total),
        ("node_memory_SwapTotal_bytes", meminfo.swap_total),
        ("node_memory_VmallocTotal_bytes", meminfo.vmalloc_total),
        ("node_memory_CommitLimit_bytes", meminfo.commit_limit.unwrap()),
        ("node_memory_Hugepagesize_bytes", meminfo.hugepagesize.unwrap()),
        ("informant_cpus_online", stat.cpu_time.len() as u64),
    ] {
        assert_eq!(ours.get(name), Some(&(value as f64)), "{name}");
    }
    // The kernel reckons it anew each time, and rounds.
    let boot = ours["node_boot_time_seconds"];
    assert!((boot - stat.btime as f64).abs() <= 1.0, "{boot}");
}

#[test]
fn the_root_file_system_is_the_one_procfs_names() {
    let ours = ours();
    let mounts = procfs::process::Process::myself().unwrap().mountinfo().unwrap();
    let root = mounts.into_iter().rfind(|mount| mount.mount_point == Path::new("/")).unwrap();
    let name = format!("node_filesystem_size_bytes {} {} /", root.mount_source.unwrap(), root.fs_type);
    let space = nix::sys::statvfs::statvfs("/").unwrap();
    assert_eq!(ours.get(&name), Some(&((space.blocks() * space.fragment_size()) as f64)), "{name}");
}
