//! The folders of DIR: picks instances up, changed and removed ones too, while the daemon runs. inotify says when to
//! look ([`super::watches`]); a look every few seconds finds what it does not say.

use super::accept;
use super::claims::{self, Claim, Place};
use super::instance_file::{Stamp, read, stamp};
use super::scale;
use super::shared::Shared;
use super::slot::Slot;
use super::watches::{Watch, Watches};
use crate::config::{self, Address, Config};
use crate::publish::status::Link;
use crate::publish::status_file;
use informant_wire::host_to_guest::ByeReason;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    /// Whether its sessions and its socket stay as they are: what was right stays in force, so that a slip of the editor
    /// ends no session, but not at an address that its file does not name any more.
    fn keeps_link(&self, file: &Changed) -> bool {
        match (&self.config, &file.read) {
            (Some(before), Ok(now)) => before.is_same_link(now),
            (Some(_), Err(_)) => !file.duplicate,
            (None, Ok(_)) => false,
            (None, Err(_)) => true,
        }
    }

    /// Ends the task that listens or dials; its socket is free then.
    async fn stop(&mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            let _panicked = task.await;
        }
    }
}

/// What is known of the folders.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    /// Which instance has a place.
    holders: HashMap<Place, String>,
    /// Folders with an instance.toml whose names no instance can have, and links to folders.
    misnamed: BTreeSet<OsString>,
    /// Folders that have no instance.toml yet.
    empty: HashMap<String, Option<Watch>>,
    /// Watches to end, unless somebody else has them by now.
    ended: Vec<Watch>,
    /// DIR is not where it was: said.
    displaced: bool,
}

impl Known {
    fn release(&mut self, places: &[Place]) {
        for place in places {
            self.holders.remove(place);
        }
    }

    /// Whether inotify sees what happens to each of them.
    fn is_watched(&self) -> bool {
        self.entries.values().all(|entry| entry.watch.is_some()) && self.empty.values().all(Option::is_some)
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
        shared.looked.notify_one();
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

/// An instance.toml that is new or changed, or that asked for an address of another instance.
struct Changed {
    stamp: Stamp,
    watch: Option<Watch>,
    read: Result<Config, String>,
    places: Vec<Place>,
    /// Its address belongs to another instance.
    duplicate: bool,
}

async fn look(shared: &Arc<Shared>, known: &mut Known, watches: &Watches) -> io::Result<()> {
    let mut changed = find(shared, known, watches).await?;
    settle(shared, known, &mut changed);
    // First all old sockets go: the new one of an instance may be at the place of another's old one.
    for (name, file) in &changed {
        if let Some(entry) = known.entries.get_mut(name)
            && !entry.keeps_link(file)
        {
            entry.stop().await;
        }
    }
    for (count, (name, file)) in changed.into_iter().enumerate() {
        if count % BURST == BURST - 1 {
            tokio::task::yield_now().await;
        }
        take(shared, known, name, file);
    }
    let cids = known.entries.values().filter_map(|entry| match &entry.config {
        Some(Config { address: Address::Cid(cid), dial: None, .. }) => Some((*cid, Arc::clone(&entry.slot))),
        _ => None,
    });
    shared.set_cids(cids.collect::<HashMap<_, _>>());
    Ok(())
}

/// Reads what changed, and forgets what is gone.
async fn find(shared: &Arc<Shared>, known: &mut Known, watches: &Watches) -> io::Result<BTreeMap<String, Changed>> {
    let mut seen = HashSet::new();
    let mut changed = BTreeMap::new();
    let mut misnamed = BTreeSet::new();
    let mut empty = HashMap::new();
    for (count, folder) in std::fs::read_dir(&shared.dir)?.enumerate() {
        if count % BURST == BURST - 1 {
            tokio::task::yield_now().await;
        }
        let folder = folder?;
        let Ok(kind) = folder.file_type() else { continue };
        if !kind.is_dir() && !kind.is_symlink() {
            continue;
        }
        let name = match folder.file_name().into_string() {
            // Two names of one folder would write one status file.
            Ok(name) if config::is_instance_name(&name) && kind.is_dir() => name,
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
        let file = folder.path().join("instance.toml");
        let mut is_instance = look_at(known, &name, &file, watches, &mut changed);
        if !is_instance {
            let watch = watches.folder(&folder.path());
            // Between the two looks it may have come.
            is_instance = look_at(known, &name, &file, watches, &mut changed);
            if is_instance {
                known.ended.extend(watch);
            } else {
                empty.insert(name.clone(), watch);
            }
        }
        if is_instance {
            seen.insert(name);
        }
    }
    known.ended.extend(std::mem::replace(&mut known.empty, empty).into_values().flatten());
    misnamed.retain(|name| shared.dir.join(name).join("instance.toml").exists());
    for name in misnamed.difference(&known.misnamed) {
        tracing::warn!("the folder {name:?} is left alone: {}", config::NAME_RULE);
    }
    if misnamed != known.misnamed {
        shared.set_misnamed(misnamed.iter().map(|name| name.to_string_lossy().into_owned()).collect());
        known.misnamed = misnamed;
    }
    let gone: Vec<String> = known.entries.keys().filter(|name| !seen.contains(*name)).cloned().collect();
    for name in gone {
        forget(shared, known, &name).await;
    }
    end_watches(known, watches, &changed);
    Ok(changed)
}

/// The folder or its instance.toml is gone.
async fn forget(shared: &Arc<Shared>, known: &mut Known, name: &str) {
    let Some(mut entry) = known.entries.remove(name) else { return };
    known.release(&entry.places);
    known.ended.extend(entry.watch.take());
    entry.stop().await;
    entry.slot.with(shared, |core| {
        core.removed = true;
        core.instance.end_all(ByeReason::REMOVED);
    });
    shared.remove(name);
    tracing::info!("{name}: its folder or its instance.toml is gone");
}

/// Ends the watches that nobody has any more. What was renamed is watched already under its new name: the watch is the
/// same one.
fn end_watches(known: &mut Known, watches: &Watches, changed: &BTreeMap<String, Changed>) {
    let mut ended: HashSet<Watch> = std::mem::take(&mut known.ended).into_iter().collect();
    if ended.is_empty() {
        return;
    }
    let of_entries = known.entries.values().map(|entry| entry.watch);
    let of_files = changed.values().map(|file| file.watch);
    for watch in of_entries.chain(of_files).chain(known.empty.values().copied()).flatten() {
        ended.remove(&watch);
    }
    for watch in ended {
        watches.end(watch);
    }
}

/// Whether the folder is an instance; what is new goes to `changed`. One without instance.toml is none: it is being made,
/// or being removed, and then nothing may be written into it.
fn look_at(
    known: &mut Known,
    name: &str,
    file: &Path,
    watches: &Watches,
    changed: &mut BTreeMap<String, Changed>,
) -> bool {
    let Some(now) = stamp(file) else { return false };
    let Known { entries, ended, .. } = known;
    let entry = entries.get_mut(name);
    // An address that belonged to another instance may be free by now.
    if entry.as_ref().is_some_and(|entry| entry.stamp == now && !entry.duplicate) {
        return true;
    }
    // First the watch: what changes behind it is not missed. A file that was replaced is another one to watch.
    let watch = watches.file(file);
    if let Some(entry) = entry
        && entry.watch != watch
    {
        ended.extend(std::mem::replace(&mut entry.watch, watch));
    }
    let stamp = stamp(file).unwrap_or(now);
    let file = Changed { stamp, watch, read: read(file), places: Vec::new(), duplicate: false };
    changed.insert(name.into(), file);
    true
}

/// Who gets the address that it asks for. Only what is no slip of an editor gives up what it had.
fn settle(shared: &Shared, known: &mut Known, changed: &mut BTreeMap<String, Changed>) {
    for (name, file) in changed.iter_mut() {
        let Ok(config) = &file.read else { continue };
        file.places = claims::places(shared, config);
        let places = known.entries.get(name).map(|entry| entry.places.clone());
        known.release(&places.unwrap_or_default());
    }
    let claims = changed.iter().filter_map(|(name, file)| {
        let (config, entry) = (file.read.as_ref().ok()?, known.entries.get(name));
        let has = entry.is_some_and(|entry| file.places.iter().all(|place| entry.places.contains(place)));
        Some(Claim { name, config, places: &file.places, has, is_new: entry.is_none() })
    });
    for (name, why) in claims::settle(shared, &known.holders, &claims.collect::<Vec<_>>()) {
        if let Some(file) = changed.get_mut(&name) {
            file.read = Err(why);
            file.places = Vec::new();
            file.duplicate = true;
        }
    }
}

/// Puts an instance.toml into force.
fn take(shared: &Arc<Shared>, known: &mut Known, name: String, file: Changed) {
    let before = known.entries.remove(&name);
    let keeps_link = before.as_ref().is_some_and(|entry| entry.keeps_link(&file));
    let Changed { stamp, watch, read, places, duplicate } = file;
    let error = read.as_ref().err().cloned();
    if let Some(error) =
        error.as_ref().filter(|error| before.as_ref().and_then(|entry| entry.error.as_ref()) != Some(*error))
    {
        tracing::warn!("{name}: instance.toml: {error}");
    }
    let entry = match (before, read) {
        (Some(entry), Err(_)) if keeps_link => {
            if entry.error != error {
                entry.slot.report(shared, error.clone());
            }
            Entry { stamp, watch, error, duplicate, ..entry }
        }
        (Some(entry), Ok(config)) if keeps_link => {
            let mended = entry.error.is_some();
            let config_error = entry.slot.with(shared, |core| {
                core.config = Some(config.clone());
                core.config_error.take().filter(|_| !mended)
            });
            scale::configured(shared, &entry.slot);
            entry.slot.report(shared, config_error);
            Entry { stamp, watch, config: Some(config), places, error, duplicate, ..entry }
        }
        (before, read) => {
            let (slot, before) = match before {
                Some(entry) => (entry.slot, entry.config),
                None => (add(shared, &name), None),
            };
            let (stop, stopped) = watch::channel(false);
            // First the new socket, then the end of the sessions: their agents come again at once.
            let first = read.as_ref().ok().map(|config| (config.clone(), accept::first(shared, &slot, config)));
            apply(shared, &slot, before.as_ref(), &read);
            let task = first.map(|(config, first)| {
                tokio::spawn(accept::run(Arc::clone(shared), Arc::clone(&slot), config, first, stopped))
            });
            Entry { slot, stamp, watch, config: read.ok(), places, error, duplicate, stop, task }
        }
    };
    known.holders.extend(entry.places.iter().map(|place| (place.clone(), name.clone())));
    known.entries.insert(name, entry);
}

fn add(shared: &Arc<Shared>, name: &str) -> Arc<Slot> {
    let slot = Arc::new(Slot::new(name, shared.dir.join(name), shared.now()));
    if shared.hand.owns()
        && let Err(error) = status_file::remove_left_over(&slot.folder)
    {
        slot.say(shared, tracing::Level::WARN, format_args!("cannot clean its folder: {error}"));
    }
    shared.insert(&slot);
    slot
}

/// Puts a new configuration, or what is wrong with it, into force: the sessions begin anew.
fn apply(shared: &Arc<Shared>, slot: &Arc<Slot>, before: Option<&Config>, read: &Result<Config, String>) {
    slot.with(shared, |core| {
        core.instance.end_all(ByeReason::MOVED);
        let moved = before.is_some_and(|before| read.as_ref().map_or(true, |now| before.address != now.address));
        if moved {
            core.instance.forget();
            core.desk.forget(shared.now());
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
    scale::configured(shared, slot);
}
