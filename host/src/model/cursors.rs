//! How far each event stream of an instance has been stored: what makes "exactly once" of "at least once".

use informant_wire::id::{BootId, StreamId};

/// Streams remembered for one instance. A boot has one a writable /run and as many as there were agents otherwise.
/// Each rank has its own places, where the stream not used for the longest time is forgotten first: nobody can make a
/// rank above forgotten.
pub const MAX_STREAMS: usize = Rank::Proven.places() + Rank::Agent.places() + Rank::Reporter.places();

/// The most trusted session that has spoken on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// An unproven reporter: any process of the guest.
    Reporter,
    /// An unproven agent, which speaks for the VM as long as nobody better is there.
    Agent,
    /// Root in the guest.
    Proven,
}

impl Rank {
    /// Of a session.
    #[must_use]
    pub const fn new(agent: bool, proven: bool) -> Self {
        match (proven, agent) {
            (true, _) => Self::Proven,
            (false, true) => Self::Agent,
            (false, false) => Self::Reporter,
        }
    }

    const fn places(self) -> usize {
        match self {
            Self::Proven => 64,
            Self::Agent | Self::Reporter => 32,
        }
    }
}

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
    rank: Rank,
    /// The highest that was handed to the writer.
    taken: u64,
    /// The highest that is in the file.
    stored: u64,
}

/// The cursors of one instance, least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursors(Vec<Cursor>);

impl Cursors {
    fn find(&self, boot: BootId, stream: StreamId) -> Option<usize> {
        self.0.iter().position(|cursor| (cursor.boot, cursor.stream) == (boot, stream))
    }

    fn touch(&mut self, boot: BootId, stream: StreamId, rank: Rank) -> Option<&mut Cursor> {
        let known = self.find(boot, stream).map(|at| self.0.remove(at));
        let mut cursor = known.unwrap_or(Cursor { boot, stream, rank, taken: 0, stored: 0 });
        cursor.rank = cursor.rank.max(rank);
        let mut peers = self.0.iter().enumerate().filter(|(_, other)| other.rank == cursor.rank);
        if let Some((oldest, _)) = peers.next()
            && peers.count() + 1 >= cursor.rank.places()
        {
            self.0.remove(oldest);
        }
        self.0.push(cursor);
        self.0.last_mut()
    }

    /// A session that speaks on a stream is proven now.
    pub fn prove(&mut self, boot: BootId, stream: StreamId) {
        if self.find(boot, stream).is_some() {
            self.touch(boot, stream, Rank::Proven);
        }
    }

    /// An event as read back from the log.
    pub fn restore(&mut self, boot: BootId, stream: StreamId, rank: Rank, sequence: u64) {
        if let Some(cursor) = self.touch(boot, stream, rank) {
            cursor.taken = cursor.taken.max(sequence);
            cursor.stored = cursor.taken;
        }
    }

    /// An event as it arrives. `first`: the lowest sequence that the session announced in its Hello.
    pub fn take(&mut self, boot: BootId, stream: StreamId, rank: Rank, first: u64, sequence: u64) -> Verdict {
        let Some(cursor) = self.touch(boot, stream, rank) else { return Verdict::Repeated };
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

    /// All streams with their rank and highest stored sequence, least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (BootId, StreamId, Rank, u64)> {
        self.0.iter().map(|cursor| (cursor.boot, cursor.stream, cursor.rank, cursor.stored))
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
        assert_eq!(cursors.take(BOOT, STREAM, Rank::Agent, 1, 1), Verdict::Store { missed: 0 });
        assert_eq!(cursors.take(BOOT, STREAM, Rank::Agent, 1, 1), Verdict::Repeated);
        assert_eq!(cursors.take(BOOT, STREAM, Rank::Agent, 1, 5), Verdict::Store { missed: 3 });
        assert_eq!(cursors.take(BOOT, STREAM, Rank::Agent, 9, 9), Verdict::Store { missed: 0 });
        assert_eq!(cursors.take(BOOT, StreamId(6), Rank::Agent, 1, 1), Verdict::Store { missed: 0 });
    }

    #[test]
    fn only_what_is_in_the_file_is_acknowledged_and_a_failed_write_is_asked_for_again() {
        let mut cursors = Cursors::default();
        cursors.take(BOOT, STREAM, Rank::Agent, 1, 1);
        cursors.take(BOOT, STREAM, Rank::Agent, 1, 2);
        assert_eq!(cursors.last(BOOT, STREAM), 0);
        cursors.stored(BOOT, STREAM, 1);
        cursors.failed();
        assert_eq!(cursors.last(BOOT, STREAM), 1);
        assert_eq!(cursors.take(BOOT, STREAM, Rank::Agent, 1, 2), Verdict::Store { missed: 0 });
    }

    #[test]
    fn the_oldest_stream_of_a_rank_is_forgotten_first_and_none_of_a_rank_above() {
        let mut cursors = Cursors::default();
        let [agent, proven, pending] = [1001, 1002, 1003].map(StreamId);
        cursors.restore(BOOT, agent, Rank::Agent, 7);
        cursors.restore(BOOT, proven, Rank::Proven, 8);
        cursors.restore(BOOT, pending, Rank::Agent, 9);
        cursors.prove(BOOT, pending);
        for stream in 0..100 {
            cursors.restore(BOOT, StreamId(stream), Rank::Reporter, 1);
            cursors.restore(BOOT, StreamId(0), Rank::Reporter, 2);
        }
        assert_eq!(cursors.last(BOOT, StreamId(0)), 2, "used all the time");
        assert_eq!((cursors.last(BOOT, StreamId(68)), cursors.last(BOOT, StreamId(69))), (0, 1));
        assert_eq!(cursors.last(BOOT, agent), 7);
        for stream in 200..300 {
            cursors.restore(BOOT, StreamId(stream), Rank::Agent, 1);
            // Who knows a proven stream's name does not lower it.
            cursors.restore(BOOT, pending, Rank::Reporter, 1);
        }
        assert_eq!(cursors.last(BOOT, agent), 0);
        for stream in 300..363 {
            cursors.restore(BOOT, StreamId(stream), Rank::Proven, 1);
        }
        assert_eq!((cursors.last(BOOT, proven), cursors.last(BOOT, pending)), (0, 9), "proven ones among themselves");
        assert_eq!(cursors.iter().count(), MAX_STREAMS);
    }
}
