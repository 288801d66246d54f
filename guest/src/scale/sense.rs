//! A look at memory and CPUs, ten times a second: few files, kept open, and no allocation.

use super::usage::Look;
use crate::collect::cgroup::files::{Events, events, held_bytes, is_frozen, limit};
use crate::collect::cpulist::CpuSet;
use crate::collect::{loadavg, meminfo};
use crate::kfile::{self, Files, KFile};
use crate::parse::only_number;
use informant_wire::metric::UNLIMITED;
use std::path::Path;

/// Every so many looks the CPUs are counted, and every second one the run queue: they are averaged over seconds.
const CPUS_EVERY: u32 = 5;
const QUEUE_EVERY: u32 = 2;
/// Every so many looks a file that was not there is looked for.
const MISSING_EVERY: u32 = 50;

/// The watched cgroup's files.
#[derive(Debug)]
pub struct Group {
    directory: Box<[u8]>,
    stat: KFile,
    /// Kept open: it wakes the loop.
    pub events: KFile,
    current: KFile,
    max: KFile,
}

/// How a cgroup was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// `memory.high`, where it is set, bytes.
    pub high: Option<u64>,
    /// Whether it is frozen.
    pub frozen: bool,
}

/// What one look saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sight {
    /// Memory; none: not to be read.
    pub look: Option<Look>,
    /// Tasks that run or want to; none: not looked at this time.
    pub running: Option<u32>,
    /// Counts of the watched cgroup.
    pub events: Option<Events>,
}

/// See the module.
#[derive(Debug)]
pub struct Sense {
    /// The root's files.
    pub files: Files,
    meminfo: KFile,
    load: KFile,
    online: KFile,
    group: Option<Group>,
    ticks: u32,
    cpus: u32,
}

impl Sense {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            files: Files::small(root),
            meminfo: KFile::new(b"proc/meminfo"),
            load: KFile::new(b"proc/loadavg"),
            online: KFile::new(b"sys/devices/system/cpu/online"),
            group: None,
            ticks: 0,
            cpus: 0,
        }
    }

    /// CPUs online when last counted; 0: not known.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The watched cgroup, while it is there.
    #[must_use]
    pub const fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Watches the cgroup there from now on; empty: none. How it was found, when it was not watched before.
    pub fn watch(&mut self, directory: &[u8]) -> Option<Found> {
        if directory.is_empty() {
            self.group = None;
            return None;
        }
        if self.group.as_ref().is_some_and(|group| *group.directory == *directory) {
            return None;
        }
        let file = |name: &[u8]| KFile::bound(&[directory, name].join(&b'/'));
        let mut group = Group {
            directory: directory.into(),
            stat: file(b"memory.stat"),
            events: file(b"memory.events"),
            current: file(b"memory.current"),
            max: file(b"memory.max"),
        };
        self.files.look = kfile::Look::Missing;
        // What was counted up to now is history.
        let _ = self.files.read(&mut group.events);
        let high = self.files.read_once(None, &group.path(b"memory.high")).and_then(limit);
        let frozen = self.files.read_once(None, &group.path(b"cgroup.events")).is_some_and(is_frozen);
        self.group = Some(group);
        Some(Found { high: high.filter(|high| *high != UNLIMITED), frozen })
    }

    /// One look. `all`: the CPUs are counted too.
    pub fn look(&mut self, now_us: u64, all: bool) -> Sight {
        let files = &mut self.files;
        let is_due = |every| self.ticks.is_multiple_of(every);
        files.look = if !files.is_live() {
            kfile::Look::All
        } else if is_due(MISSING_EVERY) {
            kfile::Look::Missing
        } else {
            kfile::Look::Kept
        };
        let mut sight = Sight::default();
        if all || is_due(CPUS_EVERY) {
            let set = files.read(&mut self.online).and_then(CpuSet::parse);
            self.cpus = set.map_or(0, |set| u32::try_from(set.count()).unwrap_or(u32::MAX));
        }
        if is_due(QUEUE_EVERY) {
            sight.running = files.read(&mut self.load).and_then(loadavg::running);
        }
        self.ticks = self.ticks.wrapping_add(1);
        let mut held = None;
        if let Some(group) = &mut self.group {
            let died = files.died();
            held = files.read(&mut group.stat).and_then(held_bytes);
            sight.events = files.read(&mut group.events).map(events);
            if files.died() != died || (held.is_none() && sight.events.is_none()) {
                // Gone; the collectors tell when there is one again.
                self.group = None;
            }
        }
        if let Some(figures) = files.read(&mut self.meminfo).and_then(meminfo::figures) {
            sight.look = Some(Look {
                at_us: now_us,
                total: figures.total_bytes,
                vm: figures.total_bytes.saturating_sub(figures.available_bytes),
                group: held.unwrap_or(0),
            });
        }
        sight
    }

    /// What the watched cgroup has, and what it may have, bytes; for the tripwire alone.
    pub fn level(&mut self) -> Option<(u64, u64)> {
        let group = self.group.as_mut()?;
        let current = self.files.read(&mut group.current).and_then(only_number)?;
        let max = self.files.read(&mut group.max).and_then(limit)?;
        Some((current, max))
    }
}

impl Group {
    /// Where it is, below the root.
    #[must_use]
    pub const fn directory(&self) -> &[u8] {
        &self.directory
    }

    /// A file of it, below the root.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> Box<[u8]> {
        [&*self.directory, name].join(&b'/').into()
    }
}
