//! How connections come: a listener an instance, one AF_VSOCK listener for all, or a dialler. Accepts at once and works
//! later: a slow accept stops a whole VM's vsock on some VMMs.

use super::connection::serve;
use super::descriptors::{Place, Reservation};
use super::shared::Shared;
use super::slot::{Core, Slot};
use crate::config::{Address, Config};
use crate::publish::status::Link;
use crate::transport::unix::{self, Access, Listener};
use crate::transport::{hybrid, vsock};
use informant_wire::hello::{Refused, RefusedCode};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
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
/// Between looks whether the socket's file is still the one that was bound, with few instances.
const IN_PLACE_EVERY: Duration = Duration::from_secs(2);
/// So many looks a second, over all instances.
const IN_PLACE_LOOKS: u32 = 500;
/// However many instances there are.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Connections over the budget that are taken in a row, and the pause after them. What waits meanwhile is in the
/// backlog, of which a root's agent behind an unprivileged storm gets to the front within seconds; there it is awaited.
const BURST: u32 = 32;
/// See [`BURST`].
const STORM_PAUSE: Duration = Duration::from_millis(50);
/// The same where other VMs wait too: they must not.
const VSOCK_PAUSE: Duration = Duration::from_millis(10);
/// A guest's port below this needs root there.
const PRIVILEGED: u32 = 1024;

/// What an instance has of its own before [`run`] goes on with it: as far as it was there at once, so that agents that
/// are told to come again find it.
#[derive(Debug)]
pub(super) struct First {
    reservation: Option<Reservation>,
    listener: Option<Listener>,
}

/// The first attempt to reserve and to bind, for [`run`].
pub(super) fn first(shared: &Shared, slot: &Slot, config: &Config) -> First {
    let reservation = try_reserve(shared, slot, config);
    let path = listen_path(shared, config).filter(|_| reservation.is_some());
    First { reservation, listener: path.and_then(|path| open(shared, &path, config).ok()) }
}

/// Where it listens, if at a socket of its own.
pub(super) fn listen_path(shared: &Shared, config: &Config) -> Option<PathBuf> {
    match (&config.address, config.dial) {
        (Address::Uds(uds), None) => Some(hybrid::listen_path(uds, shared.port)),
        (Address::Unix(path), None) => Some(path.clone()),
        (Address::Cid(_), _) | (_, Some(_)) => None,
    }
}

/// Binds; in the place of the daemon that this one follows while that one has it.
fn open(shared: &Shared, path: &Path, config: &Config) -> io::Result<Listener> {
    let access = access(config);
    if shared.hand.owns() { unix::listen(path, &access) } else { unix::listen_over(path, &access) }
}

/// Why a listener is not in its place any more.
enum Replaced {
    /// The directory of a VM is made anew at its restart.
    BySomebody,
    /// A daemon was to follow this one, and did not come so far.
    ByNewcomer,
}

fn access(config: &Config) -> Access {
    Access { mode: config.socket_mode, owner: config.socket_owner.clone() }
}

/// Serves one instance until `stop` says so.
pub(super) async fn run(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    config: Config,
    first: First,
    mut stop: watch::Receiver<bool>,
) {
    let work = async {
        let _kept = match first.reservation {
            Some(reservation) => reservation,
            None => reserve(&shared, &slot, &config).await,
        };
        match (listen_path(&shared, &config), config.dial) {
            (_, Some(port)) => dial(&shared, &slot, &config, port).await,
            (Some(path), None) => listen(&shared, &slot, &config, &path, first.listener).await,
            // The listener for all CIDs brings the connections.
            (None, None) => std::future::pending().await,
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

async fn listen(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, path: &Path, mut first: Option<Listener>) {
    loop {
        let listener = match first.take() {
            Some(listener) => listener,
            None => bind(shared, slot, config, path).await,
        };
        set_link(shared, slot, Link::Listening, None);
        let replaced = tokio::select! {
            never = accept(shared, slot, &listener) => match never {},
            replaced = replaced(shared, &listener) => replaced,
        };
        if let Replaced::ByNewcomer = replaced {
            first = unix::listen_over(path, &access(config)).ok();
            if first.is_some() {
                continue;
            }
        }
        let what = format!("the socket {} was removed or replaced: binds it again", path.display());
        slot.say(shared, tracing::Level::WARN, format_args!("{what}"));
        set_link(shared, slot, Link::Waiting, Some(what));
    }
}

/// Returns when the file of the socket is another one or gone.
async fn replaced(shared: &Shared, listener: &Listener) -> Replaced {
    let mut hand = shared.hand.changes();
    let mut yielded = false;
    loop {
        if shared.hand.yields() {
            yielded = true;
        } else if !listener.is_in_place() {
            return if yielded { Replaced::ByNewcomer } else { Replaced::BySomebody };
        } else {
            yielded = false;
        }
        let instances = u32::try_from(shared.count()).unwrap_or(u32::MAX);
        let every = Duration::from_secs(1).saturating_mul(instances) / IN_PLACE_LOOKS;
        tokio::select! {
            () = tokio::time::sleep(every.clamp(IN_PLACE_EVERY, LOOK_AT_LEAST_EVERY)) => {}
            () = hand.next() => {}
        }
    }
}

async fn accept(shared: &Arc<Shared>, slot: &Arc<Slot>, listener: &Listener) -> Infallible {
    let mut burst = 0;
    loop {
        match listener.socket.accept().await {
            Ok((stream, _)) => {
                burst = if is_in_budget(shared, slot) { 0 } else { burst + 1 };
                spawn(shared, slot, stream, None);
                if burst >= BURST {
                    burst = 0;
                    tokio::time::sleep(STORM_PAUSE).await;
                }
            }
            Err(error) => {
                slot.say(shared, tracing::Level::WARN, format_args!("cannot accept: {error}"));
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Whether the instance may have one more connection now.
fn is_in_budget(shared: &Shared, slot: &Arc<Slot>) -> bool {
    let now = shared.now();
    let fits = slot.with(shared, |core| {
        let fits = core.budget.connection(now);
        core.instance.counters.throttled += u64::from(!fits);
        fits
    });
    if !fits {
        slot.say(shared, tracing::Level::WARN, format_args!("too many connections: they are taken slowly"));
    }
    fits
}

/// An instance's own descriptors; others make way for it.
fn try_reserve(shared: &Shared, slot: &Slot, config: &Config) -> Option<Reservation> {
    let (descriptors, listens) = (&shared.descriptors, listen_path(shared, config).is_some());
    descriptors.reserve(&slot.name, listens, false).or_else(|| {
        let may = descriptors.may_reserve(listens) && make_way(shared, slot) && (!listens || make_way(shared, slot));
        may.then(|| descriptors.reserve(&slot.name, listens, true)).flatten()
    })
}

/// Reserves, however long that takes: the limit is the operator's, and other instances may go.
async fn reserve(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config) -> Reservation {
    let what = shared.descriptors.exhausted();
    let mut reported = None;
    loop {
        if let Some(reservation) = try_reserve(shared, slot, config) {
            if reported.is_some() {
                report(shared, slot, &mut reported, None);
                let is_reached = listen_path(shared, config).is_none() && config.dial.is_none();
                set_link(shared, slot, if is_reached { Link::Listening } else { Link::Waiting }, None);
            }
            return reservation;
        }
        if reported.is_none() {
            slot.say(shared, tracing::Level::WARN, format_args!("{what}"));
            report(shared, slot, &mut reported, Some(what.clone()));
            set_link(shared, slot, Link::Off, Some(what.clone()));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A place for one more connection; where none is left, somebody makes way.
fn place(shared: &Shared, slot: &Slot) -> Option<Place> {
    let descriptors = &shared.descriptors;
    descriptors
        .take(&slot.name, false)
        .or_else(|| make_way(shared, slot).then(|| descriptors.take(&slot.name, true)).flatten())
}

/// Ends a connection that others need more than its instance does; whether there was one.
fn make_way(shared: &Shared, slot: &Slot) -> bool {
    let asked = shared.descriptors.who_makes_way(&slot.name);
    let mut asked = asked.iter().filter_map(|name| shared.slot(name));
    let found = asked.find(|other| other.with(shared, Core::make_way));
    if let Some(other) = &found {
        let what = shared.descriptors.exhausted();
        other.say(shared, tracing::Level::WARN, format_args!("a connection of it makes way for others: {what}"));
    }
    found.is_some()
}

/// Binds, however long that takes: the directory may come later, and an error may be mended.
async fn bind(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, path: &Path) -> Listener {
    let mut said = None;
    let mut reported = None;
    loop {
        match open(shared, path, config) {
            Ok(listener) => {
                report(shared, slot, &mut reported, None);
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
                report(shared, slot, &mut reported, (!no_directory).then(|| what.clone()));
                if said.as_ref() != Some(&what) {
                    slot.say(shared, tracing::Level::WARN, format_args!("{what}"));
                    let state = if no_directory { Link::Waiting } else { Link::Off };
                    set_link(shared, slot, state, Some(what.clone()));
                    said = Some(what);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Puts `error` in the place of what was reported before. What is wrong with a later instance.toml stays.
fn report(shared: &Shared, slot: &Arc<Slot>, reported: &mut Option<String>, error: Option<String>) {
    let current = slot.look(|core| core.config_error.clone());
    if current != error && (current.is_none() || current == *reported) {
        slot.report(shared, error.clone());
        *reported = error;
    }
}

async fn dial(shared: &Arc<Shared>, slot: &Arc<Slot>, config: &Config, port: u32) {
    let mut pause = AGAIN;
    shared.hand.until_owned().await;
    loop {
        let place = place(shared, slot).ok_or_else(|| io::Error::other(shared.descriptors.exhausted()));
        let connected = async {
            let place = place?;
            Ok((connect(config, port).await?, place))
        };
        let connected = tokio::time::timeout(DIAL_DEADLINE, connected).await;
        let connected = connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")));
        match connected {
            Ok((stream, place)) => {
                let samples = slot.look(|core| core.instance.counters.samples);
                serve(Arc::clone(shared), Arc::clone(slot), stream, None, place).await;
                // Only a session that brought something makes the next dial a quick one.
                let useful = slot.look(|core| core.instance.counters.samples) > samples;
                pause = if useful { AGAIN } else { (pause * 2).min(DIAL_AT_MOST_EVERY) };
            }
            Err(error) => {
                let address = &config.address;
                let what = format!("cannot dial port {port} of {} {address}: {error}", address.kind());
                set_link(shared, slot, Link::Waiting, Some(what));
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
            Err(error) if !said && shared.hand.owns() => {
                said = true;
                tracing::warn!("cannot listen at vsock port {}: {error} (vhost_vsock not loaded?)", shared.port);
            }
            Err(_) => {}
        }
        tokio::time::sleep(if shared.hand.owns() { AGAIN } else { VSOCK_PAUSE }).await;
    };
    tracing::info!("listens at vsock port {}", shared.port);
    let mut burst = 0;
    loop {
        match vsock::accept(&listener).await {
            Ok((stream, cid, port)) => {
                let over = match shared.by_cid(cid) {
                    Some(slot) => {
                        let over = !is_in_budget(&shared, &slot);
                        if port < PRIVILEGED || !over {
                            spawn(&shared, &slot, stream, Some(port));
                        }
                        over
                    }
                    None => {
                        let text = format!("no instance has cid {cid}");
                        refuse(&stream, RefusedCode::UNKNOWN_INSTANCE, true, &text);
                        true
                    }
                };
                burst += u32::from(over);
                if burst >= BURST {
                    burst = 0;
                    tokio::time::sleep(VSOCK_PAUSE).await;
                }
            }
            Err(error) => {
                tracing::warn!("cannot accept at vsock port {}: {error}", shared.port);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Takes a connection that was accepted, if there is room for it.
fn spawn(shared: &Arc<Shared>, slot: &Arc<Slot>, stream: UnixStream, peer_port: Option<u32>) {
    let Some(place) = place(shared, slot) else {
        let what = shared.descriptors.exhausted();
        slot.say(shared, tracing::Level::WARN, format_args!("a connection was refused: {what}"));
        return refuse(&stream, RefusedCode::TOO_MANY, false, "the host has no file descriptor left");
    };
    tokio::spawn(serve(Arc::clone(shared), Arc::clone(slot), stream, peer_port, place));
}

/// Says no, and closes.
fn refuse(stream: &UnixStream, code: RefusedCode, permanent: bool, text: &str) {
    let mut frame = [0; 256];
    if let Ok(length) = (Refused { code, permanent, text }).encode(&mut frame) {
        let _stranger_gone = stream.try_write(frame.get(..length).unwrap_or_default());
    }
}
