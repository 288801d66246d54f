//! The row of values that all collectors fill, and the places of subjects in it. Knows no file and no clock.
//!
//! A metric that no subject of its kind ever had takes no place in the schema; when one turns up, a new schema is
//! wanted. A value stays until its collector replaces it or says that it is absent.

mod measure;

use super::event::Events;
use informant_wire::bits;
use informant_wire::event::{EventKind, SchemaCut};
use informant_wire::limits::{MAX_METRIC_RANGES, MAX_NAME};
use informant_wire::metric::{MetricId, SubjectKind, TABLE};
use informant_wire::sample;
use informant_wire::schema::{Label, MetricRange, Subject, shorten};
pub(super) use measure::{Measure, Subjects};

/// Ids are used as indices.
const IDS: usize = {
    let last = match TABLE {
        [.., last] => last.id.0,
        [] => 0,
    };
    last as usize + 1
};
const KINDS: usize = SubjectKind::ALL.len();
/// The metric was never there.
const NEVER: u16 = u16::MAX;
/// The metric was there, but has no place yet.
const WAITS: u16 = u16::MAX - 1;

/// Where a subject's series begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// Not in the schema: a newcomer, or cut.
    pub const NONE: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug)]
struct Text {
    start: u32,
    length: u16,
}

#[derive(Clone, Debug)]
struct Placed {
    kind: SubjectKind,
    name: Text,
    labels: heapless::Vec<(&'static str, Text), 2>,
    incarnation: u64,
}

/// Values by place, and the schema they follow.
#[derive(Debug)]
pub struct Row {
    values: Vec<u64>,
    present: Vec<u8>,
    /// Offset of each metric within its subject's series.
    offsets: Box<[u16; IDS]>,
    ranges: [heapless::Vec<MetricRange, MAX_METRIC_RANGES>; KINDS],
    subjects: Vec<Placed>,
    text: Vec<u8>,
    generation: u32,
    wants_schema: bool,
    dropped: u32,
    reported_dropped: u32,
}

impl Default for Row {
    fn default() -> Self {
        let mut row = Self {
            values: Vec::new(),
            present: Vec::new(),
            offsets: Box::new([NEVER; IDS]),
            ranges: Default::default(),
            subjects: Vec::new(),
            text: Vec::new(),
            generation: 0,
            wants_schema: true,
            dropped: 0,
            reported_dropped: 0,
        };
        // These come later than the first sample, from the probe; they should not cost a second schema.
        for metric in SubjectKind::FILESYSTEM.rows() {
            row.want(metric.id);
        }
        row
    }
}

impl Row {
    fn want(&mut self, id: MetricId) {
        if let Some(offset) = self.offsets.get_mut(usize::from(id.0))
            && *offset == NEVER
        {
            *offset = WAITS;
            self.wants_schema = true;
        }
    }

    #[inline]
    fn index(&self, at: Place, id: MetricId) -> Option<usize> {
        let offset = *self.offsets.get(usize::from(id.0))?;
        (offset < WAITS && at != Place::NONE).then(|| at.0 as usize + usize::from(offset))
    }

    /// Sets a value, in the metric's wire unit.
    pub fn set(&mut self, at: Place, id: MetricId, value: u64) {
        let Some(i) = self.index(at, id) else { return self.want(id) };
        if let Some(slot) = self.values.get_mut(i) {
            *slot = value;
            bits::put(&mut self.present, i, true);
        }
    }

    /// Sets a value, or says that it is absent.
    pub fn put(&mut self, at: Place, id: MetricId, value: Option<u64>) {
        match value {
            Some(value) => self.set(at, id, value),
            None => self.absent(at, id, id),
        }
    }

    /// Sets the values of metrics that stand beside each other in a line; what is `None` is absent.
    pub fn put_columns(&mut self, at: Place, metrics: &[MetricId], values: &[Option<u64>]) {
        for (metric, value) in metrics.iter().zip(values) {
            self.put(at, *metric, *value);
        }
    }

    /// Says that the metrics `first..=last` of a subject are absent.
    pub fn absent(&mut self, at: Place, first: MetricId, last: MetricId) {
        if at == Place::NONE {
            return;
        }
        // Places are in the order of ids: what has a place between two that have one lies between them.
        let place = |id| self.index(at, MetricId(id));
        let ids = first.0..=last.0;
        if let (Some(from), Some(to)) = (ids.clone().find_map(place), ids.rev().find_map(place)) {
            bits::clear(&mut self.present, from, to + 1);
        }
    }

    /// All metrics of a subject are absent.
    pub fn absent_all(&mut self, at: Place, kind: SubjectKind) {
        if let [first, .., last] = kind.rows() {
            self.absent(at, first.id, last.id);
        }
    }

    /// A value that was set and is not absent since.
    #[must_use]
    pub fn get(&self, at: Place, id: MetricId) -> Option<u64> {
        let i = self.index(at, id)?;
        if bits::get(&self.present, i) { self.values.get(i).copied() } else { None }
    }

    /// Something waits for a place.
    pub const fn want_schema(&mut self) {
        self.wants_schema = true;
    }

    /// Whether something waits for a place.
    #[must_use]
    pub const fn wants_schema(&self) -> bool {
        self.wants_schema
    }

    /// Counts schemas; 0 before the first.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Series that are not in the schema because there are too many.
    #[must_use]
    pub const fn dropped(&self) -> u32 {
        self.dropped
    }

    /// The values.
    #[must_use]
    pub fn row(&self) -> sample::Row<'_> {
        sample::Row { values: &self.values, present: &self.present }
    }

    /// The subjects in schema order.
    pub fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        self.subjects.iter().map(|placed| Subject {
            kind: placed.kind,
            name: self.text(placed.name),
            labels: placed.labels.iter().map(|(key, value)| Label { key, value: self.text(*value) }).collect(),
            incarnation: placed.incarnation,
            metrics: self.ranges.get(usize::from(placed.kind.0)).cloned().unwrap_or_default(),
        })
    }

    fn text(&self, text: Text) -> &[u8] {
        let start = text.start as usize;
        self.text.get(start..start + usize::from(text.length)).unwrap_or_default()
    }

    /// Begins a new schema. `measure`: the subjects that will be added; `overflow`: how many more there are of each
    /// kind that no collector keeps.
    pub(super) fn relayout(&mut self, mut measure: Measure, overflow: [usize; KINDS]) -> Layout<'_> {
        let old_offsets = self.offsets.clone();
        let mut widths = [0_usize; KINDS];
        for kind in SubjectKind::ALL {
            let i = usize::from(kind.0);
            let ranges = compact(kind, &self.offsets);
            let mut next = 0;
            for id in ranges.iter().flat_map(|range| range.first.0..range.first.0 + range.count) {
                if let Some(offset) = self.offsets.get_mut(usize::from(id)) {
                    *offset = next;
                }
                next += 1;
            }
            measure.add_ranges(i, &ranges);
            if let (Some(to), Some(width)) = (self.ranges.get_mut(i), widths.get_mut(i)) {
                *to = ranges;
                *width = usize::from(next);
            }
        }
        let (kept, mut dropped) = measure.cut(widths);
        for (more, width) in overflow.iter().zip(widths) {
            dropped += more * width;
        }
        let total = kept.iter().zip(widths).map(|(n, width)| n * width).sum();
        let old = (std::mem::replace(&mut self.values, vec![0; total]), std::mem::take(&mut self.present));
        self.present = vec![0; bits::bytes_for(total)];
        self.subjects.clear();
        self.text.clear();
        self.generation = self.generation.wrapping_add(1);
        self.wants_schema = false;
        self.dropped = u32::try_from(dropped).unwrap_or(u32::MAX);
        Layout { row: self, old_values: old.0, old_present: old.1, old_offsets, kept, widths, next: 0 }
    }
}

/// The metrics of a kind that were ever there, as at most [`MAX_METRIC_RANGES`] ranges; the smallest gaps are filled.
fn compact(kind: SubjectKind, offsets: &[u16; IDS]) -> heapless::Vec<MetricRange, MAX_METRIC_RANGES> {
    let ever = |id: MetricId| offsets.get(usize::from(id.0)).is_some_and(|offset| *offset != NEVER);
    let build = |gap: u16| {
        let mut ranges = heapless::Vec::<MetricRange, MAX_METRIC_RANGES>::new();
        for id in kind.rows().iter().map(|row| row.id).filter(|id| ever(*id)) {
            match ranges.last_mut() {
                Some(last) if id.0 - (last.first.0 + last.count) <= gap => last.count = id.0 - last.first.0 + 1,
                _ => ranges.push(MetricRange { first: id, count: 1 }).ok()?,
            }
        }
        Some(ranges)
    };
    (0..u16::MAX).find_map(build).unwrap_or_default()
}

/// Gives subjects their places in a new schema; values move with them.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    row: &'a mut Row,
    old_values: Vec<u64>,
    old_present: Vec<u8>,
    old_offsets: Box<[u16; IDS]>,
    kept: [usize; KINDS],
    widths: [usize; KINDS],
    next: usize,
}

impl Subjects for Layout<'_> {
    fn add(
        &mut self,
        kind: SubjectKind,
        name: &[u8],
        labels: &[(&'static str, &[u8])],
        incarnation: u64,
        old: Place,
    ) -> Place {
        let i = usize::from(kind.0);
        let (Some(left), Some(width)) = (self.kept.get_mut(i), self.widths.get(i)) else { return Place::NONE };
        if *left == 0 {
            return Place::NONE;
        }
        let Ok(start) = u32::try_from(self.next) else { return Place::NONE };
        *left -= 1;
        self.next += width;
        let placed = Placed {
            kind,
            name: self.text(name),
            labels: labels.iter().map(|(key, value)| (*key, self.text(value))).collect(),
            incarnation,
        };
        self.row.subjects.push(placed);
        let place = Place(start);
        if old != Place::NONE {
            for metric in kind.rows() {
                let Some(offset) = self.old_offsets.get(usize::from(metric.id.0)).filter(|offset| **offset < WAITS)
                else {
                    continue;
                };
                let from = old.0 as usize + usize::from(*offset);
                if bits::get(&self.old_present, from)
                    && let Some(value) = self.old_values.get(from)
                {
                    self.row.set(place, metric.id, *value);
                }
            }
        }
        place
    }
}

impl Layout<'_> {
    /// Tells of a cut that differs from the one before.
    pub(super) fn finish(self, events: &mut Events) {
        let row = self.row;
        if row.dropped != row.reported_dropped {
            let kept = u32::try_from(row.values.len()).unwrap_or(u32::MAX);
            events.push(EventKind::SCHEMA_CUT, &SchemaCut { kept, dropped: row.dropped });
            row.reported_dropped = row.dropped;
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Text {
        let mut buffer = [0; MAX_NAME];
        let bytes = shorten(bytes, &mut buffer);
        let start = u32::try_from(self.row.text.len()).unwrap_or(u32::MAX);
        self.row.text.extend_from_slice(bytes);
        Text { start, length: u16::try_from(bytes.len()).unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use informant_wire::metric::id;

    fn vm_only() -> Measure {
        let mut measure = Measure::default();
        measure.add(SubjectKind::VM, b"", &[], 0, Place::NONE);
        measure
    }

    #[test]
    fn values_move_with_their_subject_and_new_metrics_ask_for_a_schema() {
        let mut row = Row::default();
        let mut layout = row.relayout(vm_only(), [0; KINDS]);
        let vm = layout.add(SubjectKind::VM, b"", &[], 0, Place::NONE);
        layout.finish(&mut Events::default());
        assert!(!row.wants_schema());
        row.set(vm, id::FORKS, 7);
        assert!(row.wants_schema() && row.get(vm, id::FORKS).is_none());
        let mut layout = row.relayout(vm_only(), [0; KINDS]);
        let vm = layout.add(SubjectKind::VM, b"", &[], 0, vm);
        layout.finish(&mut Events::default());
        row.set(vm, id::FORKS, 7);
        row.set(vm, id::LOAD1, 50);
        let mut layout = row.relayout(vm_only(), [0; KINDS]);
        let vm = layout.add(SubjectKind::VM, b"", &[], 0, vm);
        layout.finish(&mut Events::default());
        assert_eq!((row.get(vm, id::FORKS), row.get(vm, id::LOAD1), row.generation()), (Some(7), None, 3));
        assert_eq!(row.subjects().next().unwrap().metrics.len(), 2);
    }

    #[test]
    fn ranges_never_exceed_what_a_subject_may_list() {
        let mut offsets = [NEVER; IDS];
        for id in (1..=131_usize).step_by(2) {
            offsets[id] = WAITS;
        }
        let ranges = compact(SubjectKind::VM, &offsets);
        assert!(ranges.len() <= MAX_METRIC_RANGES);
        assert_eq!(ranges.iter().map(|range| usize::from(range.count)).sum::<usize>(), 131);
    }
}
