//! The values of the newest sample and of the one before it: totals that never fall, rates by the guest's clock.
//! Only the instance's current agent session feeds it.

use super::layout::Layout;
use informant_wire::bits;
use informant_wire::counter::{Offset, Step, Width, step};
use informant_wire::frame::DecodeError;
use informant_wire::metric::{Kind, Metric, SLOW_EVERY, SubjectKind};
use informant_wire::sample::{Applied, Base, SampleBody};
use std::collections::{BTreeMap, HashMap};
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
    /// The layout's: looking there for each sample would cost a cache miss.
    generation: u32,
    /// The decoder's base: raw values of the newest sample.
    values: Vec<u64>,
    present: Vec<u8>,
    /// Which series the sample before the newest had, as far as a rate may be taken from it.
    before: Vec<u8>,
    replaced: Replaced,
    /// The last raw values of series that are absent now.
    resting: BTreeMap<u16, u64>,
    /// What falls and wraps took away, a counter each; empty while nothing did.
    offsets: Vec<Offset>,
    /// The newest growth of each counter that is not read at every sample.
    slow: BTreeMap<u16, Growth>,
    /// What the next session or schema goes on from; only until its first sample.
    carried: Option<Carried>,
    has_sample: bool,
    sequence: u64,
    boot_time_us: u64,
    /// Guest time between the two newest samples; `None` when that says nothing.
    interval_us: Option<u64>,
    ticks_per_second: u32,
}

/// How a counter that is not read at every sample grew when it was last read.
#[derive(Clone, Copy, Debug)]
struct Growth {
    growth: u64,
    /// Guest time of the sample that had it.
    at_us: u64,
    /// Since it grew before, where that is known.
    since_us: Option<u64>,
}

/// The raw values that the newest sample replaced by others, in the order of their series. Most series do not change
/// from one sample to the next: to keep all values twice would double what an instance takes.
#[derive(Clone, Debug, Default)]
struct Replaced {
    series: Vec<u16>,
    values: Vec<u64>,
}

impl Replaced {
    fn clear(&mut self) {
        self.series.clear();
        self.values.clear();
    }

    fn push(&mut self, series: u16, value: u64) {
        self.series.push(series);
        self.values.push(value);
    }

    fn get(&self, series: u16) -> Option<u64> {
        self.values.get(self.series.binary_search(&series).ok()?).copied()
    }
}

/// The last raw values of all series, and which of them the newest sample had.
#[derive(Clone, Debug)]
struct Carried {
    /// Whose order the values and [`Series::offsets`] have.
    layout: Arc<Layout>,
    /// 0 where there was none.
    values: Vec<u64>,
    present: Vec<u8>,
}

impl Series {
    /// A new session of the same boot begins: totals go on, rates do not.
    pub fn reconnect(&mut self, ticks_per_second: u32) {
        let mut carried = self.carry();
        carried.present.fill(0);
        self.carried = Some(carried);
        self.ticks_per_second = ticks_per_second;
        self.layout = Arc::default();
        self.generation = 0;
        self.empty(0);
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
        let mut carried = self.carry();
        let layout = Arc::new(layout);
        if !layout.same_series(&carried.layout) {
            self.reorder(&mut carried, &layout);
        }
        carried.layout = Arc::clone(&layout);
        self.carried = Some(carried);
        self.empty(layout.len());
        self.generation = layout.generation();
        self.layout = layout;
    }

    /// Takes a sample. `first`: of this session; its sequence is compared with the session before by `after`, where
    /// that was the same agent process.
    pub fn take(&mut self, sample: &SampleBody<'_>, first: bool, after: Option<u64>) -> Result<Taken, SampleError> {
        let head = sample.head;
        if head.generation != self.generation || self.values.is_empty() {
            return Err(SampleError::Generation { got: head.generation, want: self.generation });
        }
        if !self.has_sample && !sample.is_key() {
            return Err(SampleError::NoKey);
        }
        if !first && head.sequence <= self.sequence {
            return Err(SampleError::Sequence { from: self.sequence, to: head.sequence });
        }
        let had_sample = self.has_sample;
        let (applied, back) = self.apply(sample).inspect_err(|_| {
            // The newest values stay, but nothing is known of what was before them.
            self.before.fill(0);
        })?;
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
        taken.back = back;
        Ok(taken)
    }

    /// Moves to a sample; how many counters fell.
    fn apply(&mut self, sample: &SampleBody<'_>) -> Result<(Applied, u64), DecodeError> {
        let Self { layout, values, present, before, replaced, resting, offsets, slow, carried: kept, .. } = self;
        let at_us = sample.head.boot_time_us;
        let carried = kept.take();
        before.clear();
        before.extend_from_slice(carried.as_ref().map_or(present, |carried| &carried.present));
        replaced.clear();
        let mut back = 0;
        let mut base = Base { values, present };
        let applied = sample.apply_each(&mut base, |i, old, new| {
            let Ok(series) = u16::try_from(i) else { return };
            let had = bits::get(before, i);
            let last = match &carried {
                Some(carried) => carried.values.get(i).copied().unwrap_or(0),
                None if had => old,
                None => resting.remove(&series).unwrap_or(0),
            };
            let Some(new) = new else {
                resting.insert(series, old);
                return;
            };
            if had && last != new {
                replaced.push(series, last);
                if layout.is_slow(i) {
                    let since_us = slow.get(&series).map(|before| at_us.saturating_sub(before.at_us));
                    let growth = step(last, new, Width::Bits64).growth();
                    slow.insert(series, Growth { growth, at_us, since_us });
                }
            }
            if new >= last {
                return;
            }
            let Some(metric) = layout.metric(i).filter(|metric| metric.kind == Kind::Counter) else { return };
            if offsets.is_empty() {
                offsets.resize(layout.len(), Offset::default());
            }
            if let Some(offset) = offsets.get_mut(i) {
                back += u64::from(offset.advance(last, new, width(metric)) == Step::Back);
            }
        });
        let applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                *kept = carried;
                return Err(error);
            }
        };
        if let Some(carried) = carried {
            let absent =
                carried.values.into_iter().enumerate().filter(|(i, last)| *last > 0 && !bits::get(present, *i));
            resting.extend(absent.filter_map(|(i, last)| Some((u16::try_from(i).ok()?, last))));
        }
        Ok((applied, back))
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
        let offset = self.offsets.get(series).copied().unwrap_or_default();
        if self.layout.is_slow(series) {
            return Some(Reading { value: offset.total(raw), growth: self.slow_growth(series) });
        }
        let had = bits::get(&self.before, series) && self.interval_us.is_some();
        let before = u16::try_from(series).ok().filter(|_| had).map(|at| self.replaced.get(at).unwrap_or(raw));
        let growth = before.and_then(|before| match step(before, raw, width(metric)) {
            Step::Back => None,
            forward => Some(forward.growth()),
        });
        Some(Reading { value: offset.total(raw), growth })
    }

    /// The growth of a counter that is not read at every sample, spread over the time from one reading to the next, as
    /// it falls on one interval.
    fn slow_growth(&self, series: usize) -> Option<u64> {
        let interval_us = self.interval_us.filter(|_| bits::get(&self.before, series))?;
        let longest_us = interval_us.saturating_mul(SLOW_EVERY.into());
        let Some(newest) = u16::try_from(series).ok().and_then(|series| self.slow.get(&series)) else { return Some(0) };
        // Half an interval more: samples are not taken to the microsecond.
        if self.boot_time_us.saturating_sub(newest.at_us) >= longest_us.saturating_add(interval_us / 2) {
            return Some(0);
        }
        let over_us = newest.since_us.unwrap_or(longest_us).clamp(1, longest_us.max(1));
        let share = u128::from(newest.growth) * u128::from(interval_us) / u128::from(over_us);
        u64::try_from(share).ok()
    }

    /// No values, and room for those of so many series.
    fn empty(&mut self, series: usize) {
        self.values = vec![0; series];
        self.present = vec![0; bits::bytes_for(series)];
        self.before = vec![0; bits::bytes_for(series)];
        self.replaced = Replaced::default();
        self.resting = BTreeMap::new();
        self.slow = BTreeMap::new();
        self.has_sample = false;
    }

    /// What the next session or schema goes on from.
    fn carry(&mut self) -> Carried {
        self.carried.take().unwrap_or_else(|| {
            let mut values = std::mem::take(&mut self.values);
            for (series, last) in std::mem::take(&mut self.resting) {
                if let Some(value) = values.get_mut(usize::from(series)) {
                    *value = last;
                }
            }
            Carried { layout: Arc::clone(&self.layout), values, present: std::mem::take(&mut self.present) }
        })
    }

    /// Puts what is carried, and the offsets, in the order of the new schema.
    fn reorder(&mut self, carried: &mut Carried, new: &Layout) {
        let old = Arc::clone(&carried.layout);
        let mut places = HashMap::new();
        for (subject, series) in old.subjects() {
            places.insert((subject.kind, subject.name, subject.incarnation, labels(&subject)), series);
        }
        let (mut values, mut present) = (vec![0; new.len()], vec![0; new.set_bytes()]);
        let mut offsets = if self.offsets.is_empty() { Vec::new() } else { vec![Offset::default(); new.len()] };
        for (subject, series) in new.subjects() {
            let key = (subject.kind, subject.name, subject.incarnation, labels(&subject));
            let Some(old_series) = places.get(&key) else { continue };
            for to in series {
                let Some(metric) = new.metric(to) else { continue };
                let from = old_series.clone().find(|i| old.metric(*i).is_some_and(|had| had.id == metric.id));
                let Some(from) = from else { continue };
                if let (Some(slot), Some(value)) = (values.get_mut(to), carried.values.get(from)) {
                    *slot = *value;
                }
                bits::put(&mut present, to, bits::get(&carried.present, from));
                if let (Some(slot), Some(offset)) = (offsets.get_mut(to), self.offsets.get(from)) {
                    *slot = *offset;
                }
            }
        }
        (carried.values, carried.present) = (values, present);
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
