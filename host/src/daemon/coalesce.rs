//! With many sessions the thread would sleep and wake for nearly every sample, which costs more than the sample does:
//! then its wake-ups are kept apart, as network cards do with interrupts. With few sessions it answers at once.

use super::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// So much apart, a session: what comes meanwhile is handled together.
const APART_NS_A_SESSION: u64 = 500;
/// At most, however many there are: events are to be heard of within that.
const APART_AT_MOST: Duration = Duration::from_millis(4);
/// Less is not worth a system call.
const APART_AT_LEAST: Duration = Duration::from_micros(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Coalesce {
    shared: Arc<Shared>,
    /// When the thread went to sleep last, by [`Shared::now`].
    slept_us: AtomicU64,
}

impl Coalesce {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, slept_us: AtomicU64::new(0) }
    }

    /// The thread has nothing to do and is about to wait for whatever comes next.
    pub(super) fn before_sleep(&self) {
        let sessions = self.shared.sessions.load(Ordering::Relaxed);
        let apart = Duration::from_nanos(sessions.saturating_mul(APART_NS_A_SESSION)).min(APART_AT_MOST);
        if apart < APART_AT_LEAST {
            return;
        }
        let now_us = self.shared.now().mono_us;
        let since = Duration::from_micros(now_us.saturating_sub(self.slept_us.load(Ordering::Relaxed)));
        std::thread::sleep(apart.saturating_sub(since));
        self.slept_us.store(self.shared.now().mono_us, Ordering::Relaxed);
    }
}
