//! The two threads that touch files, each with a bounded queue: one for event logs, before anything of them is
//! acknowledged, and one for status files, for which nobody waits. A caller that finds a queue full keeps what it has
//! and comes again.

use super::descriptors::is_shortage;
use super::pace::Median;
use super::shared::{Shared, lock};
use super::slot::{Core, Slot};
use crate::publish::log::{Batch, Restored};
use crate::publish::snapshot::Snapshot;
use crate::publish::status_file;
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Jobs of event logs that may wait: after a start every instance has one.
const LOG_QUEUE: usize = 16 * 1024;
/// Status files that may wait; each has all values of an instance.
pub(super) const STATUS_QUEUE: usize = 256;

/// Something to do with an event log.
#[derive(Debug)]
pub(super) enum LogJob {
    /// Read it back.
    Load(Arc<Slot>),
    /// Append to it, if no write has failed since this many had.
    Append(Arc<Slot>, Batch, u64),
    /// Say when all before this is done.
    Flush(oneshot::Sender<()>),
    /// What had to wait for the lock can be done.
    Owned,
}

/// Something to do with a status file.
#[derive(Debug)]
pub(super) enum StatusJob {
    /// Replace it; left out once the daemon stops.
    Write(Arc<Slot>, Box<Snapshot>),
    /// Replace it for the last time.
    Last(Arc<Slot>, Box<Snapshot>, LastStatuses),
    /// Say when all before this is done.
    Flush(oneshot::Sender<()>),
}

/// Counts last status files that are not written yet.
#[derive(Clone, Debug)]
pub(super) struct LastStatuses(Arc<AtomicUsize>);

impl LastStatuses {
    pub(super) fn new(all: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(all)))
    }

    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where the jobs go.
#[derive(Debug)]
pub(super) struct Writers {
    pub(super) logs: mpsc::Sender<LogJob>,
    pub(super) statuses: mpsc::Sender<StatusJob>,
    /// How long a status file took lately, microseconds.
    took_us: AtomicU64,
    /// What a status file costs lately, microseconds of CPU time.
    cost_us: Median,
}

impl Writers {
    /// How long a status file took lately, microseconds.
    pub(super) fn status_took_us(&self) -> u64 {
        self.took_us.load(Ordering::Relaxed)
    }

    /// What a status file costs most instances lately, microseconds of CPU time.
    pub(super) fn status_cost_us(&self) -> u64 {
        self.cost_us.get()
    }
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
    let writers = Writers { logs, statuses, took_us: AtomicU64::new(100), cost_us: Median::new(100) };
    (writers, Queues { logs: log_jobs, statuses: status_jobs })
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
    // The logs of a daemon that is followed are whole, and may be read; to write them they must be this one's.
    let mut later = Vec::new();
    while let Some(job) = jobs.blocking_recv() {
        if !shared.hand.owns() && !matches!(job, LogJob::Load(_) | LogJob::Owned) {
            later.push(job);
            continue;
        }
        for job in later.drain(..).chain([job]) {
            write_log(shared, job);
        }
    }
}

fn write_log(shared: &Shared, job: LogJob) {
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
        LogJob::Owned => {}
    }
}

fn write_statuses(shared: &Shared, mut jobs: mpsc::Receiver<StatusJob>) {
    while let Some(job) = jobs.blocking_recv() {
        match job {
            StatusJob::Write(slot, snapshot) if !shared.is_stopping() => {
                let (began, cpu_us) = (Instant::now(), thread_us());
                let failed = !write_status(shared, &slot, &snapshot);
                let cost_us = thread_us().saturating_sub(cpu_us);
                slot.with(shared, |core| core.pace.written(cost_us, failed, shared.now()));
                shared.writers.cost_us.add(cost_us);
                let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                let lately_us = (shared.writers.status_took_us() * 15).saturating_add(took_us) / 16;
                shared.writers.took_us.store(lately_us, Ordering::Relaxed);
            }
            StatusJob::Write(..) => {}
            StatusJob::Last(slot, snapshot, unwritten) => {
                if write_status(shared, &slot, &snapshot) {
                    unwritten.0.fetch_sub(1, Ordering::Relaxed);
                }
            }
            StatusJob::Flush(done) => {
                let _nobody_waits = done.send(());
            }
        }
    }
}

/// CPU time of this thread, microseconds: unlike time, other work on the machine does not count in it.
fn thread_us() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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

/// Whether it is written, or nobody wants it any more.
fn write_status(shared: &Shared, slot: &Arc<Slot>, snapshot: &Snapshot) -> bool {
    if slot.look(|core| core.removed) {
        return true;
    }
    let Err(error) = status_file::write(&slot.folder, snapshot) else { return true };
    if !slot.folder.exists() {
        return true;
    }
    slot.say(shared, tracing::Level::WARN, format_args!("cannot write status.json: {error}"));
    false
}
