//! How connections come: a listener an instance, one AF_VSOCK listener for all, or a dialler. Accepts at once and works
//! later: a slow accept stops a whole VM's vsock on some VMMs.

use super::connection::serve;
use super::shared::Shared;
use super::slot::Slot;
use crate::config::{Address, Config};
use crate::publish::status::Link;
use crate::transport::unix::{self, Access, Listener};
use crate::transport::{hybrid, vsock};
use informant_wire::hello::{Refused, RefusedCode};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Between attempts to bind a socket whose directory is not there, or to dial a VMM that is not there.
const AGAIN: Duration = Duration::from_millis(500);
/// Longest pause between dials.
const DIAL_AT_MOST_EVERY: Duration = Duration::from_secs(5);
/// Deadline of a dial: over the 2 s that the kernel and VMMs take.
const DIAL_DEADLINE: Duration = Duration::from_secs(4);
/// Connections in a row after which others get their turn.
const BURST: u32 = 32;

/// Serves one instance until `stop` says so.
pub(super) async fn run(shared: Arc<Shared>, slot: Arc<Slot>, config: Config, mut stop: watch::Receiver<bool>) {
    let work = async {
        match (&config.address, config.dial) {
            (_, Some(port)) => dial(&shared, &slot, &config, port).await,
            (Address::Uds(uds), None) => listen(&shared, &slot, &config, &hybrid::listen_path(uds, shared.port)).await,
            (Address::Unix(path), None) => listen(&shared, &slot, &config, path).await,
            // The listener for all CIDs brings the connections.
            (Address::Cid(_), None) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

fn set_link(shared: &Shared, slot: &Arc<Slot>, state: Link, detail: Option<String>) {
    slot.with(shared, |core| core.instance.set_link(state, detail, shared.now()));
}

async fn listen(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, path: &Path) {
    let listener = bind(shared, slot, config, path).await;
    set_link(shared, slot, Link::Listening, None);
    let mut burst = 0;
    loop {
        match listener.socket.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(Arc::clone(shared), Arc::clone(slot), stream, None));
                burst += 1;
                if burst >= BURST {
                    burst = 0;
                    // A guest that connects without end pays with its own time.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            Err(error) => {
                slot.say(shared, tracing::Level::WARN, format_args!("cannot accept: {error}"));
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Binds, however long that takes: the directory may come later, and an error may be mended.
async fn bind(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, path: &Path) -> Listener {
    let access = Access { mode: config.socket_mode, owner: config.socket_owner.clone() };
    let mut said = None;
    loop {
        match unix::listen(path, &access) {
            Ok(listener) => {
                slot.with(shared, |core| core.config_error = None);
                return listener;
            }
            Err(error) => {
                let no_directory =
                    error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(|dir| !dir.exists());
                let what = if no_directory {
                    format!("waits for the directory of {}", path.display())
                } else {
                    format!("cannot listen at {}: {error}", path.display())
                };
                if said.as_ref() != Some(&what) {
                    slot.say(shared, tracing::Level::WARN, format_args!("{what}"));
                    if !no_directory {
                        slot.with(shared, |core| core.config_error = Some(what.clone()));
                    }
                    let state = if no_directory { Link::Waiting } else { Link::Off };
                    set_link(shared, slot, state, Some(what.clone()));
                    said = Some(what);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn dial(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, port: u32) {
    let mut pause = AGAIN;
    loop {
        let connected = tokio::time::timeout(DIAL_DEADLINE, connect(config, port)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")));
        match connected {
            Ok(stream) => {
                let samples = slot.look(|core| core.instance.counters.samples);
                serve(Arc::clone(shared), Arc::clone(slot), stream, None).await;
                // Only a session that brought something makes the next dial a quick one.
                let useful = slot.look(|core| core.instance.counters.samples) > samples;
                pause = if useful { AGAIN } else { (pause * 2).min(DIAL_AT_MOST_EVERY) };
            }
            Err(error) => {
                set_link(shared, slot, Link::Waiting, Some(format!("cannot dial port {port}: {error}")));
                pause = (pause * 2).min(DIAL_AT_MOST_EVERY);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn connect(config: &Config, port: u32) -> io::Result<UnixStream> {
    match &config.address {
        Address::Uds(uds) => hybrid::connect(uds, port).await,
        Address::Unix(path) => unix::connect(path).await,
        Address::Cid(cid) => vsock::connect(*cid, port).await,
    }
}

/// The AF_VSOCK listener: waits until some instance has a CID, then listens for ever.
pub(super) async fn run_vsock(shared: Arc<Shared>) {
    shared.vsock_wanted.notified().await;
    let mut said = false;
    let listener = loop {
        match vsock::listen(shared.port) {
            Ok(listener) => break listener,
            Err(error) if !said => {
                said = true;
                tracing::warn!("cannot listen at vsock port {}: {error} (vhost_vsock not loaded?)", shared.port);
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    };
    tracing::info!("listens at vsock port {}", shared.port);
    loop {
        match vsock::accept(&listener).await {
            Ok((stream, cid, port)) => match shared.by_cid(cid) {
                Some(slot) => {
                    tokio::spawn(serve(Arc::clone(&shared), slot, stream, Some(port)));
                }
                None => refuse_stranger(&stream, cid),
            },
            Err(error) => {
                tracing::warn!("cannot accept at vsock port {}: {error}", shared.port);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

fn refuse_stranger(stream: &UnixStream, cid: u32) {
    let mut frame = [0; 256];
    let text = format!("no instance has cid {cid}");
    let refused = Refused { code: RefusedCode::UNKNOWN_INSTANCE, permanent: true, text: &text };
    if let Ok(length) = refused.encode(&mut frame) {
        let _stranger_gone = stream.try_write(frame.get(..length).unwrap_or_default());
    }
}
