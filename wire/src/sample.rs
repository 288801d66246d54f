//! Samples: one row of values, coded against the row before it on the same connection.
//!
//! Body: varint generation, varint sequence, varint boot time in microseconds, u8 flags, the absent set where the
//! flags say so, the changed set, values. A bit set has one bit a series ([`crate::bits`]). A delta sample has, for
//! each changed series, the zigzag varint of `new - old` (wrapping 64-bit); a series that was absent has old 0.
//! A key frame has the plain varint of *every* present series; its changed set still tells what changed, so that the
//! reader can compare what did not with what it holds.

use crate::bits;
use crate::frame::{DecodeError, EncodeError, encode_with, kind};
use crate::limits::{MAX_SERIES, max_sample_body};
use crate::varint::{read, unzigzag, write, zigzag};

/// Flag: every present value stands in full.
const KEY: u8 = 1;
/// Flag: the absent set stands before the changed set. Without it the absent set is that of the sample before.
const ABSENT: u8 = 2;

/// What a sample says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleHead {
    /// The schema that it follows.
    pub generation: u32,
    /// Counts samples taken by this agent process; gaps are samples that were never sent.
    pub sequence: u64,
    /// `CLOCK_BOOTTIME` when it was taken, microseconds.
    pub boot_time_us: u64,
}

/// One row: a value a series, and a bit for those that are present.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// In wire units; what stands at an absent series means nothing.
    pub values: &'a [u64],
    /// At least [`bits::bytes_for`] of the values.
    pub present: &'a [u8],
}

/// The row a connection's next delta starts from, in buffers that the caller keeps.
#[derive(Debug)]
pub struct Base<'a> {
    /// A value a series; 0 where it is absent.
    pub values: &'a mut [u64],
    /// A bit a series.
    pub present: &'a mut [u8],
}

/// Writes one sample frame to `out` and moves `base` to `row`. `key`: as a key frame; the first sample of a schema
/// must be one, with a `base` of nothing present. `out` must hold the largest sample of that many series
/// ([`max_sample_body`] and 3): else, and when the buffers disagree, an error, and `base` is untouched.
pub fn encode(
    out: &mut [u8],
    head: SampleHead,
    key: bool,
    row: Row<'_>,
    base: &mut Base<'_>,
) -> Result<usize, EncodeError> {
    let series = row.values.len();
    let bytes = bits::bytes_for(series);
    let fits = series <= MAX_SERIES && out.len() >= 3 + max_sample_body(series) && base.values.len() == series;
    let (Some(present), Some(was_present), true) = (row.present.get(..bytes), base.present.get_mut(..bytes), fits)
    else {
        return Err(EncodeError);
    };
    encode_with(out, kind::SAMPLE, |body| {
        // Everything fits from here on: the worst case was checked.
        let absent_set = key || present != &*was_present;
        let at = write(body, 0, u64::from(head.generation)).ok_or(EncodeError)?;
        let at = write(body, at, head.sequence).ok_or(EncodeError)?;
        let at = write(body, at, head.boot_time_us).ok_or(EncodeError)?;
        let (flags, sets) = body.get_mut(at..).and_then(<[u8]>::split_first_mut).ok_or(EncodeError)?;
        *flags = if key { KEY } else { 0 } | if absent_set { ABSENT } else { 0 };
        let mut at = at + 1;
        if absent_set {
            for (i, to) in sets.get_mut(..bytes).ok_or(EncodeError)?.iter_mut().enumerate() {
                *to = !present.get(i).copied().unwrap_or_default();
                if i == series / 8 {
                    *to &= (1 << (series % 8)) - 1;
                }
            }
            at += bytes;
        }
        let changed_at = at;
        body.get_mut(at..at + bytes).ok_or(EncodeError)?.fill(0);
        at += bytes;
        // Eight series a step: one byte of each set.
        let eights = row.values.chunks(8).zip(base.values.chunks_mut(8)).zip(present.iter().zip(&*was_present));
        for (i, ((new, old), (present, was_present))) in eights.enumerate() {
            let mut changed = 0_u8;
            for (bit, (new, old)) in new.iter().zip(old).enumerate() {
                let mask = 1_u8 << bit;
                if present & mask == 0 {
                    *old = 0;
                    continue;
                }
                let is_changed = *new != *old || was_present & mask == 0;
                if is_changed {
                    changed |= mask;
                }
                if key {
                    at = write(body, at, *new).ok_or(EncodeError)?;
                } else if is_changed {
                    at = write(body, at, zigzag(new.wrapping_sub(*old).cast_signed())).ok_or(EncodeError)?;
                }
                *old = *new;
            }
            *body.get_mut(changed_at + i).ok_or(EncodeError)? = changed;
        }
        was_present.copy_from_slice(present);
        Ok(at)
    })
}

/// A sample whose values are not read yet: that needs the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleBody<'a> {
    /// What it says of itself.
    pub head: SampleHead,
    flags: u8,
    rest: &'a [u8],
}

/// The parts behind the head.
struct Sets<'a> {
    absent: Option<&'a [u8]>,
    changed: &'a [u8],
    values: &'a [u8],
}

/// What applying a sample found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// It was a key frame.
    pub key: bool,
    /// Series of a key frame that it calls unchanged but whose value or presence differs from what was held.
    pub mismatches: usize,
}

impl<'a> SampleBody<'a> {
    /// Decodes the head.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let parsed = || {
            let (generation, at) = read(body, 0)?;
            let (sequence, at) = read(body, at)?;
            let (boot_time_us, at) = read(body, at)?;
            let (flags, rest) = body.get(at..)?.split_first()?;
            let generation = u32::try_from(generation).ok()?;
            Some(Self { head: SampleHead { generation, sequence, boot_time_us }, flags: *flags, rest })
        };
        parsed().filter(|sample| sample.flags & !(KEY | ABSENT) == 0).ok_or(DecodeError::Malformed)
    }

    /// Whether it stands on its own: the first of a schema must.
    #[must_use]
    pub const fn is_key(&self) -> bool {
        self.flags & KEY != 0
    }

    fn sets(&self, series: usize) -> Result<Sets<'a>, DecodeError> {
        let mut values = self.rest;
        let mut take_set = || {
            let (set, behind) = values.split_at_checked(bits::bytes_for(series)).ok_or(DecodeError::Malformed)?;
            values = behind;
            if bits::padding_is_zero(set, series) { Ok(set) } else { Err(DecodeError::Malformed) }
        };
        let absent = if self.flags & ABSENT != 0 { Some(take_set()?) } else { None };
        let changed = take_set()?;
        Ok(Sets { absent, changed, values })
    }

    /// Moves `base` (as many values as the schema has series, 0 where absent) to this sample. On an error `base` is as
    /// it was.
    pub fn apply(&self, base: &mut Base<'_>) -> Result<Applied, DecodeError> {
        self.apply_each(base, |_, _, _| {})
    }

    /// The same, and calls `moved` with each series that may have another value now: its number, the value before (0
    /// where it was absent), and the value now, `None` where it became absent. A delta leaves out what did not change:
    /// its cost grows with what did, not with how many series there are.
    pub fn apply_each(
        &self,
        base: &mut Base<'_>,
        mut moved: impl FnMut(usize, u64, Option<u64>),
    ) -> Result<Applied, DecodeError> {
        let series = base.values.len();
        let Sets { absent, changed, values: coded } = self.sets(series)?;
        let was_present = base.present.get_mut(..changed.len()).ok_or(DecodeError::Malformed)?;
        let key = self.is_key();
        if key && absent.is_none() {
            return Err(DecodeError::Malformed);
        }
        let full = |at: usize| if at == series / 8 { (1 << (series % 8)) - 1 } else { u8::MAX };
        let is_present = |was_present: &[u8], at: usize| match absent {
            Some(absent) => !absent.get(at).copied().unwrap_or(u8::MAX) & full(at),
            None => was_present.get(at).copied().unwrap_or(0),
        };

        // First all of it must be there, so that a bad sample changes nothing.
        let mut count = 0;
        for (at, changed) in changed.iter().enumerate() {
            let present = is_present(was_present, at);
            if changed & !present != 0 {
                return Err(DecodeError::Malformed);
            }
            count += if key { present } else { *changed }.count_ones();
        }
        let mut end = 0;
        for _ in 0..count {
            end = read(coded, end).ok_or(DecodeError::Malformed)?.1;
        }
        if end != coded.len() {
            return Err(DecodeError::Trailing);
        }

        let mut applied = Applied { key, mismatches: 0 };
        let mut end = 0;
        let mut next = || {
            let (value, behind) = read(coded, end)?;
            end = behind;
            Some(value)
        };
        if key {
            for i in bits::ones((0..changed.len()).map(|at| is_present(was_present, at))) {
                let (Some(value), Some(new)) = (base.values.get_mut(i), next()) else { break };
                let differs = *value != new || !bits::get(was_present, i);
                applied.mismatches += usize::from(differs && !bits::get(changed, i));
                moved(i, core::mem::replace(value, new), Some(new));
            }
        } else {
            for i in bits::ones(changed.iter().copied()) {
                let (Some(value), Some(step)) = (base.values.get_mut(i), next()) else { break };
                let new = value.wrapping_add(unzigzag(step).cast_unsigned());
                moved(i, core::mem::replace(value, new), Some(new));
            }
        }
        if absent.is_some() {
            for at in 0..was_present.len() {
                let is = is_present(was_present, at);
                let Some(was) = was_present.get_mut(at) else { break };
                let had = core::mem::replace(was, is);
                for i in bits::ones([had & !is]) {
                    if let Some(value) = base.values.get_mut(at * 8 + i) {
                        moved(at * 8 + i, core::mem::take(value), None);
                    }
                }
                let said = if key { u8::MAX } else { changed.get(at).copied().unwrap_or(0) };
                for i in bits::ones([is & !had & !said]) {
                    // A newcomer that is called unchanged has the value that newcomers are coded against.
                    moved(at * 8 + i, 0, Some(0));
                }
            }
        }
        Ok(applied)
    }
}
