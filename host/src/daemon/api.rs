//! DIR/informant.sock: HTTP and JSON. What the answers are is written in [`crate::publish::status`].

use super::patience::Patience;
use super::shared::Shared;
use super::take_over::{go, ready};
use super::watchers::Watch;
use crate::config::Owner;
use crate::publish::log;
use crate::publish::scaling::{ControllerList, ResizeRequest};
use crate::publish::status::{ApiError, Daemon, Events, Instances, SCHEMA, Stamp};
use crate::scale::desk::MAX_STEPS;
use crate::transport::unix::{self, Access, Listener};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Frame;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// For the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Events in one answer.
const MAX_EVENTS: usize = 1000;
/// For an agent's list of controllers.
const LIST_DEADLINE: Duration = Duration::from_secs(3);
/// Lines on their way to a watcher.
const WATCH_QUEUE: usize = 16;

/// Binds the socket: 0660, whose group is the directory's. `over`: in the place of another daemon's.
pub(super) fn listen(path: &std::path::Path, over: bool) -> io::Result<Listener> {
    let access = Access { mode: 0o660, owner: None::<Owner> };
    if over { unix::listen_over(path, &access) } else { unix::listen(path, &access) }
}

/// Serves for ever.
pub(super) async fn run(shared: Arc<Shared>, listener: Listener) {
    let owner = Arc::clone(&shared);
    // Requests and watches at a time; beyond, connections wait in the backlog.
    let places = Arc::new(Semaphore::new(shared.descriptors.api));
    // Half of them watches, so that plain requests find a place.
    let max_watches = shared.descriptors.api / 2;
    let api = Api { shared, watches: Arc::new(Semaphore::new(max_watches)), max_watches };
    let router = Router::new()
        .route("/v1/daemon", get(daemon))
        .route("/v1/instances", get(instances))
        .route("/v1/instances/{name}", get(instance))
        .route("/v1/instances/{name}/events", get(events))
        .route("/v1/instances/{name}/controllers", get(controllers))
        .route("/v1/instances/{name}/resize", post(resize))
        .route("/v1/watch", get(watch))
        .route("/v1/take-over/{step}", post(take_over))
        .fallback(|| async { error(StatusCode::NOT_FOUND, "no such path; see /v1/instances".into()) })
        .method_not_allowed_fallback(|| async { error(StatusCode::METHOD_NOT_ALLOWED, "not by this method".into()) })
        .with_state(api);
    let (socket, _file) = listener.into_parts();
    let mut server = http1::Builder::new();
    // One request a connection: one that is done with keeps no place.
    server.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    let idle = Idle::default();
    owner.hand.until_owned().await;
    loop {
        let stream = match socket.accept().await {
            Ok((stream, _)) => TokioIo::new(Patience::new(stream)),
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if places.available_permits() == 0 {
            idle.end_oldest();
        }
        let place = Arc::clone(&places).acquire_owned().await;
        let (id, ended) = idle.enter();
        let router = TowerToHyperService::new(router.clone());
        let asked = idle.clone();
        let service = service_fn(move |request| {
            asked.leave(id);
            router.call(request)
        });
        let connection = server.serve_connection(stream, service);
        let idle = idle.clone();
        tokio::spawn(async move {
            tokio::select! {
                _peer_gone_or_late = connection => {}
                () = ended.notified() => {}
            }
            idle.leave(id);
            drop(place);
        });
    }
}

/// Connections that have not asked for anything yet: the oldest makes way when there is no place left.
#[derive(Clone, Debug, Default)]
struct Idle(Arc<Mutex<IdleConnections>>);

#[derive(Debug, Default)]
struct IdleConnections {
    last: u64,
    ends: BTreeMap<u64, Arc<Notify>>,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> (u64, Arc<Notify>) {
        let (mut idle, ended) = (self.lock(), Arc::new(Notify::new()));
        idle.last += 1;
        let id = idle.last;
        idle.ends.insert(id, Arc::clone(&ended));
        (id, ended)
    }

    fn leave(&self, id: u64) {
        self.lock().ends.remove(&id);
    }

    fn end_oldest(&self) {
        if let Some((_, ended)) = self.lock().ends.pop_first() {
            ended.notify_one();
        }
    }
}

/// What requests share.
#[derive(Clone)]
struct Api {
    shared: Arc<Shared>,
    watches: Arc<Semaphore>,
    max_watches: usize,
}

impl axum::extract::FromRef<Api> for Arc<Shared> {
    fn from_ref(api: &Api) -> Self {
        Self::clone(&api.shared)
    }
}

/// A part of the path or of the query; where it is not as it should be, the answer is an [`ApiError`].
struct Checked<T>(T);

impl<S: Send + Sync, T> FromRequestParts<S> for Checked<T>
where
    T: FromRequestParts<S, Rejection: IntoResponse>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let refused = match T::from_request_parts(parts, state).await {
            Ok(part) => return Ok(Self(part)),
            Err(rejection) => rejection.into_response(),
        };
        let status = refused.status();
        let text = axum::body::to_bytes(refused.into_body(), 1024).await.unwrap_or_default();
        Err(error(status, String::from_utf8_lossy(&text).into_owned()))
    }
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
        misnamed: shared.misnamed(),
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
    let instances = shared.slots().iter().map(|slot| slot.overview(&shared, now)).collect();
    json(&Instances { schema: SCHEMA, daemon: facts(&shared), instances })
}

async fn instance(State(shared): State<Arc<Shared>>, Checked(Path(name)): Checked<Path<String>>) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let mut bytes = Vec::new();
    match slot.snapshot(&shared, shared.now()).write_json(&mut bytes) {
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
    Checked(Path(name)): Checked<Path<String>>,
    Checked(Query(query)): Checked<Query<EventsQuery>>,
) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let limit = query.limit.unwrap_or(MAX_EVENTS).clamp(1, MAX_EVENTS);
    let read = tokio::task::spawn_blocking(move || log::read(&slot.folder, query.after, limit)).await;
    match read.map_err(io::Error::other).and_then(|read| read) {
        Ok((events, more)) => json(&Events { schema: SCHEMA, events, more }),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read events.log: {failure}")),
    }
}

async fn watch(
    State(Api { shared, watches, max_watches }): State<Api>,
    Checked(Query(query)): Checked<Query<Vec<(String, String)>>>,
) -> Response {
    let names: Vec<String> = query.into_iter().filter(|(key, _)| key == "name").map(|(_, name)| name).collect();
    if let Some(name) = names.iter().find(|name| shared.slot(name).is_none()) {
        return unknown(name);
    }
    let Ok(place) = watches.try_acquire_owned() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, format!("{max_watches} watches are open"));
    };
    let (lines, body) = mpsc::channel(WATCH_QUEUE);
    tokio::spawn(Watch::new(shared, names, lines).run());
    let body = Lines { lines: body, _place: Some(place) };
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response()
}

async fn controllers(State(shared): State<Arc<Shared>>, Checked(Path(name)): Checked<Path<String>>) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let (answer, list) = oneshot::channel();
    if !slot.with(&shared, |core| core.desk.list(answer, shared.now())) {
        return error(StatusCode::CONFLICT, "no agent that takes part in scaling has a session".into());
    }
    match tokio::time::timeout(LIST_DEADLINE, list).await {
        Ok(Ok(controllers)) => json(&ControllerList { schema: SCHEMA, controllers }),
        _ => error(StatusCode::GATEWAY_TIMEOUT, "the agent does not answer".into()),
    }
}

async fn resize(
    State(shared): State<Arc<Shared>>,
    Checked(Path(name)): Checked<Path<String>>,
    request: Result<axum::Json<ResizeRequest>, JsonRejection>,
) -> Response {
    let Some(slot) = shared.slot(&name) else { return unknown(&name) };
    let request = match request {
        Ok(axum::Json(request)) => request,
        Err(rejection) => return error(rejection.status(), rejection.body_text()),
    };
    let (steps, mut said) = mpsc::channel(MAX_STEPS);
    if let Err(refusal) = slot.with(&shared, |core| core.desk.command(request, steps, shared.now())) {
        return error(StatusCode::CONFLICT, refusal.to_string());
    }
    let (lines, body) = mpsc::channel(WATCH_QUEUE);
    // Ends with the desk's last step, or with the reader; the desk gives up when nobody listens.
    tokio::spawn(async move {
        while let Some(step) = said.recv().await {
            let Ok(mut line) = serde_json::to_vec(&step) else { return };
            line.push(b'\n');
            if lines.send(line.into()).await.is_err() {
                return;
            }
        }
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(Lines { lines: body, _place: None })).into_response()
}

/// Another daemon is to serve the directory: see [`super::take_over`].
async fn take_over(State(shared): State<Arc<Shared>>, Checked(Path(step)): Checked<Path<String>>) -> Response {
    let refused = || error(StatusCode::CONFLICT, "it is not ready for that".into());
    match step.as_str() {
        "ready" => ready(&shared).await.map_or_else(refused, |lease| Body::new(lease).into_response()),
        "go" if go(&shared).await => StatusCode::OK.into_response(),
        "go" => refused(),
        _ => error(StatusCode::NOT_FOUND, "no such step".into()),
    }
}

/// The body of a watch: lines as they come.
struct Lines {
    lines: mpsc::Receiver<Bytes>,
    _place: Option<OwnedSemaphorePermit>,
}

impl axum::body::HttpBody for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.lines.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
