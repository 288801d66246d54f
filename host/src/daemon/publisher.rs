//! Decides when a status file is written: at once when a state changes, else at most once a second, less often when
//! there are many instances.

use super::shared::{Change, Shared};
use super::slot::Slot;
use super::writer::{Job, pace};
use crate::model::Now;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks for files that are due: a tenth of the time between two writes of one, within these bounds.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// See [`LOOK_EVERY`].
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// A status file is not written more often than this, even when states change without end.
const AT_MOST_EVERY_US: u64 = 100_000;

/// Works for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut looked = tokio::time::Instant::now();
    loop {
        let (again_us, _) = pace(shared.count(), Now::default());
        let pause = (Duration::from_micros(again_us) / 10).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY);
        tokio::select! {
            () = shared.urgent_wake.notified() => {
                for slot in shared.take_urgent() {
                    let _nobody_watches = shared.changes.send(Change::State(Arc::clone(&slot.name)));
                    write(&shared, &slot, true);
                }
            }
            () = tokio::time::sleep_until(looked + pause) => {
                looked = tokio::time::Instant::now();
                let now = shared.now();
                for slot in shared.slots() {
                    if slot.look(|core| now.mono_us >= core.write_at_us) {
                        write(&shared, &slot, false);
                    }
                }
            }
        }
    }
}

fn write(shared: &Shared, slot: &Arc<Slot>, urgent: bool) {
    let now = shared.now();
    let (again_us, by_ms) = pace(shared.count(), now);
    let due = slot.with(shared, |core| {
        core.instance.store_again(&mut core.budget, now);
        if core.removed {
            return false;
        }
        if urgent && now.mono_us < core.written_us + AT_MOST_EVERY_US {
            core.write_at_us = core.write_at_us.min(core.written_us + AT_MOST_EVERY_US);
            return false;
        }
        urgent || now.mono_us >= core.write_at_us
    });
    if !due {
        return;
    }
    let Ok(place) = shared.jobs.try_reserve() else {
        // The writer is behind: at the next look.
        slot.with(shared, |core| core.write_at_us = 0);
        return;
    };
    place.send(Job::Status(Arc::clone(slot), Box::new(slot.snapshot(shared.port, now, by_ms))));
    slot.with(shared, |core| {
        core.write_at_us = again_us;
        core.written_us = now.mono_us;
    });
}

/// Writes all status files a last time, and waits for the writer.
pub(super) async fn last(shared: &Shared) {
    for slot in shared.slots() {
        let now = shared.now();
        let snapshot = slot.snapshot(shared.port, now, now.wall_ms);
        let job = Job::Status(Arc::clone(&slot), Box::new(snapshot));
        if shared.jobs.send(job).await.is_err() {
            return;
        }
    }
    let (done, wait) = tokio::sync::oneshot::channel();
    if shared.jobs.send(Job::Flush(done)).await.is_ok() {
        let _writer_gone = wait.await;
    }
}
