//! Collectors: one file a kernel source. They know nothing of the loop that calls them.
//!
//! The loop calls [`Sensors::sample`] at each tick. When [`Sensors::wants_schema`] says so, and the last schema is old
//! enough, it calls [`Sensors::reschema`] (the only place that allocates), sends [`Sensors::subjects`] under the new
//! [`Sensors::generation`], and from then on [`Sensors::row`] has the order of that schema. Values are carried over to
//! the new row; newcomers have theirs with the next `sample`. Before the first `reschema` the row is empty:
//! `sample`, `reschema`, `sample`, then send. Events found meanwhile are handed out by [`Sensors::take_event`].

pub mod cgroup;
pub mod clock;
pub mod cpulist;
pub mod cpus;
pub mod diskstats;
pub mod event;
pub mod filesystems;
pub mod loadavg;
pub mod meminfo;
pub mod memory_blocks;
pub mod mountinfo;
pub mod net_dev;
pub mod pressure;
pub mod probe;
pub mod roster;
pub mod row;
pub mod stat;
pub mod vmstat;

use crate::kfile::{Fault, Files, Look};
use crate::own::Scaling;
use event::Events;
use informant_wire::event::EventKind;
use informant_wire::metric::{SLOW_EVERY, SubjectKind, id};
use informant_wire::sample;
use informant_wire::scale::DemandOutcome;
use informant_wire::schema::Subject;
use nix::time::{ClockId, clock_gettime};
use row::{Measure, Place, Row, Subjects};
use std::path::PathBuf;
use std::time::Duration;

/// Every so many of the passes that read what changes slowly, what is missing on a live root is looked for though
/// nothing says that it came: every two minutes at one sample a second.
const LOOK_EVERY: u32 = 24;

/// Files of the whole VM that are kept open: one each in `/proc`, four of pressure, lists of CPUs, block size and
/// directory, the number of cgroups.
const VM_FILES: usize = 20;
/// Descriptors kept at most. Each pins a page or so of kernel memory: 900 pinned 3.5 MiB.
const MAX_DESCRIPTORS: usize = 256;
const _: () = assert!(
    VM_FILES + cgroup::MAX_KEPT + net_dev::MAX_KEPT + diskstats::MAX_KEPT <= MAX_DESCRIPTORS,
    "kept descriptors stay within the budget"
);

/// What is collected.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory under which `/proc` and `/sys` are looked for; `/` for this machine.
    pub root: PathBuf,
    /// The watched cgroup, relative to where cgroup2 is mounted; its series come first.
    pub cgroup: Option<PathBuf>,
    /// Everything is read at every sample. For people and tests that look at single samples; an agent spreads it.
    pub all_fresh: bool,
}

/// What the agent knows of itself, published as `informant_agent_*`. What is `None` is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnFigures {
    /// CPU time so far, user and system, microseconds.
    pub cpu_us: Option<u64>,
    /// Resident memory, bytes.
    pub resident_bytes: Option<u64>,
    /// Bytes written to host sessions so far.
    pub sent_bytes: Option<u64>,
    /// The sample interval in force, milliseconds.
    pub interval_ms: Option<u64>,
    /// CPU time of the previous sample, microseconds.
    pub sample_cost_us: Option<u64>,
    /// The latest that the loop woke up since the previous sample, microseconds.
    pub loop_lag_us: Option<u64>,
    /// Samples taken more than half an interval late, so far.
    pub samples_late: Option<u64>,
    /// Samples replaced by a newer one before they were sent, so far.
    pub samples_unsent: Option<u64>,
    /// Events lost because the outbox was full, so far.
    pub events_dropped: Option<u64>,
    /// Sessions begun with a host, so far.
    pub connects: Option<u64>,
    /// Frames from hosts that were skipped, so far.
    pub unknown_frames: Option<u64>,
    /// Log lines over the rate limit, so far.
    pub log_suppressed: Option<u64>,
    /// What was said about scaling, so far.
    pub scaling: Option<Scaling>,
}

/// What a collector works with during one pass.
#[derive(Debug)]
pub struct Context<'a> {
    /// The root's files.
    pub files: &'a mut Files,
    /// Where values go.
    pub row: &'a mut Row,
    /// Where events go.
    pub events: &'a mut Events,
    /// The place of the VM's own series.
    pub vm: Place,
}

/// All collectors and their row.
#[derive(Debug)]
pub struct Sensors {
    files: Files,
    row: Row,
    events: Events,
    vm: Place,
    tick: u32,
    all_fresh: bool,
    /// Subjects got new places: what is read now and then is read with the next sample.
    is_relaid: bool,
    stat: stat::Stat,
    cpus: cpus::Cpus,
    meminfo: meminfo::Meminfo,
    memory_blocks: memory_blocks::MemoryBlocks,
    vmstat: vmstat::Vmstat,
    load: loadavg::LoadAverage,
    pressure: pressure::Pressure,
    disks: diskstats::Diskstats,
    net: net_dev::NetDev,
    filesystems: filesystems::Filesystems,
    cgroups: cgroup::Cgroups,
    clock: clock::ClockWatch,
}

impl Sensors {
    /// Opens nothing yet but the root. Never fails: what is missing is absent.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self::with_statvfs(config, probe::statvfs(&config.root))
    }

    /// As [`Self::new`], with another way to ask file systems.
    #[must_use]
    pub fn with_statvfs(config: &Config, ask: probe::Ask) -> Self {
        Self {
            files: Files::new(&config.root),
            row: Row::default(),
            events: Events::default(),
            vm: Place::NONE,
            tick: 0,
            all_fresh: config.all_fresh,
            is_relaid: false,
            stat: stat::Stat::default(),
            cpus: cpus::Cpus::default(),
            meminfo: meminfo::Meminfo::default(),
            memory_blocks: memory_blocks::MemoryBlocks::default(),
            vmstat: vmstat::Vmstat::default(),
            load: loadavg::LoadAverage::default(),
            pressure: pressure::Pressure::default(),
            disks: diskstats::Diskstats::default(),
            net: net_dev::NetDev::default(),
            filesystems: filesystems::Filesystems::new(&config.root, ask),
            cgroups: cgroup::Cgroups::new(config.cgroup.as_deref()),
            clock: clock::ClockWatch::default(),
        }
    }

    /// One pass over all sources. Never blocks for longer than the kernel takes to
    /// print its files, and allocates nothing while subjects stay the same.
    pub fn sample(&mut self, own: &OwnFigures) {
        let relaid = std::mem::take(&mut self.is_relaid);
        let mounted = self.filesystems.take_changed();
        self.files.recheck = self.all_fresh || relaid || mounted || self.tick.is_multiple_of(SLOW_EVERY);
        self.files.look = if !self.files.recheck {
            Look::Kept
        } else if self.all_fresh || mounted || !self.filesystems.has_table() || !self.files.is_live() {
            Look::All
        } else if self.tick.is_multiple_of(SLOW_EVERY * LOOK_EVERY) {
            Look::Missing
        } else {
            Look::Kept
        };
        let cx = &mut Context { files: &mut self.files, row: &mut self.row, events: &mut self.events, vm: self.vm };
        self.stat.sample(cx);
        self.cpus.sample(cx, self.stat.online.as_ref());
        self.meminfo.sample(cx);
        self.memory_blocks.sample(cx, self.meminfo.total_kib(), self.all_fresh || self.tick == 0);
        self.vmstat.sample(cx);
        self.load.sample(cx);
        self.pressure.sample(cx);
        self.disks.sample(cx);
        self.net.sample(cx);
        self.filesystems.sample(cx);
        let trusted = self.filesystems.has_table() && cx.files.is_live();
        self.cgroups.sample(cx, self.filesystems.cgroup2(), trusted, self.all_fresh);
        if self.files.is_live() {
            let micros =
                |clock| clock_gettime(clock).ok().map(|time| time.tv_sec() * 1_000_000 + time.tv_nsec() / 1000);
            if let (Some(wall), Some(boot)) = (micros(ClockId::CLOCK_REALTIME), micros(ClockId::CLOCK_BOOTTIME)) {
                self.clock.observe(wall, boot, &mut self.events);
            }
        }
        self.own(own);
        self.tick = self.tick.wrapping_add(1);
    }

    /// Waits for what file systems answer, at most for `limit`, and takes it into the row. Not for the loop.
    pub fn settle(&mut self, limit: Duration) {
        let cx = &mut Context { files: &mut self.files, row: &mut self.row, events: &mut self.events, vm: self.vm };
        self.filesystems.settle(cx, limit);
    }

    fn own(&mut self, own: &OwnFigures) {
        let answered = |outcome: DemandOutcome| {
            own.scaling.and_then(|counts| counts.demands_answered.get(usize::from(outcome.0)).copied())
        };
        for (metric, value) in [
            (id::AGENT_CPU, own.cpu_us),
            (id::AGENT_RESIDENT, own.resident_bytes),
            (id::AGENT_SENT, own.sent_bytes),
            (id::AGENT_INTERVAL, own.interval_ms),
            (id::AGENT_SAMPLE_COST, own.sample_cost_us),
            (id::AGENT_LOOP_LAG, own.loop_lag_us),
            (id::AGENT_SAMPLES_LATE, own.samples_late),
            (id::AGENT_SAMPLES_UNSENT, own.samples_unsent),
            (id::AGENT_EVENTS_DROPPED, own.events_dropped),
            (id::AGENT_CONNECTS, own.connects),
            (id::AGENT_FRAMES_UNKNOWN, own.unknown_frames),
            (id::AGENT_LOG_SUPPRESSED, own.log_suppressed),
            (id::AGENT_SERIES_DROPPED, Some(u64::from(self.row.dropped()))),
            (id::AGENT_READ_ERRORS, Some(self.files.errors())),
            (id::AGENT_DEMANDS_GRANTED, answered(DemandOutcome::GRANTED)),
            (id::AGENT_DEMANDS_PARTIAL, answered(DemandOutcome::PARTIAL)),
            (id::AGENT_DEMANDS_DENIED, answered(DemandOutcome::DENIED)),
            (id::AGENT_DEMANDS_UNSUPPORTED, answered(DemandOutcome::UNSUPPORTED)),
            (id::AGENT_DEMANDS_AT_MAXIMUM, answered(DemandOutcome::AT_MAXIMUM)),
            (id::AGENT_DEMANDS_OTHER, answered(DemandOutcome(0))),
            (id::AGENT_DEMANDS_UNANSWERED, own.scaling.map(|counts| counts.demands_unanswered)),
            (id::AGENT_COMMANDS_TAKEN, own.scaling.map(|counts| counts.commands)),
            (id::AGENT_COMMANDS_STALE, own.scaling.map(|counts| counts.stale_commands)),
            (id::AGENT_TURNS_TAKEN, own.scaling.map(|counts| counts.switches)),
            (id::AGENT_TURNS_FAILED, own.scaling.map(|counts| counts.failed_switches)),
            (id::AGENT_ANSWERS_LATE, own.scaling.map(|counts| counts.late_answers)),
        ] {
            self.row.put(self.vm, metric, value);
        }
    }

    /// Where the watched cgroup is, below the root; false while it is not there.
    pub fn watched_directory(&self, out: &mut Vec<u8>) -> bool {
        self.cgroups.watched_directory(out)
    }

    /// Memory that is plugged, as the last round over the blocks found it.
    #[must_use]
    pub fn memory_blocks(&self) -> Option<memory_blocks::Blocks> {
        self.memory_blocks.found()
    }

    /// The disk with the least room; see [`filesystems::Filesystems::fullest`].
    #[must_use]
    pub fn fullest_disk(&self) -> Option<filesystems::Fullest<'_>> {
        self.filesystems.fullest()
    }

    /// Whether something waits for a place in the schema; true before the first.
    #[must_use]
    pub const fn wants_schema(&self) -> bool {
        self.row.wants_schema()
    }

    /// Gives newcomers their places and forgets what is gone. The generation rises by one.
    pub fn reschema(&mut self) {
        self.stat.cpus.prune();
        self.disks.disks.prune();
        self.net.interfaces.prune();
        let filesystems_over = self.filesystems.prune();
        let cgroup_disks_over = self.cgroups.prune();
        // In the order of `SubjectKind::ALL`.
        let overflow = [
            0,
            self.stat.cpus.overflow(),
            self.disks.disks.overflow(),
            self.net.interfaces.overflow(),
            filesystems_over,
            0,
            cgroup_disks_over,
        ];
        let mut place = |out: &mut dyn Subjects| {
            self.vm = out.add(SubjectKind::VM, b"", &[], 0, self.vm);
            self.stat.cpus.place(out);
            self.disks.disks.place(out);
            self.net.interfaces.place(out);
            self.filesystems.place(out);
            self.cgroups.place(out, &self.disks);
        };
        let mut measure = Measure::default();
        place(&mut measure);
        let mut layout = self.row.relayout(measure, overflow);
        place(&mut layout);
        layout.finish(&mut self.events);
        self.is_relaid = true;
    }

    /// From now on keeps which files could not be read, for [`Self::take_faults`].
    pub fn keep_faults(&mut self) {
        self.files.keep_faults();
    }

    /// The files that were there and could not be read, in the order of their paths.
    #[must_use]
    pub fn take_faults(&mut self) -> Vec<Fault> {
        self.files.take_faults()
    }

    /// The watched cgroup, when the last sample did not find it.
    #[must_use]
    pub fn missing_cgroup(&self) -> Option<cgroup::Missing<'_>> {
        self.cgroups.missing()
    }

    /// Counts schemas; 0 before the first.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.row.generation()
    }

    /// The subjects in the order of the schema.
    pub fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        self.row.subjects()
    }

    /// The newest values, in the order of the schema.
    #[must_use]
    pub fn row(&self) -> sample::Row<'_> {
        self.row.row()
    }

    /// Series of the schema.
    #[must_use]
    pub fn series(&self) -> usize {
        self.row.row().values.len()
    }

    /// Series that are cut because there are too many.
    #[must_use]
    pub const fn series_dropped(&self) -> u32 {
        self.row.dropped()
    }

    /// Hands out the events that were found since the last call, in order.
    pub fn take_event(&mut self, f: &mut dyn FnMut(EventKind, &[u8])) {
        self.events.take(f);
    }
}
