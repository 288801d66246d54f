//! `DIR/.lock`: the daemon that holds it owns the directory and every socket its instances name. Liveness is this
//! lock, never a probe connect.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// [`is_held`] of another process has the lock for a moment: tries, and how long before each further one.
const TRIES: u32 = 10;
/// See [`TRIES`].
const PAUSE: Duration = Duration::from_millis(10);

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon holds it.
    #[error("{path} is held by {holder}: another daemon serves this directory; stop it, or use another --dir")]
    Held {
        /// The lock file.
        path: PathBuf,
        /// `process PID`, as far as it is known.
        holder: String,
    },
    /// The file can not be opened or locked.
    #[error("cannot lock {path}: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not used")] Flock<File>);

/// The lock file of a directory.
#[must_use]
pub fn path(dir: &Path) -> PathBuf {
    dir.join(".lock")
}

/// Takes the lock, or gives up after 100 ms, and writes this process's id into it.
pub fn acquire(dir: &Path) -> Result<Lock, LockError> {
    for _ in 0..TRIES {
        if let Some(lock) = try_acquire(dir)? {
            return Ok(lock);
        }
        std::thread::sleep(PAUSE);
    }
    if let Some(lock) = try_acquire(dir)? {
        return Ok(lock);
    }
    let path = path(dir);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(32).read_to_string(&mut text));
    let pid = read.ok().and_then(|_| text.trim().parse::<u32>().ok());
    let holder = pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
    Err(LockError::Held { path, holder })
}

/// Takes the lock if nobody has it, and writes this process's id into it.
pub fn try_acquire(dir: &Path) -> Result<Option<Lock>, LockError> {
    let path = path(dir);
    let io = |source| LockError::Io { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o644);
    let file = options.open(&path).map_err(io)?;
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
        Err((_, errno)) => return Err(io(errno.into())),
    };
    lock.set_len(0).and_then(|()| lock.seek(SeekFrom::Start(0)).map(|_| ())).map_err(io)?;
    writeln!(lock, "{}", std::process::id()).map_err(io)?;
    Ok(Some(Lock(lock)))
}

/// Whether a daemon holds the directory: tries a shared lock and gives it back.
#[must_use]
pub fn is_held(dir: &Path) -> bool {
    let Ok(file) = File::open(path(dir)) else { return false };
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_lock_keeps_no_daemon_from_taking_it() {
        let dir = tempfile::tempdir().unwrap();
        drop(acquire(dir.path()).unwrap());
        let looker = Flock::lock(File::open(path(dir.path())).unwrap(), FlockArg::LockSharedNonblock).unwrap();
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| acquire(dir.path()));
            drop(looker);
            let lock = daemon.join().unwrap().unwrap();
            assert!(is_held(dir.path()) && matches!(acquire(dir.path()), Err(LockError::Held { .. })));
            drop(lock);
        });
        assert!(!is_held(dir.path()));
    }
}
