//! What wakes the loop before the next look: pressure triggers, and the watched cgroup's `memory.events`. See
//! Documentation/accounting/psi.rst and cgroup-v2.rst.
//!
//! Everything here may be missing, forbidden or gone: then there are the looks, ten a second. A wake-up says only that
//! something may have happened; what happened is read.

use crate::collect::pressure::total_us;
use crate::kfile::{Files, KFile};
use crate::reactor;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;

/// Urgent data, told once for each time: what the kernel says again until it is read would spin.
const URGENT: EpollFlags = EpollFlags::EPOLLPRI.union(EpollFlags::EPOLLET);
/// Taken at a time.
const WAKES: usize = 4;

/// A stall that wakes.
#[derive(Debug)]
struct Kind {
    path: &'static [u8],
    full: bool,
    /// Within the window, µs: for root, and for others, whose windows are multiples of 2 s.
    triggers: [(&'static [u8], u64); 2],
}

/// In the order of [`Stalls`].
const KINDS: [Kind; 3] = [
    Kind {
        path: b"proc/pressure/memory",
        full: false,
        triggers: [(b"some 150000 1000000\0", 150_000), (b"some 300000 2000000\0", 300_000)],
    },
    Kind {
        path: b"proc/pressure/memory",
        full: true,
        triggers: [(b"full 50000 1000000\0", 50_000), (b"full 100000 2000000\0", 100_000)],
    },
    Kind {
        path: b"proc/pressure/cpu",
        full: false,
        triggers: [(b"some 500000 1000000\0", 500_000), (b"some 1000000 2000000\0", 1_000_000)],
    },
];

/// Which of them happened: memory some, memory full, CPU some.
pub type Stalls = [bool; KINDS.len()];

#[derive(Debug)]
struct Armed {
    /// Of this trigger alone: the kernel takes the event back when it is asked whether there is one, and the reactor
    /// asks first. Which one woke is all that is left of it.
    events: AsyncFd<reactor::Events>,
    /// Kept for as long as the trigger is to stand.
    _trigger: OwnedFd,
    file: KFile,
    threshold_us: u64,
    /// The total when it last counted.
    total_us: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Triggers {
    group: AsyncFd<reactor::Events>,
    armed: [Option<Armed>; KINDS.len()],
}

impl Triggers {
    /// Arms what the kernel lets it. Needs the runtime; only for the running system.
    pub fn new(files: &mut Files) -> io::Result<Self> {
        let mut armed = [const { None }; KINDS.len()];
        for (kind, slot) in KINDS.iter().zip(&mut armed) {
            match arm(files, kind) {
                Ok(trigger) => *slot = Some(trigger),
                Err(Errno::ENOENT | Errno::EOPNOTSUPP) => {}
                Err(error) => {
                    let path = String::from_utf8_lossy(kind.path);
                    tracing::info!("/{path}: no trigger: {}; pressure is seen by what it does", error.desc());
                }
            }
        }
        Ok(Self { group: epoll()?, armed })
    }

    /// Wakes when this file changes, for as long as it is open.
    pub fn watch(&self, file: &KFile) -> Result<(), Errno> {
        let descriptor = file.descriptor().ok_or(Errno::ENOENT)?;
        self.group.get_ref().0.add(descriptor, EpollEvent::new(URGENT, 0))
    }

    /// Registers the wake-up. Whether anything woke, and which stalls there were.
    pub fn poll(&mut self, cx: &mut Context<'_>, files: &mut Files) -> (bool, Stalls) {
        let mut woke = has_woken(&self.group, cx);
        let mut stalls = Stalls::default();
        for ((armed, kind), stall) in self.armed.iter_mut().zip(&KINDS).zip(&mut stalls) {
            if let Some(armed) = armed
                && has_woken(&armed.events, cx)
            {
                *stall = armed.has_grown(files, kind.full);
                woke |= *stall;
            }
        }
        (woke, stalls)
    }
}

impl Armed {
    /// The first event after arming may be one of any size: what counts is that the stall grew by its threshold.
    fn has_grown(&mut self, files: &mut Files, full: bool) -> bool {
        let Some(total_us) = files.read(&mut self.file).and_then(|bytes| total_us(bytes, full)) else { return false };
        let grown = total_us.saturating_sub(self.total_us) >= self.threshold_us;
        if grown || total_us < self.total_us {
            self.total_us = total_us;
        }
        grown
    }
}

fn epoll() -> io::Result<AsyncFd<reactor::Events>> {
    reactor::register(reactor::Events(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
}

/// Takes what is there, on to "not ready": only then is the next event a wake-up.
fn has_woken(events: &AsyncFd<reactor::Events>, cx: &mut Context<'_>) -> bool {
    let mut woke = false;
    while let Poll::Ready(Ok(mut guard)) = events.poll_read_ready(cx) {
        woke = true;
        let mut wakes = [EpollEvent::empty(); WAKES];
        if guard.get_inner().0.wait(&mut wakes, EpollTimeout::ZERO).unwrap_or(0) == 0 {
            guard.clear_ready();
        }
    }
    woke
}

fn arm(files: &mut Files, kind: &Kind) -> Result<Armed, Errno> {
    let mut result = Err(Errno::EINVAL);
    for (words, threshold_us) in kind.triggers {
        let trigger = files.open_file(kind.path, OFlag::O_RDWR)?;
        // With its terminator: the kernel takes the last byte away.
        match nix::unistd::write(&trigger, words) {
            Ok(_) => {
                let mut file = KFile::new(kind.path);
                let total = files.read(&mut file).and_then(|bytes| total_us(bytes, kind.full));
                let events = epoll().map_err(|_| Errno::EMFILE)?;
                events.get_ref().0.add(trigger.as_fd(), EpollEvent::new(URGENT, 0))?;
                return Ok(Armed { events, _trigger: trigger, file, threshold_us, total_us: total.unwrap_or(0) });
            }
            Err(error) => result = Err(error),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    fn put(root: &Path, path: &str, content: &str) {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), content).unwrap();
    }

    /// pitfalls H, "one false event after arming".
    #[test]
    fn a_stall_counts_when_it_grew_by_its_threshold() {
        let root = tempfile::tempdir().unwrap();
        let path = "proc/pressure/memory";
        let total = |total| {
            let line = |word| format!("{word} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            put(root.path(), path, &(line("some") + &line("full")));
        };
        total(1000);
        let mut files = Files::new(root.path());
        let trigger = files.open_file(path.as_bytes(), OFlag::O_RDONLY).unwrap();
        let file = KFile::new(path.as_bytes());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _within = runtime.enter();
        let events = epoll().unwrap();
        let mut armed = Armed { events, _trigger: trigger, file, threshold_us: 150_000, total_us: 1000 };
        assert!(!armed.has_grown(&mut files, false));
        total(150_999);
        assert!(!armed.has_grown(&mut files, false), "of any size, the first time");
        total(151_000);
        assert!(armed.has_grown(&mut files, false) && !armed.has_grown(&mut files, true));
        std::fs::remove_file(root.path().join(path)).unwrap();
        assert!(!armed.has_grown(&mut files, false), "a file that is gone is no event");
    }

    /// The real kernel, where it has pressure triggers and lets this user have one.
    #[test]
    fn tasks_that_wait_for_a_cpu_wake_the_loop() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stall = runtime.block_on(async {
            let mut files = Files::new(Path::new("/"));
            let mut triggers = Triggers::new(&mut files).unwrap();
            if triggers.armed.iter().all(Option::is_none) {
                return true;
            }
            let end = Arc::new(AtomicBool::new(false));
            let work = |end: Arc<AtomicBool>| {
                let last = Instant::now() + Duration::from_secs(30);
                move || while !end.load(Ordering::Relaxed) && Instant::now() < last {}
            };
            let busy = std::thread::available_parallelism().map_or(4, |n| n.get() * 3);
            let threads: Vec<_> = (0..busy).map(|_| std::thread::spawn(work(Arc::clone(&end)))).collect();
            // When no trigger ever wakes it, the timer does, at the end.
            let mut timer = crate::clock::Timer::new().unwrap();
            timer.arm(crate::clock::boot_us() + 20_000_000).unwrap();
            let woke = std::future::poll_fn(|cx| {
                let (_, [.., cpu]) = triggers.poll(cx, &mut files);
                let is_over = timer.poll_expired(cx).is_some();
                if cpu || is_over { Poll::Ready(cpu) } else { Poll::Pending }
            });
            let woke = woke.await;
            end.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            woke
        });
        assert!(stall);
    }
}
