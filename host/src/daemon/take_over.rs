//! One daemon follows another in the same directory, and no guest notices more than a new session.
//!
//! ```text
//! newcomer                                    owner
//!   POST /v1/take-over/ready  ------------->    begins nothing more, finishes what it asked of VMMs, stores no event
//!                                               any more (they stay with the guests), ends its logs
//!   <----------------------------- 200          goes back to work unless asked to go within 5 s
//!   binds every instance's socket beside the
//!   owner's and renames it over; serves, but
//!   writes nothing and resizes nothing
//!   POST /v1/take-over/go  ---------------->    Bye(moved) to every session, spread over up to 2 s; takes what is
//!   <----------------------------- 200          left in its queues; ends
//!   waits for the lock, then it is the owner
//! ```
//!
//! A connect is never refused: the path leads to one of two sockets that listen. Only AF_VSOCK has no renaming; there the
//! newcomer binds as soon as the owner is gone.

use super::shared::Shared;
use super::writer::LogJob;
use crate::lock::{self, Lock, LockError};
use crate::model::{Now, SECOND_US};
use crate::unix_http;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode};
use informant_wire::host_to_guest::ByeReason;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

/// For what is being asked of VMMs.
const DRAIN: Duration = Duration::from_secs(5);
/// Without the word to go the owner goes on after this time.
const GO_WITHIN: Duration = Duration::from_secs(5);
/// For an owner's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// For the end of an owner that has said yes: what it waits for is bounded by its disk.
const LEAVE: Duration = Duration::from_secs(30);
/// Goodbyes are spread over this time at most.
const SPREAD: Duration = Duration::from_secs(2);
/// So many in a row.
const SPREAD_BURST: usize = 16;
/// Between two bursts.
const SPREAD_PAUSE: Duration = Duration::from_millis(2);
/// What waits in a listener's queue at the end is taken and told to come again.
const LAST_CONNECTIONS: Duration = Duration::from_millis(100);
/// So long a guest may take to come over before its status says that it has not.
const AWAIT_US: u64 = 3 * SECOND_US;
/// Largest answer of an owner.
const MAX_ANSWER: usize = 4096;

/// Where this daemon stands between another one before and another one after it.
#[derive(Debug)]
pub(super) struct Hand {
    /// The directory's lock is its own.
    owns: watch::Sender<bool>,
    /// It is asked to go.
    yields: AtomicBool,
    /// Since when; each time it goes back to work another number.
    round: AtomicUsize,
    /// Calls to VMMs under way.
    acting: AtomicUsize,
    /// When it took over, microseconds; 0: it followed nobody.
    owned_us: AtomicU64,
    /// It is to go.
    pub(super) go: Notify,
}

impl Hand {
    /// `owns`: there is nobody before it.
    pub(super) fn new(owns: bool) -> Self {
        Self {
            owns: watch::Sender::new(owns),
            yields: AtomicBool::new(false),
            round: AtomicUsize::new(0),
            acting: AtomicUsize::new(0),
            owned_us: AtomicU64::new(0),
            go: Notify::new(),
        }
    }

    /// Whether it may write files and resize VMs.
    pub(super) fn owns(&self) -> bool {
        *self.owns.borrow()
    }

    /// Returns when it may.
    pub(super) async fn until_owned(&self) {
        let mut owns = self.owns.subscribe();
        let _never_dropped = owns.wait_for(|owns| *owns).await;
    }

    /// Whether guests may still be on their way from the daemon before: what that one wrote of them last says more than
    /// that they are not here yet.
    pub(super) fn awaits(&self, now: Now) -> bool {
        let owned_us = self.owned_us.load(Ordering::Relaxed);
        owned_us > 0 && now.mono_us.saturating_sub(owned_us) < AWAIT_US
    }

    /// Whether it stores nothing and begins nothing any more.
    pub(super) fn yields(&self) -> bool {
        self.yields.load(Ordering::Relaxed)
    }

    /// A call to a VMM, until the answer is dropped. `None`: not now.
    pub(super) fn act(&self) -> Option<Acting<'_>> {
        (self.owns() && !self.yields()).then(|| {
            self.acting.fetch_add(1, Ordering::Relaxed);
            Acting(self)
        })
    }
}

/// See [`Hand::act`].
#[derive(Debug)]
pub(super) struct Acting<'a>(&'a Hand);

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        self.0.acting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The owner's side of "ready": whether it is.
pub(super) async fn ready(shared: &Arc<Shared>) -> bool {
    let hand = &shared.hand;
    if !hand.owns() || shared.is_stopping() {
        return false;
    }
    hand.yields.store(true, Ordering::Relaxed);
    let round = hand.round.fetch_add(1, Ordering::Relaxed) + 1;
    let drained = async {
        while hand.acting.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(5)).await;
        }
        let (done, appended) = oneshot::channel();
        if shared.writers.logs.send(LogJob::Flush(done)).await.is_ok() {
            let _writer_gone = appended.await;
        }
    };
    let ready = timeout(DRAIN, drained).await.is_ok();
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        sleep(if ready { GO_WITHIN } else { Duration::ZERO }).await;
        let hand = &shared.hand;
        if hand.round.load(Ordering::Relaxed) == round && !shared.is_stopping() {
            hand.yields.store(false, Ordering::Relaxed);
            tracing::warn!("nobody took over: goes on");
            // Events that were left alone meanwhile come again on new sessions.
            for slot in shared.slots() {
                slot.with(&shared, |core| core.instance.end_all(ByeReason::STOPPING));
            }
        }
    });
    ready
}

/// The owner's side of "go": whether it does.
pub(super) fn go(shared: &Shared) -> bool {
    let goes = shared.hand.yields() && !shared.is_stopping();
    if goes {
        shared.stopping.store(true, Ordering::Relaxed);
        shared.hand.go.notify_one();
    }
    goes
}

/// Tells every session that another daemon is there; a few at a time, so that they do not all come at once.
pub(super) async fn leave(shared: &Arc<Shared>) {
    let slots = shared.slots();
    let began = Instant::now();
    for (told, slot) in slots.iter().enumerate() {
        slot.with(shared, |core| core.instance.end_all(ByeReason::MOVED));
        if told % SPREAD_BURST == SPREAD_BURST - 1 && began.elapsed() < SPREAD {
            sleep(SPREAD_PAUSE).await;
        }
    }
    let all_gone = async {
        while shared.sessions.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let _late_ones_are_cut = timeout(SPREAD.saturating_sub(began.elapsed()).max(LAST_CONNECTIONS), all_gone).await;
    sleep(LAST_CONNECTIONS).await;
}

/// Why no daemon could be followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeOverError {
    #[error(
        "the daemon that serves {dir} does not answer within {} s; it is left as it is: stop it, then start this one",
        ANSWER.as_secs()
    )]
    Silent { dir: String },
    #[error("the daemon that serves {dir} does not give it up: {cause}; stop it, then start this one")]
    Refused { dir: String, cause: String },
    #[error("the daemon that served {dir} said that it goes and still holds {dir}/.lock after {} s", LEAVE.as_secs())]
    Stays { dir: String },
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Asks the owner for one of the two steps.
pub(super) async fn ask(dir: &Path, step: &str) -> Result<(), TakeOverError> {
    let refused = |cause: String| TakeOverError::Refused { dir: dir.display().to_string(), cause };
    let asked = async {
        let stream =
            UnixStream::connect(dir.join("informant.sock")).await.map_err(|error| refused(error.to_string()))?;
        let request = Request::post(format!("/v1/take-over/{step}"))
            .header(hyper::header::HOST, "informant")
            .body(Full::default())
            .map_err(|error| refused(error.to_string()))?;
        let (response, _connection) =
            unix_http::ask(stream, request).await.map_err(|error| refused(unix_http::shown(&error)))?;
        if response.status().is_success() {
            return Ok(());
        }
        if response.status() == StatusCode::NOT_FOUND || response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(refused("its version can not".into()));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        Err(refused(text.unwrap_or_default()))
    };
    timeout(ANSWER, asked).await.unwrap_or_else(|_| Err(TakeOverError::Silent { dir: dir.display().to_string() }))
}

/// The newcomer's last step: the lock becomes its own when the owner has ended.
pub(super) async fn own(shared: &Shared) -> Result<Lock, TakeOverError> {
    let deadline = Instant::now() + LEAVE;
    let lock = loop {
        match lock::try_acquire(&shared.dir)? {
            Some(lock) => break lock,
            None if Instant::now() >= deadline => {
                return Err(TakeOverError::Stays { dir: shared.dir.display().to_string() });
            }
            None => sleep(Duration::from_millis(5)).await,
        }
    };
    shared.hand.owned_us.store(shared.now().mono_us.max(1), Ordering::Relaxed);
    shared.hand.owns.send_replace(true);
    let _writer_gone = shared.writers.logs.send(LogJob::Owned).await;
    Ok(lock)
}
