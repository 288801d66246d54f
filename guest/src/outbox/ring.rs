//! The outbox's 16 KiB image: headers and a ring of records, in a form that a process may leave at any write.
//!
//! Pure: every change is made to the image in memory and handed out as a write to be repeated on the file.
//!
//! ```text
//! 0    header A   magic, version of the header, boot id, stream, base, tail, first lost, time of loss, crc
//! 128  header B   the same; the valid one with the higher version counts, the next is written over the other
//! 256  records    length u16, kind u16, number u64, boot time u64, body, crc; bytes wrap around the end
//! ```
//!
//! Records are numbered through all streams and never twice, and a record counts only if its crc is right and its
//! number is the one expected: what an earlier lap left behind never matches. An event's sequence in its stream is
//! its number less the header's base, so a new stream takes over what is unsent by one header write.
//!
//! When a record finds no room the oldest go. In their place stands one `events_dropped` that takes no room: it has
//! the sequence of the last one dropped, and it counts back to the first that the reader has not seen.

use informant_wire::crc32::{Crc32, crc32};
use informant_wire::event::{Dropped, Event, EventKind};
use informant_wire::id::{BootId, StreamId};
use informant_wire::limits::MAX_EVENT_BODY;

/// Bytes of the file.
pub(super) const SIZE: usize = 16 * 1024;
const SLOT: usize = 128;
const RING: usize = 2 * SLOT;
const RING_BYTES: usize = SIZE - RING;
const MAGIC: [u8; 8] = *b"INFMOBX1";
/// Length, kind, number, boot time.
const RECORD_HEAD: usize = 2 + 2 + 8 + 8;
const RECORD_TAIL: usize = 4;
const MAX_RECORD: usize = RECORD_HEAD + MAX_EVENT_BODY + RECORD_TAIL;
const HEADER: usize = 8 + 8 + 16 + 8 + 8 + 8 + 8 + 8 + 8;

/// Takes a write: an offset in the file, and the bytes.
pub(super) type Write<'a> = &'a mut dyn FnMut(usize, &[u8]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    version: u64,
    boot: BootId,
    stream: StreamId,
    /// Number less sequence.
    base: u64,
    /// Offset of the oldest record from the start of the ring.
    tail: usize,
    /// Its number.
    tail_number: u64,
    /// Number of the first record that was dropped unacknowledged; the tail's for none.
    first_lost: u64,
    /// When the last one was dropped.
    lost_us: u64,
}

impl Header {
    fn read(slot: &[u8]) -> Option<Self> {
        let (body, crc) = slot.get(..HEADER + 4)?.split_at_checked(HEADER)?;
        let crc = u32::from_le_bytes(crc.try_into().ok()?);
        let mut words = body.chunks_exact(8).map(|word| <[u8; 8]>::try_from(word).unwrap_or_default());
        let magic = words.next()?;
        if magic != MAGIC || crc32(body) != crc {
            return None;
        }
        let version = u64::from_le_bytes(words.next()?);
        let mut boot = [0; 16];
        for half in boot.chunks_exact_mut(8) {
            half.copy_from_slice(&words.next()?);
        }
        let mut next = || words.next().map(u64::from_le_bytes);
        let header = Self {
            version,
            boot: BootId(boot),
            stream: StreamId(next()?),
            base: next()?,
            tail: usize::try_from(next()?).ok()?,
            tail_number: next()?,
            first_lost: next()?,
            lost_us: next()?,
        };
        let sound =
            header.tail < RING_BYTES && header.base < header.first_lost && header.first_lost <= header.tail_number;
        sound.then_some(header)
    }

    fn bytes(&self) -> [u8; HEADER + 4] {
        let mut bytes = [0; HEADER + 4];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(to) = bytes.get_mut(at..at + part.len()) {
                to.copy_from_slice(part);
            }
            at += part.len();
        };
        put(&MAGIC);
        put(&self.version.to_le_bytes());
        put(&self.boot.0);
        put(&self.stream.0.to_le_bytes());
        put(&self.base.to_le_bytes());
        put(&(self.tail as u64).to_le_bytes());
        put(&self.tail_number.to_le_bytes());
        put(&self.first_lost.to_le_bytes());
        put(&self.lost_us.to_le_bytes());
        let (body, crc) = bytes.split_at_mut(HEADER);
        crc.copy_from_slice(&crc32(body).to_le_bytes());
        bytes
    }
}

struct Record {
    length: usize,
    kind: EventKind,
    number: u64,
    boot_time_us: u64,
}

/// What an earlier process of the agent left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing was ever written.
    Nothing,
    /// Events of this boot: stream and sequences go on.
    ThisBoot,
    /// Another boot's, with this many undelivered.
    OtherBoot(u64),
    /// Something that can not be read.
    Unreadable,
}

/// The image and where its records begin and end.
#[derive(Debug)]
pub(super) struct Ring {
    image: Box<[u8; SIZE]>,
    header: Header,
    /// Bytes from the tail to the end of the newest record.
    used: usize,
    /// The number the next record gets.
    next_number: u64,
}

impl Ring {
    /// An empty image with nothing in it: [`Self::begin`] makes it usable.
    pub(super) fn new() -> Self {
        let header = Header { tail_number: 1, first_lost: 1, ..Header::default() };
        Self { image: Box::new([0; SIZE]), header, used: 0, next_number: 1 }
    }

    /// Reads an image that an earlier process left.
    pub(super) fn recover(bytes: &[u8], boot: BootId) -> (Self, Left) {
        let mut ring = Self::new();
        if bytes.len() != SIZE {
            return (ring, Left::Unreadable);
        }
        ring.image.copy_from_slice(bytes);
        let headers = [0, SLOT].map(|at| ring.image.get(at..at + SLOT).and_then(Header::read));
        let Some(header) = headers.into_iter().flatten().max_by_key(|header| header.version) else {
            let blank = ring.image.iter().all(|byte| *byte == 0);
            // Leftovers must never match later: their numbers are unknown.
            ring.image.fill(0);
            return (ring, if blank { Left::Nothing } else { Left::Unreadable });
        };
        ring.header = header;
        ring.next_number = header.tail_number;
        while let Some(record) = ring.record(ring.used, ring.next_number) {
            if ring.used + record.length > RING_BYTES {
                break;
            }
            ring.used += record.length;
            ring.next_number += 1;
        }
        let left =
            if header.boot == boot { Left::ThisBoot } else { Left::OtherBoot(ring.next_number - header.first_lost) };
        (ring, left)
    }

    /// The whole image.
    pub(super) fn image(&self) -> &[u8; SIZE] {
        &self.image
    }

    /// Begins a stream in which nothing has happened.
    pub(super) fn begin(&mut self, boot: BootId, stream: StreamId, write: Write<'_>) {
        let number = self.next_number;
        let tail = (self.header.tail + self.used) % RING_BYTES;
        self.used = 0;
        let header =
            Header { boot, stream, base: number - 1, tail, tail_number: number, first_lost: number, ..self.header };
        self.put_header(header, write);
    }

    /// Begins a stream that takes over what is pending, from sequence 1.
    pub(super) fn move_to(&mut self, stream: StreamId, write: Write<'_>) {
        let header = Header { stream, base: self.header.first_lost - 1, ..self.header };
        self.put_header(header, write);
    }

    /// The stream.
    pub(super) fn stream(&self) -> StreamId {
        self.header.stream
    }

    /// The sequence the next event gets.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_number - self.header.base
    }

    /// The sequence of the oldest event that is not acknowledged, dropped or not; the next one's for none.
    pub(super) fn first_pending(&self) -> u64 {
        self.header.first_lost - self.header.base
    }

    /// Keeps an event; returns how many older ones had to go. A body over the limit of the protocol is cut.
    pub(super) fn append(&mut self, kind: EventKind, boot_time_us: u64, body: &[u8], write: Write<'_>) -> u64 {
        let body = body.get(..MAX_EVENT_BODY).unwrap_or(body);
        let length = RECORD_HEAD + body.len() + RECORD_TAIL;
        let mut header = self.header;
        while self.used + length > RING_BYTES {
            let Some(record) = self.record(0, header.tail_number) else { break };
            self.used -= record.length;
            header.tail = (header.tail + record.length) % RING_BYTES;
            header.tail_number += 1;
            header.lost_us = boot_time_us;
            self.header.tail = header.tail;
        }
        let dropped = header.tail_number - self.header.tail_number;
        if dropped > 0 {
            // Before the record goes over the old ones: a process that ends in between has lost nothing silently.
            self.put_header(header, write);
        }
        let mut record = [0; MAX_RECORD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(to) = record.get_mut(at..at + part.len()) {
                to.copy_from_slice(part);
            }
            at += part.len();
        };
        put(&u16::try_from(length).unwrap_or_default().to_le_bytes());
        put(&kind.0.to_le_bytes());
        put(&self.next_number.to_le_bytes());
        put(&boot_time_us.to_le_bytes());
        put(body);
        let (covered, crc) = record.split_at_mut(RECORD_HEAD + body.len());
        if let Some(crc) = crc.get_mut(..RECORD_TAIL) {
            crc.copy_from_slice(&crc32(covered).to_le_bytes());
        }
        self.put_ring(self.used, record.get(..length).unwrap_or_default(), write);
        self.used += length;
        self.next_number += 1;
        dropped
    }

    /// Forgets events up to `sequence`; a sequence that was never given is taken for the newest.
    pub(super) fn acknowledge(&mut self, sequence: u64, write: Write<'_>) {
        let number = sequence.saturating_add(self.header.base).min(self.next_number - 1);
        if number < self.header.first_lost {
            return;
        }
        let mut header = self.header;
        while header.tail_number <= number {
            let Some(record) = self.record(0, header.tail_number) else { break };
            self.used -= record.length;
            header.tail = (header.tail + record.length) % RING_BYTES;
            header.tail_number += 1;
            self.header.tail = header.tail;
        }
        header.first_lost = number + 1;
        self.put_header(header, write);
    }

    /// The first event that a reader at `cursor` has not seen; dropped ones as the one event that says so.
    /// `body` lends room for its body.
    pub(super) fn read<'b>(&self, cursor: u64, body: &'b mut [u8; MAX_EVENT_BODY]) -> Option<Event<'b>> {
        let Header { base, tail_number, first_lost, lost_us, .. } = self.header;
        let number = cursor.saturating_add(base).max(first_lost);
        if number < tail_number {
            let dropped = Dropped { count: Some(tail_number - number) };
            let used = postcard::to_slice(&dropped, body).map(|used| used.len()).ok()?;
            return Some(Event {
                sequence: tail_number - 1 - base,
                boot_time_us: lost_us,
                kind: EventKind::DROPPED,
                body: body.get(..used)?,
            });
        }
        let mut offset = 0;
        let mut at = tail_number;
        loop {
            if offset >= self.used {
                return None;
            }
            let record = self.record_head(offset)?;
            if at == number {
                let to = body.get_mut(..record.length - RECORD_HEAD - RECORD_TAIL)?;
                self.get_ring(offset + RECORD_HEAD, to);
                let Record { kind, boot_time_us, .. } = record;
                return Some(Event { sequence: number - base, boot_time_us, kind, body: to });
            }
            offset += record.length;
            at += 1;
        }
    }

    fn put_header(&mut self, header: Header, write: Write<'_>) {
        self.header = Header { version: self.header.version + 1, ..header };
        let at = if self.header.version.is_multiple_of(2) { 0 } else { SLOT };
        let bytes = self.header.bytes();
        if let Some(to) = self.image.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(&bytes);
        }
        write(at, &bytes);
    }

    /// Writes behind the tail by `offset`, around the end of the ring.
    fn put_ring(&mut self, offset: usize, bytes: &[u8], write: Write<'_>) {
        let at = (self.header.tail + offset) % RING_BYTES;
        let (first, second) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        for (at, part) in [(RING + at, first), (RING, second)] {
            if let Some(to) = self.image.get_mut(at..at + part.len())
                && !part.is_empty()
            {
                to.copy_from_slice(part);
                write(at, part);
            }
        }
    }

    fn get_ring(&self, offset: usize, into: &mut [u8]) {
        let at = (self.header.tail + offset) % RING_BYTES;
        let (first, second) = into.split_at_mut(into.len().min(RING_BYTES - at));
        for (at, part) in [(RING + at, first), (RING, second)] {
            if let Some(from) = self.image.get(at..at + part.len()) {
                part.copy_from_slice(from);
            }
        }
    }

    fn record_head(&self, offset: usize) -> Option<Record> {
        let mut head = [0; RECORD_HEAD];
        self.get_ring(offset, &mut head);
        let [l0, l1, k0, k1, rest @ ..] = head;
        let (number, time) = rest.split_at(8);
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        (RECORD_HEAD + RECORD_TAIL..=MAX_RECORD).contains(&length).then_some(Record {
            length,
            kind: EventKind(u16::from_le_bytes([k0, k1])),
            number: u64::from_le_bytes(number.try_into().ok()?),
            boot_time_us: u64::from_le_bytes(time.try_into().ok()?),
        })
    }

    /// The record at an offset, if it is whole and has that number.
    fn record(&self, offset: usize, number: u64) -> Option<Record> {
        let record = self.record_head(offset)?;
        let mut bytes = [0; MAX_RECORD];
        let bytes = bytes.get_mut(..record.length)?;
        self.get_ring(offset, bytes);
        let (covered, crc) = bytes.split_at_checked(record.length - RECORD_TAIL)?;
        let right = Crc32::default().update(covered).value().to_le_bytes() == *crc;
        (right && record.number == number).then_some(record)
    }
}

#[cfg(test)]
mod tests;
