//! What a schema would need, and what of it is cut. Knows names, numbers and sizes, and no value.

use super::{KINDS, Place};
use informant_wire::limits::{MAX_NAME, MAX_SCHEMA_BYTES, MAX_SERIES, MAX_SUBJECTS};
use informant_wire::metric::SubjectKind;
use informant_wire::schema::{CUT_ORDER, MetricRange};
use informant_wire::varint;

/// Bytes that subjects may have; the rest is for the heads of the parts they travel in (60 parts of 4 KiB at most).
const SUBJECT_BYTES: usize = MAX_SCHEMA_BYTES - 1024;

/// Where subjects are put, in the order of the schema.
pub(in super::super) trait Subjects {
    /// Takes the next subject, whose place was `old`, and gives its place from here on; [`Place::NONE`] when it is cut.
    fn add(
        &mut self,
        kind: SubjectKind,
        name: &[u8],
        labels: &[(&'static str, &[u8])],
        incarnation: u64,
        old: Place,
    ) -> Place;
}

/// How many bytes each subject has in a schema, by kind. Leaves places as they are.
#[derive(Debug, Default)]
pub(in super::super) struct Measure {
    bytes: [Vec<usize>; KINDS],
}

impl Measure {
    /// Counts the ranges that every subject of a kind lists.
    pub(super) fn add_ranges(&mut self, kind: usize, ranges: &[MetricRange]) {
        let each = ranges.iter().map(|range| varint_bytes(range.first.0.into()) + varint_bytes(range.count.into()));
        let bytes = 1 + each.sum::<usize>();
        for subject in self.bytes.get_mut(kind).into_iter().flatten() {
            *subject += bytes;
        }
    }

    /// How many subjects of each kind stay when one of each has so many series, and how many series go; see
    /// [`CUT_ORDER`].
    pub(super) fn cut(mut self, widths: [usize; KINDS]) -> ([usize; KINDS], usize) {
        let mut dropped = 0;
        let mut series: usize = self.bytes.iter().zip(widths).map(|(kind, width)| kind.len() * width).sum();
        let mut subjects: usize = self.bytes.iter().map(Vec::len).sum();
        let mut bytes: usize = self.bytes.iter().flatten().sum();
        for kind in CUT_ORDER {
            let i = usize::from(kind.0);
            let (Some(of_kind), Some(width)) = (self.bytes.get_mut(i), widths.get(i)) else { continue };
            while (*width > 0 && series > MAX_SERIES) || subjects > MAX_SUBJECTS || bytes > SUBJECT_BYTES {
                let Some(last) = of_kind.pop() else { break };
                subjects -= 1;
                bytes -= last;
                series -= width;
                dropped += width;
            }
        }
        (self.bytes.map(|kind| kind.len()), dropped)
    }
}

impl Subjects for Measure {
    fn add(
        &mut self,
        kind: SubjectKind,
        name: &[u8],
        labels: &[(&'static str, &[u8])],
        incarnation: u64,
        old: Place,
    ) -> Place {
        let text = |length: usize| {
            let length = length.min(MAX_NAME);
            varint_bytes(length as u64) + length
        };
        let labels: usize = labels.iter().map(|(key, value)| text(key.len()) + text(value.len())).sum();
        let bytes = 1 + text(name.len()) + 1 + labels + varint_bytes(incarnation);
        if let Some(of_kind) = self.bytes.get_mut(usize::from(kind.0)) {
            of_kind.push(bytes);
        }
        old
    }
}

fn varint_bytes(value: u64) -> usize {
    varint::write(&mut [0; varint::MAX_LEN], 0, value).unwrap_or(varint::MAX_LEN)
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;
    use informant_wire::metric::id;

    #[test]
    fn what_is_over_the_limit_is_cut_in_the_documented_order() {
        let widths = [132, 10, 18, 20, 8, 79, 6];
        let cut = |counts: [usize; KINDS], widths, bytes: usize| {
            Measure { bytes: counts.map(|count| vec![bytes; count]) }.cut(widths)
        };
        let (kept, dropped) = cut([1, 8, 20, 10, 40, 64, 300], widths, 30);
        assert_eq!(kept, [1, 8, 20, 10, 21, 64, 0]);
        assert_eq!(dropped, 300 * 6 + 19 * 8);
        assert!(kept.iter().zip(widths).map(|(n, width)| n * width).sum::<usize>() <= MAX_SERIES);
        // 5,000 CPUs alone: the last ones go, the VM stays.
        let (kept, _) = cut([1, 5000, 0, 0, 0, 0, 0], widths, 10);
        assert_eq!(kept, [1, 586, 0, 0, 0, 0, 0]);
        // Subjects have a limit of their own.
        let (kept, dropped) = cut([1, 1, 0, 3000, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0], 10);
        assert_eq!((kept[3], dropped), (MAX_SUBJECTS - 2, 3000 - (MAX_SUBJECTS - 2)));
        // And so have their names.
        let (kept, dropped) = cut([1, 4, 2, 2, 20, 64, 832], [1, 1, 1, 1, 1, 1, 6], 260);
        assert_eq!(kept, [1, 4, 2, 2, 20, 64, SUBJECT_BYTES / 260 - 93]);
        assert_eq!(dropped, (832 - kept[6]) * 6);
    }

    #[test]
    fn a_subject_is_measured_as_it_is_encoded() {
        let long = [b'n'; 300];
        let place = |out: &mut dyn Subjects| {
            out.add(SubjectKind::VM, b"", &[], 0, Place::NONE);
            out.add(SubjectKind::DISK, b"vda", &[], u64::MAX, Place::NONE);
            let labels = [("device", &b"/dev/vda"[..]), ("fstype", &[b't'; 200])];
            out.add(SubjectKind::FILESYSTEM, &long, &labels, 128, Place::NONE);
        };
        let mut row = Row::default();
        for metric in [id::FORKS, id::LOAD1, id::DISK_READS] {
            row.want(metric);
        }
        let mut measure = Measure::default();
        place(&mut measure);
        place(&mut row.relayout(measure, [0; KINDS]));
        let mut again = Measure::default();
        place(&mut again);
        for kind in [SubjectKind::VM, SubjectKind::DISK, SubjectKind::FILESYSTEM] {
            again.add_ranges(kind.0.into(), &row.ranges[usize::from(kind.0)]);
        }
        let mut out = [0; 1024];
        let encoded: Vec<_> =
            row.subjects().map(|subject| postcard::to_slice(&subject, &mut out).unwrap().len()).collect();
        assert_eq!(again.bytes.concat(), encoded);
    }
}
