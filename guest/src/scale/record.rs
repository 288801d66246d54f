//! The last approved shrink, in `STATE/approved`: an agent that is started anew between "it may be done" and the memory
//! going away would take MemTotal for what it has.
//!
//! Written beside it and renamed over it: it is whole or it is the one before. What does not read as ours, or is of
//! another boot, is none. On a tmpfs such a write is a memory copy, so the loop may make it.

use super::decide::Approved;
use informant_wire::crc32::crc32;
use informant_wire::id::BootId;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"infappr1";
const LENGTH: usize = 8 + 16 + 3 * 8 + 4;

/// Where it is kept.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    boot: BootId,
    /// Of an error one line is enough.
    complained: bool,
}

impl Record {
    /// `state`: the directory of the outbox.
    #[must_use]
    pub fn new(state: &Path, boot: BootId) -> Self {
        Self { path: state.join("approved"), boot, complained: false }
    }

    /// What an earlier agent of this boot left.
    #[must_use]
    pub fn load(&self) -> Option<Approved> {
        let bytes = fs::read(&self.path).ok()?;
        let bytes: &[u8; LENGTH] = bytes.as_slice().try_into().ok()?;
        let (body, check) = bytes.split_last_chunk::<4>()?;
        let (magic, body) = body.split_first_chunk::<8>()?;
        let (boot, numbers) = body.split_first_chunk::<16>()?;
        if *magic != MAGIC || *boot != self.boot.0 || u32::from_le_bytes(*check) != crc32(bytes.get(..LENGTH - 4)?) {
            return None;
        }
        let mut numbers = numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
        Some(Approved { at_us: numbers.next()?, memory: numbers.next()?, total: numbers.next()? })
    }

    /// Keeps it; none: there is nothing to keep. Where the directory can not be written it is known in memory only,
    /// which is said once.
    pub fn store(&mut self, approved: Option<Approved>) {
        let result = match approved {
            Some(approved) => self.write(&self.bytes(approved)),
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        if let Err(error) = result
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::warn!("{}: {error}; an approved shrink is forgotten when this agent ends", self.path.display());
        }
    }

    fn bytes(&self, approved: Approved) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let numbers = [approved.at_us, approved.memory, approved.total].map(u64::to_le_bytes);
        let body = MAGIC.iter().chain(&self.boot.0).chain(numbers.as_flattened());
        bytes.iter_mut().zip(body).for_each(|(to, from)| *to = *from);
        if let Some((body, check)) = bytes.split_last_chunk_mut::<4>() {
            *check = crc32(body).to_le_bytes();
        }
        bytes
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(&beside)?;
        file.write_all(bytes)?;
        fs::rename(&beside, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPROVED: Approved = Approved { at_us: 5, memory: 1 << 40, total: u64::MAX };

    #[test]
    fn an_approval_survives_a_restart_and_no_reboot() {
        let state = tempfile::tempdir().unwrap();
        let mut record = Record::new(state.path(), BootId([1; 16]));
        assert_eq!(record.load(), None);
        record.store(Some(APPROVED));
        assert_eq!(Record::new(state.path(), BootId([1; 16])).load(), Some(APPROVED));
        assert_eq!(Record::new(state.path(), BootId([2; 16])).load(), None, "of another boot");
        record.store(Some(Approved { at_us: 6, ..APPROVED }));
        assert_eq!(record.load().unwrap().at_us, 6);
        record.store(None);
        record.store(None);
        assert_eq!((record.load(), record.complained), (None, false));
    }

    #[test]
    fn what_is_not_whole_is_none() {
        let state = tempfile::tempdir().unwrap();
        let mut record = Record::new(state.path(), BootId([1; 16]));
        record.store(Some(APPROVED));
        let good = fs::read(&record.path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&record.path, &bad).unwrap();
            assert_eq!(record.load(), None, "byte {at}");
            fs::write(&record.path, &good[..at]).unwrap();
            assert_eq!(record.load(), None, "cut at {at}");
        }
        fs::write(&record.path, [good.as_slice(), b"x"].concat()).unwrap();
        assert_eq!(record.load(), None);
    }

    #[test]
    fn without_a_directory_it_goes_on() {
        let mut record = Record::new(Path::new("/nonexistent/informant"), BootId([1; 16]));
        record.store(Some(APPROVED));
        assert!(record.complained && record.load().is_none());
    }
}
