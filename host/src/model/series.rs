//! The values of the newest sample and of the one before it: totals that never fall, rates by the guest's clock.
//! Only the instance's current agent session feeds it.

use super::layout::Layout;
use informant_wire::bits;
use informant_wire::counter::{Offset, Step, Width, step};
use informant_wire::frame::DecodeError;
use informant_wire::metric::{Kind, Metric, SubjectKind};
use informant_wire::sample::{Base, SampleBody};
use std::collections::HashMap;
use std::sync::Arc;

/// Why a sample is not taken. Fatal for the session: all later deltas would be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// It follows another schema than the last one sent.
    #[error("sample of schema generation {got} where {want} holds")]
    Generation {
        /// The sample's.
        got: u32,
        /// The schema's.
        want: u32,
    },
    /// The first of a schema is a delta.
    #[error("first sample of a schema is no key frame")]
    NoKey,
    /// Its sequence is not above the one before.
    #[error("sample sequence went from {from} to {to}")]
    Sequence {
        /// Before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// It does not decode.
    #[error("sample does not decode: {0}")]
    Decode(#[from] DecodeError),
}

/// What taking a sample found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Series of a key frame that differ from what was held.
    pub mismatches: u64,
    /// Samples that the guest took since the one before and that never came.
    pub missed: u64,
    /// Counters that fell.
    pub back: u64,
}

/// A counter's reading in published form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The raw value, or for counters the total that never falls; in wire units.
    pub value: u64,
    /// For counters: growth between the two newest samples, in wire units; `None` where it is not known.
    pub growth: Option<u64>,
}

/// See the module. `Clone` is the snapshot that publishing works on.
#[derive(Clone, Debug, Default)]
pub struct Series {
    layout: Arc<Layout>,
    /// The decoder's base: raw values of the newest sample.
    values: Vec<u64>,
    present: Vec<u8>,
    /// Which series the newest sample set: elsewhere `before` is up to date.
    touched: Vec<u8>,
    /// The raw value before the newest one; where that was absent, the last one seen.
    before: Vec<u64>,
    /// Which series the sample before the newest had.
    before_present: Vec<u8>,
    /// What falls and wraps took away, a counter each; empty while nothing did.
    offsets: Vec<Offset>,
    /// The schema whose order `before`, `before_present` and `offsets` follow.
    before_layout: Arc<Layout>,
    /// `before` was filled from an older schema or session: the next sample does not overwrite it.
    carried: bool,
    has_sample: bool,
    sequence: u64,
    boot_time_us: u64,
    /// Guest time between the two newest samples; `None` when that says nothing.
    interval_us: Option<u64>,
    ticks_per_second: u32,
}

impl Series {
    /// A new session of the same boot begins: totals go on, rates do not.
    pub fn reconnect(&mut self, ticks_per_second: u32) {
        self.remember(false);
        self.ticks_per_second = ticks_per_second;
        self.layout = Arc::default();
        self.values = Vec::new();
        self.present = Vec::new();
        self.touched = Vec::new();
        self.has_sample = false;
        self.sequence = 0;
        self.interval_us = None;
    }

    /// Whether values are there.
    #[must_use]
    pub const fn has_sample(&self) -> bool {
        self.has_sample
    }

    /// The schema.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Guest time between the two newest samples, microseconds.
    #[must_use]
    pub const fn interval_us(&self) -> Option<u64> {
        self.interval_us
    }

    /// The sequence of the newest sample.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Guest time of the newest sample, microseconds.
    #[must_use]
    pub const fn boot_time_us(&self) -> u64 {
        self.boot_time_us
    }

    /// `USER_HZ` of the guest.
    #[must_use]
    pub const fn ticks_per_second(&self) -> u32 {
        self.ticks_per_second
    }

    /// Takes a new schema. What the same subjects in the same incarnation had goes on.
    pub fn set_layout(&mut self, layout: Layout) {
        self.remember(true);
        let old = Arc::clone(&self.before_layout);
        if !layout.same_series(&old) {
            self.carry(&old, &layout);
        }
        let (series, bytes) = (layout.len(), layout.set_bytes());
        self.before.resize(series, 0);
        self.before_present.resize(bytes, 0);
        self.values = vec![0; series];
        self.present = vec![0; bytes];
        self.touched = vec![0; bytes];
        self.has_sample = false;
        self.layout = Arc::new(layout);
        self.before_layout = Arc::clone(&self.layout);
    }

    /// Takes a sample. `first`: of this session; its sequence is compared with the session before by `after`, where
    /// that was the same agent process.
    pub fn take(&mut self, sample: &SampleBody<'_>, first: bool, after: Option<u64>) -> Result<Taken, SampleError> {
        let head = sample.head;
        if head.generation != self.layout.generation() || self.layout.is_empty() {
            return Err(SampleError::Generation { got: head.generation, want: self.layout.generation() });
        }
        if !self.has_sample && !sample.is_key() {
            return Err(SampleError::NoKey);
        }
        if !first && head.sequence <= self.sequence {
            return Err(SampleError::Sequence { from: self.sequence, to: head.sequence });
        }
        let changed = sample.changed(self.values.len())?;
        self.remember(true);
        let had_sample = self.has_sample;
        let mut base = Base { values: &mut self.values, present: &mut self.present };
        let applied = sample.apply(&mut base)?;
        self.carried = false;
        self.touch(changed, applied.key);
        let mut taken = Taken::default();
        if had_sample {
            taken.mismatches = applied.mismatches as u64;
        }
        let after = if first { after } else { Some(self.sequence) };
        taken.missed = after.map_or(0, |after| head.sequence.saturating_sub(after).saturating_sub(1));
        self.interval_us = head.boot_time_us.checked_sub(self.boot_time_us).filter(|us| *us > 0 && !first);
        self.sequence = head.sequence;
        self.boot_time_us = head.boot_time_us;
        self.has_sample = true;
        taken.back = self.advance_offsets();
        Ok(taken)
    }

    /// The newest reading of a series; `None` when it is absent or there is no sample.
    #[must_use]
    pub fn reading(&self, series: usize, metric: &Metric) -> Option<Reading> {
        if !self.has_sample || !bits::get(&self.present, series) {
            return None;
        }
        let raw = *self.values.get(series)?;
        if metric.kind != Kind::Counter {
            return Some(Reading { value: raw, growth: None });
        }
        let before = self.before.get(series).copied().filter(|_| bits::get(&self.before_present, series));
        let growth =
            before.filter(|_| self.interval_us.is_some()).and_then(|before| match step(before, raw, width(metric)) {
                Step::Back => None,
                forward => Some(forward.growth()),
            });
        let offset = self.offsets.get(series).copied().unwrap_or_default();
        Some(Reading { value: offset.total(raw), growth })
    }

    /// Moves the newest values into `before`. `rates`: the next sample may be compared with them.
    fn remember(&mut self, rates: bool) {
        if self.carried {
            if !rates {
                self.before_present.fill(0);
            }
            return;
        }
        self.before.resize(self.values.len(), 0);
        if !Arc::ptr_eq(&self.before_layout, &self.layout) {
            self.before_layout = Arc::clone(&self.layout);
        }
        if self.has_sample {
            for i in bits::ones(self.touched.iter().copied()) {
                if let (Some(before), Some(value)) = (self.before.get_mut(i), self.values.get(i)) {
                    *before = *value;
                }
            }
        }
        self.before_present.clear();
        self.before_present.extend_from_slice(&self.present);
        if !rates || !self.has_sample {
            self.before_present.fill(0);
        }
        self.carried = true;
    }

    /// A series that a delta does not call changed, and that was there before, has the value that `before` has.
    fn touch(&mut self, changed: &[u8], key: bool) {
        let sets = self.present.iter().zip(&self.before_present).zip(changed);
        for (touched, ((present, before), changed)) in self.touched.iter_mut().zip(sets) {
            *touched = present & if key { u8::MAX } else { changed | !before };
        }
    }

    fn advance_offsets(&mut self) -> u64 {
        let mut fell = 0;
        for i in bits::ones(self.touched.iter().copied()) {
            let (Some(value), Some(before)) = (self.values.get(i), self.before.get(i)) else { break };
            if value >= before {
                continue;
            }
            let Some(metric) = self.layout.metric(i).filter(|metric| metric.kind == Kind::Counter) else { continue };
            if self.offsets.is_empty() {
                self.offsets.resize(self.values.len(), Offset::default());
            }
            if let Some(offset) = self.offsets.get_mut(i) {
                fell += u64::from(offset.advance(*before, *value, width(metric)) == Step::Back);
            }
        }
        fell
    }

    /// Puts `before` and the offsets in the order of the new schema.
    fn carry(&mut self, old: &Layout, new: &Layout) {
        let mut places = HashMap::new();
        for (subject, series) in old.subjects() {
            places.insert((subject.kind, subject.name, subject.incarnation, labels(&subject)), (subject, series));
        }
        let (mut before, mut present) = (vec![0; new.len()], vec![0; new.set_bytes()]);
        let mut offsets = if self.offsets.is_empty() { Vec::new() } else { vec![Offset::default(); new.len()] };
        for (subject, series) in new.subjects() {
            let key = (subject.kind, subject.name, subject.incarnation, labels(&subject));
            let Some((_, old_series)) = places.get(&key) else { continue };
            for to in series {
                let Some(metric) = new.metric(to) else { continue };
                let from = old_series.clone().find(|i| old.metric(*i).is_some_and(|had| had.id == metric.id));
                let Some(from) = from else { continue };
                if let (Some(slot), Some(value)) = (before.get_mut(to), self.before.get(from)) {
                    *slot = *value;
                }
                bits::put(&mut present, to, bits::get(&self.before_present, from));
                if let (Some(slot), Some(offset)) = (offsets.get_mut(to), self.offsets.get(from)) {
                    *slot = *offset;
                }
            }
        }
        self.before = before;
        self.before_present = present;
        self.offsets = offsets;
    }
}

/// The labels of a subject in a form that can be a key.
fn labels<'a>(subject: &informant_wire::schema::Subject<'a>) -> Vec<(&'a str, &'a [u8])> {
    subject.labels.iter().map(|label| (label.key, label.value)).collect()
}

/// Which counters the kernel or a driver may keep in 32 bits: those of disks and interfaces.
fn width(metric: &Metric) -> Width {
    match metric.subject {
        SubjectKind::DISK | SubjectKind::NETWORK => Width::Maybe32,
        _ => Width::Bits64,
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
