//! One daemon follows another in the same directory, and no guest notices more than a new session.
//!
//! ```text
//! newcomer                                    owner
//!   POST /v1/take-over/ready  ------------->    begins nothing more, finishes what it asked of VMMs, stores no event
//!                                               any more (they stay with the guests), ends its logs
//!   <------------- 200, without an end          goes back to work when this connection ends, after 30 s at the latest
//!   binds every instance's socket beside the
//!   owner's and renames it over; serves, but
//!   writes nothing and resizes nothing; gives
//!   up after 25 s
//!   POST /v1/take-over/go  ---------------->    Bye(moved) to every session, spread over up to 2 s; takes what is
//!   <----------------------------- 200          left in its queues; ends
//!   waits for the lock, then it is the owner
//! ```
//!
//! A connect is never refused: the path leads to one of two sockets that listen. Only AF_VSOCK has no renaming; there the
//! newcomer binds as soon as the owner is gone.
//!
//! Either may die at any step. An owner that goes back to work binds its paths again where the newcomer had got so far,
//! at once. A newcomer whose owner ends early has the lock, and goes on alone.

use super::shared::Shared;
use super::writer::LogJob;
use crate::lock::{self, Lock, LockError};
use crate::model::{Now, SECOND_US};
use crate::unix_http;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response, StatusCode};
use informant_wire::host_to_guest::ByeReason;
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// For what VMMs were told; then the newcomer, who asks them what is true, sees what comes of it.
const TELLING: Duration = Duration::from_secs(3);
/// For the logs, without whose end nothing is handed over.
const FLUSH: Duration = Duration::from_secs(5);
/// Without the word to go the owner goes on after this time, whatever the newcomer does.
const GO_WITHIN: Duration = Duration::from_secs(30);
/// A newcomer gives up sooner: thousands of sockets are bound in a few seconds.
const BIND_WITHIN: Duration = Duration::from_secs(25);
/// For an owner's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// A process that was killed holds its lock a moment longer than its sockets.
const LOCK_LINGERS: Duration = Duration::from_secs(1);
/// For the end of an owner that has said yes: what it waits for is bounded by its disk.
const LEAVE: Duration = Duration::from_secs(30);
/// Before an owner goes it looks whether who said so is still there: it may have been asked while it stood still.
const LOOK_BACK: Duration = Duration::from_millis(20);
/// Before a newcomer that gives up closes its sockets: the owner is to have its own in their places.
const GIVE_BACK: Duration = Duration::from_millis(300);
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

/// Where a daemon stands between another one before and another one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// The directory is another one's.
    Follows,
    /// The directory's lock is its own.
    Owns,
    /// So it is, and another one is asking for it.
    Yields,
}

/// See [`Stands`].
#[derive(Debug)]
pub(super) struct Hand {
    stands: watch::Sender<Stands>,
    /// VMMs that are being told a size.
    telling: AtomicUsize,
    /// When it took over, microseconds; 0: it followed nobody.
    owned_us: AtomicU64,
    /// It is to go.
    pub(super) go: Notify,
}

impl Hand {
    /// `owns`: there is nobody before it.
    pub(super) fn new(owns: bool) -> Self {
        Self {
            stands: watch::Sender::new(if owns { Stands::Owns } else { Stands::Follows }),
            telling: AtomicUsize::new(0),
            owned_us: AtomicU64::new(0),
            go: Notify::new(),
        }
    }

    /// Whether it may write files.
    pub(super) fn owns(&self) -> bool {
        *self.stands.borrow() != Stands::Follows
    }

    /// Returns when it may.
    pub(super) async fn until_owned(&self) {
        let mut stands = self.stands.subscribe();
        let _never_dropped = stands.wait_for(|stands| *stands != Stands::Follows).await;
    }

    /// Whether guests may still be on their way from the daemon before: what that one wrote of them last says more than
    /// that they are not here yet.
    pub(super) fn awaits(&self, now: Now) -> bool {
        let owned_us = self.owned_us.load(Ordering::Relaxed);
        owned_us > 0 && now.mono_us.saturating_sub(owned_us) < AWAIT_US
    }

    /// Whether it stores nothing and begins nothing any more.
    pub(super) fn yields(&self) -> bool {
        *self.stands.borrow() == Stands::Yields
    }

    /// Whether it may resize VMs: no other daemon does, nor is about to.
    pub(super) fn may_act(&self) -> bool {
        *self.stands.borrow() == Stands::Owns
    }

    /// Tells of changes of all of this.
    pub(super) fn changes(&self) -> Changes {
        Changes(self.stands.subscribe())
    }

    /// A VMM is being told a size, until the answer is dropped.
    pub(super) fn tell(&self) -> Telling<'_> {
        self.telling.fetch_add(1, Ordering::Relaxed);
        Telling(self)
    }
}

/// See [`Hand::changes`].
#[derive(Debug)]
pub(super) struct Changes(watch::Receiver<Stands>);

impl Changes {
    /// Returns when where the daemon stands is another than at the last call.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// See [`Hand::tell`].
#[derive(Debug)]
pub(super) struct Telling<'a>(&'a Hand);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.telling.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The owner's side of the connection on which a newcomer asked whether it is ready: while it is there the owner yields.
/// The body of the answer; it has no bytes.
pub(super) struct Lease {
    shared: Arc<Shared>,
    ends: Pin<Box<Sleep>>,
}

impl axum::body::HttpBody for Lease {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.ends.as_mut().poll(cx).map(|()| None)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        if shared.is_stopping() {
            return;
        }
        shared.hand.stands.send_replace(Stands::Owns);
        tracing::warn!("nobody took over: goes on");
        // Outside of its runtime a daemon has ended.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { go_on(&shared).await });
        }
    }
}

/// The owner's side of "ready": a lease if it is. One at a time.
pub(super) async fn ready(shared: &Arc<Shared>) -> Option<Lease> {
    let hand = &shared.hand;
    if !hand.may_act() || shared.is_stopping() {
        return None;
    }
    hand.stands.send_replace(Stands::Yields);
    // From here on: whoever asked may be gone before it hears the answer.
    let lease = Lease { shared: Arc::clone(shared), ends: Box::pin(sleep(GO_WITHIN)) };
    let deadline = Instant::now() + TELLING;
    while hand.telling.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(5)).await;
    }
    let appended = async {
        let (done, appended) = oneshot::channel();
        if shared.writers.logs.send(LogJob::Flush(done)).await.is_ok() {
            let _writer_gone = appended.await;
        }
    };
    timeout(FLUSH, appended).await.is_ok().then_some(lease)
}

/// Back to work: what waited is written, and the sessions whose events were left alone begin anew, as those come again
/// on new ones only.
async fn go_on(shared: &Arc<Shared>) {
    for (told, slot) in shared.slots().iter().enumerate() {
        slot.with(shared, |core| core.end_unheard(ByeReason::MOVED));
        if told % SPREAD_BURST == SPREAD_BURST - 1 {
            sleep(SPREAD_PAUSE).await;
        }
    }
}

/// The owner's side of "go": whether it does.
pub(super) async fn go(shared: &Shared) -> bool {
    sleep(LOOK_BACK).await;
    let goes = shared.hand.yields() && !shared.is_stopping();
    if goes {
        shared.stopping.store(true, Ordering::Relaxed);
        shared.hand.go.notify_one();
    } else {
        // Who asked may have been standing still, and have taken paths after this one had its own again.
        shared.hand.stands.send_modify(|_| {});
    }
    goes
}

/// Tells every session that another daemon is there; a few at a time, so that they do not all come at once.
pub(super) async fn leave(shared: &Arc<Shared>) {
    let slots = shared.slots();
    let began = Instant::now();
    for (told, slot) in slots.iter().enumerate() {
        slot.with(shared, |core| {
            core.desk.hand_over(shared.now());
            core.instance.end_all(ByeReason::MOVED);
        });
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
    #[error(
        "the instances of {dir} could not be bound within {} s; the daemon that serves it goes on",
        BIND_WITHIN.as_secs()
    )]
    Slow { dir: String },
    #[error("the daemon that served {dir} said that it goes and still holds {dir}/.lock after {} s", LEAVE.as_secs())]
    Stays { dir: String },
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// What a newcomer finds.
#[derive(Debug)]
pub(super) enum Before {
    /// An owner that is ready to go while this is kept.
    Ready(Asked),
    /// Nobody any more.
    Gone(Lock),
}

/// A newcomer's side of a question: the connection, and with it the owner's [`Lease`], ends when this is dropped.
#[derive(Debug)]
pub(super) struct Asked {
    _answer: Response<Incoming>,
    _connection: unix_http::Connection,
}

/// Asks the owner whether it is ready. It may end before it answers: then the lock is free.
pub(super) async fn follow(shared: &Shared) -> Result<Before, TakeOverError> {
    match ask(&shared.dir, "ready").await {
        Ok(asked) => Ok(Before::Ready(asked)),
        Err(error) => wait_for_lock(&shared.dir, LOCK_LINGERS).await?.map(Before::Gone).ok_or(error),
    }
}

/// Binds everything, then tells the owner to go. On an error the owner goes back to work, and has its paths again.
pub(super) async fn relieve(shared: &Arc<Shared>, ready: Asked) -> Result<Option<Lock>, TakeOverError> {
    let dir = || shared.dir.display().to_string();
    let bound = timeout(BIND_WITHIN, shared.looked.notified()).await;
    let asked = match bound {
        Ok(()) => ask(&shared.dir, "go").await.map(drop),
        Err(_) => Err(TakeOverError::Slow { dir: dir() }),
    };
    let Err(error) = asked else { return Ok(None) };
    drop(ready);
    if let Some(lock) = wait_for_lock(&shared.dir, LOCK_LINGERS.max(GIVE_BACK)).await? {
        return Ok(Some(lock));
    }
    Err(error)
}

/// Before the sockets of a newcomer that gives up are closed.
pub(super) async fn give_back() {
    sleep(GIVE_BACK).await;
}

/// Asks the owner for one of the two steps.
async fn ask(dir: &Path, step: &str) -> Result<Asked, TakeOverError> {
    let refused = |cause: String| TakeOverError::Refused { dir: dir.display().to_string(), cause };
    let asked = async {
        let stream =
            UnixStream::connect(dir.join("informant.sock")).await.map_err(|error| refused(error.to_string()))?;
        let request = Request::post(format!("/v1/take-over/{step}"))
            .header(hyper::header::HOST, "informant")
            .body(Full::default())
            .map_err(|error| refused(error.to_string()))?;
        let (response, connection) =
            unix_http::ask(stream, request).await.map_err(|error| refused(unix_http::shown(&error)))?;
        if response.status().is_success() {
            return Ok(Asked { _answer: response, _connection: connection });
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

async fn wait_for_lock(dir: &Path, at_most: Duration) -> Result<Option<Lock>, LockError> {
    let deadline = Instant::now() + at_most;
    loop {
        match lock::try_acquire(dir)? {
            None if Instant::now() < deadline => sleep(Duration::from_millis(5)).await,
            lock => return Ok(lock),
        }
    }
}

/// The newcomer's last step: the lock becomes its own when the owner has ended.
pub(super) async fn own(shared: &Shared, lock: Option<Lock>) -> Result<Lock, TakeOverError> {
    let lock = match lock {
        Some(lock) => lock,
        None => wait_for_lock(&shared.dir, LEAVE)
            .await?
            .ok_or_else(|| TakeOverError::Stays { dir: shared.dir.display().to_string() })?,
    };
    shared.hand.owned_us.store(shared.now().mono_us.max(1), Ordering::Relaxed);
    shared.hand.stands.send_replace(Stands::Owns);
    let _writer_gone = shared.writers.logs.send(LogJob::Owned).await;
    Ok(lock)
}
