//! `io.stat`: a cgroup's use of each block device. See Documentation/admin-guide/cgroup-v2.rst.

use super::super::diskstats::DeviceNumber;
use super::super::row::{Place, Row};
use crate::parse::{fields, lines, number, pair};
use informant_wire::metric::{MetricId, SubjectKind, id};

/// Devices of one cgroup.
const MAX_DISKS: usize = 32;
const KEYS: [(&[u8], MetricId); 6] = [
    (b"rbytes", id::CGROUP_DISK_READ_BYTES),
    (b"wbytes", id::CGROUP_DISK_WRITTEN_BYTES),
    (b"rios", id::CGROUP_DISK_READS),
    (b"wios", id::CGROUP_DISK_WRITES),
    (b"dbytes", id::CGROUP_DISK_DISCARDED_BYTES),
    (b"dios", id::CGROUP_DISK_DISCARDS),
];

/// A device that the cgroup used.
#[derive(Clone, Copy, Debug)]
pub struct DiskUse {
    /// Which.
    pub device: DeviceNumber,
    /// Where its series are.
    pub place: Place,
    seen: bool,
}

/// The devices that a cgroup used.
#[derive(Debug, Default)]
pub struct Disks {
    disks: Vec<DiskUse>,
    /// More than are kept.
    pub overflow: usize,
}

impl Disks {
    /// Takes the file in.
    pub fn read(&mut self, bytes: &[u8], row: &mut Row) {
        for disk in &mut self.disks {
            disk.seen = false;
        }
        self.overflow = 0;
        for line in lines(bytes) {
            // The kernel may print several devices on one line: pairs belong to the one just before them, and behind
            // a field that is not understood to nobody.
            let mut current = None;
            let mut values = [None; KEYS.len()];
            for field in fields(line) {
                if let Some((key, value)) = pair(field) {
                    let known = KEYS.iter().position(|(known, _)| *known == key);
                    if let Some(slot) = known.and_then(|i| values.get_mut(i)) {
                        *slot = number(value);
                    }
                } else {
                    self.store(std::mem::replace(&mut current, device_number(field)), std::mem::take(&mut values), row);
                }
            }
            self.store(current, values, row);
        }
        for disk in self.disks.iter().filter(|disk| !disk.seen) {
            row.absent_all(disk.place, SubjectKind::CGROUP_DISK);
        }
    }

    fn store(&mut self, device: Option<DeviceNumber>, values: [Option<u64>; KEYS.len()], row: &mut Row) {
        let Some(device) = device.filter(|_| values.iter().any(Option::is_some)) else { return };
        let (known, full) = (self.disks.iter().position(|disk| disk.device == device), self.disks.len() >= MAX_DISKS);
        let place = match known.and_then(|i| self.disks.get_mut(i)) {
            Some(disk) if disk.seen => return,
            Some(disk) => {
                disk.seen = true;
                disk.place
            }
            None if full => {
                self.overflow += 1;
                return;
            }
            None => {
                self.disks.push(DiskUse { device, place: Place::NONE, seen: true });
                row.want_schema();
                Place::NONE
            }
        };
        for ((_, metric), value) in KEYS.iter().zip(values) {
            row.put(place, *metric, value);
        }
    }

    /// Nothing is known any more: the cgroup is gone.
    pub fn clear(&mut self, row: &mut Row) {
        for disk in self.disks.drain(..) {
            row.absent_all(disk.place, SubjectKind::CGROUP_DISK);
        }
    }

    /// Forgets devices that the file does not list any more.
    pub fn prune(&mut self) {
        self.disks.retain(|disk| disk.seen);
    }

    /// Every device.
    pub fn each_mut(&mut self) -> impl Iterator<Item = &mut DiskUse> {
        self.disks.iter_mut()
    }
}

fn device_number(field: &[u8]) -> Option<DeviceNumber> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    let part = |digits: Option<&[u8]>| number(digits?).and_then(|n| u32::try_from(n).ok());
    Some((part(field.get(..colon))?, part(field.get(colon + 1..))?))
}

#[cfg(test)]
mod tests {
    use super::super::super::row::{Measure, Subjects};
    use super::*;

    fn devices(text: &[u8]) -> Vec<DeviceNumber> {
        let mut disks = Disks::default();
        disks.read(text, &mut Row::default());
        disks.disks.iter().map(|disk| disk.device).collect()
    }

    #[test]
    fn several_devices_on_one_line_device_without_pairs() {
        let text = b"7:7 7:6 7:5 7:4 rbytes=28672 wbytes=0 rios=5 wios=0 dbytes=0 dios=0\n7:3 \n252:0 ";
        assert_eq!(devices(text), [(7, 4)]);
    }

    #[test]
    fn decimals_and_unknown_keys_are_no_error() {
        assert_eq!(devices(b"254:0 rbytes=135 rios=61 cost.vrate=100.00 new=x\n8:1 cost.usage=5\n"), [(254, 0)]);
        assert_eq!(devices(b"x:1 rbytes=1\n:: rbytes=2\n4294967296:0 rbytes=1"), [(0, 0); 0]);
    }

    #[test]
    fn values_behind_a_line_or_field_that_is_not_understood_belong_to_no_device() {
        let stored = |text: &[u8]| {
            let mut disks = Disks::default();
            let mut row = Row::default();
            // Twice: the first pass finds the devices, the second has places for their values.
            disks.read(text, &mut row);
            let place_all = |disks: &mut Disks, out: &mut dyn Subjects| {
                for disk in disks.each_mut() {
                    disk.place = out.add(SubjectKind::CGROUP_DISK, b"/a", &[], 0, disk.place);
                }
            };
            let mut measure = Measure::default();
            place_all(&mut disks, &mut measure);
            place_all(&mut disks, &mut row.relayout(measure, Default::default()));
            disks.read(text, &mut row);
            let read = |disk: &DiskUse| (disk.device, row.get(disk.place, id::CGROUP_DISK_READ_BYTES));
            disks.disks.iter().map(read).collect::<Vec<_>>()
        };
        assert_eq!(stored(b"254:0 rbytes=1\n:: rbytes=3"), [((254, 0), Some(1))]);
        assert_eq!(stored(b"254:0 rbytes=1\nrbytes=3\n"), [((254, 0), Some(1))]);
        assert_eq!(stored(b"254:0 rbytes=1 what rbytes=3 8:0 rbytes=4\n"), [((254, 0), Some(1)), ((8, 0), Some(4))]);
        assert_eq!(stored(b"254:0\nrbytes=3\n"), []);
    }

    #[test]
    fn a_device_listed_twice_counts_once_and_the_number_is_bounded() {
        assert_eq!(devices(b"8:0 rbytes=1\n8:0 rbytes=2\n"), [(8, 0)]);
        let many: String = (0..100).map(|i| format!("8:{i} rbytes=1\n")).collect();
        assert_eq!(devices(many.as_bytes()).len(), MAX_DISKS);
    }
}
