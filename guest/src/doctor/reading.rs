//! Findings about the files that the collectors read. Each is read as they read it; one that is there but can not be
//! read, or has nothing in it that they understand, is named. Files that have the same fault share a line.

use super::Findings;
use crate::collect::cpulist::CpuSet;
use crate::collect::mountinfo::Mount;
use crate::collect::{Config, OwnFigures, Sensors};
use crate::kfile::{Fault, Files, KFile};
use crate::parse::{fields, lines, number, trim};
use informant_wire::bits;
use informant_wire::metric::{MetricId, SubjectKind, id};
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// What shows that a file was understood.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// One of these series of the VM has a value.
    Value(&'static [MetricId]),
    /// There is a subject of this kind.
    Subject(SubjectKind),
    /// Its bytes.
    Bytes(fn(&[u8]) -> bool),
}

/// A file of the VM, what is lost without it, and what shows that it was understood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) path: &'static str,
    pub(super) what: &'static str,
    /// The agent is of no use without it.
    is_needed: bool,
    sign: Sign,
}

const fn source(path: &'static str, what: &'static str, sign: Sign) -> Source {
    Source { path, what, is_needed: false, sign }
}

/// Every VM has these.
const SOURCES: [Source; 8] = [
    Source { is_needed: true, ..source("proc/stat", "CPU times", Sign::Subject(SubjectKind::CPU)) },
    Source { is_needed: true, ..source("proc/meminfo", "memory", Sign::Value(&[id::MEM_TOTAL, id::MEM_FREE])) },
    source("proc/loadavg", "load averages", Sign::Value(&[id::LOAD1])),
    source("proc/uptime", "uptime", Sign::Value(&[id::UPTIME])),
    source("proc/vmstat", "paging and OOM kills", Sign::Value(&[id::VMSTAT_PGFAULT, id::VMSTAT_OOM_KILL])),
    source("proc/diskstats", "disks", Sign::Bytes(names_disks)),
    source("proc/net/dev", "network interfaces", Sign::Subject(SubjectKind::NETWORK)),
    source("proc/self/mountinfo", "file systems and the place of cgroups", Sign::Bytes(names_mounts)),
];

/// Kernels with pressure stall information have these.
pub(super) const PRESSURE: [Source; 3] = [
    source("proc/pressure/cpu", "pressure on CPUs", Sign::Value(&[id::PRESSURE_CPU_SOME, id::PRESSURE_CPU_FULL])),
    source("proc/pressure/io", "pressure on disks", Sign::Value(&[id::PRESSURE_IO_SOME, id::PRESSURE_IO_FULL])),
    source(
        "proc/pressure/memory",
        "pressure on memory",
        Sign::Value(&[id::PRESSURE_MEMORY_SOME, id::PRESSURE_MEMORY_FULL]),
    ),
];

/// Some VMs have these.
const OPTIONAL: [Source; 5] = [
    source("proc/pressure/irq", "pressure of interrupts", Sign::Value(&[id::PRESSURE_IRQ_FULL])),
    source("sys/devices/system/cpu/online", "the list of CPUs online", Sign::Bytes(is_cpu_list)),
    source("sys/devices/system/cpu/present", "the list of CPUs plugged", Sign::Bytes(is_cpu_list)),
    source("sys/devices/system/cpu/possible", "the list of possible CPUs", Sign::Bytes(is_cpu_list)),
    source("sys/devices/system/memory/block_size_bytes", "memory blocks", Sign::Value(&[id::MEMORY_BLOCK_SIZE])),
];

/// Files of a cgroup that are never blank, and a series that each fills.
const CGROUP_FILES: [(&str, MetricId); 7] = [
    ("memory.current", id::CGROUP_MEMORY_CURRENT),
    ("memory.max", id::CGROUP_MEMORY_MAX),
    ("memory.stat", id::CGROUP_STAT_ANON),
    ("cpu.stat", id::CGROUP_CPU_USAGE),
    ("cpu.max", id::CGROUP_CPU_LIMIT),
    ("pids.current", id::CGROUP_THREADS),
    ("pids.max", id::CGROUP_THREADS_MAX),
];

/// A VM may have no disks.
fn names_disks(bytes: &[u8]) -> bool {
    let is_disk = |line| fields(line).take(2).filter_map(number).count() == 2;
    trim(bytes).is_empty() || lines(bytes).any(is_disk)
}

fn names_mounts(bytes: &[u8]) -> bool {
    lines(bytes).any(|line| Mount::parse(line).is_some())
}

fn is_cpu_list(bytes: &[u8]) -> bool {
    CpuSet::parse(bytes).is_some_and(|set| !set.is_empty())
}

/// How a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Read and understood.
    Good,
    /// It is not there.
    Missing,
    /// Built in, and switched off.
    Off,
    /// There is a finding about it by now.
    Faulty,
}

/// What the collectors made of the root.
pub(super) struct Reading {
    sensors: Sensors,
    faults: Vec<Fault>,
    /// Series that have a value, of the VM (which has no name) and of cgroups.
    values: BTreeMap<Vec<u8>, BTreeSet<MetricId>>,
}

impl Reading {
    /// Collects as the agent does, until newcomers have their values.
    pub(super) fn new(root: &Path) -> Self {
        let mut sensors = Sensors::new(&Config { root: root.to_owned(), cgroup: None, all_fresh: true });
        for _ in 0..3 {
            sensors.sample(&OwnFigures::default());
            sensors.settle(Duration::from_millis(200));
            sensors.reschema();
        }
        sensors.keep_faults();
        sensors.sample(&OwnFigures::default());
        let faults = sensors.take_faults();
        let values = values(&sensors);
        Self { sensors, faults, values }
    }

    /// Files of `/proc` that every VM has, and `/sys` itself.
    pub(super) fn sources(&self, files: &mut Files, findings: &mut Findings<'_>) {
        let mut are_good = true;
        for source in SOURCES {
            let Source { path, what, is_needed, .. } = source;
            let state = self.check(files, source, findings);
            are_good &= state == State::Good;
            if state == State::Missing {
                let what_to_do = if is_needed {
                    "mount -t proc proc /proc before the agent starts"
                } else {
                    "mount -t proc proc /proc, or build it into the kernel"
                };
                findings.lack(is_needed, format_args!("no /{path}: no {what}"), what_to_do);
            }
        }
        if are_good {
            findings.ok(format_args!("/proc has every file that is read"));
        }
        for source in OPTIONAL {
            self.check(files, source, findings);
        }
        if files.stat(b"sys/devices").is_err() && files.stat(b"sys/class").is_err() {
            findings.warn(
                format_args!("no /sys: no disk sizes, interface states, CPU lists or memory blocks"),
                "mount -t sysfs sysfs /sys",
            );
        }
    }

    /// Reads a file, and says what is wrong with it unless it is only missing or off.
    pub(super) fn check(&self, files: &mut Files, source: Source, findings: &mut Findings<'_>) -> State {
        let Source { path, what, is_needed, sign } = source;
        match files.try_read(&mut KFile::new(path.as_bytes())) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => State::Missing,
            Err(Errno::EOPNOTSUPP) => State::Off,
            Err(error) => {
                findings.lack(
                    is_needed,
                    format_args!("/{path}: {}: no {what}", in_words(error)),
                    what_to_do(error, files.is_live()),
                );
                State::Faulty
            }
            Ok(length) if self.is_understood(sign, files.bytes(length)) => State::Good,
            Ok(0) => {
                findings.lack(is_needed, format_args!("/{path} is empty: no {what}"), put_back(files.is_live()));
                State::Faulty
            }
            Ok(_) => {
                findings.lack(
                    is_needed,
                    format_args!("/{path} is not as the kernel prints it: no {what}"),
                    put_back(files.is_live()),
                );
                State::Faulty
            }
        }
    }

    fn is_understood(&self, sign: Sign, bytes: &[u8]) -> bool {
        match sign {
            Sign::Value(metrics) => metrics.iter().any(|metric| self.has_value(b"", *metric)),
            Sign::Subject(kind) => self.sensors.subjects().any(|subject| subject.kind == kind),
            Sign::Bytes(is_understood) => is_understood(bytes),
        }
    }

    fn has_value(&self, subject: &[u8], metric: MetricId) -> bool {
        self.values.get(subject).is_some_and(|metrics| metrics.contains(&metric))
    }

    /// Files of cgroups that nothing was understood of. `place`: where cgroup2 is, below the root.
    pub(super) fn cgroups(&self, files: &mut Files, place: &[u8], findings: &mut Findings<'_>) {
        for (name, metric) in CGROUP_FILES {
            let mut odd = Group::default();
            for subject in self.sensors.subjects().filter(|subject| subject.kind == SubjectKind::CGROUP) {
                if self.has_value(subject.name, metric) {
                    continue;
                }
                let path = [place, subject.name.strip_suffix(b"/").unwrap_or(subject.name), b"/", name.as_bytes()];
                let path = path.concat();
                if files.read_once(None, &path).is_some() {
                    odd.add(&path);
                }
            }
            if odd.files > 0 {
                findings.warn(
                    format_args!("{odd}: not as the kernel prints it: some figures of cgroups are missing"),
                    put_back(files.is_live()),
                );
            }
        }
    }

    /// Files that the collectors could not read, besides those that were looked at one by one.
    pub(super) fn faults(&self, files: &Files, findings: &mut Findings<'_>) {
        let one_by_one = SOURCES.iter().chain(&PRESSURE).chain(&OPTIONAL);
        let one_by_one: BTreeSet<&[u8]> = one_by_one.map(|source| source.path.as_bytes()).collect();
        let mut groups: BTreeMap<(&str, i32), (Errno, Group)> = BTreeMap::new();
        for Fault { path, error } in &self.faults {
            let loss = loss(path);
            if one_by_one.contains(&**path) || is_usual(path, *error) {
                continue;
            }
            let (_, group) = groups.entry((loss, *error as i32)).or_insert_with(|| (*error, Group::default()));
            group.add(path);
        }
        for ((loss, _), (error, group)) in groups {
            findings
                .warn(format_args!("{group}: {}: {loss} missing", in_words(error)), what_to_do(error, files.is_live()));
        }
    }

    /// The outcome: what `sample` and `run` will report.
    pub(super) fn series(&self, findings: &mut Findings<'_>) {
        let sensors = &self.sensors;
        let (series, subjects, dropped) = (sensors.series(), sensors.subjects().count(), sensors.series_dropped());
        if dropped > 0 {
            findings.warn(
                format_args!("{series} series of {subjects} subjects, {dropped} more are over the limit and cut"),
                "have fewer cgroups, mounts or interfaces, or watch one cgroup with --cgroup",
            );
        } else {
            findings.ok(format_args!("{series} series of {subjects} subjects"));
        }
    }
}

/// Files with the same fault: the first, and how many.
#[derive(Debug, Default)]
struct Group {
    first: Vec<u8>,
    files: usize,
}

impl Group {
    fn add(&mut self, path: &[u8]) {
        if self.files == 0 {
            self.first = path.to_vec();
        }
        self.files += 1;
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}", String::from_utf8_lossy(&self.first).escape_debug())?;
        if self.files > 1 { write!(f, " and {} more", self.files - 1) } else { Ok(()) }
    }
}

fn values(sensors: &Sensors) -> BTreeMap<Vec<u8>, BTreeSet<MetricId>> {
    let mut values: BTreeMap<Vec<u8>, BTreeSet<MetricId>> = BTreeMap::new();
    let (row, mut series) = (sensors.row(), 0);
    for subject in sensors.subjects() {
        let is_wanted = matches!(subject.kind, SubjectKind::VM | SubjectKind::CGROUP);
        for id in subject.metrics.iter().flat_map(|range| range.first.0..range.first.0.saturating_add(range.count)) {
            if is_wanted && bits::get(row.present, series) {
                values.entry(subject.name.to_vec()).or_default().insert(MetricId(id));
            }
            series += 1;
        }
    }
    values
}

/// What a file that can not be read costs.
fn loss(path: &[u8]) -> &'static str {
    let places: [(&[u8], &str); 5] = [
        (b"sys/devices/system/memory", "memory blocks are"),
        (b"sys/class/block", "sizes of disks are"),
        (b"sys/block", "sizes of disks are"),
        (b"sys/class/net", "states of interfaces are"),
        (b"proc/", "some figures are"),
    ];
    places.iter().find(|(place, _)| path.starts_with(place)).map_or("some figures of cgroups are", |(_, loss)| loss)
}

/// What kernels say of files in good order: of an interface that is down, of pressure that is switched off, which has
/// a finding of its own, and of a child cgroup with a file's name.
fn is_usual(path: &[u8], error: Errno) -> bool {
    match error {
        Errno::EINVAL => path.starts_with(b"sys/class/net/"),
        Errno::EOPNOTSUPP => true,
        Errno::EISDIR => loss(path) == loss(b"sys/fs/cgroup"),
        _ => false,
    }
}

fn in_words(error: Errno) -> &'static str {
    match error {
        Errno::ESPIPE => "it is a pipe or a terminal, not a file",
        Errno::ENXIO => "it is a socket or a device, not a file",
        Errno::EFBIG => "it has over 4 MiB, more than is read",
        error => error.desc(),
    }
}

fn what_to_do(error: Errno, is_live: bool) -> &'static str {
    match error {
        Errno::EACCES | Errno::EPERM if is_live => {
            "run the agent as root, and let no mount or security module mask the file"
        }
        Errno::EACCES | Errno::EPERM => "read the tree as root, or let this user read it (chmod -R a+rX)",
        Errno::EMFILE | Errno::ENFILE => "raise the limit of open files to 1024 (ulimit -n, LimitNOFILE=)",
        Errno::EISDIR | Errno::ESPIPE | Errno::ENXIO | Errno::EFBIG | Errno::ELOOP => put_back(is_live),
        _ => "see what cat says of it, and the kernel's log",
    }
}

const fn put_back(is_live: bool) -> &'static str {
    if is_live {
        "let nothing be mounted over the kernel's own file"
    } else {
        "copy the kernel's own file into the tree"
    }
}
