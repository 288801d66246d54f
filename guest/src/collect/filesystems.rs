//! File systems: which are mounted from `/proc/self/mountinfo`, how full they are from the probe.
//!
//! Those that node_exporter reports by default, and `/` whatever it is. One a path: the last mount on it is the visible one.

use super::Context;
use super::mountinfo::{Mount, Tree, unescape};
use super::probe::{Answer, Ask, Change, Probe, Space};
use super::roster::{Roster, Seen};
use super::row::{Place, Row, Subjects};
use crate::kfile::KFile;
use crate::parse::{digest, lines, number};
use informant_wire::event::EventKind;
use informant_wire::metric::{SubjectKind, id};
use std::path::Path;
use std::time::Duration;

/// File systems reported; what is over is counted as dropped series: those in memory first, as containers have many of
/// them, and else the last of the table.
const MAX_FILESYSTEMS: usize = 256;
/// See [`MAX_FILESYSTEMS`].
const IN_MEMORY: [&[u8]; 2] = [b"tmpfs", b"ramfs"];
/// Mounts of cgroup2 that are tried: containers often have one each.
const MAX_CGROUP2: usize = 8;
/// A longer table is read only every [`LONG_EVERY`]th time.
const LONG_TABLE: usize = 64 * 1024;
/// See [`LONG_TABLE`].
const LONG_EVERY: u32 = 12;

/// What is kept of a file system.
#[derive(Debug)]
pub struct Filesystem {
    mountpoint: Box<[u8]>,
    device: Box<[u8]>,
    fstype: Box<[u8]>,
    read_only: bool,
    /// Its key with the probe.
    asked: u64,
    /// The last answer, while there is one.
    space: Option<Space>,
}

/// See [`Filesystems::fullest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fullest<'a> {
    /// Where it is mounted.
    pub mount: &'a [u8],
    /// Its size, bytes.
    pub size_bytes: u64,
    /// What ordinary users may still write, bytes.
    pub available_bytes: u64,
}

/// The collector.
#[derive(Debug)]
pub struct Filesystems {
    own: KFile,
    init: KFile,
    /// By mount point, device and type, joined with NUL.
    mounts: Roster<Filesystem>,
    /// Of the table that was read last.
    digest: Option<u64>,
    has_changed: bool,
    long_wait: u32,
    /// Where cgroup2 is mounted, and whether there was a table at all.
    cgroup2: Vec<Box<[u8]>>,
    table_seen: bool,
    over: usize,
    probe: Probe,
}

impl Filesystems {
    /// Starts the probe.
    #[must_use]
    pub fn new(root: &Path, ask: Ask) -> Self {
        Self {
            own: KFile::new(b"proc/self/mountinfo"),
            init: KFile::new(b"proc/1/mountinfo"),
            mounts: Roster::new(SubjectKind::FILESYSTEM),
            digest: None,
            has_changed: false,
            long_wait: 0,
            cgroup2: Vec::new(),
            table_seen: false,
            over: 0,
            probe: Probe::start(root, ask),
        }
    }

    /// Where cgroup2 is mounted and not hidden by another mount on the same path, decoded: first the whole hierarchy,
    /// then parts of it.
    #[must_use]
    pub fn cgroup2(&self) -> &[Box<[u8]>] {
        &self.cgroup2
    }

    /// Whether there is a mount table to trust.
    #[must_use]
    pub const fn has_table(&self) -> bool {
        self.table_seen
    }

    /// Whether the table changed since this was last asked: then paths may lead to other files than before.
    pub const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.has_changed, false)
    }

    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        if cx.files.recheck {
            self.long_wait = self.long_wait.saturating_sub(1);
            if self.long_wait == 0 {
                self.table(cx);
            }
            self.probe.ask_all();
        }
        self.publish(cx);
    }

    /// The file system on a disk of this VM that has the smallest share of its space left, and may be written.
    #[must_use]
    pub fn fullest(&self) -> Option<Fullest<'_>> {
        let disks = self.mounts.living().map(|(_, member)| &member.data);
        let known = disks.filter(|data| !data.read_only && data.device.starts_with(b"/dev/"));
        let spaces = known.filter_map(|data| Some((data, data.space.filter(|space| !space.read_only)?)));
        let (data, space) = spaces.min_by(|(_, a), (_, b)| {
            let share = |a: &Space, b: &Space| u128::from(a.available_bytes) * u128::from(b.size_bytes);
            share(a, b).cmp(&share(b, a))
        })?;
        Some(Fullest { mount: &data.mountpoint, size_bytes: space.size_bytes, available_bytes: space.available_bytes })
    }

    /// Waits for the probe, at most for `limit`, and publishes what it says.
    pub fn settle(&mut self, cx: &mut Context<'_>, limit: Duration) {
        self.probe.settle(limit);
        self.publish(cx);
    }

    fn publish(&mut self, cx: &mut Context<'_>) {
        let mut hung = 0;
        let (mounts, row, events) = (&mut self.mounts, &mut *cx.row, &mut *cx.events);
        self.probe.each(|key, answer, change| {
            hung += u64::from(answer == Answer::Hung);
            let Some((_, member)) = mounts.living_mut().find(|(_, member)| member.data.asked == key) else { return };
            member.data.space = match answer {
                Answer::Known(Ok(space)) => Some(space),
                _ => None,
            };
            fill(row, member.place, member.data.read_only, answer);
            match change {
                Some(Change::Hung) => events.push_bytes(EventKind::MOUNT_HUNG, &member.data.mountpoint),
                Some(Change::Recovered) => events.push_bytes(EventKind::MOUNT_RECOVERED, &member.data.mountpoint),
                None => {}
            }
        });
        row.set(cx.vm, id::AGENT_MOUNTS_HUNG, hung);
    }

    fn table(&mut self, cx: &mut Context<'_>) {
        let length = cx.files.try_read(&mut self.own).or_else(|_| cx.files.try_read(&mut self.init));
        self.table_seen = length.is_ok();
        let table = cx.files.bytes(length.unwrap_or(0));
        self.long_wait = if table.len() > LONG_TABLE { LONG_EVERY } else { 1 };
        let digest_now = digest(table);
        if self.digest == Some(digest_now) {
            return;
        }
        self.digest = Some(digest_now);
        self.has_changed = true;
        self.over = 0;
        self.mounts.begin();
        let mut last_on_path: Vec<(u64, usize)> = lines(table)
            .enumerate()
            .filter_map(|(i, line)| Some((digest(Mount::parse(line)?.mountpoint), i)))
            .collect();
        last_on_path.sort_unstable();
        let tree = Tree::new(lines(table).filter_map(Mount::parse));
        let is_visible = |mount: &Mount<'_>, i: usize| {
            let path = digest(mount.mountpoint);
            let end = last_on_path.partition_point(|(hash, _)| *hash <= path);
            last_on_path.get(end.wrapping_sub(1)).is_some_and(|(_, last)| *last == i) && !tree.is_covered(mount)
        };
        self.cgroup2 = find_cgroup2(table, is_visible);
        let mut reported: Vec<_> = lines(table)
            .enumerate()
            .filter_map(|(i, line)| Mount::parse(line).filter(|mount| is_reported(mount) && is_visible(mount, i)))
            .collect();
        if let Some(over @ 1..) = reported.len().checked_sub(MAX_FILESYSTEMS) {
            reported.sort_by_key(|mount| mount.mountpoint != b"/" && IN_MEMORY.contains(&mount.fstype));
            reported.truncate(MAX_FILESYSTEMS);
            self.over = over;
        }
        for mount in &reported {
            Self::see(&mut self.mounts, &self.probe, cx.row, mount);
        }
        let probe = &self.probe;
        self.mounts.end(cx.row, |gone, _| probe.remove(gone.asked));
    }

    fn see(mounts: &mut Roster<Filesystem>, probe: &Probe, row: &mut Row, mount: &Mount<'_>) {
        let (mountpoint, device, fstype) = (unescape(mount.mountpoint), unescape(mount.source), unescape(mount.fstype));
        let name = [&*mountpoint, &*device, &*fstype].join(&0);
        let incarnation = device_number(mount.device_number);
        let known = match mounts.see(&name) {
            Seen::Again => return,
            Seen::Known(i) if mounts.get(i).is_some_and(|member| member.incarnation == incarnation) => Some(i),
            Seen::Known(i) => {
                if let Some(member) = mounts.get(i) {
                    probe.remove(member.data.asked);
                }
                mounts.retire(row, i);
                None
            }
            Seen::New => None,
        };
        let read_only = mount.is_read_only();
        if let Some(member) = known.and_then(|i| mounts.get_mut(i)) {
            member.data.read_only = read_only;
            return;
        }
        let asked = probe.add(&mountpoint);
        let data = Filesystem {
            mountpoint: (&*mountpoint).into(),
            device: (&*device).into(),
            fstype: (&*fstype).into(),
            read_only,
            asked,
            space: None,
        };
        match mounts.add(row, &name, incarnation, data).and_then(|i| mounts.get_mut(i)) {
            // One that was gone and came back still has its old key.
            Some(member) => (member.data.asked, member.data.read_only) = (asked, read_only),
            None => probe.remove(asked),
        }
    }

    /// Forgets who is gone; how many more there could be.
    pub fn prune(&mut self) -> usize {
        self.mounts.prune();
        self.over
    }

    /// Gives every file system its place.
    pub(super) fn place(&mut self, out: &mut dyn Subjects) {
        for (_, member) in self.mounts.living_mut() {
            let labels = [("device", &*member.data.device), ("fstype", &*member.data.fstype)];
            let name = &member.data.mountpoint;
            member.place = out.add(SubjectKind::FILESYSTEM, name, &labels, member.incarnation, member.place);
        }
    }
}

fn fill(row: &mut Row, at: Place, mut read_only: bool, answer: Answer) {
    row.absent(at, id::FS_SIZE, id::FS_FILES_FREE);
    if let Answer::Known(Ok(space)) = answer {
        row.set(at, id::FS_SIZE, space.size_bytes);
        row.set(at, id::FS_FREE, space.free_bytes);
        row.set(at, id::FS_AVAIL, space.available_bytes);
        if space.files > 0 {
            row.set(at, id::FS_FILES, space.files);
            row.set(at, id::FS_FILES_FREE, space.files_free);
        }
        read_only |= space.read_only;
    }
    row.set(at, id::FS_READONLY, u64::from(read_only));
    let failed = match answer {
        Answer::None => None,
        Answer::Known(answer) => Some(u64::from(answer.is_err())),
        Answer::Hung => Some(1),
    };
    row.put(at, id::FS_DEVICE_ERROR, failed);
    row.set(at, id::FS_HUNG, u64::from(answer == Answer::Hung));
}

/// node_exporter 1.5's defaults for types and mount points, and `/` always. autofs never: asking it would mount it.
fn is_reported(mount: &Mount<'_>) -> bool {
    const TYPES: &[&[u8]] = &[
        b"autofs",
        b"binfmt_misc",
        b"bpf",
        b"cgroup",
        b"cgroup2",
        b"configfs",
        b"debugfs",
        b"devpts",
        b"devtmpfs",
        b"fusectl",
        b"hugetlbfs",
        b"iso9660",
        b"mqueue",
        b"nsfs",
        b"overlay",
        b"proc",
        b"procfs",
        b"pstore",
        b"rpc_pipefs",
        b"securityfs",
        b"selinuxfs",
        b"squashfs",
        b"sysfs",
        b"tracefs",
    ];
    const TREES: &[&[u8]] = &[b"/dev", b"/proc", b"/sys"];
    const BELOW: &[&[u8]] = &[b"/run/credentials/", b"/var/lib/docker/", b"/var/lib/containers/storage/"];
    if mount.mountpoint == b"/" {
        return mount.fstype != b"autofs";
    }
    let in_tree = |tree: &&[u8]| matches!(mount.mountpoint.strip_prefix(*tree), Some([] | [b'/', ..]));
    let below = |tree: &&[u8]| mount.mountpoint.strip_prefix(*tree).is_some_and(|rest| !rest.is_empty());
    !(TYPES.contains(&mount.fstype) || TREES.iter().any(in_tree) || BELOW.iter().any(below))
}

/// See [`Filesystems::cgroup2`].
fn find_cgroup2(table: &[u8], is_visible: impl Fn(&Mount<'_>, usize) -> bool) -> Vec<Box<[u8]>> {
    let mounts = lines(table).enumerate().filter_map(|(i, line)| Some((i, Mount::parse(line)?)));
    let visible = mounts.filter(|(i, mount)| mount.fstype == b"cgroup2" && is_visible(mount, *i));
    let mut visible: Vec<Mount<'_>> = visible.map(|(_, mount)| mount).collect();
    visible.sort_by_key(|mount| mount.root != b"/");
    visible.truncate(MAX_CGROUP2);
    visible.iter().map(|mount| unescape(mount.mountpoint).into()).collect()
}

fn device_number(text: &[u8]) -> u64 {
    let mut parts = text.split(|byte| *byte == b':').map(|part| number(part).unwrap_or(0));
    parts.next().unwrap_or(0) << 32 | parts.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_those_of_node_exporter_and_the_root() {
        let reported = |mountpoint: &str, fstype: &str| {
            let line = format!("1 2 0:3 / {mountpoint} rw - {fstype} none rw");
            Mount::parse(line.as_bytes()).is_some_and(|mount| is_reported(&mount))
        };
        for (mountpoint, fstype) in [
            ("/", "overlay"),
            ("/", "virtiofs"),
            ("/", "9p"),
            ("/data", "ext4"),
            ("/run", "tmpfs"),
            ("/devices", "xfs"),
            ("/mnt", "erofs"),
        ] {
            assert!(reported(mountpoint, fstype), "{mountpoint} {fstype}");
        }
        for (mountpoint, fstype) in [
            ("/", "autofs"),
            ("/data", "autofs"),
            ("/data", "overlay"),
            ("/snap/core/1", "squashfs"),
            ("/media/seed", "iso9660"),
            ("/dev/shm", "tmpfs"),
            ("/sys/fs/cgroup", "tmpfs"),
            ("/proc/sys/x", "ext4"),
            ("/run/credentials/a.service", "ramfs"),
            ("/var/lib/docker/x", "xfs"),
        ] {
            assert!(!reported(mountpoint, fstype), "{mountpoint} {fstype}");
        }
    }
}
