//! `/proc/diskstats`, and each device's size from sysfs. See Documentation/admin-guide/iostats.rst.
//!
//! Devices are those that node_exporter reports by default: whole disks and other devices, without RAM disks, loops
//! and partitions of ordinary disks.

use super::Context;
use super::roster::{Roster, Seen};
use crate::kfile::{Files, KFile, Slot};
use crate::parse::{self, fields, lines, number, only_number};
use informant_wire::metric::{MetricId, SubjectKind, id};

/// The columns behind the name. Linux 4.18 added discards, 5.5 flushes.
const COLUMNS: [MetricId; 17] = [
    id::DISK_READS,
    id::DISK_READS_MERGED,
    id::DISK_READ_SECTORS,
    id::DISK_READ_TIME,
    id::DISK_WRITES,
    id::DISK_WRITES_MERGED,
    id::DISK_WRITTEN_SECTORS,
    id::DISK_WRITE_TIME,
    id::DISK_IO_NOW,
    id::DISK_IO_TIME,
    id::DISK_IO_TIME_WEIGHTED,
    id::DISK_DISCARDS,
    id::DISK_DISCARDS_MERGED,
    id::DISK_DISCARDED_SECTORS,
    id::DISK_DISCARD_TIME,
    id::DISK_FLUSHES,
    id::DISK_FLUSH_TIME,
];

/// Major and minor device number.
pub type DeviceNumber = (u32, u32);

/// What is kept of a device.
#[derive(Debug)]
pub struct Disk {
    /// Its number.
    pub device: DeviceNumber,
    /// Its counters in the last sample; what was absent is 0.
    last: [u64; COLUMNS.len()],
    /// Its size and sequence number in sysfs.
    slots: [Slot; 2],
}

/// Disks whose attributes are kept open; those of the others are opened each time.
const MAX_KEPT_DISKS: usize = 6;
/// Descriptors that disks keep at most.
pub const MAX_KEPT: usize = MAX_KEPT_DISKS * 2;

impl Disk {
    fn new(device: DeviceNumber, last: [u64; COLUMNS.len()]) -> Self {
        Self { device, last, slots: Default::default() }
    }
}

/// The collector.
#[derive(Debug)]
pub struct Diskstats {
    file: KFile,
    /// Devices by kernel name.
    pub disks: Roster<Disk>,
    /// Counts devices that began anew under an old number; part of the incarnation.
    epoch: u64,
    path: Vec<u8>,
}

impl Default for Diskstats {
    fn default() -> Self {
        Self { file: KFile::new(b"proc/diskstats"), disks: Roster::new(SubjectKind::DISK), epoch: 0, path: Vec::new() }
    }
}

impl Diskstats {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        self.disks.begin();
        // Newcomers and the slow part need other files, and there is one buffer: they come after this one is parsed.
        if let Some(bytes) = cx.files.read(&mut self.file) {
            for line in lines(bytes) {
                Self::line(&mut self.disks, &mut self.epoch, cx.row, line);
            }
        }
        self.disks.end(cx.row, |gone, _| gone.slots = Default::default());
        if cx.files.recheck || cx.row.wants_schema() {
            self.slow(cx);
        }
    }

    fn line(disks: &mut Roster<Disk>, epoch: &mut u64, row: &mut super::row::Row, line: &[u8]) {
        let mut columns = fields(line);
        let mut device_part = || columns.next().and_then(number).and_then(|n| u32::try_from(n).ok());
        let (Some(major), Some(minor)) = (device_part(), device_part()) else { return };
        let Some(name) = columns.next().filter(|name| !is_ignored(name)) else { return };
        let mut values = [None; COLUMNS.len()];
        if !parse::columns(columns.rest(), &mut values) {
            return;
        }
        let counters = values.map(Option::unwrap_or_default);
        let device = (major, minor);
        let i = match disks.see(name) {
            Seen::Again => return,
            Seen::New => disks.add(row, name, incarnation(device, None, *epoch), Disk::new(device, counters)),
            Seen::Known(i) => {
                let anew =
                    disks.get(i).is_some_and(|disk| disk.data.device != device || all_fell(&disk.data.last, &counters));
                if anew {
                    *epoch += 1;
                    if let Some(old) = disks.get_mut(i) {
                        old.data.slots = Default::default();
                    }
                    disks.retire(row, i);
                    disks.add(row, name, incarnation(device, None, *epoch), Disk::new(device, counters))
                } else {
                    Some(i)
                }
            }
        };
        let Some(disk) = i.and_then(|i| disks.get_mut(i)) else { return };
        row.put_columns(disk.place, &COLUMNS, &values);
        disk.data.last = counters;
    }

    /// Sizes, and the sequence numbers by which the kernel tells a device from an earlier one of the same number.
    fn slow(&mut self, cx: &mut Context<'_>) {
        for i in 0..self.disks.index_end() {
            if !self.disks.is_living(i) {
                continue;
            }
            let Some(disk) = self.disks.get_mut(i) else { continue };
            let keep = i < MAX_KEPT_DISKS;
            let [size, sequence] = &mut disk.data.slots;
            let size = attribute(cx.files, size, keep, &mut self.path, &disk.name, b"size");
            cx.row.put(disk.place, id::DISK_SIZE, size);
            let sequence = attribute(cx.files, sequence, keep, &mut self.path, &disk.name, b"diskseq");
            let Some(sequence) = sequence else { continue };
            let known = disk.incarnation & SEQUENCE_MASK;
            if known == 0 {
                // A newcomer: nobody was told its incarnation yet.
                disk.incarnation |= sequence & SEQUENCE_MASK;
            } else if known != sequence & SEQUENCE_MASK {
                let (name, device, last) = (disk.name.clone(), disk.data.device, disk.data.last);
                self.epoch += 1;
                disk.data.slots = Default::default();
                self.disks.retire(cx.row, i);
                let incarnation = incarnation(device, Some(sequence), self.epoch);
                self.disks.add(cx.row, &name, incarnation, Disk::new(device, last));
            }
        }
    }

    /// The name of a device, where it is among those reported.
    #[must_use]
    pub fn name_of(&self, device: DeviceNumber) -> Option<&[u8]> {
        self.disks.living().find(|(_, disk)| disk.data.device == device).map(|(_, disk)| &*disk.name)
    }
}

const SEQUENCE_MASK: u64 = (1 << 28) - 1;

/// Device number above, disk sequence number below, and the epoch mixed into the number.
fn incarnation((major, minor): DeviceNumber, sequence: Option<u64>, epoch: u64) -> u64 {
    let number = u64::from(major & 0xfff) << 20 | u64::from(minor & 0xf_ffff);
    (number ^ epoch.rotate_left(26)) << 28 | sequence.unwrap_or(0) & SEQUENCE_MASK
}

/// Whether a device began anew: every counter that was not 0 is smaller now. One counter that wraps is not enough.
fn all_fell(old: &[u64; COLUMNS.len()], new: &[u64; COLUMNS.len()]) -> bool {
    let mut moved = old.iter().zip(new).zip(COLUMNS).filter(|((old, _), id)| **old > 0 && *id != id::DISK_IO_NOW);
    let mut any = false;
    moved.all(|((old, new), _)| {
        any = true;
        new < old
    }) && any
}

/// A number from a device's directory in sysfs, which spells `/` in names as `!`.
fn attribute(
    files: &mut Files,
    slot: &mut Slot,
    keep: bool,
    path: &mut Vec<u8>,
    name: &[u8],
    attribute: &[u8],
) -> Option<u64> {
    // A tree from elsewhere may have the older place alone.
    let places = [&b"sys/class/block/"[..], b"sys/block/"];
    for directory in places.into_iter().take(if files.is_live() { 1 } else { 2 }) {
        path.clear();
        path.extend_from_slice(directory);
        path.extend(name.iter().map(|byte| if *byte == b'/' { b'!' } else { *byte }));
        path.push(b'/');
        path.extend_from_slice(attribute);
        if let Some(bytes) = files.read_kept(slot, keep, None, path) {
            return only_number(bytes);
        }
    }
    None
}

/// node_exporter 1.5's default: `^(ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$`.
fn is_ignored(name: &[u8]) -> bool {
    let all_digits = |rest: &[u8]| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
    let strip_digits = |rest: &'_ [u8]| rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if [&b"ram"[..], b"loop", b"fd"].iter().any(|prefix| name.strip_prefix(*prefix).is_some_and(all_digits)) {
        return true;
    }
    for prefix in [&b"hd"[..], b"sd", b"vd", b"xvd"] {
        if let Some([b'a'..=b'z', rest @ ..]) = name.strip_prefix(prefix)
            && all_digits(rest)
        {
            return true;
        }
    }
    let mut rest = name;
    for prefix in [&b"nvme"[..], b"n"] {
        let Some(behind) = rest.strip_prefix(prefix) else { return false };
        let digits = strip_digits(behind);
        if digits == 0 {
            return false;
        }
        rest = behind.get(digits..).unwrap_or_default();
    }
    rest.strip_prefix(b"p").is_some_and(all_digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_node_exporter() {
        for ignored in ["ram0", "loop7", "fd0", "sda1", "vda15", "xvdb2", "hdc1", "nvme0n1p1", "nvme10n2p33"] {
            assert!(is_ignored(ignored.as_bytes()), "{ignored}");
        }
        for kept in [
            "sda",
            "sdaa",
            "sdaa1",
            "vda",
            "nvme0n1",
            "nvme0n10",
            "nvme1c1n1",
            "mmcblk0p1",
            "dm-0",
            "md0",
            "sr0",
            "zram0",
            "loop",
            "ram0x",
            "",
        ] {
            assert!(!is_ignored(kept.as_bytes()), "{kept}");
        }
    }

    #[test]
    fn a_device_began_anew_only_when_all_its_counters_fell() {
        let mut old = [0; COLUMNS.len()];
        (old[0], old[2], old[8]) = (500, 4000, 1);
        let mut new = old;
        new[0] = 2;
        assert!(!all_fell(&old, &new), "one counter wrapped");
        new[2] = 16;
        assert!(all_fell(&old, &new), "requests in flight are no counter");
        assert!(!all_fell(&[0; COLUMNS.len()], &[0; COLUMNS.len()]));
        assert_ne!(incarnation((253, 3), None, 0), incarnation((253, 3), None, 1));
        assert_ne!(incarnation((253, 3), Some(4), 0), incarnation((253, 3), Some(5), 0));
    }
}
