//! Cgroups v2: the watched one and its children first, then all down to two levels below the root, at most 64.
//!
//! Three files of each are read at every sample through kept descriptors, the rest every fifth, each cgroup at another
//! sample, through kept ones as far as they go. Names are raw bytes; `..` is never followed.

pub mod files;
pub mod io_stat;
mod walk;

use super::Context;
use super::diskstats::Diskstats;
use super::roster::Roster;
use super::row::{Place, Row, Subjects};
use crate::kfile::{Directory, Files, Look, Slot};
use files::{Figures, Hot};
use informant_wire::metric::{SubjectKind, UNLIMITED, id};
use io_stat::Disks;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Cgroups that are reported.
pub const MAX_CGROUPS: usize = 64;
/// Descriptors that cgroups keep at most: those that are read at every sample, of all of them.
pub const MAX_KEPT: usize = MAX_CGROUPS * files::KEPT;
/// Members kept between two schemas, gone ones included.
const MAX_MEMBERS: usize = 4 * MAX_CGROUPS;
/// A path below the root that is longer is not followed.
const MAX_PATH: usize = 4000;

/// Where cgroup2 is looked for without a mount table; the second is the hybrid layout.
const USUAL_MOUNTS: [&[u8]; 2] = [b"sys/fs/cgroup", b"sys/fs/cgroup/unified"];

/// What is kept of a cgroup.
#[derive(Debug)]
pub struct Group {
    hot: Hot,
    cold: files::Slots,
    figures: Figures,
    disks: Disks,
    /// The next one up that is reported.
    parent: Option<usize>,
    /// Its slow part is to be read with this sample.
    is_new: bool,
    /// A file of it died: until the next walk nobody knows whether what stands at its path is still this one.
    is_doubtful: bool,
}

/// A watched cgroup that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--cgroup {}: no such cgroup below the cgroup2 mount; the VM is reported without it", .0.display())]
pub struct Missing<'a>(pub &'a Path);

/// The collector.
#[derive(Debug)]
pub struct Cgroups {
    /// What the user named.
    asked: Option<Box<Path>>,
    /// Where cgroup2 is mounted, below the root, without a slash at either end.
    base: Option<Box<[u8]>>,
    /// Path of the watched one below the mount, beginning with a slash.
    watched: Option<Box<[u8]>>,
    groups: Roster<Group>,
    /// One of them is doubtful: the next sample walks.
    has_doubts: bool,
    skipped: u64,
    /// `cgroup.stat` of the uppermost.
    stat: Slot,
    /// Cgroups below the uppermost and dead descriptors, when all were last visited.
    walked: Option<(Option<usize>, u64)>,
    /// Passes without a visit since.
    unwalked: u8,
    tick: usize,
    walk: walk::Buffers,
}

impl Cgroups {
    /// `watched`: relative to the mount.
    #[must_use]
    pub fn new(watched: Option<&Path>) -> Self {
        Self {
            asked: watched.map(Box::from),
            base: None,
            watched: watched.and_then(normalise),
            groups: Roster::new(SubjectKind::CGROUP),
            has_doubts: false,
            skipped: 0,
            stat: Slot::Empty,
            walked: None,
            unwalked: 0,
            tick: 0,
            walk: walk::Buffers::default(),
        }
    }

    /// The watched one, when the last pass did not find it.
    #[must_use]
    pub fn missing(&self) -> Option<Missing<'_>> {
        let asked = self.asked.as_deref().filter(|path| path.components().any(|part| part != Component::RootDir))?;
        let found = |watched: &[u8]| self.groups.living().any(|(_, member)| *member.name == *watched);
        (!self.watched.as_deref().is_some_and(found)).then_some(Missing(asked))
    }

    /// Where the watched one is, below the root, without a slash at either end; false while it is not there.
    pub fn watched_directory(&self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let (Some(base), Some(watched)) = (&self.base, &self.watched) else { return false };
        if !self.groups.living().any(|(_, member)| member.name == *watched) {
            return false;
        }
        out.extend_from_slice(base);
        out.extend_from_slice(watched);
        true
    }

    /// One pass. `mounts`: where the mount table says that cgroup2 is, the best first; `trusted`: there is such a table, and it is this
    /// machine's.
    pub fn sample(&mut self, cx: &mut Context<'_>, mounts: &[Box<[u8]>], trusted: bool, all: bool) {
        if cx.files.recheck {
            self.find_base(cx, mounts, trusted);
        }
        if std::mem::take(&mut self.has_doubts) || cx.files.recheck {
            self.rewalk(cx);
        }
        // What the files of every sample leave goes to all files of the first ones.
        let left = MAX_KEPT.saturating_sub(self.groups.living().count() * files::KEPT);
        let mut whole = left / (files::KEPT_WHOLE - files::KEPT);
        for i in 0..self.groups.index_end() {
            if !self.groups.is_living(i) {
                continue;
            }
            let Some(member) = self.groups.get_mut(i) else { continue };
            let (place, group, keep) = (member.place, &mut member.data, whole > 0);
            whole = whole.saturating_sub(1);
            group.is_doubtful |= !group.hot.read(cx.files, cx.row, place, &mut group.figures);
            if !group.is_doubtful
                && (all || group.is_new || (self.tick + i).is_multiple_of(super::SLOW_EVERY as usize))
                && let Some(base) = &self.base
            {
                group.is_new = false;
                let directory = Directory::new(walk::join(&mut self.walk.path, base, &member.name));
                group.cold.look_again(cx.files, &mut group.hot, keep, &directory);
                let cold = group.cold.cold(keep, &directory);
                files::read_cold(cx.files, cold, cx.row, place, &mut group.figures, &mut group.disks);
            }
            self.has_doubts |= group.is_doubtful;
            files::working_set(cx.row, place, &group.figures);
        }
        for i in 0..self.groups.index_end() {
            if self.groups.is_living(i) {
                self.effective_limits(cx.row, i);
            }
        }
        cx.row.put(cx.vm, id::AGENT_CGROUPS_SKIPPED, self.base.is_some().then_some(self.skipped));
        self.tick = self.tick.wrapping_add(1);
    }

    /// The lowest limit from a cgroup to the root, and the use at the level that has it. Levels without the file, as
    /// the root, set no limit.
    fn effective_limits(&self, row: &mut Row, i: usize) {
        let Some(place) = self.groups.get(i).map(|member| member.place) else { return };
        let (mut memory, mut usage, mut cpu) = (None, None, None);
        let mut level = Some(i);
        // Parents stand at other indices, but a chain can not be longer than the tree.
        for _ in 0..MAX_MEMBERS {
            let Some(group) = level.and_then(|i| self.groups.get(i)).map(|member| &member.data) else { break };
            let figures = group.figures;
            if let Some(max) = figures.memory_max
                && memory.is_none_or(|lowest| max < lowest)
            {
                memory = Some(max);
                usage = figures.memory_current.filter(|_| max != UNLIMITED);
            }
            if let Some(limit) = figures.cpu_limit {
                cpu = Some(cpu.map_or(limit, |lowest: u64| lowest.min(limit)));
            }
            level = group.parent;
        }
        row.put(place, id::CGROUP_MEMORY_LIMIT, memory);
        row.put(place, id::CGROUP_MEMORY_LIMIT_USAGE, usage);
        row.put(place, id::CGROUP_CPU_LIMIT_EFFECTIVE, cpu);
    }

    fn find_base(&mut self, cx: &mut Context<'_>, mounts: &[Box<[u8]>], trusted: bool) {
        if self.base.is_some() && cx.files.look != Look::All {
            return;
        }
        let buffer = &mut self.walk.path;
        // The first may be hidden under a mount further up.
        let mut named = mounts.iter().map(|path| path.strip_prefix(b"/").unwrap_or(path));
        let named = named.find(|path| is_cgroup2(cx.files, buffer, path));
        let found = match named {
            None if !trusted => USUAL_MOUNTS.into_iter().find(|path| is_cgroup2(cx.files, buffer, path)),
            named => named,
        };
        if found != self.base.as_deref() {
            self.groups.begin();
            self.groups.end(cx.row, leave);
            self.base = found.map(Box::from);
            (self.stat, self.walked) = (Slot::Empty, None);
        }
    }

    /// Forgets who is gone; how many more of their devices there are.
    pub fn prune(&mut self) -> usize {
        // There may be room for more.
        self.walked = None;
        self.groups.prune();
        self.link();
        let mut overflow = 0;
        for (_, member) in self.groups.living_mut() {
            member.data.disks.prune();
            overflow += member.data.disks.overflow;
        }
        overflow
    }

    /// Gives every cgroup its place, and then their devices.
    pub(super) fn place(&mut self, out: &mut dyn Subjects, names: &Diskstats) {
        for (_, member) in self.groups.living_mut() {
            // What its first reading found had no place to go to.
            member.data.is_new |= member.place == Place::NONE;
        }
        self.groups.place(out);
        for (_, member) in self.groups.living_mut() {
            for disk in member.data.disks.each_mut() {
                let (major, minor) = disk.device;
                let number;
                let device = match names.name_of(disk.device) {
                    Some(name) => name,
                    None => {
                        number = format!("{major}:{minor}");
                        number.as_bytes()
                    }
                };
                let labels = [("device", device)];
                disk.place = out.add(SubjectKind::CGROUP_DISK, &member.name, &labels, member.incarnation, disk.place);
            }
        }
    }
}

fn leave(group: &mut Group, row: &mut Row) {
    group.hot.close();
    group.cold = Default::default();
    group.figures = Figures::default();
    (group.is_new, group.is_doubtful) = (true, false);
    group.disks.clear(row);
}

/// By its magic on a live system; a fixture tree has at least the file that every cgroup2 directory has.
fn is_cgroup2(files: &Files, buffer: &mut Vec<u8>, path: &[u8]) -> bool {
    if files.is_live() {
        let directory = files.open_directory(path);
        return directory.is_ok_and(|at| fstatfs(at).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC));
    }
    files.stat(walk::join(buffer, path, b"/cgroup.controllers")).is_ok()
}

/// `a//b/./c` is `/a/b/c`; a path that climbs is refused.
fn normalise(path: &Path) -> Option<Box<[u8]>> {
    let mut clean = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                clean.push(b'/');
                clean.extend_from_slice(name.as_bytes());
            }
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!clean.is_empty() && clean.len() < MAX_PATH).then(|| clean.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_path_never_climbs() {
        for (path, expected) in [
            ("a/b", Some("/a/b")),
            ("/a//b/./c/", Some("/a/b/c")),
            ("/", None),
            ("", None),
            ("/../../init.scope", None),
            ("a/../b", None),
        ] {
            assert_eq!(normalise(Path::new(path)).as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }
}
