//! A real VM: what the host shows is what the guest's kernel says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xtask::setup;
use xtask::system::{self, System, names, value};
use xtask::vm::{self, Vm};

const SOON: Duration = Duration::from_secs(10);

/// One look at everything that is compared, taken in one command.
struct Proc {
    files: BTreeMap<String, String>,
}

impl Proc {
    const FILES: [&str; 14] = [
        "/proc/stat",
        "/proc/meminfo",
        "/proc/vmstat",
        "/proc/diskstats",
        "/proc/net/dev",
        "/proc/uptime",
        "/proc/pressure/cpu",
        "/proc/pressure/memory",
        "/proc/pressure/io",
        "/sys/fs/cgroup/busy/cpu.stat",
        "/sys/fs/cgroup/busy/memory.stat",
        "/sys/fs/cgroup/busy/memory.max",
        "/sys/fs/cgroup/busy/cpu.max",
        "/sys/block/vda/size",
    ];

    fn take(vm: &Vm) -> Result<Self> {
        let script = Self::FILES.iter().map(|file| format!("echo '== {file}'; cat {file}; ")).collect::<String>();
        let text = vm.sh(&script, SOON)?;
        let files = text.split("== ").filter_map(|part| part.split_once('\n'));
        Ok(Self { files: files.map(|(name, text)| (name.to_owned(), text.to_owned())).collect() })
    }

    /// The number in column `column` of the line of `file` that begins with `key`.
    fn number(&self, file: &str, key: &str, column: usize) -> Result<f64> {
        let text = self.files.get(file).with_context(|| format!("{file} was not read"))?;
        let line = text
            .lines()
            .find(|line| key.is_empty() || line.split_whitespace().any(|word| word.trim_end_matches(':') == key))
            .with_context(|| format!("no {key} in {file}"))?;
        let word = line.split_whitespace().nth(column).with_context(|| format!("no column {column} in `{line}`"))?;
        word.trim_start_matches("total=").parse().with_context(|| format!("`{word}` in `{line}`"))
    }
}

/// Counters: published name, labels, file, key, column, scale.
type Counter<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a str, usize, f64);

const COUNTERS: &[Counter<'_>] = &[
    ("node_cpu_seconds_total", &[("cpu", "0"), ("mode", "user")], "/proc/stat", "cpu0", 1, 0.01),
    ("node_cpu_seconds_total", &[("cpu", "1"), ("mode", "system")], "/proc/stat", "cpu1", 3, 0.01),
    ("node_cpu_seconds_total", &[("cpu", "1"), ("mode", "softirq")], "/proc/stat", "cpu1", 7, 0.01),
    ("node_context_switches_total", &[], "/proc/stat", "ctxt", 1, 1.0),
    ("node_intr_total", &[], "/proc/stat", "intr", 1, 1.0),
    ("node_forks_total", &[], "/proc/stat", "processes", 1, 1.0),
    ("node_vmstat_pgfault", &[], "/proc/vmstat", "pgfault", 1, 1.0),
    ("node_vmstat_pgpgin", &[], "/proc/vmstat", "pgpgin", 1, 1.0),
    ("informant_paged_in_bytes_total", &[], "/proc/vmstat", "pgpgin", 1, 1024.0),
    ("node_disk_reads_completed_total", &[("device", "vda")], "/proc/diskstats", "vda", 3, 1.0),
    ("node_disk_read_bytes_total", &[("device", "vda")], "/proc/diskstats", "vda", 5, 512.0),
    ("node_disk_io_time_seconds_total", &[("device", "vda")], "/proc/diskstats", "vda", 12, 0.001),
    ("node_network_receive_bytes_total", &[("device", "lo")], "/proc/net/dev", "lo", 1, 1.0),
    ("node_network_transmit_packets_total", &[("device", "lo")], "/proc/net/dev", "lo", 10, 1.0),
    ("node_pressure_cpu_waiting_seconds_total", &[], "/proc/pressure/cpu", "some", 4, 1e-6),
    ("node_pressure_memory_stalled_seconds_total", &[], "/proc/pressure/memory", "full", 4, 1e-6),
    ("node_pressure_io_waiting_seconds_total", &[], "/proc/pressure/io", "some", 4, 1e-6),
    ("container_cpu_usage_seconds_total", &[("id", "/busy")], "/sys/fs/cgroup/busy/cpu.stat", "usage_usec", 1, 1e-6),
    (
        "container_memory_failures_total",
        &[("id", "/busy"), ("failure_type", "pgfault")],
        "/sys/fs/cgroup/busy/memory.stat",
        "pgfault",
        1,
        1.0,
    ),
];

#[test]
fn constants_are_equal_and_counters_bracketed() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(384).cpus(2).disk_mib(24))?;
    vm.sh(
        "mkdir /sys/fs/cgroup/busy && echo 64M >/sys/fs/cgroup/busy/memory.max && echo '50000 100000' >/sys/fs/cgroup/busy/cpu.max &&
         (echo 0 >/sys/fs/cgroup/busy/cgroup.procs; while :; do dd if=/dev/vda of=/dev/null bs=64k count=20 2>/dev/null; wget -qO- http://127.0.0.1:1 2>/dev/null; sleep 0.2; done) >/dev/null 2>&1 &",
        SOON,
    )?;
    system.wait_status("vm", "proven, with the new cgroup", |status| {
        status["guest"]["proven"] == true
            && value(status, "container_cpu_usage_seconds_total", &[("id", "/busy")]).is_some()
    })?;

    for round in 0..3 {
        let before = Proc::take(&vm)?;
        // Cgroup files that are not hot are read at every fifth sample: six samples on, all of them are newer.
        let from = before.number("/proc/uptime", "", 0)? + 7.0;
        let status = system.wait_status("vm", "newer data", |status| {
            value(status, "informant_uptime_seconds", &[]).is_some_and(|uptime| uptime > from)
        })?;
        let after = Proc::take(&vm)?;
        for (name, labels, file, key, column, scale) in COUNTERS {
            let (low, high) = (before.number(file, key, *column)? * scale, after.number(file, key, *column)? * scale);
            let shown = value(&status, name, labels).with_context(|| format!("{name}{labels:?} is not shown"))?;
            let slack = scale * 1e-3;
            assert!(
                (low - slack..=high + slack).contains(&shown),
                "round {round}: {name}{labels:?}: {low} <= {shown} <= {high} is not so"
            );
        }
        let constants = [
            ("node_memory_MemTotal_bytes", &[][..], before.number("/proc/meminfo", "MemTotal", 1)? * 1024.0),
            ("node_boot_time_seconds", &[], before.number("/proc/stat", "btime", 1)?),
            ("informant_cpus_online", &[], 2.0),
            ("informant_disk_size_bytes", &[("device", "vda")], before.number("/sys/block/vda/size", "", 0)? * 512.0),
            (
                "container_spec_memory_limit_bytes",
                &[("id", "/busy")],
                before.number("/sys/fs/cgroup/busy/memory.max", "", 0)?,
            ),
            ("informant_cgroup_memory_limit_bytes", &[("id", "/busy")], f64::from(64 << 20)),
            ("informant_cgroup_cpu_limit_cores", &[("id", "/busy")], 0.5),
        ];
        for (name, labels, expected) in constants {
            // The kernel works btime out anew at each read, and may round it to the neighbouring second.
            let slack = if name == "node_boot_time_seconds" { 1.0 } else { 0.0 };
            let shown = value(&status, name, labels).with_context(|| format!("{name}{labels:?} is not shown"))?;
            assert!((shown - expected).abs() <= slack, "{name}{labels:?}: {shown}, not {expected}");
        }
        assert_eq!(value(&status, "informant_disk_size_bytes", &[("device", "vda")]), Some(f64::from(24 << 20)));
        assert_eq!(status["counters"]["mismatches"], 0);
    }
    let shown = system.host(&["ls"])?;
    assert!(shown.lines().any(|line| line.starts_with("vm ") && line.contains("ready")), "{shown}");
    Ok(())
}

/// The libraries that a program of this machine needs, for a guest that has none.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

/// Names on a page of metrics, with those in the list that explains what is left out taken away.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_name_of_node_exporter_is_there_or_explained() -> Result<()> {
    let _turn = vm::turn()?;
    let exporter = setup::node_exporter()?;
    let mut files = libraries(&exporter)?;
    files.push(exporter.to_str().context("UTF-8")?.to_owned());
    let (system, vm) = System::with_real_vm(|builder| {
        let builder = builder.memory_mib(512).cpus(2).disk_mib(24);
        files.iter().fold(builder, |builder, file| {
            let inside = if *file == exporter.to_string_lossy() { "bin/node_exporter" } else { file };
            builder.program(inside, file)
        })
    })?;
    let collectors = ["cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "pressure", "stat", "vmstat"];
    let flags = collectors.map(|name| format!("--collector.{name}")).join(" ");
    // An ext4 disk, so that there is a file system with a device.
    vm.sh(
        "mkfs.ext2 -q /dev/vda 2>/dev/null || mke2fs /dev/vda; mkdir -p /data && mount -t ext4 /dev/vda /data",
        SOON,
    )?;
    vm.sh(
        &format!(
            "node_exporter --collector.disable-defaults {flags} --web.listen-address=127.0.0.1:9100 >/run/ne.log 2>&1 &"
        ),
        SOON,
    )?;
    let page = system::wait_for("a page of node_exporter", || {
        vm.sh("wget -qO- http://127.0.0.1:9100/metrics", SOON).ok().filter(|page| page.contains("node_load1"))
    })?;
    let theirs: BTreeSet<_> = series(&page).into_iter().filter(|name| name.starts_with("node_")).collect();
    assert!(theirs.len() > 100, "only {} names: {theirs:?}", theirs.len());

    let status = system.wait_status("vm", "the mounted disk", |status| {
        value(status, "node_filesystem_size_bytes", &[("mountpoint", "/data")]).is_some()
    })?;
    let ours = names(&status);
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node_exporter_left_out.txt"))?;
    let mut explained = BTreeSet::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, reason)) = line.split_once(": ") else { bail!("no reason in `{line}`") };
        assert!(!reason.trim().is_empty());
        assert!(!ours.contains(name), "{name} is on the list and is there: take it off");
        explained.insert(name.to_owned());
    }
    let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(*name) && !explained.contains(*name)).collect();
    assert!(missing.is_empty(), "node_exporter gives these and we do not, without a reason: {missing:#?}");

    // The same numbers, too, where they do not move.
    for name in ["node_memory_MemTotal_bytes", "node_boot_time_seconds", "node_memory_SwapTotal_bytes"] {
        let line = page.lines().find(|line| line.starts_with(&format!("{name} "))).context(name)?;
        let theirs: f64 = line.split_whitespace().nth(1).context("value")?.parse()?;
        let ours = value(&status, name, &[]).context(name)?;
        assert!((theirs - ours).abs() <= 1.0, "{name}: {ours}, node_exporter says {theirs}");
    }
    let filesystem = |status: &Value, name| value(status, name, &[("mountpoint", "/data")]);
    let line = page.lines().find(|line| line.starts_with("node_filesystem_size_bytes{") && line.contains("\"/data\""));
    let shown = || page.lines().filter(|line| line.contains("filesystem")).collect::<Vec<_>>().join("\n");
    let theirs: f64 = line.and_then(|line| line.rsplit(' ').next()).with_context(shown)?.parse()?;
    assert_eq!(filesystem(&status, "node_filesystem_size_bytes"), Some(theirs));
    Ok(())
}
