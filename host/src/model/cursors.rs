//! How far each event stream of an instance has been stored: what makes "exactly once" of "at least once".

use informant_wire::id::{BootId, StreamId};

/// Streams remembered for one instance. A boot has one a writable /run and as many as there were agents otherwise;
/// the one not used for the longest time is forgotten first.
pub const MAX_STREAMS: usize = 64;

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Store it; `missed` sequence numbers before it never came.
    Store {
        /// Numbers left out.
        missed: u64,
    },
    /// It was taken before.
    Repeated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    boot: BootId,
    stream: StreamId,
    /// The highest that was handed to the writer.
    taken: u64,
    /// The highest that is in the file.
    stored: u64,
}

/// The cursors of one instance, least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursors(Vec<Cursor>);

impl Cursors {
    fn touch(&mut self, boot: BootId, stream: StreamId) -> Option<&mut Cursor> {
        match self.0.iter().position(|cursor| (cursor.boot, cursor.stream) == (boot, stream)) {
            Some(at) => {
                let cursor = self.0.remove(at);
                self.0.push(cursor);
            }
            None => {
                if self.0.len() >= MAX_STREAMS {
                    self.0.remove(0);
                }
                self.0.push(Cursor { boot, stream, taken: 0, stored: 0 });
            }
        }
        self.0.last_mut()
    }

    /// An event as read back from the log.
    pub fn restore(&mut self, boot: BootId, stream: StreamId, sequence: u64) {
        if let Some(cursor) = self.touch(boot, stream) {
            cursor.taken = cursor.taken.max(sequence);
            cursor.stored = cursor.taken;
        }
    }

    /// An event as it arrives. `first`: the lowest sequence that the session announced in its Hello.
    pub fn take(&mut self, boot: BootId, stream: StreamId, first: u64, sequence: u64) -> Verdict {
        let Some(cursor) = self.touch(boot, stream) else { return Verdict::Repeated };
        if sequence <= cursor.taken {
            return Verdict::Repeated;
        }
        // Numbers below what the session announced were lost before it began, and the guest says so by an event.
        let expected = (cursor.taken + 1).max(first);
        cursor.taken = sequence;
        Verdict::Store { missed: sequence.saturating_sub(expected) }
    }

    /// Events up to `sequence` are in the file.
    pub fn stored(&mut self, boot: BootId, stream: StreamId, sequence: u64) {
        if let Some(cursor) = self.0.iter_mut().find(|cursor| (cursor.boot, cursor.stream) == (boot, stream)) {
            cursor.stored = cursor.stored.max(sequence);
        }
    }

    /// The file could not be written: what is not in it will have to come again.
    pub fn failed(&mut self) {
        for cursor in &mut self.0 {
            cursor.taken = cursor.stored;
        }
    }

    /// The highest stored sequence of a stream; 0 for none.
    #[must_use]
    pub fn last(&self, boot: BootId, stream: StreamId) -> u64 {
        self.0.iter().find(|cursor| (cursor.boot, cursor.stream) == (boot, stream)).map_or(0, |cursor| cursor.stored)
    }

    /// All streams with their highest stored sequence, least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (BootId, StreamId, u64)> {
        self.0.iter().map(|cursor| (cursor.boot, cursor.stream, cursor.stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId([1; 16]);
    const STREAM: StreamId = StreamId(5);

    #[test]
    fn repeated_events_are_known_and_gaps_are_counted() {
        let mut cursors = Cursors::default();
        assert_eq!(cursors.take(BOOT, STREAM, 1, 1), Verdict::Store { missed: 0 });
        assert_eq!(cursors.take(BOOT, STREAM, 1, 1), Verdict::Repeated);
        assert_eq!(cursors.take(BOOT, STREAM, 1, 5), Verdict::Store { missed: 3 });
        assert_eq!(cursors.take(BOOT, STREAM, 9, 9), Verdict::Store { missed: 0 });
        assert_eq!(cursors.take(BOOT, StreamId(6), 1, 1), Verdict::Store { missed: 0 });
    }

    #[test]
    fn only_what_is_in_the_file_is_acknowledged_and_a_failed_write_is_asked_for_again() {
        let mut cursors = Cursors::default();
        cursors.take(BOOT, STREAM, 1, 1);
        cursors.take(BOOT, STREAM, 1, 2);
        assert_eq!(cursors.last(BOOT, STREAM), 0);
        cursors.stored(BOOT, STREAM, 1);
        cursors.failed();
        assert_eq!(cursors.last(BOOT, STREAM), 1);
        assert_eq!(cursors.take(BOOT, STREAM, 1, 2), Verdict::Store { missed: 0 });
    }

    #[test]
    fn the_oldest_stream_is_forgotten_first() {
        let mut cursors = Cursors::default();
        for stream in 0..=MAX_STREAMS as u64 {
            cursors.restore(BOOT, StreamId(stream), 7);
            cursors.restore(BOOT, StreamId(1), 8);
        }
        assert_eq!(cursors.last(BOOT, StreamId(0)), 0);
        assert_eq!(cursors.last(BOOT, StreamId(1)), 8);
        assert_eq!(cursors.iter().count(), MAX_STREAMS);
    }
}
