//! Decides when a status file is written: at once when a state changes, else at most once a second, less often when
//! there are many instances, and spread out when the states of many change together.

use super::shared::{Change, Shared};
use super::slot::Slot;
use super::writer::{LogJob, StatusJob, pace, status_cost_us};
use crate::model::Now;
use crate::model::budget::Bucket;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often it looks for files that are due: a tenth of the time between two writes of one, within these bounds.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// See [`LOOK_EVERY`].
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// A status file is not written more often than this, even when states change without end.
const AT_MOST_EVERY_US: u64 = 100_000;
/// A tenth of a core for status files, whatever happens: after a restart the guests' handshakes need the rest.
const COST_US_A_SECOND: u64 = 100_000;
/// What may be spent of it at once.
const COST_US_AT_ONCE: u64 = 500_000;

/// What came of a wish to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It is on its way, or need not be written now.
    Settled,
    /// There is no room or no budget: it is due at the next look.
    Later,
}

/// Works for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut budget = Bucket::new(COST_US_A_SECOND, COST_US_AT_ONCE, shared.now());
    let mut looked = tokio::time::Instant::now();
    let mut behind = false;
    loop {
        let (again_us, _) = pace(shared.count(), Now::default());
        let pause = (Duration::from_micros(again_us) / 10).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY);
        tokio::select! {
            () = shared.urgent_wake.notified() => {
                for slot in shared.take_urgent() {
                    let _nobody_watches = shared.changes.send(Change::State(Arc::clone(&slot.name)));
                    behind |= write(&shared, &slot, &mut budget, true) == Wish::Later;
                }
            }
            () = tokio::time::sleep_until(looked + if behind { LOOK_EVERY } else { pause }) => {
                looked = tokio::time::Instant::now();
                let now = shared.now();
                let due = |slot: &Arc<Slot>| slot.look(|core| now.mono_us >= core.write_at_us);
                let mut slots = shared.slots().into_iter().filter(due);
                behind = slots.any(|slot| write(&shared, &slot, &mut budget, false) == Wish::Later);
            }
        }
    }
}

fn write(shared: &Shared, slot: &Arc<Slot>, budget: &mut Bucket, urgent: bool) -> Wish {
    let now = shared.now();
    let (again_us, by_ms) = pace(shared.count(), now);
    let due = slot.with(shared, |core| {
        core.instance.store_again(&mut core.budget, now);
        if core.removed {
            return false;
        }
        if core.status_queued {
            if urgent {
                core.write_at_us = 0;
            }
            return false;
        }
        if urgent && now.mono_us < core.written_us + AT_MOST_EVERY_US {
            core.write_at_us = core.write_at_us.min(core.written_us + AT_MOST_EVERY_US);
            return false;
        }
        urgent || now.mono_us >= core.write_at_us
    });
    if !due {
        return Wish::Settled;
    }
    budget.spend(0, now);
    let place = shared.writers.statuses.try_reserve().ok().filter(|_| !budget.is_spent());
    let Some(place) = place else {
        slot.with(shared, |core| core.write_at_us = 0);
        return Wish::Later;
    };
    budget.spend(status_cost_us(), now);
    slot.with(shared, |core| {
        core.write_at_us = again_us;
        core.written_us = now.mono_us;
        core.status_queued = true;
    });
    place.send(StatusJob::Write(Arc::clone(slot), Box::new(slot.snapshot(shared.port, now, by_ms))));
    Wish::Settled
}

/// Writes all status files a last time, and waits until everything is written.
pub(super) async fn last(shared: &Shared) {
    for slot in shared.slots() {
        let now = shared.now();
        let snapshot = slot.snapshot(shared.port, now, now.wall_ms);
        let job = StatusJob::Write(Arc::clone(&slot), Box::new(snapshot));
        if shared.writers.statuses.send(job).await.is_err() {
            return;
        }
    }
    let (written, statuses) = oneshot::channel();
    let (appended, logs) = oneshot::channel();
    if shared.writers.statuses.send(StatusJob::Flush(written)).await.is_ok() {
        let _writer_gone = statuses.await;
    }
    if shared.writers.logs.send(LogJob::Flush(appended)).await.is_ok() {
        let _writer_gone = logs.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::writer;
    use informant_wire::id::ControllerId;

    #[test]
    fn while_the_disk_hangs_an_instance_has_one_status_on_its_way_and_the_next_is_due() {
        let (writers, queues) = writer::queues();
        let shared = Shared::new("/nowhere".into(), 1, ControllerId([0; 16]), writers);
        let slot = Arc::new(Slot::new("vm", "/nowhere/vm".into(), shared.now()));
        let mut budget = Bucket::new(COST_US_A_SECOND, COST_US_AT_ONCE, shared.now());
        for urgent in [false, true, false, true] {
            assert_eq!(write(&shared, &slot, &mut budget, urgent), Wish::Settled);
        }
        assert_eq!(queues.statuses_waiting(), 1);
        slot.with(&shared, |core| {
            assert_eq!(core.write_at_us, 0, "due");
            core.status_queued = false;
        });
        write(&shared, &slot, &mut budget, false);
        assert_eq!(queues.statuses_waiting(), 2);
    }
}
