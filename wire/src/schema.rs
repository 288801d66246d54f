//! Schema: which series a session's samples carry, in which order. `SchemaPart*` then `SchemaEnd`; the new schema
//! holds for the samples behind `SchemaEnd` that carry its generation.

use crate::crc32::Crc32;
use crate::frame::{DecodeError, EncodeError, encode, encode_with, kind};
use crate::limits::{
    MAX_BODY, MAX_LABEL_KEY, MAX_LABELS, MAX_METRIC_RANGES, MAX_NAME, MAX_SCHEMA_BYTES, MAX_SERIES, MAX_SUBJECTS,
};
use crate::metric::{MetricId, SubjectKind};
use crate::varint;
use serde::{Deserialize, Serialize};

/// The order in which subjects give way when there are more than [`MAX_SERIES`] series, [`MAX_SUBJECTS`] subjects or
/// [`MAX_SCHEMA_BYTES`]: kinds from the front first, and within a kind the last listed first. The VM's own series are
/// never cut.
pub const CUT_ORDER: [SubjectKind; 6] = [
    SubjectKind::CGROUP_DISK,
    SubjectKind::FILESYSTEM,
    SubjectKind::CGROUP,
    SubjectKind::NETWORK,
    SubjectKind::DISK,
    SubjectKind::CPU,
];

/// A label of a subject besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label<'a> {
    /// `[a-z_]+`, at most 32 bytes.
    pub key: &'a str,
    /// Any bytes, at most 255.
    pub value: &'a [u8],
}

/// Consecutive metric ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricRange {
    /// The first id.
    pub first: MetricId,
    /// How many; at least one.
    pub count: u16,
}

/// What some series are about. The same name with another incarnation is a new series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject<'a> {
    /// What kind of thing it is.
    pub kind: SubjectKind,
    /// Its name in the guest, any bytes, at most 255; empty for the VM.
    #[serde(borrow)]
    pub name: &'a [u8],
    /// Further labels.
    pub labels: heapless::Vec<Label<'a>, MAX_LABELS>,
    /// Tells it from an earlier one of the same name: cgroup inode, device number and diskseq, ifindex.
    pub incarnation: u64,
    /// Its series, in order.
    pub metrics: heapless::Vec<MetricRange, MAX_METRIC_RANGES>,
}

impl Subject<'_> {
    /// How many series it has.
    #[must_use]
    pub fn series(&self) -> usize {
        self.metrics.iter().map(|range| usize::from(range.count)).sum()
    }

    fn is_valid(&self) -> bool {
        self.name.len() <= MAX_NAME
            && self.labels.iter().all(|label| {
                label.value.len() <= MAX_NAME
                    && (1..=MAX_LABEL_KEY).contains(&label.key.len())
                    && label.key.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
            })
            && self.metrics.iter().all(|range| range.count > 0 && range.first.0.checked_add(range.count - 1).is_some())
    }
}

/// Some subjects of the schema that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaPart<'a> {
    /// Which schema.
    pub generation: u32,
    /// Subjects in this part.
    pub count: usize,
    subjects: &'a [u8],
}

impl<'a> SchemaPart<'a> {
    /// Decodes the body, down to each subject.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let ((generation, count), subjects): ((u32, u32), _) =
            postcard::take_from_bytes(body).map_err(|_| DecodeError::Malformed)?;
        let count = usize::try_from(count).map_err(|_| DecodeError::Malformed)?;
        if count > MAX_SUBJECTS {
            return Err(DecodeError::Malformed);
        }
        let part = Self { generation, count, subjects };
        let mut rest = subjects;
        for _ in 0..count {
            let (subject, behind) =
                postcard::take_from_bytes::<Subject<'_>>(rest).map_err(|_| DecodeError::Malformed)?;
            if !subject.is_valid() {
                return Err(DecodeError::Malformed);
            }
            rest = behind;
        }
        if rest.is_empty() { Ok(part) } else { Err(DecodeError::Trailing) }
    }

    /// The subjects, in order.
    pub fn subjects(&self) -> impl Iterator<Item = Subject<'a>> + use<'a> {
        let mut rest = self.subjects;
        (0..self.count).map_while(move |_| {
            let (subject, behind) = postcard::take_from_bytes(rest).ok()?;
            rest = behind;
            Some(subject)
        })
    }
}

/// The schema is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaEnd {
    /// Which schema.
    pub generation: u32,
    /// Subjects in all parts.
    pub subjects: u32,
    /// [`Crc32`] over the bodies of all parts, in order.
    pub crc32: u32,
}

/// Writes a schema as frames, as many subjects in a part as fit.
#[derive(Debug)]
pub struct SchemaWriter {
    generation: u32,
    subjects: u32,
    crc: Crc32,
}

impl SchemaWriter {
    /// A schema with no subjects yet.
    #[must_use]
    pub fn new(generation: u32) -> Self {
        Self { generation, subjects: 0, crc: Crc32::default() }
    }

    /// Writes one part with as many of `subjects` as fit `out` (and a frame), and returns the frame's bytes and how
    /// many subjects it took. An error when not even the first fits.
    pub fn part<'a>(
        &mut self,
        out: &mut [u8],
        subjects: impl Iterator<Item = Subject<'a>>,
    ) -> Result<(usize, usize), EncodeError> {
        const HEAD: usize = 10;
        let mut taken = 0_u32;
        let generation = self.generation;
        let length = encode_with(out, kind::SCHEMA_PART, |body| {
            let mut end = HEAD;
            for subject in subjects.take(MAX_SUBJECTS) {
                let room = body.get_mut(end..).ok_or(EncodeError)?;
                let Ok(used) = postcard::to_slice(&subject, room) else { break };
                end += used.len();
                taken += 1;
            }
            if taken == 0 {
                return Err(EncodeError);
            }
            // The head's length is known only now: write it, then close the gap.
            let at = varint::write(body, 0, u64::from(generation)).ok_or(EncodeError)?;
            let at = varint::write(body, at, u64::from(taken)).ok_or(EncodeError)?;
            body.copy_within(HEAD..end, at);
            Ok(at + end - HEAD)
        })?;
        self.crc = self.crc.update(out.get(3..length).unwrap_or_default());
        self.subjects += taken;
        Ok((length, taken as usize))
    }

    /// Writes the frame that ends the schema.
    pub fn end(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let end = SchemaEnd { generation: self.generation, subjects: self.subjects, crc32: self.crc.value() };
        encode(out, kind::SCHEMA_END, &end)
    }
}

/// Why a schema is not taken. Fatal for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaError {
    /// A part of another generation than the parts before it, or an end without its parts.
    Generation,
    /// Subjects or bytes are missing, or not those that were sent.
    Incomplete,
    /// More than [`MAX_SUBJECTS`] subjects or [`MAX_SERIES`] series.
    TooLarge,
    /// More than [`MAX_SCHEMA_BYTES`] in the bodies of its parts.
    TooManyBytes,
}

impl core::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Generation => "schema part of another generation",
            Self::Incomplete => "schema does not match its checksum",
            Self::TooLarge => "schema over the limit of subjects or series",
            Self::TooManyBytes => "schema over the limit of bytes",
        })
    }
}

impl core::error::Error for SchemaError {}

/// Checks the parts of one schema as they arrive; what is in them is the reader's to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemaReader {
    generation: Option<u32>,
    subjects: usize,
    series: usize,
    bytes: usize,
    crc: Crc32,
}

impl SchemaReader {
    /// Takes the next part. `body`: the bytes it was decoded from.
    pub fn part(&mut self, part: &SchemaPart<'_>, body: &[u8]) -> Result<(), SchemaError> {
        if *self.generation.get_or_insert(part.generation) != part.generation {
            return Err(SchemaError::Generation);
        }
        self.subjects += part.count;
        self.series += part.subjects().map(|subject| subject.series()).sum::<usize>();
        self.bytes = self.bytes.saturating_add(body.len());
        self.crc = self.crc.update(body);
        if self.subjects > MAX_SUBJECTS || self.series > MAX_SERIES {
            return Err(SchemaError::TooLarge);
        }
        if self.bytes > MAX_SCHEMA_BYTES { Err(SchemaError::TooManyBytes) } else { Ok(()) }
    }

    /// Takes the end and gives the number of series. The reader is empty again afterwards.
    pub fn end(&mut self, end: &SchemaEnd) -> Result<usize, SchemaError> {
        let seen = core::mem::take(self);
        if seen.generation.is_some_and(|generation| generation != end.generation) {
            return Err(SchemaError::Generation);
        }
        if usize::try_from(end.subjects) != Ok(seen.subjects) || seen.crc.value() != end.crc32 {
            return Err(SchemaError::Incomplete);
        }
        Ok(seen.series)
    }
}

/// A name that fits [`MAX_NAME`]: as it is, or its first 238 bytes, `~`, and 16 hexadecimal digits of the FNV-1a
/// hash of the whole, so that two long names that differ stay distinct.
pub fn shorten<'a>(name: &'a [u8], buffer: &'a mut [u8; MAX_NAME]) -> &'a [u8] {
    if name.len() <= MAX_NAME {
        return name;
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    for (i, to) in buffer.iter_mut().enumerate() {
        *to = match i {
            0..238 => name.get(i).copied().unwrap_or_default(),
            238 => b'~',
            _ => {
                let nibble = (hash >> (4 * (254_usize.saturating_sub(i)))) & 0xf;
                b"0123456789abcdef".get(usize::try_from(nibble).unwrap_or_default()).copied().unwrap_or_default()
            }
        };
    }
    buffer
}

const _: () = assert!(
    MAX_BODY > 10 + MAX_NAME * (1 + MAX_LABELS) + MAX_LABELS * (MAX_LABEL_KEY + 4) + MAX_METRIC_RANGES * 6 + 32,
    "a part holds at least the largest subject"
);
