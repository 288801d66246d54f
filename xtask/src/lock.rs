//! Locks between processes: two xtasks do not fill the cache at once, and VM tests take turns.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Held until dropped; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

/// Waits for the lock on `path`, saying once what it waits for.
pub fn take(path: &Path, what: &str, timeout: Duration) -> Result<Lock> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))?;
    let deadline = Instant::now() + timeout;
    let mut said = false;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Lock { _file: file }),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
            Err((_, errno)) => bail!("cannot lock {}: {errno}", path.display()),
        }
        if !said {
            eprintln!("== waiting for another xtask: {what}");
            said = true;
        }
        if Instant::now() >= deadline {
            bail!(
                "another process has held {} for {} s ({what}): end it, then try again",
                path.display(),
                timeout.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_makes_the_next_wait_and_fail_at_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/lock");
        let held = take(&path, "test", Duration::from_secs(1)).unwrap();
        let error = take(&path, "test", Duration::from_millis(120)).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(held);
        take(&path, "test", Duration::from_secs(1)).unwrap();
    }
}
