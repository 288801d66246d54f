//! A hybrid-vsock VMM that misbehaves on command: what Firecracker, cloud-hypervisor and vhost-device-vsock do, with
//! the faults that public bug reports tell of them, between real agents and a real daemon.
//!
//! The agent dials [`FakeVmm::guest_socket`] (the guest's connect to CID 2) and listens on
//! [`FakeVmm::control_socket`] (the guest's port 1022). The daemon knows [`FakeVmm::uds`]: it listens at
//! `<uds>_5252`, and `CONNECT 1022` there reaches the agent. Accepting and connecting have threads of their own; each
//! direction of a connection has a thread and a buffer of 64 KiB.

mod connection;
mod control;

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use connection::Connection;

/// How often a thread looks whether it is to stop, or whether a fault was switched.
const POLL: Duration = Duration::from_millis(20);

/// What happens to a guest that dials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dial {
    /// Connected to the host's listener; reset at once when there is none (kernel vhost, Firecracker,
    /// cloud-hypervisor).
    #[default]
    Forward,
    /// As [`Self::Forward`], but without a listener the attempt hangs for this long first (vhost-device-vsock: 2 s).
    ForwardOrHang(Duration),
    /// Accepted and closed at once, listener or not.
    Close,
}

/// How the answer to `CONNECT` comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OkLine {
    /// In one write, before any payload.
    #[default]
    Whole,
    /// A byte at a time.
    Split,
    /// Together with the first payload of the guest, in one write.
    Glued,
    /// After this long.
    Late(Duration),
    /// 10 KB without an end of line.
    Endless,
    /// Half a line, then closed.
    Cut,
    /// Closed without a word (Firecracker and cloud-hypervisor: nobody listens there).
    Closed,
}

/// What one side closing its write half does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HalfClose {
    /// The other side sees the end of the stream (kernel vhost).
    #[default]
    Passed,
    /// Nobody ever hears of it (vhost-device-vsock).
    Dropped,
}

/// The faults in force. All of them off is a well-behaved VMM.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// See [`Dial`].
    pub dial: Dial,
    /// See [`OkLine`].
    pub ok: OkLine,
    /// See [`HalfClose`].
    pub half_close: HalfClose,
    /// Bytes are delivered in pieces of at most this many.
    pub pieces: Option<usize>,
    /// Of each write, what is beyond this many bytes is lost (8 KiB in one report).
    pub lose_beyond: Option<usize>,
    /// The next connection that a guest dials is cut on both sides after this many of its bytes.
    pub cut_after: Option<u64>,
    /// A host process that dies is hidden from the guest: no end, no reset; 64 KiB more are taken from it, then nothing
    /// (vhost-device-vsock, when the process had unread bytes).
    pub hide_dead_host: bool,
    /// Nothing moves from guest to host (lost credit).
    pub stall_to_host: bool,
    /// Nothing moves from host to guest.
    pub stall_to_guest: bool,
    /// Nothing moves and nothing is accepted (a paused VM).
    pub frozen: bool,
    /// What a guest sends is also sent, on a connection of its own made before the guest's, to this VM's host socket: a
    /// clone made from the same memory.
    pub mirror: Option<PathBuf>,
}

/// What went through.
#[derive(Debug, Default)]
pub struct Seen {
    /// Dials of the guest.
    pub dials: AtomicU64,
    /// Dials that reached the host's listener.
    pub forwarded: AtomicU64,
    /// `CONNECT` lines of the host.
    pub connects: AtomicU64,
    /// Bytes delivered to the host.
    pub to_host: AtomicU64,
    /// Bytes delivered to the guest.
    pub to_guest: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    uds: PathBuf,
    control: PathBuf,
    faults: Mutex<Faults>,
    stop: AtomicBool,
    /// Connections made before this was last raised are cut.
    epoch: AtomicU64,
    seen: Seen,
}

impl Shared {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The host's listener, at `<uds>_<port>`.
    fn dial_host(&self, uds: &Path) -> io::Result<UnixStream> {
        let mut path = uds.as_os_str().to_owned();
        path.push("_5252");
        UnixStream::connect(Path::new(&path))
    }
}

/// A running VMM. Dropping cuts its connections and removes its sockets.
#[derive(Debug)]
pub struct FakeVmm {
    guest: PathBuf,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl FakeVmm {
    /// Makes its sockets in `dir`, named after the VM.
    pub fn start(dir: &Path, name: &str) -> Result<Self> {
        let path = |what: &str| dir.join(format!("{name}.{what}"));
        let (guest, uds) = (path("guest"), path("v"));
        let shared = Arc::new(Shared {
            uds: uds.clone(),
            control: path("control"),
            faults: Mutex::default(),
            stop: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            seen: Seen::default(),
        });
        let listen = |path: &Path| -> Result<UnixListener> {
            let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let (from_guest, from_host) = (listen(&guest)?, listen(&uds)?);
        let accept = |listener: UnixListener, serve: fn(&Arc<Shared>, UnixStream)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept_until_stopped(&shared, &listener, serve))
        };
        let threads = vec![accept(from_guest, connection::serve_guest), accept(from_host, control::serve_host)];
        Ok(Self { guest, shared, threads })
    }

    /// Where the agent dials: `--connect unix:…`.
    pub fn guest_socket(&self) -> &Path {
        &self.guest
    }

    /// Where the agent listens: `--control unix:…`.
    pub fn control_socket(&self) -> &Path {
        &self.shared.control
    }

    /// The instance's `uds`.
    pub fn uds(&self) -> &Path {
        &self.shared.uds
    }

    /// Switches faults on and off; they hold from the next piece of data or the next connection on.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.faults());
    }

    /// Cuts every connection, without a word to either side: a transport reset.
    pub fn cut(&self) {
        self.shared.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// What went through so far.
    pub fn seen(&self) -> &Seen {
        &self.shared.seen
    }
}

impl Drop for FakeVmm {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.guest);
        let _ = fs::remove_file(&self.shared.uds);
    }
}

fn accept_until_stopped(shared: &Arc<Shared>, listener: &UnixListener, serve: fn(&Arc<Shared>, UnixStream)) {
    while !shared.stopped() {
        if shared.faults().frozen {
            thread::sleep(POLL);
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                let shared = Arc::clone(shared);
                thread::spawn(move || serve(&shared, stream));
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// Joins two streams until one ends, a fault cuts them, or the VMM stops.
fn join(shared: &Arc<Shared>, guest: UnixStream, host: UnixStream, mirror: Option<UnixStream>, cut_after: Option<u64>) {
    Connection::new(shared, guest, host, mirror, cut_after).run();
}
