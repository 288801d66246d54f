//! What all tasks of the daemon share. No lock here is held across I/O or an await.

use super::descriptors::Descriptors;
use super::prove::Proofs;
use super::slot::Slot;
use super::take_over::Hand;
use super::writer::Writers;
use crate::model::Now;
use crate::publish::status::EventLine;
use informant_wire::id::{BootId, ControllerId, Nonce, SessionId};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, broadcast};

/// Something that a watcher wants to hear of.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A state changed.
    State(Arc<str>),
    /// An event was taken.
    Event(Arc<str>, Arc<EventLine>),
    /// The folder is gone.
    Removed(Arc<str>),
}

/// A live agent session and whose it is.
type Session = (Arc<Slot>, SessionId);

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) port: u32,
    pub(super) controller: ControllerId,
    pub(super) started: Now,
    began: Instant,
    instances: Mutex<BTreeMap<Arc<str>, Arc<Slot>>>,
    cids: Mutex<HashMap<u32, Arc<Slot>>>,
    identities: Mutex<HashMap<(BootId, Nonce), Vec<Session>>>,
    misnamed: Mutex<Vec<String>>,
    changed_slots: Mutex<Vec<Arc<Slot>>>,
    /// Something is in there.
    pub(super) changed: Notify,
    pub(super) writers: Writers,
    pub(super) changes: broadcast::Sender<Change>,
    /// Some instance has a `cid`: the AF_VSOCK listener is wanted.
    pub(super) vsock_wanted: Notify,
    pub(super) descriptors: Descriptors,
    pub(super) proofs: Proofs,
    /// All folders have been looked at.
    pub(super) looked: Notify,
    pub(super) hand: Hand,
    pub(super) stopping: AtomicBool,
    pub(super) sessions: AtomicU64,
    pub(super) log_suppressed: AtomicU64,
}

/// A lock whose holder cannot have panicked halfway: every critical section is small and total.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        dir: PathBuf,
        port: u32,
        controller: ControllerId,
        writers: Writers,
        descriptors: Descriptors,
        hand: Hand,
    ) -> Self {
        let proofs = Proofs::new(descriptors.proofs);
        let began = Instant::now();
        Self {
            dir,
            port,
            controller,
            started: now(began),
            began,
            instances: Mutex::default(),
            cids: Mutex::default(),
            identities: Mutex::default(),
            misnamed: Mutex::default(),
            changed_slots: Mutex::default(),
            changed: Notify::new(),
            writers,
            changes: broadcast::Sender::new(1024),
            vsock_wanted: Notify::new(),
            descriptors,
            proofs,
            looked: Notify::new(),
            hand,
            stopping: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
            log_suppressed: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> Now {
        now(self.began)
    }

    /// The moment of the runtime's clock at which [`Now::mono_us`] has this value.
    pub(super) fn instant(&self, mono_us: u64) -> tokio::time::Instant {
        // A year is for ever, and far from any overflow.
        const FOR_EVER_US: u64 = 365 * 86_400 * 1_000_000;
        let began = tokio::time::Instant::from_std(self.began);
        began + std::time::Duration::from_micros(mono_us.min(FOR_EVER_US + self.now().mono_us))
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.instances).values().cloned().collect()
    }

    pub(super) fn slot(&self, name: &str) -> Option<Arc<Slot>> {
        lock(&self.instances).get(name).cloned()
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.instances).len()
    }

    pub(super) fn insert(&self, slot: &Arc<Slot>) {
        lock(&self.instances).insert(Arc::clone(&slot.name), Arc::clone(slot));
    }

    pub(super) fn remove(&self, name: &str) {
        lock(&self.instances).remove(name);
        let _nobody_watches = self.changes.send(Change::Removed(name.into()));
    }

    /// Folders that are no instances because of their names.
    pub(super) fn misnamed(&self) -> Vec<String> {
        lock(&self.misnamed).clone()
    }

    /// See [`Self::misnamed`].
    pub(super) fn set_misnamed(&self, names: Vec<String>) {
        *lock(&self.misnamed) = names;
    }

    /// The instance of a CID.
    pub(super) fn by_cid(&self, cid: u32) -> Option<Arc<Slot>> {
        lock(&self.cids).get(&cid).cloned()
    }

    /// Which instances have a CID.
    pub(super) fn set_cids(&self, cids: HashMap<u32, Arc<Slot>>) {
        let wanted = !cids.is_empty();
        *lock(&self.cids) = cids;
        if wanted {
            self.vsock_wanted.notify_one();
        }
    }

    /// An agent session began: the other instances that have a live one of the same boot and process.
    pub(super) fn identify(&self, key: (BootId, Nonce), slot: &Arc<Slot>, session: SessionId) -> Vec<Arc<Slot>> {
        let mut identities = lock(&self.identities);
        let live = identities.entry(key).or_default();
        let others =
            live.iter().filter(|(other, _)| other.name != slot.name).map(|(other, _)| Arc::clone(other)).collect();
        live.push((Arc::clone(slot), session));
        others
    }

    /// An agent session is over.
    pub(super) fn forget(&self, key: (BootId, Nonce), session: SessionId) {
        let mut identities = lock(&self.identities);
        if let Some(live) = identities.get_mut(&key) {
            live.retain(|(_, other)| *other != session);
            if live.is_empty() {
                identities.remove(&key);
            }
        }
    }

    /// An instance's state changed: watchers hear of it, and its status is written at once, if that is news.
    pub(super) fn publish_soon(&self, slot: &Arc<Slot>, is_news: bool) {
        if self.changes.receiver_count() > 0 {
            let _nobody_watches = self.changes.send(Change::State(Arc::clone(&slot.name)));
        }
        if is_news {
            lock(&self.changed_slots).push(Arc::clone(slot));
            self.changed.notify_one();
        }
    }

    pub(super) fn take_changed(&self) -> Vec<Arc<Slot>> {
        std::mem::take(&mut lock(&self.changed_slots))
    }
}

fn now(began: Instant) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        mono_us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
    }
}
