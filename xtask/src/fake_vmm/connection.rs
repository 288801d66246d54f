//! One connection: two directions, each with its thread and its 64 KiB, through the faults in force.

use super::{Dial, HalfClose, POLL, Shared, join};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a guest's first bytes wait for the mirror's host to answer the same ones: less than an agent's patience.
const MIRROR_FIRST: Duration = Duration::from_secs(2);
const BUFFER: usize = 64 * 1024;

/// A guest has dialled the host's port.
pub(super) fn serve_guest(shared: &Arc<Shared>, guest: UnixStream) {
    shared.seen.dials.fetch_add(1, Ordering::Relaxed);
    let (dial, mirror, cut_after) = {
        let mut faults = shared.faults();
        let cut_after = if faults.dial == Dial::Close { None } else { faults.cut_after.take() };
        (faults.dial.clone(), faults.mirror.clone(), cut_after)
    };
    if dial == Dial::Close {
        return;
    }
    let mirror = mirror.and_then(|uds| shared.dial_host(&uds).ok());
    match (shared.dial_host(&shared.uds), dial) {
        (Ok(host), _) => {
            shared.seen.forwarded.fetch_add(1, Ordering::Relaxed);
            join(shared, guest, host, mirror, cut_after);
        }
        (Err(_), Dial::ForwardOrHang(time)) => {
            let since = Instant::now();
            while since.elapsed() < time && !shared.stopped() {
                thread::sleep(POLL);
            }
        }
        (Err(_), _) => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Host,
    Guest,
}

/// Whether the peer closed both directions, not only the one it writes.
fn is_closed(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let _ = poll(&mut fds, PollTimeout::ZERO);
    fds.iter().any(|fd| fd.revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)))
}

pub(super) struct Connection {
    shared: Arc<Shared>,
    guest: UnixStream,
    host: UnixStream,
    mirror: Option<UnixStream>,
    cut_after: Option<u64>,
    /// [`Shared::epoch`] when it was made.
    epoch: u64,
    from_guest: AtomicU64,
    over: AtomicBool,
    host_is_dead: AtomicBool,
    mirror_answered: AtomicBool,
}

impl Connection {
    pub(super) fn new(
        shared: &Arc<Shared>,
        guest: UnixStream,
        host: UnixStream,
        mirror: Option<UnixStream>,
        cut_after: Option<u64>,
    ) -> Self {
        for stream in [&guest, &host].into_iter().chain(&mirror) {
            let _ = stream.set_read_timeout(Some(POLL));
            let _ = stream.set_write_timeout(Some(POLL));
        }
        Self {
            shared: Arc::clone(shared),
            guest,
            host,
            mirror,
            cut_after,
            epoch: shared.epoch.load(Ordering::Relaxed),
            from_guest: AtomicU64::new(0),
            over: AtomicBool::new(false),
            host_is_dead: AtomicBool::new(false),
            mirror_answered: AtomicBool::new(false),
        }
    }

    /// Returns when both directions are over.
    pub(super) fn run(&self) {
        thread::scope(|scope| {
            scope.spawn(|| self.pump(To::Host));
            scope.spawn(|| self.pump(To::Guest));
            if let Some(mirror) = &self.mirror {
                scope.spawn(move || self.discard(mirror));
            }
        });
        for stream in [&self.guest, &self.host].into_iter().chain(&self.mirror) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
            || self.shared.stopped()
            || self.shared.epoch.load(Ordering::Relaxed) != self.epoch
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        for stream in [&self.guest, &self.host] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn stalled(&self, to: To) -> bool {
        let faults = self.shared.faults();
        faults.frozen || if to == To::Host { faults.stall_to_host } else { faults.stall_to_guest }
    }

    fn pump(&self, to: To) {
        let (mut from, into) = if to == To::Host { (&self.guest, &self.host) } else { (&self.host, &self.guest) };
        let mut buffer = vec![0; BUFFER];
        let mut swallowed = 0;
        while !self.is_over() {
            if self.stalled(to) || (to == To::Host && self.host_is_dead.load(Ordering::Relaxed) && swallowed >= BUFFER)
            {
                thread::sleep(POLL);
                continue;
            }
            let got = match from.read(&mut buffer) {
                Ok(0) => {
                    if self.ends_here(to, into) {
                        return self.end();
                    }
                    return;
                }
                Ok(got) => got,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if to == To::Guest && self.hides_the_host() => return,
                Err(_) => return self.end(),
            };
            if to == To::Host && self.host_is_dead.load(Ordering::Relaxed) {
                swallowed += got;
                continue;
            }
            let Some(bytes) = buffer.get(..got) else { return };
            if !self.deliver(to, into, bytes) {
                if to == To::Host && self.hides_the_host() {
                    swallowed += got;
                    continue;
                }
                return self.end();
            }
        }
    }

    /// The end of the stream from one side; true when it ends the whole connection.
    fn ends_here(&self, to: To, into: &UnixStream) -> bool {
        if to == To::Guest && self.hides_the_host() {
            return false;
        }
        if is_closed(if to == To::Host { &self.guest } else { &self.host }) {
            return true;
        }
        if self.shared.faults().half_close == HalfClose::Passed {
            let _ = into.shutdown(Shutdown::Write);
        }
        false
    }

    fn hides_the_host(&self) -> bool {
        let hides = self.shared.faults().hide_dead_host;
        if hides {
            self.host_is_dead.store(true, Ordering::Relaxed);
        }
        hides
    }

    /// Whether the other side took it.
    fn deliver(&self, to: To, into: &UnixStream, bytes: &[u8]) -> bool {
        let (pieces, lose_beyond) = {
            let faults = self.shared.faults();
            (faults.pieces.unwrap_or(BUFFER).max(1), faults.lose_beyond.unwrap_or(BUFFER))
        };
        let mut bytes = bytes.get(..lose_beyond).unwrap_or(bytes);
        let mut cut = false;
        if to == To::Host {
            let before = self.from_guest.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if let Some(left) = self.cut_after.map(|limit| limit.saturating_sub(before)) {
                cut = bytes.len() as u64 >= left;
                bytes = bytes.get(..usize::try_from(left).unwrap_or(BUFFER)).unwrap_or(bytes);
            }
            if let Some(mirror) = &self.mirror {
                let _ = (&*mirror).write_all(bytes);
                self.await_mirror();
            }
        }
        for piece in bytes.chunks(pieces) {
            if !self.write_all(into, piece) {
                return false;
            }
            let seen = if to == To::Host { &self.shared.seen.to_host } else { &self.shared.seen.to_guest };
            seen.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        !cut
    }

    fn write_all(&self, mut into: &UnixStream, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.is_over() {
                return false;
            }
            match into.write(bytes) {
                Ok(done) => bytes = bytes.get(done..).unwrap_or_default(),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// The guest's own connection is the newer one: its host hears of the guest after the mirror's has answered.
    fn await_mirror(&self) {
        let since = Instant::now();
        while !self.mirror_answered.load(Ordering::Relaxed) && since.elapsed() < MIRROR_FIRST && !self.is_over() {
            thread::sleep(POLL);
        }
    }

    /// A clone's host speaks to a guest that does not listen here.
    fn discard(&self, mut mirror: &UnixStream) {
        let mut buffer = [0; 1024];
        while !self.is_over() {
            match mirror.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => self.mirror_answered.store(true, Ordering::Relaxed),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}
