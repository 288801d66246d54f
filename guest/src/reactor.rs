//! The one place where descriptors are handed to tokio's reactor, and with it the agent's only `unsafe` code: the
//! constructors of `AsyncFd` that are not deprecated are unsafe, because the reactor relies on a descriptor staying
//! open and the same. [`Steady`] lists the types for which that is so; nothing else can be registered.
#![expect(unsafe_code, reason = "AsyncFd::register is unsafe; see the module's documentation")]

use nix::sys::epoll::Epoll;
use nix::sys::signalfd::SignalFd;
use nix::sys::timerfd::TimerFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use tokio::io::unix::AsyncFd;
use vsock::VsockListener;

/// Types that own one descriptor from their making to their end.
pub trait Steady: AsRawFd + sealed::Sealed {}

impl Steady for OwnedFd {}
impl Steady for UnixListener {}
impl Steady for VsockListener {}
impl Steady for SignalFd {}
impl Steady for Timer {}
impl Steady for Events {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::OwnedFd {}
    impl Sealed for super::UnixListener {}
    impl Sealed for super::VsockListener {}
    impl Sealed for super::SignalFd {}
    impl Sealed for super::Timer {}
    impl Sealed for super::Events {}
}

/// A timerfd; nix gives it no `AsRawFd`.
#[derive(Debug)]
pub struct Timer(pub TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// An epoll of its own within the reactor's: for descriptors that tell of urgent data alone (`POLLPRI`), as those of
/// pressure and of cgroups do, which the reactor can not wait for by itself.
#[derive(Debug)]
pub struct Events(pub Epoll);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

/// Registers a non-blocking descriptor. To be called within a runtime.
pub fn register<T: Steady>(descriptor: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: a `Steady` type owns its descriptor, never replaces it, and closes it only when dropped; the `AsyncFd`
    // owns the value and lends no exclusive reference to it, because `Steady` values are only used by reference.
    unsafe { AsyncFd::register(descriptor) }.map_err(|error| error.into_parts().1)
}
