//! The two threads that touch files, each with a bounded queue: one for event logs, before anything of them is
//! acknowledged, and one for status files, for which nobody waits. A caller that finds a queue full keeps what it has
//! and comes again.

use super::descriptors::is_shortage;
use super::shared::{Shared, lock};
use super::slot::{Core, Slot};
use crate::model::Now;
use crate::publish::log::{Batch, Restored};
use crate::publish::snapshot::Snapshot;
use crate::publish::status_file;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Jobs of event logs that may wait: after a start every instance has one.
const LOG_QUEUE: usize = 16 * 1024;
/// Status files that may wait; each has all values of an instance.
const STATUS_QUEUE: usize = 256;

/// Microseconds that a status file has cost lately; paces the writing.
static STATUS_COST_US: AtomicU64 = AtomicU64::new(100);

/// Something to do with an event log.
#[derive(Debug)]
pub(super) enum LogJob {
    /// Read it back.
    Load(Arc<Slot>),
    /// Append to it, if no write has failed since this many had.
    Append(Arc<Slot>, Batch, u64),
    /// Say when all before this is done.
    Flush(oneshot::Sender<()>),
}

/// Something to do with a status file.
#[derive(Debug)]
pub(super) enum StatusJob {
    /// Replace it.
    Write(Arc<Slot>, Box<Snapshot>),
    /// Say when all before this is done.
    Flush(oneshot::Sender<()>),
}

/// Where the jobs go.
#[derive(Debug)]
pub(super) struct Writers {
    pub(super) logs: mpsc::Sender<LogJob>,
    pub(super) statuses: mpsc::Sender<StatusJob>,
}

/// Where they come from.
pub(super) struct Queues {
    logs: mpsc::Receiver<LogJob>,
    statuses: mpsc::Receiver<StatusJob>,
}

#[cfg(test)]
impl Queues {
    /// Status files that wait.
    pub(super) fn statuses_waiting(&self) -> usize {
        self.statuses.len()
    }
}

/// The queues.
pub(super) fn queues() -> (Writers, Queues) {
    let (logs, log_jobs) = mpsc::channel(LOG_QUEUE);
    let (statuses, status_jobs) = mpsc::channel(STATUS_QUEUE);
    (Writers { logs, statuses }, Queues { logs: log_jobs, statuses: status_jobs })
}

/// Starts both threads; they end with the process.
pub(super) fn start(shared: &Arc<Shared>, queues: Queues) -> io::Result<()> {
    let Queues { logs, statuses } = queues;
    let (of_logs, of_statuses) = (Arc::clone(shared), Arc::clone(shared));
    std::thread::Builder::new().name("logs".into()).spawn(move || write_logs(&of_logs, logs))?;
    std::thread::Builder::new().name("statuses".into()).spawn(move || write_statuses(&of_statuses, statuses))?;
    Ok(())
}

fn write_logs(shared: &Shared, mut jobs: mpsc::Receiver<LogJob>) {
    while let Some(job) = jobs.blocking_recv() {
        match job {
            LogJob::Load(slot) => load(shared, &slot),
            LogJob::Append(slot, batch, failures) => {
                if slot.look(Core::failures) == failures {
                    append(shared, &slot, &batch);
                }
                slot.with(shared, |core| core.written(batch.lines.len()));
            }
            LogJob::Flush(done) => {
                let _nobody_waits = done.send(());
            }
        }
    }
}

fn write_statuses(shared: &Shared, mut jobs: mpsc::Receiver<StatusJob>) {
    while let Some(job) = jobs.blocking_recv() {
        match job {
            StatusJob::Write(slot, snapshot) => {
                let began = Instant::now();
                write_status(shared, &slot, &snapshot);
                slot.with(shared, |core| core.status_queued = false);
                let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).min(1_000_000);
                STATUS_COST_US.store((status_cost_us() * 15 + took) / 16, Ordering::Relaxed);
            }
            StatusJob::Flush(done) => {
                let _nobody_waits = done.send(());
            }
        }
    }
}

/// Microseconds that a status file has cost lately.
pub(super) fn status_cost_us() -> u64 {
    STATUS_COST_US.load(Ordering::Relaxed)
}

fn load(shared: &Shared, slot: &Arc<Slot>) {
    let restored = match lock(&slot.log).restore() {
        Ok(restored) => restored,
        // Without what the guests have sent before they would be heard twice: better a little later.
        Err(error) if is_shortage(&error) => {
            slot.say(shared, tracing::Level::WARN, format_args!("cannot read events.log yet: {error}"));
            slot.not_loaded();
            return;
        }
        Err(error) => {
            slot.say(shared, tracing::Level::WARN, format_args!("cannot read events.log: {error}"));
            // Ids of the old file are not known: begin above any it can have.
            Restored { last_id: shared.now().wall_ms, ..Restored::default() }
        }
    };
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
    let all_us = (instances as u64).saturating_mul(status_cost_us()).saturating_mul(50);
    let every_us = all_us.clamp(1_000_000, 300_000_000);
    (now.mono_us + every_us, now.wall_ms + 2 * every_us / 1000 + 5_000)
}
