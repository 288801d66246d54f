//! The inotify watches of DIR: on itself, on each instance.toml, and on folders that have none yet. They say that
//! something has changed, never what. What the daemon writes into an instance's folder wakes nobody.

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// One watch.
pub(super) type Watch = WatchDescriptor;

/// See the module. Without inotify, or at its limit, everything is looked at every few seconds all the same.
#[derive(Debug)]
pub(super) struct Watches {
    inotify: Option<Arc<Inotify>>,
    /// The limit was met: said.
    full: AtomicBool,
}

impl Watches {
    /// Watches DIR, and wakes `changed` for it and all watches to come.
    pub(super) fn start(dir: &Path, changed: &Arc<Notify>) -> Self {
        let inotify = in_thread(dir, Arc::clone(changed)).inspect_err(|error| {
            tracing::warn!("no inotify: {error}; changes in {} are seen within seconds", dir.display());
        });
        Self { inotify: inotify.ok(), full: AtomicBool::new(false) }
    }

    /// Watches a folder for its instance.toml. The same folder has the same watch.
    pub(super) fn folder(&self, folder: &Path) -> Option<Watch> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        self.add(folder, flags)
    }

    /// Watches an instance.toml: one that is removed, renamed or replaced by a rename too.
    pub(super) fn file(&self, file: &Path) -> Option<Watch> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ATTRIB;
        self.add(file, flags)
    }

    fn add(&self, path: &Path, flags: AddWatchFlags) -> Option<Watch> {
        let added = self.inotify.as_ref()?.add_watch(path, flags);
        if added == Err(Errno::ENOSPC) && !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "no inotify watch is left for {}: changes are seen within a minute; raise fs.inotify.max_user_watches",
                path.display()
            );
        }
        added.ok()
    }

    /// Ends a watch, if it has not ended with what it watched.
    pub(super) fn end(&self, watch: Watch) {
        if let Some(inotify) = &self.inotify {
            let _ended_before = inotify.rm_watch(watch);
        }
    }
}

/// A thread of its own: inotify is no socket, and this is the only file descriptor of its kind.
fn in_thread(dir: &Path, changed: Arc<Notify>) -> io::Result<Arc<Inotify>> {
    let inotify = Arc::new(Inotify::init(InitFlags::IN_CLOEXEC)?);
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(dir, flags)?;
    let reader = Arc::clone(&inotify);
    std::thread::Builder::new().name("folders".into()).spawn(move || {
        loop {
            match reader.read_events() {
                // That a watch has ended is what we did, or comes behind what ended it.
                Ok(events) if events.iter().all(|event| event.mask == AddWatchFlags::IN_IGNORED) => {}
                Ok(_) => changed.notify_one(),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(inotify)
}
