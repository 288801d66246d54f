//! The one thread that writes files: event logs before anything of them is acknowledged, and status files. Its queue is
//! bounded; a caller that finds it full keeps what it has and comes again.

use super::shared::{Shared, lock};
use super::slot::{Core, Slot};
use crate::model::Now;
use crate::publish::log::Batch;
use crate::publish::snapshot::Snapshot;
use crate::publish::status_file;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Jobs that may wait.
pub(super) const QUEUE: usize = 1024;

/// Microseconds that a status file has cost lately; paces the writing.
pub(super) static STATUS_COST_US: AtomicU64 = AtomicU64::new(100);

/// Something to write or read.
#[derive(Debug)]
pub(super) enum Job {
    /// Read an event log back.
    Load(Arc<Slot>),
    /// Append to an event log, if no write has failed since this many had.
    Append(Arc<Slot>, Batch, u64),
    /// Replace a status file.
    Status(Arc<Slot>, Box<Snapshot>),
    /// Say when all before this is done.
    Flush(oneshot::Sender<()>),
}

/// Works until the queue is closed.
pub(super) fn run(shared: &Shared, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.blocking_recv() {
        match job {
            Job::Load(slot) => load(shared, &slot),
            Job::Append(slot, batch, failures) => {
                if slot.look(Core::failures) == failures {
                    append(shared, &slot, &batch);
                }
            }
            Job::Status(slot, snapshot) => {
                let began = Instant::now();
                write_status(shared, &slot, &snapshot);
                let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).min(1_000_000);
                let before = STATUS_COST_US.load(Ordering::Relaxed);
                STATUS_COST_US.store((before * 15 + took) / 16, Ordering::Relaxed);
            }
            Job::Flush(done) => {
                let _nobody_waits = done.send(());
            }
        }
    }
}

fn load(shared: &Shared, slot: &Arc<Slot>) {
    let restored = lock(&slot.log).restore().unwrap_or_else(|error| {
        slot.say(shared, tracing::Level::WARN, format_args!("cannot read events.log: {error}"));
        // Ids of the old file are not known: begin above any it can have.
        crate::publish::log::Restored { last_id: shared.now().wall_ms, ..Default::default() }
    });
    slot.set_loaded(shared, restored);
}

fn append(shared: &Shared, slot: &Arc<Slot>, batch: &Batch) {
    if slot.look(|core| core.removed) {
        return;
    }
    let appended = lock(&slot.log).append(batch);
    slot.with(shared, |core| match &appended {
        Ok(()) => {
            for stream in &batch.streams {
                core.instance.stored(stream.boot, stream.stream, stream.last, stream.count);
            }
        }
        Err(_) => {
            core.lose_batch();
            core.instance.not_stored(shared.now());
        }
    });
    if let Err(error) = appended {
        let what = format_args!("cannot write events.log: {error}; events stay in the guest until it can be written");
        slot.say(shared, tracing::Level::WARN, what);
    }
}

fn write_status(shared: &Shared, slot: &Arc<Slot>, snapshot: &Snapshot) {
    if slot.look(|core| core.removed) {
        return;
    }
    let Err(error) = status_file::write(&slot.folder, snapshot) else { return };
    if slot.folder.exists() {
        slot.say(shared, tracing::Level::WARN, format_args!("cannot write status.json: {error}"));
    }
}

/// When a status written now is written again at the latest, and at the earliest, for so many instances.
pub(super) fn pace(instances: usize, now: Now) -> (u64, u64) {
    // A fiftieth of a core for status files.
    let all_us = (instances as u64).saturating_mul(STATUS_COST_US.load(Ordering::Relaxed)).saturating_mul(50);
    let every_us = all_us.clamp(1_000_000, 120_000_000);
    (now.mono_us + every_us, now.wall_ms + 2 * every_us / 1000 + 5_000)
}
