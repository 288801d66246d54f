//! Events that no host has acknowledged, kept in `STATE/outbox` so that they outlive a killed agent.
//!
//! A record is in the file before it is sent, and leaves only when a host says it is stored: with the host's
//! `last_event` at the start of a session each event arrives exactly once, across `kill -9` of either side, but not
//! across the loss of the guest's memory (the state directory is meant to be a tmpfs).
//! Plain `pwrite` beside a copy in memory, not a mapping: a mapping needs `unsafe` and dies of SIGBUS when somebody
//! truncates the file; the page cache outlives the process either way. A write of at most 536 bytes to a tmpfs is a
//! memory copy, so the loop may make it.

mod ring;

use informant_wire::event::{Dropped, Event, EventKind};
use informant_wire::id::{BootId, StreamId};
use informant_wire::limits::MAX_EVENT_BODY;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use ring::{Left, Ring, SIZE};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How long an outbox that another process holds is waited for: a killed predecessor needs a moment to go.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Why events are kept in memory only.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The directory or file can not be made, read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
    /// Another agent runs.
    #[error("{path}: held by another agent; stop it or give this one its own --state")]
    Held {
        /// The file.
        path: PathBuf,
    },
}

/// The events, and the file where there is one.
#[derive(Debug)]
pub struct Outbox {
    ring: Ring,
    file: Option<Flock<File>>,
    continued: bool,
    dropped: u64,
}

impl Outbox {
    /// Takes up what an earlier process of this boot left in `state`, or begins a stream. `new_stream` is used when
    /// one begins. Never fails: the error tells why there is no file.
    pub fn open(state: &Path, boot: BootId, new_stream: StreamId, now_us: u64) -> (Self, Option<OutboxError>) {
        let (file, bytes, error) = match open_file(state) {
            Ok((file, bytes)) => (Some(file), bytes, None),
            Err(error) => (None, Vec::new(), Some(error)),
        };
        let fresh = file.is_some() && bytes.is_empty();
        let (ring, left) = if fresh { (Ring::new(), Left::Nothing) } else { Ring::recover(&bytes, boot) };
        let mut outbox = Self { ring, file, continued: left == Left::ThisBoot, dropped: 0 };
        if outbox.continued {
            return (outbox, error);
        }
        // Room for the whole ring is taken now: no later write can find the file system full.
        let image = *outbox.ring.image();
        outbox.write(|_, write| write(0, &image));
        outbox.write(|ring, write| ring.begin(boot, new_stream, write));
        match left {
            Left::Nothing | Left::ThisBoot | Left::OtherBoot(0) => {}
            Left::OtherBoot(count) => outbox.lost(Some(count), now_us),
            Left::Unreadable => outbox.lost(None, now_us),
        }
        (outbox, error)
    }

    /// Whether this goes on where an earlier process of this boot stopped.
    #[must_use]
    pub fn continued(&self) -> bool {
        self.continued
    }

    /// The event stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.ring.stream()
    }

    /// The sequence the next event gets.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.ring.next_sequence()
    }

    /// The sequence of the oldest event that no host acknowledged; that of the next event when there is none.
    #[must_use]
    pub fn first_pending(&self) -> u64 {
        self.ring.first_pending()
    }

    /// Events this process had to drop for want of room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Keeps an event until it is acknowledged. `body`: at most 512 bytes, in the form of the kind.
    pub fn append(&mut self, kind: EventKind, boot_time_us: u64, body: &[u8]) {
        self.dropped += self.write(|ring, write| ring.append(kind, boot_time_us, body, write));
    }

    /// The host has stored everything up to `sequence`.
    pub fn acknowledge(&mut self, sequence: u64) {
        self.write(|ring, write| ring.acknowledge(sequence, write));
    }

    /// The first event at or behind `cursor`. `body` lends room for its body.
    #[must_use]
    pub fn read<'b>(&self, cursor: u64, body: &'b mut [u8; MAX_EVENT_BODY]) -> Option<Event<'b>> {
        self.ring.read(cursor, body)
    }

    /// Leaves the stream for a new one, to which everything unacknowledged moves.
    pub fn move_to(&mut self, stream: StreamId) {
        self.write(|ring, write| ring.move_to(stream, write));
    }

    fn lost(&mut self, count: Option<u64>, now_us: u64) {
        let mut body = [0; 16];
        if let Ok(used) = postcard::to_slice(&Dropped { count }, &mut body) {
            self.append(EventKind::DROPPED, now_us, used);
        }
    }

    /// Changes the image and repeats the change on the file. A file that can not be written is cut to one byte, so
    /// that the next process knows that something may be missing, and let go of.
    fn write<R>(&mut self, change: impl FnOnce(&mut Ring, ring::Write<'_>) -> R) -> R {
        let mut failed = None;
        let file = &self.file;
        let result = change(&mut self.ring, &mut |offset, bytes| {
            if let Some(file) = file
                && failed.is_none()
            {
                failed = file.write_all_at(bytes, offset as u64).err();
            }
        });
        if let Some(error) = failed
            && let Some(file) = self.file.take()
        {
            tracing::warn!(%error, "outbox can not be written; events are kept in memory only");
            let _ = file.set_len(1);
        }
        result
    }
}

fn open_file(state: &Path) -> Result<(Flock<File>, Vec<u8>), OutboxError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| OutboxError::Io { path, error }
    };
    let path = state.join("outbox");
    // Others may look into it: the local socket is there, too. What is in it is not theirs to read.
    DirBuilder::new().recursive(true).mode(0o755).create(state).map_err(at(state))?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(&path)
        .map_err(at(&path))?;
    let mut tries = 0;
    let file = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => break locked,
            Err((_, Errno::EWOULDBLOCK)) if tries == LOCK_TRIES => return Err(OutboxError::Held { path }),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => {
                tries += 1;
                file = unlocked;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err((_, error)) => return Err(at(&path)(error.into())),
        }
    };
    let length = file.metadata().map_err(at(&path))?.len();
    if length == 0 || length != SIZE as u64 {
        file.set_len(SIZE as u64).map_err(at(&path))?;
        // A new file, or one of a length that never was ours: one byte stands for "unreadable".
        return Ok((file, vec![0; usize::from(length != 0)]));
    }
    let mut bytes = vec![0; SIZE];
    file.read_exact_at(&mut bytes, 0).map_err(at(&path))?;
    Ok((file, bytes))
}
