//! The folders of DIR: picks instances up, changed and removed ones too, while the daemon runs. inotify says when to
//! look; a look every few seconds finds what it does not say.

use super::accept;
use super::shared::Shared;
use super::slot::Slot;
use crate::config::{self, Address, Config};
use crate::publish::status::Link;
use crate::publish::status_file;
use informant_wire::host_to_guest::ByeReason;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, watch};

/// Longest time from one look to the next, when inotify says nothing and a look is cheap.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// And that many times what the last look took: a hundredth of a core for looking.
const LOOK_SHARE: u32 = 100;
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
    config: Option<Config>,
    /// Its address belongs to another instance.
    duplicate: bool,
    stop: watch::Sender<bool>,
}

/// What is known of the folders.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    /// Which instance has an address.
    holders: HashMap<Address, String>,
}

impl Known {
    fn insert(&mut self, name: &str, entry: Entry) {
        if let Some(config) = &entry.config {
            self.holders.insert(config.address.clone(), name.into());
        }
        self.entries.insert(name.into(), entry);
    }

    fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        if let Some(config) = &entry.config {
            self.holders.remove(&config.address);
        }
        Some(entry)
    }
}

/// Folders looked at before others get their turn: with thousands of them a look takes a second.
const BURST: usize = 64;

/// Looks for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let changed = Arc::new(Notify::new());
    let watcher = match watch_in_thread(&shared.dir, Arc::clone(&changed)) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!("no inotify: {error}; changes in {} are seen within seconds", shared.dir.display());
            None
        }
    };
    let mut known = Known::default();
    loop {
        let began = Instant::now();
        if let Err(error) = look(&shared, &mut known, watcher.as_deref()).await {
            tracing::warn!("cannot read {}: {error}", shared.dir.display());
        }
        let pause = LOOK_EVERY.max(began.elapsed() * LOOK_SHARE).min(LOOK_AT_LEAST_EVERY);
        if tokio::time::timeout(pause, changed.notified()).await.is_ok() {
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// A thread of its own: inotify is no socket, and this is the only file descriptor of its kind.
fn watch_in_thread(dir: &Path, changed: Arc<Notify>) -> io::Result<Arc<Inotify>> {
    let inotify = Arc::new(Inotify::init(InitFlags::IN_CLOEXEC)?);
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(dir, flags)?;
    let reader = Arc::clone(&inotify);
    std::thread::Builder::new().name("folders".into()).spawn(move || {
        while reader.read_events().is_ok() {
            changed.notify_one();
        }
    })?;
    Ok(inotify)
}

async fn look(shared: &Arc<Shared>, known: &mut Known, watcher: Option<&Inotify>) -> io::Result<()> {
    let mut seen = HashSet::new();
    for (count, folder) in std::fs::read_dir(&shared.dir)?.enumerate() {
        if count % BURST == BURST - 1 {
            tokio::task::yield_now().await;
        }
        let folder = folder?;
        let Ok(name) = folder.file_name().into_string() else { continue };
        if !config::is_instance_name(&name) || !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if look_at(shared, known, &name, watcher) {
            seen.insert(name);
        }
    }
    let gone: Vec<String> = known.entries.keys().filter(|name| !seen.contains(*name)).cloned().collect();
    for name in gone {
        if let Some(entry) = known.remove(&name) {
            entry.stop.send_replace(true);
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
fn look_at(shared: &Arc<Shared>, known: &mut Known, name: &str, watcher: Option<&Inotify>) -> bool {
    let folder = shared.dir.join(name);
    let file = folder.join("instance.toml");
    let Some(stamp) = stamp(&file) else { return false };
    // An address that belonged to another instance may be free by now.
    if known.entries.get(name).is_some_and(|entry| entry.stamp == stamp && !entry.duplicate) {
        return true;
    }
    if let Some(watcher) = watcher {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ATTRIB;
        // Without a watch (there is a limit) the file is looked at every few seconds all the same.
        let _looked_at_anyway = watcher.add_watch(&file, flags);
    }
    let read = read(&file);
    let holder = read.as_ref().ok().and_then(|config| known.holders.get(&config.address));
    let other = holder.filter(|other| *other != name);
    let duplicate = other.is_some();
    let read = match other {
        Some(other) => Err(format!("{} has the same address: every VM has its own", other)),
        None => read,
    };
    let (slot, before) = match known.remove(name) {
        Some(mut entry) => {
            if entry.config.as_ref() == read.as_ref().ok() && read.is_ok() {
                entry.stamp = stamp;
                known.insert(name, entry);
                return true;
            }
            entry.stop.send_replace(true);
            (entry.slot, entry.config)
        }
        None => (add(shared, name, &folder), None),
    };
    apply(shared, &slot, before.as_ref(), &read);
    let (stop, stopped) = watch::channel(false);
    if let Ok(config) = &read {
        tokio::spawn(accept::run(Arc::clone(shared), Arc::clone(&slot), config.clone(), stopped));
    }
    known.insert(name, Entry { slot, stamp, config: read.ok(), duplicate, stop });
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
    if let Err(error) = read {
        slot.say(shared, tracing::Level::WARN, format_args!("instance.toml: {error}"));
    }
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

fn read(file: &Path) -> Result<Config, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(config::MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("the file is gone".into()),
        Err(error) => return Err(format!("cannot be read: {error}")),
        Ok(length) if length as u64 > config::MAX_BYTES => return Err("over 64 KiB".into()),
        Ok(_) => {}
    }
    config::parse(&text).map_err(|error| error.to_string())
}
