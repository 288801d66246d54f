//! The daemon: wires sessions, model and publishing to sockets, files and time. One thread runs all of it; two others
//! write files.

mod accept;
mod api;
mod claims;
mod coalesce;
mod connection;
mod descriptors;
mod folders;
mod instance_file;
mod pace;
mod patience;
mod prove;
mod publisher;
mod scale;
mod shared;
mod slot;
mod take_over;
mod watchers;
mod watches;
mod writer;

use crate::lock::{self, Lock, LockError};
use descriptors::{Descriptors, DescriptorsError};
use informant_wire::HOST_PORT;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::ControllerId;
use shared::Shared;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use take_over::{Before, Hand, TakeOverError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// How long the sessions have to take their Bye at the end.
const GOODBYE: Duration = Duration::from_secs(1);

/// Where the instances are when nobody says otherwise; made with what is above it.
pub const DEFAULT_DIR: &str = "/var/lib/informant";

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The vsock port on which the agents find this host
    #[arg(long, value_name = "PORT", default_value_t = HOST_PORT, value_parser = ports())]
    pub port: u32,
    /// Take the place of the daemon that serves DIR: it hands its guests over and ends. Without one this starts as ever
    #[arg(long)]
    pub take_over: bool,
}

/// All ports that can be listened at: neither 0 nor `VMADDR_PORT_ANY`, for which the kernel would choose one.
fn ports() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(u32::MAX - 1))
}

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("cannot use {path}: {source}; make the directory, or name another one with --dir")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot make {path}: there is no {parent}; is --dir right?")]
    NoParent { path: PathBuf, parent: PathBuf },
    #[error("cannot listen at {path}: {source}")]
    Api { path: PathBuf, source: io::Error },
    #[error(
        "{count} status files could not be written at the end: they say what was before; the log says why, or the storage is slow"
    )]
    Unwritten { count: usize },
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    #[error("cannot start: {0}")]
    Descriptors(#[from] DescriptorsError),
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
}

/// Runs the daemon until it is told to stop.
#[must_use]
pub fn main(dir: &Path, arguments: &Arguments) -> ExitCode {
    tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false).init();
    match serve(dir, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("informant-host: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(dir: &Path, arguments: &Arguments) -> Result<(), ServeError> {
    let descriptors = Descriptors::new()?;
    if make(dir)? {
        tracing::info!("made {}: there are no instances yet", dir.display());
    }
    let dir = dir.canonicalize().map_err(|source| ServeError::Directory { path: dir.into(), source })?;
    // Without one: whoever has it hands it over.
    let lock = if arguments.take_over { lock::try_acquire(&dir)? } else { Some(lock::acquire(&dir)?) };
    let mut controller = [0; 16];
    getrandom::fill(&mut controller).map_err(io::Error::other)?;
    let (writers, queues) = writer::queues();
    let shared = Arc::new(Shared::new(
        dir,
        arguments.port,
        ControllerId(controller),
        writers,
        descriptors,
        Hand::new(lock.is_some()),
    ));
    writer::start(&shared, queues)?;
    let coalesce = coalesce::Coalesce::new(Arc::clone(&shared));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .on_thread_park(move || coalesce.before_sleep())
        .build()?;
    runtime.block_on(run(&shared, lock))
}

/// Makes DIR, and says whether it was not there. Where its parent is not there either, its name may be a slip.
fn make(dir: &Path) -> Result<bool, ServeError> {
    let made = match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && dir == Path::new(DEFAULT_DIR) => {
            std::fs::create_dir_all(dir)
        }
        made => made,
    };
    let path = dir.to_owned();
    match (made, dir.parent()) {
        (Ok(()), _) => Ok(true),
        (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(ServeError::Directory { path, source: io::ErrorKind::NotADirectory.into() })
        }
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            Err(ServeError::NoParent { path, parent: parent.into() })
        }
        (Err(source), _) => Err(ServeError::Directory { path, source }),
    }
}

/// `lock`: none yet when it follows another daemon.
async fn run(shared: &Arc<Shared>, lock: Option<Lock>) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stop = pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    let begun = tokio::select! {
        begun = begin(shared, lock) => begun.map(Some),
        () = &mut stop => Ok(None),
    };
    let Ok(Some((_lock, publisher))) = begun else {
        // Nothing of the directory is this one's.
        take_over::give_back().await;
        goodbye(shared, ByeReason::MOVED).await;
        return begun.map(drop);
    };
    tracing::info!("serves {} at port {}", shared.dir.display(), shared.port);
    tokio::select! {
        () = stop => {}
        () = shared.hand.go.notified() => {
            tracing::info!("another daemon takes over");
            // The other one's files say what follows.
            publisher.abort();
            take_over::leave(shared).await;
            return Ok(());
        }
    }
    tracing::info!("stops");
    goodbye(shared, ByeReason::STOPPING).await;
    // What it would write is not the last.
    publisher.abort();
    let _aborted = publisher.await;
    match publisher::last(shared).await {
        0 => Ok(()),
        count => Err(ServeError::Unwritten { count }),
    }
}

/// From the lock, or from another daemon's, to a daemon that serves.
async fn begin(shared: &Arc<Shared>, lock: Option<Lock>) -> Result<(Lock, JoinHandle<()>), ServeError> {
    let follows = lock.is_none();
    let before = match lock {
        Some(lock) => Before::Gone(lock),
        None => take_over::follow(shared).await?,
    };
    let publisher = tokio::spawn(publisher::run(Arc::clone(shared)));
    tokio::spawn(accept::run_vsock(Arc::clone(shared)));
    tokio::spawn(folders::run(Arc::clone(shared)));
    let lock = match before {
        Before::Gone(lock) => Some(lock),
        Before::Ready(asked) => take_over::relieve(shared, asked).await?,
    };
    // Until the owner goes its API is the way to it; then the new one is in its place at once.
    let path = shared.dir.join("informant.sock");
    let api = api::listen(&path, follows).map_err(|source| ServeError::Api { path, source })?;
    tokio::spawn(api::run(Arc::clone(shared), api));
    let lock = match lock {
        Some(lock) if !follows => lock,
        lock => take_over::own(shared, lock).await?,
    };
    Ok((lock, publisher))
}

/// Says goodbye to every session; bounded, whatever guests do.
async fn goodbye(shared: &Arc<Shared>, reason: ByeReason) {
    shared.stopping.store(true, Ordering::Relaxed);
    for slot in shared.slots() {
        slot.with(shared, |core| core.instance.end_all(reason));
    }
    let all_gone = async {
        while shared.sessions.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _late_ones_are_cut = tokio::time::timeout(GOODBYE, all_gone).await;
}
