//! The folders of DIR: picks instances up, changed and removed ones too, while the daemon runs. inotify says when to
//! look ([`super::watches`]); a look every few seconds finds what it does not say.

use super::accept;
use super::shared::Shared;
use super::slot::Slot;
use super::watches::{Watch, Watches};
use crate::config::{self, Address, Config};
use crate::publish::status::Link;
use crate::publish::status_file;
use crate::transport::unix;
use informant_wire::host_to_guest::ByeReason;
use nix::fcntl::OFlag;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// Longest time from one look to the next, when inotify says nothing and a look is cheap.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// And that many times what the last look took: a four-hundredth of a core for what inotify sees too.
const LOOK_SHARE: u32 = 400;
/// The same where it does not see everything.
const LOOK_SHARE_UNWATCHED: u32 = 100;
/// However long a look takes.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// After a change: an editor or a script does several things in a row.
const SETTLE: Duration = Duration::from_millis(50);

/// What a file was when it was read last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

#[derive(Debug)]
struct Entry {
    slot: Arc<Slot>,
    stamp: Stamp,
    /// That of its instance.toml, if there could be one.
    watch: Option<Watch>,
    /// What is in force: the last that was right.
    config: Option<Config>,
    places: Vec<Place>,
    /// What is wrong with the file as it is now.
    error: Option<String>,
    /// Its address belongs to another instance.
    duplicate: bool,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Entry {
    /// Ends the task that listens or dials; its socket is free then.
    async fn stop(&mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            let _panicked = task.await;
        }
    }
}

/// What one instance can have, and no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Cid(u32),
    Socket(PathBuf),
}

fn places(shared: &Shared, config: &Config) -> Vec<Place> {
    let address = match &config.address {
        Address::Cid(cid) => Place::Cid(*cid),
        Address::Uds(path) | Address::Unix(path) => Place::Socket(unix::resolved(path)),
    };
    let listens = accept::listen_path(shared, config).map(|path| Place::Socket(unix::resolved(&path)));
    std::iter::once(address).chain(listens).collect()
}

/// What is known of the folders.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    /// Which instance has a place.
    holders: HashMap<Place, String>,
    /// Folders with an instance.toml whose names no instance can have.
    misnamed: HashSet<OsString>,
    /// Folders that have no instance.toml yet.
    empty: HashMap<String, Option<Watch>>,
    /// DIR is not where it was: said.
    displaced: bool,
}

impl Known {
    fn insert(&mut self, name: &str, entry: Entry) {
        for place in &entry.places {
            self.holders.insert(place.clone(), name.into());
        }
        self.entries.insert(name.into(), entry);
    }

    fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        for place in &entry.places {
            self.holders.remove(place);
        }
        Some(entry)
    }

    /// Whether inotify sees what happens to each of them.
    fn is_watched(&self) -> bool {
        self.entries.values().all(|entry| entry.watch.is_some()) && self.empty.values().all(Option::is_some)
    }

    /// Why an instance cannot have these places.
    fn conflict(&self, shared: &Shared, name: &str, places: &[Place]) -> Option<String> {
        let api = shared.dir.join("informant.sock");
        if places.iter().any(|place| matches!(place, Place::Socket(path) if *path == api)) {
            return Some(format!("{} is the daemon's own socket: every VM has its own", api.display()));
        }
        let other = places.iter().filter_map(|place| self.holders.get(place)).find(|other| *other != name)?;
        Some(format!("\"{other}\" has the same address: every VM has its own"))
    }
}

/// Folders looked at before others get their turn: with thousands of them a look takes a second.
const BURST: usize = 64;

/// Looks for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let changed = Arc::new(Notify::new());
    let watches = Watches::start(&shared.dir, &changed);
    let dir = identity(&shared.dir);
    let mut known = Known::default();
    loop {
        let began = Instant::now();
        if is_in_place(&shared, &mut known, dir)
            && let Err(error) = look(&shared, &mut known, &watches).await
        {
            tracing::warn!("cannot read {}: {error}", shared.dir.display());
        }
        let share = if known.is_watched() { LOOK_SHARE } else { LOOK_SHARE_UNWATCHED };
        let pause = LOOK_EVERY.max(began.elapsed() * share).min(LOOK_AT_LEAST_EVERY);
        if tokio::time::timeout(pause, changed.notified()).await.is_ok() {
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// Device and inode.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether DIR is still the directory whose lock the daemon holds. Another one in its place belongs to somebody else,
/// and that it is gone does not mean that the VMs are: their sessions go on.
fn is_in_place(shared: &Shared, known: &mut Known, dir: Option<(u64, u64)>) -> bool {
    let displaced = identity(&shared.dir) != dir;
    if displaced != std::mem::replace(&mut known.displaced, displaced) {
        let dir = shared.dir.display();
        if displaced {
            tracing::warn!(
                "{dir} was renamed, removed or replaced: sessions go on, but changes there are not seen; put it back, or \
                 restart the daemon"
            );
        } else {
            tracing::info!("{dir} is back");
        }
    }
    !displaced
}

async fn look(shared: &Arc<Shared>, known: &mut Known, watches: &Watches) -> io::Result<()> {
    let mut seen = HashSet::new();
    let mut misnamed = HashSet::new();
    let mut empty = HashMap::new();
    for (count, folder) in std::fs::read_dir(&shared.dir)?.enumerate() {
        if count % BURST == BURST - 1 {
            tokio::task::yield_now().await;
        }
        let folder = folder?;
        if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = match folder.file_name().into_string() {
            Ok(name) if config::is_instance_name(&name) => name,
            Ok(name) if name.starts_with('.') => continue,
            Ok(name) => {
                misnamed.insert(name.into());
                continue;
            }
            Err(name) => {
                misnamed.insert(name);
                continue;
            }
        };
        if look_at(shared, known, &name, watches).await {
            seen.insert(name);
            continue;
        }
        let watch = watches.folder(&folder.path());
        // Between the two looks it may have come.
        if look_at(shared, known, &name, watches).await {
            watches.end(watch);
            seen.insert(name);
        } else {
            empty.insert(name, watch);
        }
    }
    for (name, watch) in std::mem::replace(&mut known.empty, empty) {
        if known.empty.get(&name) != Some(&watch) {
            watches.end(watch);
        }
    }
    misnamed.retain(|name| shared.dir.join(name).join("instance.toml").exists());
    for name in misnamed.difference(&known.misnamed) {
        tracing::warn!("the folder {name:?} is left alone: an instance's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    }
    known.misnamed = misnamed;
    let gone: Vec<String> = known.entries.keys().filter(|name| !seen.contains(*name)).cloned().collect();
    for name in gone {
        if let Some(mut entry) = known.remove(&name) {
            watches.end(entry.watch.take());
            entry.stop().await;
            entry.slot.with(shared, |core| {
                core.removed = true;
                core.instance.end_all(ByeReason::REMOVED);
            });
            shared.remove(&name);
            tracing::info!("{name}: its folder or its instance.toml is gone");
        }
    }
    let cids = known.entries.values().filter_map(|entry| match &entry.config {
        Some(Config { address: Address::Cid(cid), dial: None, .. }) => Some((*cid, Arc::clone(&entry.slot))),
        _ => None,
    });
    shared.set_cids(cids.collect::<HashMap<_, _>>());
    Ok(())
}

/// Whether the folder is an instance. One without instance.toml is none: it is being made, or being removed, and then
/// nothing may be written into it.
async fn look_at(shared: &Arc<Shared>, known: &mut Known, name: &str, watches: &Watches) -> bool {
    let folder = shared.dir.join(name);
    let file = folder.join("instance.toml");
    let Some(now) = stamp(&file) else { return false };
    // An address that belonged to another instance may be free by now.
    if known.entries.get(name).is_some_and(|entry| entry.stamp == now && !entry.duplicate) {
        return true;
    }
    // First the watch: what changes behind it is not missed. A file that was replaced is another one to watch.
    let watch = watches.file(&file);
    let before = known.remove(name).map(|mut entry| {
        if entry.watch != watch {
            watches.end(entry.watch.take());
        }
        entry
    });
    let stamp = stamp(&file).unwrap_or(now);
    let read = read(&file);
    let places = read.as_ref().map(|config| places(shared, config)).unwrap_or_default();
    let conflict = known.conflict(shared, name, &places);
    let duplicate = conflict.is_some();
    let read = conflict.map_or(read, Err);
    let error = read.as_ref().err().cloned();
    if let Some(error) =
        error.as_ref().filter(|error| before.as_ref().and_then(|entry| entry.error.as_ref()) != Some(*error))
    {
        tracing::warn!("{name}: instance.toml: {error}");
    }
    let entry = match (before, read) {
        // What was right stays in force: a slip of the editor ends no session.
        (Some(entry), Err(_)) => {
            if entry.error != error {
                entry.slot.report(shared, error.clone());
            }
            Entry { stamp, watch, error, duplicate, ..entry }
        }
        (Some(mut entry), Ok(config)) if entry.config.as_ref().is_some_and(|before| before.is_same_link(&config)) => {
            let mended = entry.error.is_some();
            let config_error = entry.slot.with(shared, |core| {
                core.config = Some(config.clone());
                core.config_error.take().filter(|_| !mended)
            });
            entry.slot.report(shared, config_error);
            entry.config = Some(config);
            Entry { stamp, watch, error, duplicate, ..entry }
        }
        (before, read) => {
            let (slot, before) = match before {
                Some(mut entry) => {
                    entry.stop().await;
                    (entry.slot, entry.config)
                }
                None => (add(shared, name, &folder), None),
            };
            let (stop, stopped) = watch::channel(false);
            // First the new socket, then the end of the sessions: their agents come again at once.
            let listener = read.as_ref().ok().and_then(|config| accept::first_listener(shared, config));
            apply(shared, &slot, before.as_ref(), &read);
            let task = read.as_ref().ok().map(|config| {
                tokio::spawn(accept::run(Arc::clone(shared), Arc::clone(&slot), config.clone(), listener, stopped))
            });
            let places = if error.is_none() { places } else { Vec::new() };
            Entry { slot, stamp, watch, config: read.ok(), places, error, duplicate, stop, task }
        }
    };
    known.insert(name, entry);
    true
}

fn add(shared: &Arc<Shared>, name: &str, folder: &Path) -> Arc<Slot> {
    let slot = Arc::new(Slot::new(name, folder.into(), shared.now()));
    if let Err(error) = status_file::remove_left_over(folder) {
        slot.say(shared, tracing::Level::WARN, format_args!("cannot clean its folder: {error}"));
    }
    shared.insert(&slot);
    slot
}

/// Puts a new configuration, or what is wrong with it, into force: the sessions begin anew.
fn apply(shared: &Arc<Shared>, slot: &Arc<Slot>, before: Option<&Config>, read: &Result<Config, String>) {
    slot.with(shared, |core| {
        core.instance.end_all(ByeReason::MOVED);
        let moved = matches!((before, read), (Some(before), Ok(now)) if before.address != now.address);
        if moved {
            core.instance.forget();
        }
        core.config = read.as_ref().ok().cloned();
        core.config_error = read.as_ref().err().cloned();
        let link = match read {
            Ok(Config { address: Address::Cid(_), dial: None, .. }) => Link::Listening,
            Ok(_) => Link::Waiting,
            Err(_) => Link::Off,
        };
        core.instance.reconfigured(link, core.config_error.clone(), shared.now());
    });
}

fn stamp(file: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(file).ok()?;
    Some(Stamp { modified: meta.modified().ok(), length: meta.len(), inode: meta.ino() })
}

/// Neither waits nor touches anything but a file: a FIFO or a device would stop the daemon.
fn read(file: &Path) -> Result<Config, String> {
    const NO_FILE: &str = "is not a regular file";
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "the file is gone".into(),
        _ => format!("cannot be read: {error}"),
    };
    if !std::fs::metadata(file).map_err(failed)?.is_file() {
        return Err(NO_FILE.into());
    }
    // Between the two it may have become something else.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = File::options().read(true).custom_flags(flags).open(file).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(NO_FILE.into());
    }
    let mut text = String::new();
    let length = file.take(config::MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > config::MAX_BYTES {
        return Err("over 64 KiB".into());
    }
    config::parse(&text).map_err(|error| error.to_string())
}
