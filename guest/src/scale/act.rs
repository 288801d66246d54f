//! The thread that writes to sysfs and to cgroups: onlining a memory block takes as long as the kernel takes, and so may
//! setting `memory.high`. One job at a time, each bounded; the loop asks and looks for the result, and never waits.

use crate::collect::cpulist::CpuSet;
use crate::collect::memory_blocks::{Blocks, DIRECTORY, MAX_BLOCKS, block_number, block_size, is_online, state_path};
use crate::kfile::{Directory, Files, each_entry};
use crate::parse::trim;
use informant_wire::size::Size;
use nix::errno::Errno;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// With all memory locked, a default stack would cost 2 MiB.
const STACK_BYTES: usize = 64 * 1024;
/// Blocks and CPUs that one job brings online; the next one goes on.
const PER_JOB: usize = 32;
/// Writes that wait.
const MAX_WRITES: usize = 4;
/// How long the end of the agent waits for a write that is under way.
const END: Duration = Duration::from_millis(500);
const CPUS: &str = "sys/devices/system/cpu";

/// What a job found, after it did what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// CPUs online; 0: not known.
    pub cpus: u32,
    /// CPUs plugged.
    pub cpus_present: Option<u32>,
    /// Memory blocks.
    pub blocks: Option<Blocks>,
}

/// A value for a file of a cgroup.
#[derive(Debug)]
pub struct Change {
    /// Below the root.
    pub path: Box<[u8]>,
    /// What to write.
    pub value: heapless::String<20>,
    /// Whether [`Actor::take_written`] is to tell how it went; else it is logged.
    pub is_awaited: bool,
}

#[derive(Debug, Default)]
struct Board {
    bring: Option<Size>,
    changes: heapless::Deque<Change, MAX_WRITES>,
    report: Option<Report>,
    written: Option<Result<(), Errno>>,
    is_busy: bool,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    work: Condvar,
    idle: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // Nothing under this lock can panic half-way; the data is whole in any case.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's end of the thread.
#[derive(Debug)]
pub struct Actor {
    shared: Arc<Shared>,
}

impl Actor {
    /// Starts the thread. Where none can be started nothing is ever done, which shows in what has not arrived.
    #[must_use]
    pub fn start(root: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, root) = (Arc::clone(&shared), root.to_owned());
        let started = thread::Builder::new()
            .name("act".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || work(&theirs, &mut Files::small(&root)));
        if let Err(error) = started {
            tracing::warn!("no thread for what may block: {error}; plugged memory and CPUs are not brought online");
        }
        Self { shared }
    }

    /// Brings CPUs and memory blocks online until there is this much, and reports. Asked again before it is done, it
    /// counts once.
    pub fn bring(&self, size: Size) {
        self.shared.lock().bring = Some(size);
        self.shared.work.notify_one();
    }

    /// Writes a file of a cgroup. False: too many wait.
    pub fn change(&self, change: Change) -> bool {
        let taken = self.shared.lock().changes.push_back(change).is_ok();
        self.shared.work.notify_one();
        taken
    }

    /// What the last job found, once.
    #[must_use]
    pub fn take_report(&self) -> Option<Report> {
        self.shared.lock().report.take()
    }

    /// How the last awaited write went, once.
    #[must_use]
    pub fn take_written(&self) -> Option<Result<(), Errno>> {
        self.shared.lock().written.take()
    }

    /// Begins nothing more, and waits a moment for what is under way: nothing is written behind the caller's last word.
    pub fn close(&self) {
        let mut board = self.shared.lock();
        board.is_closed = true;
        board.changes.clear();
        self.shared.work.notify_all();
        drop(self.shared.idle.wait_timeout_while(board, END, |board| board.is_busy));
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.close();
    }
}

fn work(shared: &Shared, files: &mut Files) {
    let mut blocks = Vec::new();
    let mut board = shared.lock();
    loop {
        board.is_busy = false;
        shared.idle.notify_all();
        if board.is_closed {
            return;
        }
        if !board.changes.is_empty() {
            board.is_busy = true;
            drop(board);
            changes(shared, files);
            board = shared.lock();
        } else if let Some(size) = board.bring.take() {
            board.is_busy = true;
            drop(board);
            let report = bring(files, size, &mut blocks, &mut |files| changes(shared, files));
            board = shared.lock();
            board.report = Some(report);
        } else {
            board = shared.work.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes what waits to be written. Between two memory blocks too: a cgroup does not wait for all of them.
fn changes(shared: &Shared, files: &Files) {
    loop {
        // The lock is never held across a write.
        let Some(change) = shared.lock().changes.pop_front() else { return };
        let result = files.write(&change.path, change.value.as_bytes());
        if change.is_awaited {
            shared.lock().written = Some(result);
        } else if let Err(error) = result {
            let path = String::from_utf8_lossy(&change.path);
            tracing::warn!("/{path}: {} can not be written: {}", change.value, error.desc());
        }
    }
}

fn bring(files: &mut Files, size: Size, blocks: &mut Vec<u32>, between: &mut dyn FnMut(&Files)) -> Report {
    let (cpus, cpus_present) = bring_cpus(files, size.cpu.cpus(), between);
    Report { cpus, cpus_present, blocks: bring_memory(files, size.memory.0, blocks, between) }
}

/// CPUs online and present.
fn bring_cpus(files: &mut Files, wanted: u32, between: &mut dyn FnMut(&Files)) -> (u32, Option<u32>) {
    let mut path = heapless::String::<64>::new();
    let mut set = |files: &mut Files, name: &str| {
        path.clear();
        let _ = write!(path, "{CPUS}/{name}");
        files.read_once(None, path.as_bytes()).and_then(CpuSet::parse)
    };
    let (Some(online), present) = (set(files, "online"), set(files, "present")) else { return (0, None) };
    let count = |set: &CpuSet| u32::try_from(set.count()).unwrap_or(u32::MAX);
    let mut now = count(&online);
    for cpu in present.iter().flat_map(CpuSet::iter).filter(|cpu| !online.contains(*cpu)).take(PER_JOB) {
        if now >= wanted {
            break;
        }
        between(files);
        path.clear();
        let _ = write!(path, "{CPUS}/cpu{cpu}/online");
        match files.write(path.as_bytes(), b"1") {
            Ok(()) => now = now.saturating_add(1),
            Err(error) => tracing::warn!("CPU {cpu} can not be brought online: {}", error.desc()),
        }
    }
    (now, present.as_ref().map(count))
}

fn bring_memory(
    files: &mut Files,
    wanted: u64,
    blocks: &mut Vec<u32>,
    between: &mut dyn FnMut(&Files),
) -> Option<Blocks> {
    let size_bytes = files.read_once(None, b"sys/devices/system/memory/block_size_bytes").and_then(block_size)?;
    list(files, blocks)?;
    let directory = Directory::new(DIRECTORY);
    let mut found = Blocks { size_bytes, ..Blocks::default() };
    let mut offline = 0;
    // First all that are there, with those that are offline moved to the front: then it is known how many are wanted.
    for i in 0..blocks.len() {
        let Some(block) = blocks.get(i).copied() else { break };
        match files.read_once(Some(&directory), state_path(block).as_bytes()).and_then(is_online) {
            Some(true) => found.online_bytes = found.online_bytes.saturating_add(size_bytes),
            Some(false) => {
                found.offline_bytes = found.offline_bytes.saturating_add(size_bytes);
                blocks.swap(offline, i);
                offline += 1;
            }
            None => {}
        }
    }
    let words = words(files);
    for block in blocks.iter().take(offline.min(PER_JOB)) {
        // Of the last block only a part may be given: it is wanted all the same.
        if found.online_bytes >= wanted {
            break;
        }
        between(files);
        match online(files, *block, words) {
            Ok(()) => {
                found.online_bytes = found.online_bytes.saturating_add(size_bytes);
                found.offline_bytes = found.offline_bytes.saturating_sub(size_bytes);
            }
            Err(error) => tracing::warn!("memory block {block} can not be brought online: {}", error.desc()),
        }
    }
    (found.online_bytes > 0).then_some(found)
}

fn list(files: &Files, blocks: &mut Vec<u32>) -> Option<()> {
    blocks.clear();
    let directory = files.open_directory(DIRECTORY).ok()?;
    each_entry(directory.as_fd(), |entry| {
        blocks.extend(block_number(entry.name));
        blocks.len() <= MAX_BLOCKS
    })
    .ok()?;
    blocks.sort_unstable();
    blocks.dedup();
    (blocks.len() <= MAX_BLOCKS).then_some(())
}

/// Movable memory can be given back, and is taken first. Where the kernel is set to balance zones by itself
/// (`auto-movable`; without kernel memory an all-movable VM is killed with gigabytes free), the choice is its own.
fn words(files: &mut Files) -> &'static [&'static [u8]] {
    match files.read_once(None, b"sys/module/memory_hotplug/parameters/online_policy").map(trim) {
        Some(b"auto-movable") => &[b"online"],
        _ => &[b"online_movable", b"online"],
    }
}

fn online(files: &Files, block: u32, words: &[&[u8]]) -> Result<(), Errno> {
    let mut path = heapless::String::<64>::new();
    let _ = write!(path, "sys/devices/system/memory/{}", state_path(block));
    let mut result = Err(Errno::ENOENT);
    for word in words {
        result = files.write(path.as_bytes(), word);
        if result.is_ok() {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests;
