//! `DIR/NAME/events.log`: JSON lines, appended, bounded by rotation to `events.log.1`. Knows files, no sessions.
//!
//! A line is in the page cache before it is acknowledged, so it survives `kill -9` of the daemon; not a crash of the
//! host. A last line without its end is cut off at start: it was never acknowledged. Every 64 KiB a checkpoint line
//! repeats how far each stream has come, so that a start reads no more than the tail, and a rotation forgets nothing.

use super::event;
use super::status::{EventLine, Stamp};
use crate::model::cursors::{Cursors, MAX_STREAMS, Rank};
use informant_wire::id::{BootId, StreamId};
use nix::fcntl::OFlag;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes after which a log is rotated; two are kept.
pub const ROTATE_AT: u64 = 1 << 20;
/// Bytes from one checkpoint to the next.
const CHECKPOINT_EVERY: u64 = 64 * 1024;
/// Longest line that is read back. Ours have at most about 4 KiB, checkpoints 20 KiB.
const MAX_LINE: u64 = 64 * 1024;

/// The `kind` of checkpoint lines, which the API does not show.
const CHECKPOINT: &str = "checkpoint";

/// What a log says of itself at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// How far each stream is stored.
    pub cursors: Cursors,
    /// The highest id given.
    pub last_id: u64,
}

/// Lines to append together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// JSON lines with their ends.
    pub lines: Vec<u8>,
    /// The highest id in them.
    pub last_id: u64,
    /// When the last of them was taken.
    pub time: Stamp,
    /// The guests' streams in them.
    pub streams: Vec<Streamed>,
}

/// How far a batch takes a stream.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    /// The boot.
    pub boot: BootId,
    /// The stream.
    pub stream: StreamId,
    /// The highest that spoke on it.
    pub rank: Rank,
    /// The highest sequence in the batch.
    pub last: u64,
    /// How many events of it are in the batch.
    pub count: u64,
}

impl Batch {
    /// Adds a line.
    pub fn push(&mut self, line: &EventLine) {
        if let Ok(bytes) = serde_json::to_vec(line) {
            self.lines.extend_from_slice(&bytes);
            self.lines.push(b'\n');
            self.last_id = line.id;
            self.time = line.time.clone();
        }
    }

    /// Adds a guest's line.
    pub fn push_event(&mut self, line: &EventLine, boot: BootId, stream: StreamId, rank: Rank, sequence: u64) {
        self.push(line);
        match self.streams.iter_mut().find(|known| (known.boot, known.stream) == (boot, stream)) {
            Some(known) => {
                known.last = known.last.max(sequence);
                known.rank = known.rank.max(rank);
                known.count += 1;
            }
            None => self.streams.push(Streamed { boot, stream, rank, last: sequence, count: 1 }),
        }
    }
}

/// The log of one instance. Nobody else writes there.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// How far each stream has come in the file, and the highest id.
    written: Restored,
    since_checkpoint: u64,
}

impl Log {
    /// The log in an instance's folder; touches nothing.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join("events.log"), written: Restored::default(), since_checkpoint: u64::MAX }
    }

    fn rotated(&self) -> PathBuf {
        self.path.with_extension("log.1")
    }

    fn open(&self) -> io::Result<File> {
        let file = open(&self.path, OpenOptions::new().read(true).append(true).create(true).mode(0o644))?;
        if file.metadata()?.len() == 0 {
            // Whatever the umask is at this moment: another thread may be binding a socket.
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        Ok(file)
    }

    /// Cuts a torn last line off and reads the cursors back.
    pub fn restore(&mut self) -> io::Result<Restored> {
        self.written = self.read_back()?;
        Ok(self.written.clone())
    }

    fn read_back(&mut self) -> io::Result<Restored> {
        let mut file = match open(&self.path, OpenOptions::new().read(true).write(true)) {
            Ok(file) => file,
            // Killed between the two steps of a rotation, or nothing was ever written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.restore_rotated(),
            Err(error) => return Err(error),
        };
        let end = cut_torn_line(&mut file)?;
        let mut restored = Restored::default();
        if !restore_tail(&mut file, end, &mut restored)? {
            restored = self.restore_rotated()?;
            file.seek(SeekFrom::Start(0))?;
            read_lines(BufReader::new(file), |line| apply(&line, &mut restored))?;
        }
        self.since_checkpoint = u64::MAX;
        Ok(restored)
    }

    fn restore_rotated(&self) -> io::Result<Restored> {
        let mut restored = Restored::default();
        match open(&self.rotated(), OpenOptions::new().read(true)) {
            Ok(file) => read_lines(BufReader::new(file), |line| apply(&line, &mut restored))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(restored)
    }

    /// Appends lines, all or none of them, after [`Self::restore`].
    pub fn append(&mut self, batch: &Batch) -> io::Result<()> {
        let mut file = self.open()?;
        let mut length = file.metadata()?.len();
        if length >= ROTATE_AT {
            std::fs::rename(&self.path, self.rotated())?;
            file = self.open()?;
            length = file.metadata()?.len();
            self.since_checkpoint = u64::MAX;
        }
        let mut bytes = Vec::new();
        if self.since_checkpoint >= CHECKPOINT_EVERY {
            bytes = checkpoint_line(&self.written, &batch.time);
        }
        let with_checkpoint = !bytes.is_empty();
        bytes.extend_from_slice(&batch.lines);
        if let Err(error) = file.write_all(&bytes) {
            // Half a batch must not stay: its events will come again. Where this fails too, the start cuts it.
            let _kept = file.set_len(length);
            return Err(error);
        }
        self.since_checkpoint = if with_checkpoint { 0 } else { self.since_checkpoint } + batch.lines.len() as u64;
        self.written.last_id = self.written.last_id.max(batch.last_id);
        for stream in &batch.streams {
            self.written.cursors.restore(stream.boot, stream.stream, stream.rank, stream.last);
        }
        Ok(())
    }
}

/// At most `limit` lines behind `after`, oldest first, and whether there are more.
pub fn read(folder: &Path, after: u64, limit: usize) -> io::Result<(Vec<EventLine>, bool)> {
    let log = Log::new(folder);
    let mut lines = Vec::new();
    let mut more = false;
    for path in [log.rotated(), log.path] {
        let file = match open(&path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        read_lines(BufReader::new(file), |line| {
            if line.id > after && line.kind != CHECKPOINT {
                if lines.len() < limit {
                    lines.push(line);
                } else {
                    more = true;
                }
            }
        })?;
    }
    Ok((lines, more))
}

/// Opens a regular file: no link is followed, and nothing else is waited for or written to.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// `now`: when the line behind it was taken.
fn checkpoint_line(written: &Restored, now: &Stamp) -> Vec<u8> {
    let streams: Vec<Value> = written
        .cursors
        .iter()
        .map(|(boot, stream, rank, last)| {
            json!({
                "boot_id": boot.to_string(),
                "stream": format!("{:016x}", stream.0),
                "source": if rank == Rank::Reporter { "reporter" } else { "agent" },
                "proven": rank == Rank::Proven,
                "sequence": last,
            })
        })
        .collect();
    // No id: it is no event.
    let line = json!({
        "time": now,
        "source": "host",
        "kind": CHECKPOINT,
        "body": { "last_id": written.last_id, "streams": streams },
    });
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Removes bytes behind the last line end; the length that stays.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut end = length;
    let mut buffer = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(buffer.len() as u64);
        let piece = buffer.get_mut(..usize::try_from(end - start).unwrap_or(0)).unwrap_or_default();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length {
        file.set_len(end)?;
    }
    Ok(end)
}

/// Reads from the last checkpoint on; false when the tail has none.
fn restore_tail(file: &mut File, end: u64, restored: &mut Restored) -> io::Result<bool> {
    let start = end.saturating_sub(2 * (CHECKPOINT_EVERY + MAX_LINE));
    file.seek(SeekFrom::Start(start))?;
    let mut found = false;
    read_lines(BufReader::new(file), |line| {
        if line.kind == CHECKPOINT {
            found = true;
            *restored = Restored::default();
        }
        apply(&line, restored);
    })?;
    Ok(found)
}

fn apply(line: &EventLine, restored: &mut Restored) {
    restored.last_id = restored.last_id.max(line.id);
    if line.kind == CHECKPOINT {
        let last_id = line.body.as_ref().and_then(|body| body.get("last_id")).and_then(Value::as_u64);
        restored.last_id = restored.last_id.max(last_id.unwrap_or(0));
        let streams = line.body.as_ref().and_then(|body| body.get("streams")).and_then(Value::as_array);
        for stream in streams.into_iter().flatten().take(MAX_STREAMS) {
            let line: EventLine = EventLine::from_cursor(stream);
            if let Some((boot, stream, sequence)) = event::cursor(&line) {
                restored.cursors.restore(boot, stream, rank(&line), sequence);
            }
        }
    } else if let Some((boot, stream, sequence)) = event::cursor(line) {
        restored.cursors.restore(boot, stream, rank(line), sequence);
    }
}

fn rank(line: &EventLine) -> Rank {
    Rank::new(line.source == "agent", line.proven == Some(true))
}

impl EventLine {
    fn from_cursor(stream: &Value) -> Self {
        let text = |key| stream.get(key).and_then(Value::as_str).map(Into::into);
        Self {
            source: text("source").unwrap_or_default(),
            proven: stream.get("proven").and_then(Value::as_bool),
            boot_id: text("boot_id"),
            stream: text("stream"),
            sequence: stream.get("sequence").and_then(Value::as_u64),
            ..Self::default()
        }
    }
}

/// Calls `with` for each whole line that is one; others (a hand's edit, half a line at the start) are left out.
fn read_lines(mut from: impl BufRead, mut with: impl FnMut(EventLine)) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if from.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(());
        }
        let whole = bytes.last() == Some(&b'\n');
        if let Some(line) = whole.then(|| serde_json::from_slice(&bytes).ok()).flatten() {
            with(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId([7; 16]);
    const STREAM: StreamId = StreamId(9);

    fn line(id: u64, boot: BootId, stream: StreamId, sequence: u64) -> EventLine {
        EventLine {
            id,
            boot_id: Some(boot.to_string()),
            stream: Some(format!("{:016x}", stream.0)),
            sequence: Some(sequence),
            kind: "agent_started".into(),
            ..EventLine::default()
        }
    }

    fn batch(ids: std::ops::RangeInclusive<u64>) -> Batch {
        let mut batch = Batch::default();
        for id in ids {
            batch.push_event(&line(id, BOOT, STREAM, id), BOOT, STREAM, Rank::Reporter, id);
        }
        batch
    }

    #[test]
    fn a_log_cut_at_any_byte_restores_the_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path());
        for n in 1..=3 {
            log.append(&batch(n..=n)).unwrap();
        }
        let path = dir.path().join("events.log");
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> =
            whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let restored = Log::new(dir.path()).restore().unwrap();
            let kept = ends.iter().filter(|end| **end <= cut);
            // The first line is the checkpoint of nothing.
            let events = kept.clone().count().saturating_sub(1) as u64;
            assert_eq!((restored.last_id, restored.cursors.last(BOOT, STREAM)), (events, events), "cut at {cut}");
            let length = std::fs::metadata(&path).unwrap().len();
            assert_eq!(length, kept.max().copied().unwrap_or(0) as u64);
        }
    }

    #[test]
    fn streams_that_were_rotated_away_are_remembered_and_the_log_stays_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path());
        let mut first = Batch::default();
        let quiet = (BootId([1; 16]), StreamId(1));
        first.push_event(&line(1, quiet.0, quiet.1, 42), quiet.0, quiet.1, Rank::Reporter, 42);
        log.append(&first).unwrap();
        let mut id = 1;
        for _ in 0..400 {
            log.append(&batch(id + 1..=id + 50)).unwrap();
            id += 50;
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("events.log") + size("events.log.1") < 2 * ROTATE_AT + 128 * 1024);
        let restored = Log::new(dir.path()).restore().unwrap();
        assert_eq!((restored.last_id, restored.cursors.last(BOOT, STREAM)), (id, id));
        assert_eq!(restored.cursors.last(quiet.0, quiet.1), 42);
        let (lines, more) = read(dir.path(), id - 120, 100).unwrap();
        assert_eq!((lines.len(), lines[0].id, more), (100, id - 119, true));
    }

    #[test]
    fn the_agents_cursor_survives_any_number_of_reporters_and_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path());
        let said = |id, stream, source: &str| EventLine {
            source: source.into(),
            proven: Some(false),
            ..line(id, BOOT, StreamId(stream), 1)
        };
        let mut first = Batch::default();
        first.push_event(&said(1, 1000, "agent"), BOOT, StreamId(1000), Rank::Agent, 1);
        log.append(&first).unwrap();
        // Several checkpoints' worth.
        for stream in 2..=1000 {
            let mut batch = Batch::default();
            batch.push_event(&said(stream, stream, "reporter"), BOOT, StreamId(stream), Rank::Reporter, 1);
            log.append(&batch).unwrap();
            if stream % 100 == 0 {
                log = Log::new(dir.path());
                log.restore().unwrap();
            }
        }
        let restored = Log::new(dir.path()).restore().unwrap();
        assert_eq!((restored.last_id, restored.cursors.last(BOOT, StreamId(1000))), (1000, 1));
    }

    #[test]
    fn a_checkpoint_has_the_time_of_the_line_behind_it_and_no_id() {
        let dir = tempfile::tempdir().unwrap();
        let mut batch = Batch::default();
        batch.push(&EventLine { time: Stamp::from_ms(1_000), ..line(5, BOOT, STREAM, 1) });
        Log::new(dir.path()).append(&batch).unwrap();
        let text = std::fs::read_to_string(dir.path().join("events.log")).unwrap();
        let checkpoint: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((&checkpoint["kind"], checkpoint.get("id")), (&json!("checkpoint"), None));
        assert_eq!(checkpoint["time"], json!({ "ms": 1000, "rfc3339": "1970-01-01T00:00:01.000Z" }));
    }
}
