//! The files of one cgroup and the metrics they fill. See Documentation/admin-guide/cgroup-v2.rst.
//!
//! Which files there are depends on the controllers, the kernel and the place in the tree: the root has no
//! `memory.current`, `memory.peak` is new, `cgroup.pressure` may take the pressure files away.

use super::super::LOOK_EVERY;
use super::super::cpulist::CpuSet;
use super::super::pressure::{self, Targets};
use super::super::row::{Place, Row};
use super::io_stat::Disks;
use crate::kfile::{Directory, Files, KFile, Slot};
use crate::parse::{Keys, digest, fields, number, only_number, trim};
use informant_wire::metric::{MetricId, UNLIMITED, id};

/// Read at every sample, through descriptors that are kept.
#[derive(Debug)]
pub struct Hot {
    current: KFile,
    events: KFile,
    cpu: KFile,
}

/// Descriptors that one cgroup keeps at least.
pub const KEPT: usize = 3;
/// And where there are few: all of its files, and the list of controllers.
pub const KEPT_WHOLE: usize = KEPT + COLD + 1;

/// What other levels of the tree, and the working set, need of a cgroup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// `memory.current`, bytes.
    pub memory_current: Option<u64>,
    /// `memory.max`, bytes, or [`UNLIMITED`].
    pub memory_max: Option<u64>,
    /// `cpu.max` in millionths of a CPU, or [`UNLIMITED`].
    pub cpu_limit: Option<u64>,
    /// `inactive_file` of `memory.stat`, bytes.
    inactive_file: Option<u64>,
}

const NUMBERS: [(&[u8], MetricId); 4] = [
    (b"memory.peak", id::CGROUP_MEMORY_PEAK),
    (b"memory.swap.current", id::CGROUP_SWAP_CURRENT),
    (b"pids.current", id::CGROUP_THREADS),
    (b"cpu.weight", id::CGROUP_CPU_WEIGHT),
];
const LIMITS: [(&[u8], MetricId); 5] = [
    (b"memory.low", id::CGROUP_MEMORY_LOW),
    (b"memory.min", id::CGROUP_MEMORY_MIN),
    (b"memory.high", id::CGROUP_MEMORY_HIGH),
    (b"memory.swap.max", id::CGROUP_SWAP_MAX),
    (b"pids.max", id::CGROUP_THREADS_MAX),
];
const PRESSURE: [(&[u8], Targets); 3] = [
    (
        b"cpu.pressure",
        Targets {
            some: Some((id::CGROUP_PRESSURE_CPU_SOME, id::CGROUP_PRESSURE_CPU_SOME_AVG10)),
            full: (id::CGROUP_PRESSURE_CPU_FULL, id::CGROUP_PRESSURE_CPU_FULL_AVG10),
        },
    ),
    (
        b"memory.pressure",
        Targets {
            some: Some((id::CGROUP_PRESSURE_MEMORY_SOME, id::CGROUP_PRESSURE_MEMORY_SOME_AVG10)),
            full: (id::CGROUP_PRESSURE_MEMORY_FULL, id::CGROUP_PRESSURE_MEMORY_FULL_AVG10),
        },
    ),
    (
        b"io.pressure",
        Targets {
            some: Some((id::CGROUP_PRESSURE_IO_SOME, id::CGROUP_PRESSURE_IO_SOME_AVG10)),
            full: (id::CGROUP_PRESSURE_IO_FULL, id::CGROUP_PRESSURE_IO_FULL_AVG10),
        },
    ),
];

impl Hot {
    /// `directory`: below the root, without a slash at either end.
    #[must_use]
    pub fn new(directory: &[u8]) -> Self {
        let file = |name: &[u8]| KFile::bound(&[directory, name].join(&b'/'));
        Self { current: file(b"memory.current"), events: file(b"memory.events"), cpu: file(b"cpu.stat") }
    }

    /// Gives the descriptors back.
    pub fn close(&mut self) {
        self.current.close();
        self.events.close();
        self.cpu.close();
    }

    /// Whether one of them is not there.
    const fn is_missing(&self) -> bool {
        self.current.is_missing() || self.events.is_missing() || self.cpu.is_missing()
    }

    /// They may be there by now, though they were not.
    pub const fn look_again(&mut self) {
        self.current.look_again();
        self.events.look_again();
        self.cpu.look_again();
    }

    /// The part of a sample that is never left out. Whether all files that were open live on: else the cgroup, or a
    /// controller of it, is gone, and what stands at its path may be another one.
    pub fn read(&mut self, files: &mut Files, row: &mut Row, at: Place, figures: &mut Figures) -> bool {
        let died = files.died();
        row.absent(at, id::CGROUP_CPU_USAGE, id::CGROUP_CPU_NR_THROTTLED);
        CPU_STAT.read(files.read(&mut self.cpu).unwrap_or_default(), |id, value| row.set(at, id, value));
        figures.memory_current = files.read(&mut self.current).and_then(only_number);
        row.put(at, id::CGROUP_MEMORY_CURRENT, figures.memory_current);
        row.absent(at, id::CGROUP_EVENT_LOW, id::CGROUP_EVENT_OOM_KILL);
        EVENTS.read(files.read(&mut self.events).unwrap_or_default(), |id, value| row.set(at, id, value));
        died == files.died()
    }
}

/// What both parts of a sample say together.
pub fn working_set(row: &mut Row, at: Place, figures: &Figures) {
    // The two are not of the same instant, so the difference may be negative: then nothing is in use.
    let used = figures.memory_current.zip(figures.inactive_file).map(|(a, b)| a.saturating_sub(b));
    row.put(at, id::CGROUP_MEMORY_WORKING_SET, used);
}

/// Files of the part that is not read at every sample.
const COLD: usize = 19;

/// Where descriptors of those files are kept, and what says whether missing ones may be there by now.
#[derive(Debug, Default)]
pub struct Slots {
    files: [Slot; COLD],
    controllers: Slot,
    /// Of the list of controllers, when it was last read.
    digest: Option<u64>,
    readings: u32,
}

impl Slots {
    /// A cgroup seldom has all files, and each look for one costs as much as reading another: they are looked for when
    /// the controllers changed, and now and then: `cgroup.pressure` takes files away and brings them back.
    pub fn look_again(&mut self, files: &mut Files, hot: &mut Hot, keep: bool, directory: &Directory<'_>) {
        if !hot.is_missing() && !self.files.iter().any(|slot| matches!(slot, Slot::Missing)) {
            return;
        }
        let controllers =
            files.read_kept(&mut self.controllers, keep, Some(directory), b"cgroup.controllers").map(digest);
        self.readings = self.readings.wrapping_add(1);
        if controllers != self.digest || self.readings.is_multiple_of(LOOK_EVERY) {
            self.files.iter_mut().for_each(Slot::look_again);
            hot.look_again();
        }
        self.digest = controllers;
    }

    /// To read from them. `keep`: there are descriptors enough.
    pub fn cold<'a>(&'a mut self, keep: bool, directory: &'a Directory<'a>) -> Cold<'a> {
        Cold { slots: self.files.iter_mut(), keep, directory }
    }
}

/// Reads those files one after the other, always in the same order, each through its slot.
#[derive(Debug)]
pub struct Cold<'a> {
    slots: std::slice::IterMut<'a, Slot>,
    keep: bool,
    directory: &'a Directory<'a>,
}

impl Cold<'_> {
    fn next<'f>(&mut self, files: &'f mut Files, name: &[u8]) -> Option<&'f [u8]> {
        files.read_kept(self.slots.next()?, self.keep, Some(self.directory), name)
    }
}

/// The part that changes slowly, or costs the kernel more to print.
pub fn read_cold(
    files: &mut Files,
    mut cold: Cold<'_>,
    row: &mut Row,
    at: Place,
    figures: &mut Figures,
    disks: &mut Disks,
) {
    row.absent(at, id::CGROUP_STAT_ANON, id::CGROUP_STAT_PGSTEAL_DIRECT);
    figures.inactive_file = None;
    MEMORY_STAT.read(cold.next(files, b"memory.stat").unwrap_or_default(), |id, value| {
        row.set(at, id, value);
        if id == id::CGROUP_STAT_INACTIVE_FILE {
            figures.inactive_file = Some(value);
        }
    });
    for (name, metric) in NUMBERS {
        row.put(at, metric, cold.next(files, name).and_then(only_number));
    }
    figures.memory_max = cold.next(files, b"memory.max").and_then(limit);
    row.put(at, id::CGROUP_MEMORY_MAX, figures.memory_max);
    for (name, metric) in LIMITS {
        row.put(at, metric, cold.next(files, name).and_then(limit));
    }
    let cpu = cold.next(files, b"cpu.max").and_then(cpu_max);
    figures.cpu_limit = cpu.map(|cpu| cpu.limit_millionths);
    row.put(at, id::CGROUP_CPU_QUOTA, cpu.map(|cpu| cpu.quota_us));
    row.put(at, id::CGROUP_CPU_PERIOD, cpu.map(|cpu| cpu.period_us));
    row.put(at, id::CGROUP_CPU_LIMIT, figures.cpu_limit);
    let cpus = cold.next(files, b"cpuset.cpus.effective").and_then(CpuSet::parse).map(|set| set.count());
    row.put(at, id::CGROUP_CPUSET_CPUS, cpus);
    for (name, targets) in PRESSURE {
        pressure::fill(row, at, targets, cold.next(files, name));
    }
    row.absent(at, id::CGROUP_POPULATED, id::CGROUP_FROZEN);
    CGROUP_EVENTS.read(cold.next(files, b"cgroup.events").unwrap_or_default(), |id, value| row.set(at, id, value));
    // What this cgroup was asked; whether it is frozen, for whatever reason, says cgroup.events.
    row.put(at, id::CGROUP_FREEZE, cold.next(files, b"cgroup.freeze").and_then(only_number));
    disks.read(cold.next(files, b"io.stat").unwrap_or_default(), row);
}

/// Memory of a cgroup that the kernel can not take back without the workload's help, from the bytes of its
/// `memory.stat`: anonymous memory, tmpfs and shared memory, and what the kernel holds for it. Swapped-out pages are
/// not in memory and do not count. `None` without the line `anon`.
#[must_use]
pub fn held_bytes(memory_stat: &[u8]) -> Option<u64> {
    let (mut anon, mut other) = (None, 0_u64);
    // `kernel` (Linux 5.18) is the sum of its parts and of reclaimable slab; the parts are in every kernel.
    MEMORY_STAT.read(memory_stat, |id, value| match id {
        id::CGROUP_STAT_ANON => anon = Some(value),
        id::CGROUP_STAT_SHMEM
        | id::CGROUP_STAT_SLAB_UNRECLAIMABLE
        | id::CGROUP_STAT_KERNEL_STACK
        | id::CGROUP_STAT_PAGETABLES
        | id::CGROUP_STAT_PERCPU
        | id::CGROUP_STAT_VMALLOC
        | id::CGROUP_STAT_SOCK => other = other.saturating_add(value),
        _ => {}
    });
    anon.map(|anon| anon.saturating_add(other))
}

/// How often a cgroup met its limits: the counts of `memory.events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Over `memory.high`.
    pub high: u64,
    /// At `memory.max`.
    pub max: u64,
    /// Out of memory, whether or not something was killed.
    pub oom: u64,
    /// Processes killed.
    pub oom_kill: u64,
}

/// Reads them; what is not there is 0, and what is unknown is skipped.
#[must_use]
pub fn events(bytes: &[u8]) -> Events {
    let mut events = Events::default();
    EVENTS.read(bytes, |id, value| match id {
        id::CGROUP_EVENT_HIGH => events.high = value,
        id::CGROUP_EVENT_MAX => events.max = value,
        id::CGROUP_EVENT_OOM => events.oom = value,
        id::CGROUP_EVENT_OOM_KILL => events.oom_kill = value,
        _ => {}
    });
    events
}

/// Whether a cgroup is frozen, whoever asked for it, from its `cgroup.events`.
#[must_use]
pub fn is_frozen(cgroup_events: &[u8]) -> bool {
    let mut frozen = false;
    CGROUP_EVENTS.read(cgroup_events, |id, value| frozen |= id == id::CGROUP_FROZEN && value > 0);
    frozen
}

/// `max` or a number: [`UNLIMITED`] or bytes.
#[must_use]
pub fn limit(bytes: &[u8]) -> Option<u64> {
    match trim(bytes) {
        b"max" => Some(UNLIMITED),
        digits => number(digits),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuMax {
    quota_us: u64,
    period_us: u64,
    limit_millionths: u64,
}

/// `cpu.max`: quota or `max`, and period. A limit is never rounded to nothing.
fn cpu_max(bytes: &[u8]) -> Option<CpuMax> {
    let mut fields = fields(bytes);
    let quota_us = limit(fields.next()?)?;
    let period_us = fields.next().and_then(number).filter(|period| *period > 0)?;
    let limit_millionths = if quota_us == UNLIMITED {
        UNLIMITED
    } else {
        u64::try_from(u128::from(quota_us) * 1_000_000 / u128::from(period_us)).ok()?.max(1)
    };
    Some(CpuMax { quota_us, period_us, limit_millionths })
}

static EVENTS: Keys<MetricId> = Keys::new(
    &[
        (b"low", id::CGROUP_EVENT_LOW),
        (b"high", id::CGROUP_EVENT_HIGH),
        (b"max", id::CGROUP_EVENT_MAX),
        (b"oom", id::CGROUP_EVENT_OOM),
        (b"oom_kill", id::CGROUP_EVENT_OOM_KILL),
        (b"oom_group_kill", id::CGROUP_EVENT_OOM_GROUP_KILL),
    ],
    b' ',
);
static CPU_STAT: Keys<MetricId> = Keys::new(
    &[
        (b"usage_usec", id::CGROUP_CPU_USAGE),
        (b"user_usec", id::CGROUP_CPU_USER),
        (b"system_usec", id::CGROUP_CPU_SYSTEM),
        (b"nr_periods", id::CGROUP_CPU_NR_PERIODS),
        (b"nr_throttled", id::CGROUP_CPU_NR_THROTTLED),
        (b"throttled_usec", id::CGROUP_CPU_THROTTLED),
    ],
    b' ',
);
static CGROUP_EVENTS: Keys<MetricId> =
    Keys::new(&[(b"populated", id::CGROUP_POPULATED), (b"frozen", id::CGROUP_FROZEN)], b' ');
static MEMORY_STAT: Keys<MetricId> = Keys::new(
    &[
        (b"anon", id::CGROUP_STAT_ANON),
        (b"file", id::CGROUP_STAT_FILE),
        (b"kernel", id::CGROUP_STAT_KERNEL),
        (b"kernel_stack", id::CGROUP_STAT_KERNEL_STACK),
        (b"pagetables", id::CGROUP_STAT_PAGETABLES),
        (b"percpu", id::CGROUP_STAT_PERCPU),
        (b"sock", id::CGROUP_STAT_SOCK),
        (b"vmalloc", id::CGROUP_STAT_VMALLOC),
        (b"shmem", id::CGROUP_STAT_SHMEM),
        (b"zswap", id::CGROUP_STAT_ZSWAP),
        (b"zswapped", id::CGROUP_STAT_ZSWAPPED),
        (b"file_mapped", id::CGROUP_STAT_FILE_MAPPED),
        (b"file_dirty", id::CGROUP_STAT_FILE_DIRTY),
        (b"file_writeback", id::CGROUP_STAT_FILE_WRITEBACK),
        (b"swapcached", id::CGROUP_STAT_SWAPCACHED),
        (b"anon_thp", id::CGROUP_STAT_ANON_THP),
        (b"inactive_anon", id::CGROUP_STAT_INACTIVE_ANON),
        (b"active_anon", id::CGROUP_STAT_ACTIVE_ANON),
        (b"inactive_file", id::CGROUP_STAT_INACTIVE_FILE),
        (b"active_file", id::CGROUP_STAT_ACTIVE_FILE),
        (b"unevictable", id::CGROUP_STAT_UNEVICTABLE),
        (b"slab_reclaimable", id::CGROUP_STAT_SLAB_RECLAIMABLE),
        (b"slab_unreclaimable", id::CGROUP_STAT_SLAB_UNRECLAIMABLE),
        (b"workingset_refault_anon", id::CGROUP_STAT_WORKINGSET_REFAULT_ANON),
        (b"workingset_refault_file", id::CGROUP_STAT_WORKINGSET_REFAULT_FILE),
        (b"workingset_activate_anon", id::CGROUP_STAT_WORKINGSET_ACTIVATE_ANON),
        (b"workingset_activate_file", id::CGROUP_STAT_WORKINGSET_ACTIVATE_FILE),
        (b"pgscan", id::CGROUP_STAT_PGSCAN),
        (b"pgsteal", id::CGROUP_STAT_PGSTEAL),
        (b"pgscan_direct", id::CGROUP_STAT_PGSCAN_DIRECT),
        (b"pgsteal_direct", id::CGROUP_STAT_PGSTEAL_DIRECT),
        (b"pgfault", id::CGROUP_STAT_PGFAULT),
        (b"pgmajfault", id::CGROUP_STAT_PGMAJFAULT),
    ],
    b' ',
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_cpus() {
        for (text, quota, limit) in [
            (&b"50000 100000\n"[..], 50_000, 500_000),
            (b"150000 100000", 150_000, 1_500_000),
            (b"1000 1000000", 1000, 1000),
            (b"1 1000000000", 1, 1),
            (b"max 100000", UNLIMITED, UNLIMITED),
        ] {
            let cpu = cpu_max(text).unwrap();
            assert_eq!((cpu.quota_us, cpu.limit_millionths), (quota, limit));
        }
        for bad in [&b""[..], b"max", b"max 0", b"x 100000", b"-1 100000"] {
            assert_eq!(cpu_max(bad), None);
        }
    }

    #[test]
    fn trailing_newline_cr_missing_newline_empty_file() {
        assert_eq!(limit(b"100\n"), Some(100));
        assert_eq!(limit(b"100"), Some(100));
        assert_eq!(limit(b"100\r\n"), Some(100));
        assert_eq!(limit(b"max\n"), Some(UNLIMITED));
        assert_eq!(limit(b""), None);
    }
}
