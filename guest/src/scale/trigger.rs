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
const WAKES: usize = 8;

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
    events: AsyncFd<reactor::Events>,
    armed: [Option<Armed>; KINDS.len()],
}

impl Triggers {
    /// Arms what the kernel lets it. Needs the runtime; only for the running system.
    pub fn new(files: &mut Files) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut armed = [const { None }; KINDS.len()];
        for ((kind, slot), data) in KINDS.iter().zip(&mut armed).zip(0..) {
            match arm(files, kind, &epoll, data) {
                Ok(trigger) => *slot = Some(trigger),
                Err(Errno::ENOENT | Errno::EOPNOTSUPP) => {}
                Err(error) => {
                    let path = String::from_utf8_lossy(kind.path);
                    tracing::info!("/{path}: no trigger: {}; pressure is seen by what it does", error.desc());
                }
            }
        }
        Ok(Self { events: reactor::register(reactor::Events(epoll))?, armed })
    }

    /// Wakes when this file changes, for as long as it is open.
    pub fn watch(&self, file: &KFile) -> Result<(), Errno> {
        let descriptor = file.descriptor().ok_or(Errno::ENOENT)?;
        self.events.get_ref().0.add(descriptor, EpollEvent::new(URGENT, u64::MAX))
    }

    /// Registers the wake-up. Whether anything woke, and which stalls there were.
    pub fn poll(&mut self, cx: &mut Context<'_>, files: &mut Files) -> (bool, Stalls) {
        let (mut woke, mut stalls) = (false, Stalls::default());
        while let Poll::Ready(Ok(mut guard)) = self.events.poll_read_ready(cx) {
            let mut wakes = [EpollEvent::empty(); WAKES];
            let count = guard.get_inner().0.wait(&mut wakes, EpollTimeout::ZERO).unwrap_or(0);
            if count == 0 {
                guard.clear_ready();
                continue;
            }
            woke = true;
            for wake in wakes.iter().take(count) {
                let at = usize::try_from(wake.data()).unwrap_or(usize::MAX);
                if let (Some(Some(armed)), Some(kind), Some(stall)) =
                    (self.armed.get_mut(at), KINDS.get(at), stalls.get_mut(at))
                {
                    *stall |= armed.has_grown(files, kind.full);
                }
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

fn arm(files: &mut Files, kind: &Kind, epoll: &Epoll, data: u64) -> Result<Armed, Errno> {
    let mut result = Err(Errno::EINVAL);
    for (words, threshold_us) in kind.triggers {
        let trigger = files.open_file(kind.path, OFlag::O_RDWR)?;
        // With its terminator: the kernel takes the last byte away.
        match nix::unistd::write(&trigger, words) {
            Ok(_) => {
                let mut file = KFile::new(kind.path);
                let total = files.read(&mut file).and_then(|bytes| total_us(bytes, kind.full));
                epoll.add(trigger.as_fd(), EpollEvent::new(URGENT, data))?;
                return Ok(Armed { _trigger: trigger, file, threshold_us, total_us: total.unwrap_or(0) });
            }
            Err(error) => result = Err(error),
        }
    }
    result
}
