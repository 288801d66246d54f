//! The walk that finds cgroups. In a steady state it opens directories, compares names and allocates nothing.

use super::super::Context;
use super::super::roster::{Roster, Seen};
use super::super::row::Row;
use super::{Cgroups, Group, Hot, MAX_CGROUPS, MAX_MEMBERS, MAX_PATH};
use crate::kfile::{Files, Look, each_entry};
use crate::parse::Keys;
use std::os::fd::AsFd;

/// Entries of one directory that are looked at: a cgroup may have any number of children.
const MAX_ENTRIES: usize = 4096;

/// Reused memory for paths.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) path: Vec<u8>,
    parent: Vec<u8>,
}

/// `base` and `path`, which begins with a slash.
pub(super) fn join<'a>(buffer: &'a mut Vec<u8>, base: &[u8], path: &[u8]) -> &'a [u8] {
    buffer.clear();
    buffer.extend_from_slice(base);
    if path != b"/" {
        buffer.extend_from_slice(path);
    }
    buffer
}

/// Passes in a row that are spared: every tenth sample looks in any case.
const UNWALKED: u8 = 1;

impl Cgroups {
    /// Finds newcomers, and who is gone. While the kernel counts as many cgroups as before and no file of a known one
    /// died, these are most likely the same: only one that takes the place of a cgroup that is not reported waits for
    /// the next turn.
    pub(super) fn rewalk(&mut self, cx: &mut Context<'_>) {
        let below = descendants(self, cx.files);
        let now = Some((below, cx.files.died()));
        let is_likely_same = cx.files.look == Look::Kept && below.is_some() && self.walked == now;
        if is_likely_same && self.unwalked < UNWALKED {
            self.unwalked += 1;
            return;
        }
        (self.walked, self.unwalked) = (now, 0);
        self.groups.begin();
        let mut missing = 0;
        if self.base.is_some() {
            missing = self.pass(cx.files, cx.row, false);
        }
        self.groups.end(cx.row, super::leave);
        // Known ones keep their places; newcomers get what is left.
        let mut living = self.groups.living().count();
        if missing > 0 && living < MAX_CGROUPS {
            missing = self.pass(cx.files, cx.row, true);
            living = self.groups.living().count();
            self.link();
        }
        let found = below.map_or(living + missing, |below| below + 1);
        self.skipped = u64::try_from(found.saturating_sub(living)).unwrap_or(u64::MAX);
    }

    /// Visits all; with `add` newcomers are taken in. Returns how many were met that are not kept.
    fn pass(&mut self, files: &Files, row: &mut Row, add: bool) -> usize {
        let Some(base) = self.base.as_deref() else { return 0 };
        let Buffers { path, parent } = &mut self.walk;
        let mut visit = Visit { groups: &mut self.groups, row, base, add, missing: 0 };
        if let Some(watched) = &self.watched
            && let Ok(stat) = files.stat(join(path, base, watched))
        {
            visit.one(watched, stat.st_ino);
            visit.children(files, path, watched);
            // Their limits hold for the watched one.
            for (end, _) in watched.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/') {
                if let Some(above) = watched.get(..end)
                    && let Ok(stat) = files.stat(join(path, base, above))
                {
                    visit.one(above, stat.st_ino);
                }
            }
        }
        if let Ok(stat) = files.stat(base) {
            visit.one(b"/", stat.st_ino);
        }
        visit.children(files, path, b"/");
        for i in 0..visit.groups.index_end() {
            let Some(member) = visit.groups.get(i).filter(|member| depth(&member.name) == 1) else { continue };
            if visit.groups.is_living(i) {
                parent.clear();
                parent.extend_from_slice(&member.name);
                visit.children(files, path, parent);
            }
        }
        visit.missing
    }

    /// Says of each cgroup which one is above it.
    pub(super) fn link(&mut self) {
        for i in 0..self.groups.index_end() {
            let Some(member) = self.groups.get(i) else { continue };
            let above = match member.name.iter().rposition(|byte| *byte == b'/') {
                Some(0) if member.name.len() > 1 => Some(&b"/"[..]),
                Some(end) if end > 0 => member.name.get(..end),
                _ => None,
            };
            let parent = above.and_then(|above| self.groups.living().find(|(_, other)| *other.name == *above));
            let parent = parent.map(|(i, _)| i);
            if let Some(member) = self.groups.get_mut(i) {
                member.data.parent = parent;
            }
        }
    }
}

struct Visit<'a> {
    groups: &'a mut Roster<Group>,
    row: &'a mut Row,
    base: &'a [u8],
    add: bool,
    missing: usize,
}

impl Visit<'_> {
    fn one(&mut self, path: &[u8], inode: u64) {
        match self.groups.see(path) {
            Seen::Again => return,
            Seen::Known(i) if self.groups.get(i).is_some_and(|member| member.incarnation == inode) => {
                if let Some(member) = self.groups.get_mut(i)
                    && std::mem::take(&mut member.data.is_doubtful)
                {
                    // A controller of it went.
                    member.data.hot.look_again();
                    member.data.is_new = true;
                }
                return;
            }
            Seen::Known(i) => {
                // Another cgroup of the same name.
                if let Some(member) = self.groups.get_mut(i) {
                    super::leave(&mut member.data, self.row);
                }
                self.groups.retire(self.row, i);
            }
            Seen::New => {}
        }
        let room = self.groups.living().count() < MAX_CGROUPS && self.groups.index_end() < MAX_MEMBERS;
        if !self.add || !room {
            self.missing += 1;
            return;
        }
        let mut directory = Vec::with_capacity(self.base.len() + path.len());
        join(&mut directory, self.base, path);
        let group = Group {
            hot: Hot::new(&directory),
            cold: Default::default(),
            figures: super::Figures::default(),
            disks: super::Disks::default(),
            parent: None,
            is_new: true,
            is_doubtful: false,
        };
        let added = self.groups.add(self.row, path, inode, group);
        // One that was gone and came back still has its old files; they may be mounted elsewhere by now.
        if let Some(member) = added.and_then(|i| self.groups.get_mut(i)) {
            member.data.hot = Hot::new(&directory);
        }
    }

    fn children(&mut self, files: &Files, path: &mut Vec<u8>, parent: &[u8]) {
        let Ok(directory) = files.open_directory(join(path, self.base, parent)) else { return };
        let mut left = MAX_ENTRIES;
        let _ = each_entry(directory.as_fd(), |entry| {
            left -= 1;
            if entry.is_directory == Some(false) {
                return left > 0;
            }
            let below = self.base.len();
            join(path, self.base, parent);
            path.push(b'/');
            path.extend_from_slice(entry.name);
            if path.len() > MAX_PATH {
                return left > 0;
            }
            let is_directory = entry
                .is_directory
                .unwrap_or_else(|| files.stat_link(path).is_ok_and(|stat| stat.st_mode & 0o170_000 == 0o040_000));
            if is_directory && let Some(name) = path.get(below..) {
                self.one(name, entry.inode);
            }
            left > 0
        });
    }
}

fn depth(path: &[u8]) -> usize {
    if path == b"/" { 0 } else { path.iter().filter(|byte| **byte == b'/').count() }
}

/// All cgroups below the root, where the kernel counts them.
fn descendants(cgroups: &mut Cgroups, files: &mut Files) -> Option<usize> {
    static KEYS: Keys<()> = Keys::new(&[(b"nr_descendants", ())], b' ');
    let path = join(&mut cgroups.walk.path, cgroups.base.as_deref()?, b"/cgroup.stat");
    let mut count = None;
    KEYS.read(files.read_kept(&mut cgroups.stat, true, None, path)?, |(), value| count = usize::try_from(value).ok());
    count
}
