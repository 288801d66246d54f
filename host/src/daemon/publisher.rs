//! Gives status files to the writer: at once when a state changes, else at the instance's pace ([`super::pace`]). What
//! mass changes may cost is bounded: their files follow in the order in which they came.

use super::pace::{ChangeShows, Fleet};
use super::shared::Shared;
use super::slot::Slot;
use super::writer::{LastStatuses, LogJob, STATUS_QUEUE, StatusJob};
use crate::model::budget::Bucket;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How often it looks for files that are due: that much an instance, within these bounds.
const LOOK_EVERY_AN_INSTANCE: Duration = Duration::from_micros(100);
/// See [`LOOK_EVERY_AN_INSTANCE`].
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// See [`LOOK_EVERY_AN_INSTANCE`].
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// How often it looks after changes that could not be shown at once.
const CHANGES_EVERY: Duration = Duration::from_millis(100);
/// A tenth of a core for changes: after a restart the guests' handshakes need the rest.
const CHANGES_US_A_SECOND: u64 = 100_000;
/// What may be spent of it at once.
const CHANGES_US_AT_ONCE: u64 = 500_000;
/// Places with the writer that changes leave to the files that are due.
const NOT_FOR_CHANGES: usize = STATUS_QUEUE / 2;
/// How long the last appends to the logs may take at the end.
const LAST_LOGS: Duration = Duration::from_secs(10);
/// The same for the last status files, and so much more an instance.
const LAST_STATUSES: Duration = Duration::from_secs(10);
/// See [`LAST_STATUSES`].
const LAST_STATUS: Duration = Duration::from_millis(2);

/// What came of a wish to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It is on its way.
    Queued,
    /// Not by its own pace.
    NotNow,
    /// The file shows it, or the instance is gone.
    NoNeed,
    /// Nobody's, now: the writer or the budget has no room.
    Full,
}

struct Publisher {
    shared: Arc<Shared>,
    /// Microseconds of CPU time for changes.
    budget: Bucket,
    /// Instances whose files do not show a change yet.
    waiting: VecDeque<Arc<Slot>>,
}

/// Works for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.hand.until_owned().await;
    let budget = Bucket::new(CHANGES_US_A_SECOND, CHANGES_US_AT_ONCE, shared.now());
    let mut publisher = Publisher { shared: Arc::clone(&shared), budget, waiting: VecDeque::new() };
    let mut look_at = Instant::now();
    let mut changes_at = look_at;
    loop {
        let wake_at = if publisher.waiting.is_empty() { look_at } else { look_at.min(changes_at) };
        tokio::select! {
            () = shared.changed.notified() => {
                if publisher.waiting.is_empty() {
                    changes_at = Instant::now();
                }
                publisher.waiting.extend(shared.take_changed());
            }
            () = tokio::time::sleep_until(wake_at) => {}
        }
        if Instant::now() >= changes_at {
            publisher.show_changes();
            changes_at = Instant::now() + CHANGES_EVERY;
        }
        if Instant::now() >= look_at {
            publisher.look();
            let instances = u32::try_from(shared.count()).unwrap_or(u32::MAX);
            let every = LOOK_EVERY_AN_INSTANCE.saturating_mul(instances).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY);
            look_at = Instant::now() + every;
        }
    }
}

impl Publisher {
    fn show_changes(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { return };
            match self.write(&slot, true) {
                Wish::Queued | Wish::NoNeed => {}
                Wish::NotNow => self.waiting.push_back(slot),
                Wish::Full => return self.waiting.push_front(slot),
            }
        }
    }

    /// Writes what is due, what has waited longest first.
    fn look(&mut self) {
        let now = self.shared.now();
        let mut due = Vec::new();
        for slot in self.shared.slots() {
            if slot.look(|core| core.instance.waits_to_store()) {
                slot.with(&self.shared, |core| core.instance.store_again(&mut core.budget, now));
            }
            if let Some(since) = slot.look(|core| core.pace.due_since(now).filter(|_| !core.removed)) {
                due.push((since, slot));
            }
        }
        due.sort_unstable_by_key(|(since, _)| *since);
        for (_, slot) in due {
            if self.write(&slot, false) == Wish::Full {
                return;
            }
        }
    }

    fn write(&mut self, slot: &Arc<Slot>, change: bool) -> Wish {
        let (shared, now) = (&self.shared, self.shared.now());
        if shared.hand.awaits(now) && slot.look(|core| core.instance.sampled.is_none()) {
            return Wish::NotNow;
        }
        if change {
            let shows = slot.with(shared, |core| (!core.removed).then(|| core.pace.change_shows(now)));
            match shows {
                None | Some(ChangeShows::Already) => return Wish::NoNeed,
                Some(ChangeShows::Later) => return Wish::NotNow,
                Some(ChangeShows::Now) => {}
            }
        }
        let queue = &shared.writers.statuses;
        if change && (queue.capacity() <= NOT_FOR_CHANGES || !self.budget.has(1, now)) {
            return Wish::Full;
        }
        let Ok(place) = queue.try_reserve() else { return Wish::Full };
        let fleet = shared.fleet();
        let cost_us = slot.with(shared, |core| {
            core.pace.queue(fleet, now);
            core.pace.cost_us()
        });
        if change {
            self.budget.spend(cost_us, now);
        }
        place.send(StatusJob::Write(Arc::clone(slot), Box::new(slot.snapshot(shared, now))));
        Wish::Queued
    }
}

/// Waits for the logs, and writes all status files a last time; how many could not be. Nothing else may give the writer
/// anything any more.
pub(super) async fn last(shared: &Shared) -> usize {
    let (appended, logs) = oneshot::channel();
    let flush = async {
        if shared.writers.logs.send(LogJob::Flush(appended)).await.is_ok() {
            let _writer_gone = logs.await;
        }
    };
    let _disk_hangs = timeout(LAST_LOGS, flush).await;

    let slots = shared.slots();
    let unwritten = LastStatuses::new(slots.len());
    let deadline = LAST_STATUSES + LAST_STATUS.saturating_mul(u32::try_from(slots.len()).unwrap_or(u32::MAX));
    let write_all = async {
        for slot in slots {
            let snapshot = Box::new(slot.last_snapshot(shared, shared.now()));
            if shared.writers.statuses.send(StatusJob::Last(slot, snapshot, unwritten.clone())).await.is_err() {
                return;
            }
        }
        let (done, wait) = oneshot::channel();
        if shared.writers.statuses.send(StatusJob::Flush(done)).await.is_ok() {
            let _writer_gone = wait.await;
        }
    };
    let _disk_is_slow = timeout(deadline, write_all).await;
    unwritten.count()
}

impl Shared {
    /// What the pace of a status file depends on besides the instance.
    pub(super) fn fleet(&self) -> Fleet {
        let writers = &self.writers;
        Fleet { instances: self.count(), took_us: writers.status_took_us(), cost_us: writers.status_cost_us() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::writer;
    use informant_wire::id::ControllerId;

    fn publisher() -> (Publisher, writer::Queues) {
        let (writers, queues) = writer::queues();
        let descriptors = crate::daemon::descriptors::Descriptors::new().unwrap();
        let hand = crate::daemon::take_over::Hand::new(true);
        let shared = Shared::new("/nowhere".into(), 1, ControllerId([0; 16]), writers, descriptors, hand);
        let shared = Arc::new(shared);
        let budget = Bucket::new(CHANGES_US_A_SECOND, CHANGES_US_AT_ONCE, shared.now());
        (Publisher { shared, budget, waiting: VecDeque::new() }, queues)
    }

    fn slot(publisher: &Publisher, name: &str) -> Arc<Slot> {
        let slot = Arc::new(Slot::new(name, format!("/nowhere/{name}").into(), publisher.shared.now()));
        publisher.shared.insert(&slot);
        slot
    }

    #[test]
    fn while_the_disk_hangs_an_instance_has_one_status_on_its_way() {
        let (mut publisher, queues) = publisher();
        let slot = slot(&publisher, "vm");
        publisher.look();
        slot.with(&publisher.shared, |core| core.pace.change());
        publisher.waiting.push_back(Arc::clone(&slot));
        publisher.show_changes();
        publisher.look();
        assert_eq!((queues.statuses_waiting(), publisher.waiting.len()), (1, 1));
        slot.with(&publisher.shared, |core| {
            core.pace.written(100, true, publisher.shared.now());
            core.pace = crate::daemon::pace::Pace::new(publisher.shared.now());
            core.pace.change()
        });
        publisher.show_changes();
        assert_eq!((queues.statuses_waiting(), publisher.waiting.len()), (2, 0));
    }

    #[test]
    fn a_change_that_a_due_file_showed_is_waited_for_no_longer() {
        let (mut publisher, queues) = publisher();
        let slot = slot(&publisher, "vm");
        slot.with(&publisher.shared, |core| core.pace.change());
        publisher.waiting.push_back(slot);
        publisher.look();
        publisher.show_changes();
        assert_eq!((queues.statuses_waiting(), publisher.waiting.len()), (1, 0));
    }

    #[test]
    fn changes_of_many_leave_room_for_the_files_that_are_due() {
        let (mut publisher, queues) = publisher();
        let quiet = slot(&publisher, "zz");
        for number in 0..STATUS_QUEUE {
            let noisy = slot(&publisher, &format!("a{number}"));
            noisy.with(&publisher.shared, |core| core.pace.change());
            publisher.waiting.push_back(noisy);
        }
        publisher.show_changes();
        assert_eq!(queues.statuses_waiting(), STATUS_QUEUE - NOT_FOR_CHANGES);
        assert_eq!(publisher.waiting.len(), NOT_FOR_CHANGES);
        assert_eq!(publisher.write(&quiet, false), Wish::Queued);
    }
}
