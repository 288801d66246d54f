//! DIR/informant.sock: HTTP and JSON, read only. What the answers are is written in [`crate::publish::status`].

use super::shared::{Change, Shared};
use super::slot::Slot;
use super::writer::pace;
use crate::config::Owner;
use crate::publish::log;
use crate::publish::status::{ApiError, Daemon, Events, Instances, SCHEMA, Stamp, WatchLine};
use crate::transport::unix::{self, Access, Listener};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc};

/// Requests and watches at a time; beyond, connections wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// Events in one answer.
const MAX_EVENTS: usize = 1000;
/// Lines that may wait for a watcher that does not read.
const WATCH_QUEUE: usize = 256;
/// Between two looks for new values.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Binds the socket: 0660, whose group is the directory's.
pub(super) fn listen(path: &std::path::Path) -> io::Result<Listener> {
    unix::listen(path, &Access { mode: 0o660, owner: None::<Owner> })
}

/// A listener that takes no more than [`MAX_CONNECTIONS`] at a time.
struct Limited {
    socket: UnixListener,
    places: Arc<Semaphore>,
}

/// A connection and its place.
struct Placed {
    stream: UnixStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl axum::serve::Listener for Limited {
    type Io = Placed;
    type Addr = ();

    async fn accept(&mut self) -> (Placed, ()) {
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) => return (Placed { stream, _place: place }, ()),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

impl tokio::io::AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Placed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Serves for ever.
pub(super) async fn run(shared: Arc<Shared>, listener: Listener) {
    let router = Router::new()
        .route("/v1/daemon", get(daemon))
        .route("/v1/instances", get(instances))
        .route("/v1/instances/{name}", get(instance))
        .route("/v1/instances/{name}/events", get(events))
        .route("/v1/watch", get(watch))
        .fallback(|| async { error(StatusCode::NOT_FOUND, "no such path; see /v1/instances".into()) })
        .with_state(shared);
    let (socket, file) = listener.into_parts();
    let limited = Limited { socket, places: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    if let Err(error) = axum::serve(limited, router).await {
        tracing::warn!("the API ended: {error}");
    }
    drop(file);
}

fn error(status: StatusCode, what: String) -> Response {
    (status, axum::Json(ApiError { error: what })).into_response()
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure.to_string()),
    }
}

fn facts(shared: &Shared) -> Daemon {
    Daemon {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        started: Stamp::from_ms(shared.started.wall_ms),
        now: Stamp::from_ms(shared.now().wall_ms),
        port: shared.port,
        instances: shared.count() as u64,
        sessions: shared.sessions.load(Ordering::Relaxed),
        log_suppressed: shared.log_suppressed.load(Ordering::Relaxed),
    }
}

fn unknown(name: &str) -> Response {
    error(StatusCode::NOT_FOUND, format!("no instance `{}`", name.escape_debug()))
}

async fn daemon(State(shared): State<Arc<Shared>>) -> Response {
    json(&facts(&shared))
}

async fn instances(State(shared): State<Arc<Shared>>) -> Response {
    let now = shared.now();
    let (_, by_ms) = pace(shared.count(), now);
    let instances = shared.slots().iter().map(|slot| slot.overview(shared.port, now, by_ms)).collect();
    json(&Instances { schema: SCHEMA, daemon: facts(&shared), instances })
}

async fn instance(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let now = shared.now();
    let (_, by_ms) = pace(shared.count(), now);
    let mut bytes = Vec::new();
    match slot.snapshot(shared.port, now, by_ms).write_json(&mut bytes) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure.to_string()),
    }
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

async fn events(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Query(query): Query<EventsQuery>,
) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let limit = query.limit.unwrap_or(MAX_EVENTS).clamp(1, MAX_EVENTS);
    let read = tokio::task::spawn_blocking(move || log::read(&slot.folder, query.after, limit)).await;
    match read.map_err(io::Error::other).and_then(|read| read) {
        Ok((events, more)) => json(&Events { schema: SCHEMA, events, more }),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read events.log: {failure}")),
    }
}

async fn watch(State(shared): State<Arc<Shared>>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let names: Vec<String> = query.into_iter().filter(|(key, _)| key == "name").map(|(_, name)| name).collect();
    if let Some(name) = names.iter().find(|name| shared.slot(name).is_none()) {
        return unknown(name);
    }
    let (lines, body) = mpsc::channel(WATCH_QUEUE);
    tokio::spawn(
        Watch { changes: shared.changes.subscribe(), shared, names, seen: HashMap::new(), lines, lost: 0 }.run(),
    );
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(Lines(body))).into_response()
}

/// The body of a watch: lines as they come.
struct Lines(mpsc::Receiver<Bytes>);

impl axum::body::HttpBody for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

/// One watcher's task. A watcher that does not read loses events, and is told how many; it never holds anybody up.
struct Watch {
    shared: Arc<Shared>,
    names: Vec<String>,
    changes: broadcast::Receiver<Change>,
    /// What was said last of each instance: its revision and its samples.
    seen: HashMap<Arc<str>, (u64, u64)>,
    lines: mpsc::Sender<Bytes>,
    lost: u64,
}

impl Watch {
    async fn run(mut self) {
        let mut every = tokio::time::interval(WATCH_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let open = tokio::select! {
                _ = every.tick() => self.look(),
                change = self.changes.recv() => match change {
                    Ok(change) => self.tell(change),
                    Err(RecvError::Lagged(lost)) => {
                        self.lost += lost;
                        true
                    }
                    Err(RecvError::Closed) => false,
                },
                () = self.lines.closed() => false,
            };
            if !open {
                return;
            }
            if self.shared.is_stopping() {
                self.drain();
                self.say(&WatchLine::Stopping);
                return;
            }
        }
    }

    fn drain(&mut self) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => {
                    self.tell(change);
                }
                Err(TryRecvError::Lagged(lost)) => self.lost += lost,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }

    /// Says what has changed since it was said last.
    fn look(&mut self) -> bool {
        let slots = if self.names.is_empty() {
            self.shared.slots()
        } else {
            self.names.iter().filter_map(|name| self.shared.slot(name)).collect()
        };
        slots.iter().all(|slot| self.status(slot))
    }

    fn status(&mut self, slot: &Arc<Slot>) -> bool {
        let now = self.shared.now();
        let version = slot.look(|core| (core.revision, core.instance.counters.samples));
        if self.seen.get(&slot.name) == Some(&version) {
            return true;
        }
        if self.lines.capacity() == 0 {
            return !self.lines.is_closed();
        }
        self.seen.insert(Arc::clone(&slot.name), version);
        let (_, by_ms) = pace(self.shared.count(), now);
        self.say(&WatchLine::Status { status: Box::new(slot.overview(self.shared.port, now, by_ms)) })
    }

    fn tell(&mut self, change: Change) -> bool {
        match change {
            Change::State(name) if self.wants(&name) => match self.shared.slot(&name) {
                Some(slot) => self.status(&slot),
                None => true,
            },
            Change::Event(name, event) if self.wants(&name) => {
                self.say(&WatchLine::Event { instance: name.as_ref().into(), event: Box::new(event.as_ref().clone()) })
            }
            Change::Removed(name) if self.wants(&name) => {
                self.seen.remove(&name);
                self.say(&WatchLine::Removed { name: name.as_ref().into() })
            }
            Change::State(_) | Change::Event(..) | Change::Removed(_) => true,
        }
    }

    /// False when the watcher is gone.
    fn say(&mut self, line: &WatchLine) -> bool {
        if self.lost > 0 && self.lines.capacity() > 1 {
            let lost = WatchLine::Lost { count: std::mem::take(&mut self.lost) };
            self.put(&lost);
        }
        self.put(line)
    }

    fn put(&mut self, line: &WatchLine) -> bool {
        let Ok(mut bytes) = serde_json::to_vec(line) else { return true };
        bytes.push(b'\n');
        match self.lines.try_send(bytes.into()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lost += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}
