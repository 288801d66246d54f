//! File descriptors: instances may take all but a reserve, without which no log could be written and no proof asked for.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Proofs in flight, over all instances; one that is slow holds its place for 4 s at most.
const MAX_PROOFS: usize = 256;
/// For the API, files, and what the process has open itself.
const RESERVE: usize = 128;

/// One descriptor of an instance: a listener's or a connection's.
pub(super) type Place = OwnedSemaphorePermit;

/// See the module.
#[derive(Debug)]
pub(super) struct Descriptors {
    places: Arc<Semaphore>,
    /// Places for proofs: after a restart all agents come at once, and each proof takes a descriptor.
    pub(super) proofs: Semaphore,
    limit: usize,
}

impl Descriptors {
    /// Raises the limit as high as it may go, and divides it.
    pub(super) fn new() -> Self {
        Self::of(raised())
    }

    fn of(limit: usize) -> Self {
        let proofs = (limit / 16).clamp(4, MAX_PROOFS);
        let places = limit.saturating_sub(proofs + RESERVE).max(limit / 2).min(Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), proofs: Semaphore::new(proofs), limit }
    }

    /// A place for one descriptor; `None` when all are taken.
    pub(super) fn take(&self) -> Option<Place> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// What to tell the operator when all are taken.
    pub(super) fn exhausted(&self) -> String {
        format!("no file descriptor is left of {}: raise the limit (ulimit -n, LimitNOFILE=)", self.limit)
    }
}

fn raised() -> usize {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    });
    let limit = raised.or_else(|error| {
        tracing::warn!("cannot raise the limit of open files: {error}");
        getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft)
    });
    limit.map_or(RESERVE, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Whether an error is this machine's lack of something, which passes, and nobody's fault.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS];
    error.raw_os_error().is_some_and(|code| shortages.contains(&Errno::from_raw(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_never_get_the_reserve_and_always_something() {
        let free = |limit| Descriptors::of(limit).places.available_permits();
        assert_eq!((free(20_000), free(1024), free(64)), (20_000 - 256 - RESERVE, 1024 - 64 - RESERVE, 32));
    }
}
