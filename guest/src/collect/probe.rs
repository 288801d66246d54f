//! The helper threads that ask file systems for their space: statvfs may hang for as long as a server is away.
//!
//! One worker asks one file system after the other. When an answer takes over two seconds, that file system is hung
//! and a fresh worker takes over; at most three workers exist, so at most three can be stuck. The lock is never held
//! across a call. The loop thread never waits here, but for [`Probe::settle`], which only `sample` calls.

use crate::kfile::Root;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::{FsFlags, Statvfs, fstatvfs};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// From here on a file system is hung.
const HUNG_AFTER: Duration = Duration::from_secs(2);
/// Workers at a time, stuck ones included.
const MAX_WORKERS: usize = 3;
/// With all memory locked, a default stack would cost 2 MiB.
const STACK_BYTES: usize = 64 * 1024;

/// What statvfs says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Free for ordinary users, bytes.
    pub available_bytes: u64,
    /// Inodes; 0 where the file system has no such limit.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// How a file system is asked. Replaced in tests of what a hung one does.
pub type Ask = Arc<dyn Fn(&Path) -> Result<Space, Errno> + Send + Sync>;

/// Asks the kernel, of mount points below a root. Of a tree from elsewhere they are looked up inside it.
#[must_use]
pub fn statvfs(root: &Path) -> Ask {
    let root = Root::new(root);
    if root.is_live() {
        return Arc::new(|path: &Path| space(|| nix::sys::statvfs::statvfs(path)));
    }
    Arc::new(move |path: &Path| {
        let below = path.strip_prefix(root.path()).map_err(|_| Errno::ENOENT)?;
        let place = root.open(below.as_os_str().as_bytes(), OFlag::O_PATH | OFlag::O_CLOEXEC)?;
        space(|| fstatvfs(&place))
    })
}

fn space(ask: impl Fn() -> Result<Statvfs, Errno>) -> Result<Space, Errno> {
    let stat = loop {
        match ask() {
            Err(Errno::EINTR) => {}
            answer => break answer?,
        }
    };
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(Space {
        size_bytes: bytes(stat.blocks()),
        free_bytes: bytes(stat.blocks_free()),
        available_bytes: bytes(stat.blocks_available()),
        files: stat.files(),
        files_free: stat.files_free(),
        read_only: stat.flags().contains(FsFlags::ST_RDONLY),
    })
}

/// What is known of a file system by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was not asked yet, or nobody is left to ask it.
    None,
    /// The last answer.
    Known(Result<Space, Errno>),
    /// It does not answer.
    Hung,
}

/// A change that is told as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stopped to answer.
    Hung,
    /// It answers again.
    Recovered,
}

#[derive(Debug)]
struct Target {
    id: u64,
    path: Arc<Path>,
    wanted: bool,
    running_since: Option<Instant>,
    hung: bool,
    recovered: bool,
    answer: Option<Result<Space, Errno>>,
}

#[derive(Debug, Default)]
struct Board {
    targets: Vec<Target>,
    /// The worker that takes new work; the others are stuck and end when they are not needed.
    active: Option<u32>,
    /// Since when that one waits for an answer; its file system may be forgotten by now.
    active_since: Option<Instant>,
    workers: usize,
    next_worker: u32,
    next_target: u64,
    closed: bool,
}

struct Shared {
    board: Mutex<Board>,
    work: Condvar,
    done: Condvar,
    ask: Ask,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // Nothing under this lock can panic half-way; the data is whole in any case.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workers and what they were asked.
pub struct Probe {
    shared: Arc<Shared>,
    root: PathBuf,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Probe {
    /// Starts the first worker. Where no thread can be started, nothing is ever answered.
    #[must_use]
    pub fn start(root: &Path, ask: Ask) -> Self {
        let shared = Arc::new(Shared { board: Mutex::default(), work: Condvar::new(), done: Condvar::new(), ask });
        spawn(&shared, &mut shared.lock());
        Self { shared, root: root.to_owned() }
    }

    /// Takes a file system in and returns its key. `mountpoint`: absolute, below the root.
    pub fn add(&self, mountpoint: &[u8]) -> u64 {
        let below = mountpoint.strip_prefix(b"/").unwrap_or(mountpoint);
        let path: Arc<Path> = self.root.join(OsStr::from_bytes(below)).into();
        let mut board = self.shared.lock();
        let id = board.next_target;
        board.next_target += 1;
        board.targets.push(Target {
            id,
            path,
            wanted: true,
            running_since: None,
            hung: false,
            recovered: false,
            answer: None,
        });
        self.shared.work.notify_one();
        id
    }

    /// Forgets a file system. A call that is under way ends as it may.
    pub fn remove(&self, id: u64) {
        self.shared.lock().targets.retain(|target| target.id != id);
    }

    /// Asks every file system whose last answer is there; one call at a time is under way for each.
    pub fn ask_all(&self) {
        let mut board = self.shared.lock();
        for target in board.targets.iter_mut().filter(|target| target.running_since.is_none()) {
            target.wanted = true;
        }
        self.shared.work.notify_one();
    }

    /// Tells what is known of each, and what changed since the last call. Replaces a stuck worker.
    pub fn each(&self, mut f: impl FnMut(u64, Answer, Option<Change>)) {
        let mut board = self.shared.lock();
        let now = Instant::now();
        let is_late = |since: Instant| now.saturating_duration_since(since) > HUNG_AFTER;
        for target in &mut board.targets {
            let change = if !target.hung && target.running_since.is_some_and(is_late) {
                (target.hung, target.answer) = (true, None);
                Some(Change::Hung)
            } else {
                std::mem::take(&mut target.recovered).then_some(Change::Recovered)
            };
            let answer = match target.answer {
                _ if target.hung => Answer::Hung,
                Some(answer) => Answer::Known(answer),
                None => Answer::None,
            };
            f(target.id, answer, change);
        }
        if board.active_since.is_some_and(is_late) {
            (board.active, board.active_since) = (None, None);
        }
        if board.active.is_none() {
            if board.workers < MAX_WORKERS {
                spawn(&self.shared, &mut board);
            } else {
                // Nobody can ask: what was answered is no longer the truth.
                for target in board.targets.iter_mut().filter(|target| target.running_since.is_none()) {
                    target.answer = None;
                }
            }
        }
    }

    /// Waits until every answer is there, at most for `limit`.
    pub fn settle(&self, limit: Duration) {
        let board = self.shared.lock();
        let waits = |board: &mut Board| {
            board.targets.iter().any(|target| target.wanted || (target.running_since.is_some() && !target.hung))
        };
        drop(self.shared.done.wait_timeout_while(board, limit, waits));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

fn spawn(shared: &Arc<Shared>, board: &mut Board) {
    let worker = board.next_worker;
    let theirs = Arc::clone(shared);
    let started =
        thread::Builder::new().name("probe".to_owned()).stack_size(STACK_BYTES).spawn(move || work(&theirs, worker));
    if started.is_ok() {
        board.next_worker = worker.wrapping_add(1);
        board.workers += 1;
        (board.active, board.active_since) = (Some(worker), None);
    }
}

fn work(shared: &Shared, me: u32) {
    let mut board = shared.lock();
    loop {
        if board.closed || board.active.is_some_and(|active| active != me) {
            board.workers -= 1;
            return;
        }
        // A worker that was stuck comes back to a place that nobody took.
        board.active = Some(me);
        let Some(target) = board.targets.iter_mut().find(|target| target.wanted) else {
            shared.done.notify_all();
            board = shared.work.wait(board).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        target.wanted = false;
        let now = Instant::now();
        target.running_since = Some(now);
        let (id, path) = (target.id, Arc::clone(&target.path));
        board.active_since = Some(now);
        drop(board);
        let answer = (shared.ask)(&path);
        board = shared.lock();
        if board.active == Some(me) {
            board.active_since = None;
        }
        if let Some(target) = board.targets.iter_mut().find(|target| target.id == id) {
            target.running_since = None;
            target.answer = Some(answer);
            target.recovered |= std::mem::take(&mut target.hung);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const SPACE: Space =
        Space { size_bytes: 10, free_bytes: 5, available_bytes: 4, files: 3, files_free: 2, read_only: false };
    /// Far more than a worker needs; only a failing test waits for it.
    const LIMIT: Duration = Duration::from_secs(20);

    /// File systems under `/stuck` answer when they are let go; the others at once.
    fn stuck_probe() -> (Probe, Sender<()>, Receiver<PathBuf>) {
        let (let_go, gate) = channel::<()>();
        let (entered, asked) = channel();
        let (gate, entered) = (Mutex::new(gate), Mutex::new(entered));
        let ask: Ask = Arc::new(move |path: &Path| {
            if path.starts_with("/stuck") {
                entered.lock().unwrap().send(path.to_owned()).unwrap();
                let _ = gate.lock().unwrap().recv();
            }
            Ok(SPACE)
        });
        (Probe::start(Path::new("/"), ask), let_go, asked)
    }

    /// Looks until `done` says so, and returns every change seen on the way.
    fn look_until(probe: &Probe, done: impl Fn(&BTreeMap<u64, Answer>) -> bool) -> Vec<(u64, Change)> {
        let end = Instant::now() + LIMIT;
        let mut changes = Vec::new();
        loop {
            let mut answers = BTreeMap::new();
            probe.each(|id, answer, change| {
                answers.insert(id, answer);
                changes.extend(change.map(|change| (id, change)));
            });
            if done(&answers) {
                return changes;
            }
            assert!(Instant::now() < end, "{answers:?}");
            probe.ask_all();
            probe.settle(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_hung_file_system_is_told_once_and_harms_no_other() {
        let (probe, let_go, asked) = stuck_probe();
        let stuck = probe.add(b"/stuck/nfs");
        asked.recv_timeout(LIMIT).unwrap();
        let well = probe.add(b"/home");
        let changes =
            look_until(&probe, |answers| answers[&stuck] == Answer::Hung && answers[&well] == Answer::Known(Ok(SPACE)));
        assert_eq!(changes, [(stuck, Change::Hung)]);
        assert!(asked.try_recv().is_err(), "one call at a time for each file system");
        let_go.send(()).unwrap();
        let changes = look_until(&probe, |answers| answers[&stuck] == Answer::Known(Ok(SPACE)));
        assert_eq!(changes, [(stuck, Change::Recovered)]);
    }

    #[test]
    fn three_workers_may_be_stuck_and_then_nothing_old_is_told() {
        let (probe, let_go, asked) = stuck_probe();
        let well = probe.add(b"/home");
        look_until(&probe, |answers| answers[&well] == Answer::Known(Ok(SPACE)));
        let stuck: Vec<u64> = (0..4).map(|i| probe.add(format!("/stuck/{i}").as_bytes())).collect();
        look_until(&probe, |answers| {
            stuck.iter().filter(|id| answers[*id] == Answer::Hung).count() == MAX_WORKERS
                && answers[&well] == Answer::None
        });
        assert_eq!(probe.shared.lock().workers, MAX_WORKERS);
        drop(let_go);
        look_until(&probe, |answers| answers.values().all(|answer| *answer == Answer::Known(Ok(SPACE))));
        assert_eq!(asked.try_iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        let end = Instant::now() + LIMIT;
        while probe.shared.lock().workers > 1 {
            assert!(Instant::now() < end, "stuck workers end when they come back");
            thread::yield_now();
        }
    }

    #[test]
    fn a_missing_mount_point_is_an_error_and_no_event() {
        let probe = Probe::start(Path::new("/nonexistent"), statvfs(Path::new("/nonexistent")));
        let id = probe.add(b"/mnt");
        let changes = look_until(&probe, |answers| answers[&id] == Answer::Known(Err(Errno::ENOENT)));
        assert!(changes.is_empty());
    }
}
