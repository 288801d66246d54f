//! A schema as the host keeps it: the subjects' bytes as they came, and which row of the metric table each series is.
//! Kept small: there are thousands of instances.

use crate::inbox::extend_within;
use informant_wire::bits;
use informant_wire::limits::MAX_SCHEMA_BYTES;
use informant_wire::metric::{Kind, Metric, TABLE};
use informant_wire::schema::{SchemaEnd, SchemaError, SchemaPart, SchemaReader, Subject};
use informant_wire::varint;
use std::ops::Range;

const UNKNOWN: u16 = u16::MAX;

/// A whole schema.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layout {
    generation: u32,
    subjects: Box<[u8]>,
    /// A series each: its row in [`TABLE`], or [`UNKNOWN`].
    rows: Box<[u16]>,
    /// A bit each: a counter that is read slowly. Empty where there is none.
    slow: Box<[u8]>,
}

impl Layout {
    /// The number that samples of this schema carry.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// How many series it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no series.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of its bit sets.
    #[must_use]
    pub const fn set_bytes(&self) -> usize {
        bits::bytes_for(self.rows.len())
    }

    /// Series whose metric this version does not know.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.rows.iter().filter(|row| **row == UNKNOWN).count()
    }

    /// The metric of a series; `None` for one that this version does not know.
    #[must_use]
    pub fn metric(&self, series: usize) -> Option<&'static Metric> {
        self.rows.get(series).and_then(|row| TABLE.get(usize::from(*row)))
    }

    /// Whether it is a counter that is not read at every sample; see [`Metric::is_slow`].
    #[must_use]
    pub fn is_slow(&self, series: usize) -> bool {
        bits::get(&self.slow, series)
    }

    /// The metric of each series, in order.
    pub fn metrics(&self) -> impl Iterator<Item = Option<&'static Metric>> {
        self.rows.iter().map(|row| TABLE.get(usize::from(*row)))
    }

    /// The subjects with their series, in order.
    pub fn subjects(&self) -> impl Iterator<Item = (Subject<'_>, Range<usize>)> {
        let mut rest: &[u8] = &self.subjects;
        let mut at = 0;
        std::iter::from_fn(move || {
            let (subject, behind): (Subject<'_>, _) = postcard::take_from_bytes(rest).ok()?;
            rest = behind;
            let series = at..at + subject.series();
            at = series.end;
            Some((subject, series))
        })
    }

    /// Whether both list the same series in the same order.
    #[must_use]
    pub fn same_series(&self, other: &Self) -> bool {
        self.subjects == other.subjects
    }
}

/// Takes the parts of a schema as they arrive.
#[derive(Debug, Default)]
pub struct LayoutBuilder {
    reader: SchemaReader,
    subjects: Vec<u8>,
    rows: Vec<u16>,
}

impl LayoutBuilder {
    /// Takes the next part. `body`: the frame's body.
    pub fn part(&mut self, part: &SchemaPart<'_>, body: &[u8]) -> Result<(), SchemaError> {
        self.reader.part(part, body)?;
        let behind_head = varint::read(body, 0).and_then(|(_, at)| varint::read(body, at)).map(|(_, at)| at);
        let subjects = behind_head.and_then(|at| body.get(at..)).unwrap_or_default();
        extend_within(&mut self.subjects, subjects, MAX_SCHEMA_BYTES);
        for subject in part.subjects() {
            for range in &subject.metrics {
                for id in (range.first.0..).take(usize::from(range.count)) {
                    let row = TABLE.binary_search_by_key(&id, |row| row.id.0).ok();
                    let row = row.filter(|row| TABLE.get(*row).is_some_and(|row| row.subject == subject.kind));
                    self.rows.push(row.and_then(|row| u16::try_from(row).ok()).unwrap_or(UNKNOWN));
                }
            }
        }
        Ok(())
    }

    /// Takes the end: the schema is whole. The builder is empty again afterwards, whatever the result.
    pub fn end(&mut self, end: &SchemaEnd) -> Result<Layout, SchemaError> {
        let mut taken = std::mem::take(self);
        let series = taken.reader.end(end)?;
        if series != taken.rows.len() {
            return Err(SchemaError::Incomplete);
        }
        let slow = |row: &u16| {
            TABLE.get(usize::from(*row)).is_some_and(|metric| metric.kind == Kind::Counter && metric.is_slow())
        };
        let mut slow_bits = Vec::new();
        for (series, _) in taken.rows.iter().enumerate().filter(|(_, row)| slow(row)) {
            slow_bits.resize(bits::bytes_for(taken.rows.len()), 0);
            bits::put(&mut slow_bits, series, true);
        }
        Ok(Layout {
            generation: end.generation,
            subjects: taken.subjects.into_boxed_slice(),
            rows: taken.rows.into_boxed_slice(),
            slow: slow_bits.into_boxed_slice(),
        })
    }
}

const _: () = assert!(TABLE.len() < UNKNOWN as usize, "every row has a number");
