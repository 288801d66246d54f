//! File descriptors: each instance has some of its own, which no other instance can take; what is left is shared, and
//! the daemon keeps a reserve, without which no log could be written, no reader answered and no proof asked for.

use super::shared::lock;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex};

/// With fewer the daemon does not start.
const LIMIT_AT_LEAST: usize = 256;
/// The API's and the proofs' parts are this part of the limit each, within bounds.
const PART: usize = 16;
/// Least of such a part.
const PART_AT_LEAST: usize = 16;
/// Requests and watches of the API at a time, with a limit that is high enough.
const MAX_API: usize = 64;
/// Proofs in flight, over all instances; after a restart all agents come at once.
const MAX_PROOFS: usize = 256;
/// For files, and what the process has open itself.
const OWN: usize = 24;
/// Connections that have a place already while those that make way for them are still being closed.
const AHEAD: usize = 16;
/// Instances do not reserve this part of the places: a guest that was reset comes again before its old connection ends.
const SPARE: usize = 64;
/// See [`SPARE`].
const SPARE_AT_LEAST: usize = 8;
/// Instances that are asked to make way for one connection.
const MAX_ASKED: usize = 16;

/// Why the daemon has too few file descriptors to start.
#[derive(Debug, thiserror::Error)]
pub(super) enum DescriptorsError {
    #[error("the limit of open files is {0}: at least {LIMIT_AT_LEAST} are needed; raise it (ulimit -n, LimitNOFILE=)")]
    TooFew(usize),
    #[error("cannot read the limit of open files: {0}")]
    Unknown(Errno),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Descriptors {
    ledger: Arc<Mutex<Ledger>>,
    /// Connections of the API.
    pub(super) api: usize,
    /// Proofs in flight.
    pub(super) proofs: usize,
    limit: usize,
}

impl Descriptors {
    /// Raises the limit as high as it may go, and divides it.
    pub(super) fn new() -> Result<Self, DescriptorsError> {
        Self::of(raised()?)
    }

    fn of(limit: usize) -> Result<Self, DescriptorsError> {
        let part = (limit / PART).max(PART_AT_LEAST);
        let (api, proofs) = (part.min(MAX_API), part.min(MAX_PROOFS));
        let places = limit.saturating_sub(api + proofs + OWN + AHEAD);
        if limit < LIMIT_AT_LEAST {
            return Err(DescriptorsError::TooFew(limit));
        }
        let ledger = Arc::new(Mutex::new(Ledger { places, ..Ledger::default() }));
        Ok(Self { ledger, api, proofs, limit })
    }

    /// Keeps an instance's own places: one connection, and one more if it `listens` at a socket of its own. `ahead`:
    /// others were just told to make way.
    pub(super) fn reserve(&self, instance: &Arc<str>, listens: bool, ahead: bool) -> Option<Reservation> {
        let places = 1 + usize::from(listens);
        let mut ledger = lock(&self.ledger);
        if !ledger.may_reserve(places) || !ledger.fits(places, ahead) {
            return None;
        }
        ledger.reserved += places;
        ledger.change(instance, |share| share.own += 1);
        drop(ledger);
        Some(Reservation { ledger: Arc::clone(&self.ledger), instance: Arc::clone(instance), places })
    }

    /// Whether [`Self::reserve`] is a matter of others making way.
    pub(super) fn may_reserve(&self, listens: bool) -> bool {
        lock(&self.ledger).may_reserve(1 + usize::from(listens))
    }

    /// A place for one connection: the instance's own, or a shared one. `ahead`: another one was just told to make way.
    pub(super) fn take(&self, instance: &Arc<str>, ahead: bool) -> Option<Place> {
        let mut ledger = lock(&self.ledger);
        let is_own = ledger.shares.get(instance).is_some_and(|share| share.held < share.own);
        if !is_own && !ledger.fits(1, ahead) {
            return None;
        }
        ledger.change(instance, |share| share.held += 1);
        drop(ledger);
        Some(Place { ledger: Arc::clone(&self.ledger), instance: Arc::clone(instance) })
    }

    /// Who is to make way for one more connection of an instance: those that have more shared places than it, the
    /// greediest first, then itself.
    pub(super) fn who_makes_way(&self, instance: &Arc<str>) -> Vec<Arc<str>> {
        let ledger = lock(&self.ledger);
        let has = ledger.shares.get(instance).map_or(0, Share::shared);
        let greedier = ledger.greedy.iter().rev().take_while(|(shared, _)| *shared > has);
        greedier.map(|(_, name)| name).take(MAX_ASKED).chain([instance]).cloned().collect()
    }

    /// What to tell the operator when all are taken.
    pub(super) fn exhausted(&self) -> String {
        format!("no file descriptor is left of {}: raise the limit (ulimit -n, LimitNOFILE=)", self.limit)
    }
}

/// Who has how many places.
#[derive(Debug, Default)]
struct Ledger {
    /// All that instances may have.
    places: usize,
    /// Instances' own, taken or not.
    reserved: usize,
    /// Taken beyond those.
    shared: usize,
    shares: HashMap<Arc<str>, Share>,
    /// Instances that have shared places, by how many.
    greedy: BTreeSet<(usize, Arc<str>)>,
}

/// An instance's connections.
#[derive(Debug, Default)]
struct Share {
    /// Kept for it.
    own: usize,
    /// Open.
    held: usize,
}

impl Share {
    fn shared(&self) -> usize {
        self.held.saturating_sub(self.own)
    }
}

impl Ledger {
    fn fits(&self, places: usize, ahead: bool) -> bool {
        self.reserved + self.shared + places <= self.places + if ahead { AHEAD } else { 0 }
    }

    fn may_reserve(&self, places: usize) -> bool {
        self.reserved + places + (self.places / SPARE).max(SPARE_AT_LEAST) <= self.places
    }

    fn change(&mut self, instance: &Arc<str>, change: impl FnOnce(&mut Share)) {
        let share = self.shares.entry(Arc::clone(instance)).or_default();
        let before = share.shared();
        change(share);
        let (after, is_used) = (share.shared(), share.own > 0 || share.held > 0);
        if !is_used {
            self.shares.remove(instance);
        }
        if before != after {
            self.shared = self.shared + after - before;
            self.greedy.remove(&(before, Arc::clone(instance)));
            if after > 0 {
                self.greedy.insert((after, Arc::clone(instance)));
            }
        }
    }
}

/// An instance's own places, until this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    ledger: Arc<Mutex<Ledger>>,
    instance: Arc<str>,
    places: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut ledger = lock(&self.ledger);
        ledger.reserved -= self.places;
        ledger.change(&self.instance, |share| share.own -= 1);
    }
}

/// One connection's place, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    ledger: Arc<Mutex<Ledger>>,
    instance: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.ledger).change(&self.instance, |share| share.held -= 1);
    }
}

fn raised() -> Result<usize, DescriptorsError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(DescriptorsError::Unknown)?;
    let raised = if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) };
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    Ok(usize::try_from(if raised.is_ok() { hard } else { soft }).unwrap_or(usize::MAX))
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
    fn the_limit_is_divided_so_that_instances_never_get_the_reserve() {
        let divided = |limit| Descriptors::of(limit).map(|all| (lock(&all.ledger).places, all.api, all.proofs)).ok();
        assert_eq!(divided(255), None);
        assert_eq!(divided(256), Some((184, 16, 16)));
        assert_eq!(divided(1024), Some((856, 64, 64)));
        let (places, ..) = divided(21_000).unwrap();
        assert!(places - places / SPARE >= 20_000, "10,000 instances fit, as the README says");
    }

    #[test]
    fn no_instance_takes_what_is_anothers_own_and_the_greediest_makes_way() {
        let all = Descriptors::of(256).unwrap();
        let name = |number: usize| Arc::<str>::from(format!("vm{number}"));
        let mut own = Vec::new();
        while let Some(reservation) = all.reserve(&name(own.len()), true, false) {
            own.push(reservation);
        }
        assert_eq!(own.len(), (184 - SPARE_AT_LEAST) / 2);
        assert!(!all.may_reserve(true), "nobody could make way for one more");
        let (greedy, modest) = (name(0), name(1));
        let mut places: Vec<_> = std::iter::from_fn(|| all.take(&greedy, false)).collect();
        assert_eq!(places.len(), 1 + SPARE_AT_LEAST);
        let first = all.take(&modest, false).unwrap();
        assert!(all.take(&modest, false).is_none());
        assert_eq!(all.who_makes_way(&modest), [Arc::clone(&greedy), Arc::clone(&modest)]);
        assert_eq!(all.who_makes_way(&greedy), [Arc::clone(&greedy)]);
        let second = all.take(&modest, true).unwrap();
        places.pop();
        assert!(all.take(&modest, false).is_none(), "the place was given away before");
        drop((first, second, places, own));
        let ledger = lock(&all.ledger);
        assert_eq!((ledger.reserved, ledger.shared, ledger.shares.len(), ledger.greedy.len()), (0, 0, 0, 0));
    }
}
