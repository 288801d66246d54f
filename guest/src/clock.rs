//! The clocks the agent reads, as plain microseconds, and the one timer its loop sleeps on.
//!
//! `CLOCK_BOOTTIME` for every interval and deadline: it goes on through a suspend and nobody sets it. Wall time is
//! information only.

use crate::reactor;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;

const SECOND_US: u64 = 1_000_000;

fn micros(clock: ClockId) -> u64 {
    // The three clocks below exist on every kernel that runs this; 0 only stands for what can not be.
    let time = clock_gettime(clock).unwrap_or(TimeSpec::new(0, 0));
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    seconds * SECOND_US + u64::try_from(time.tv_nsec()).unwrap_or_default() / 1000
}

/// Since boot, suspends included.
#[must_use]
pub fn boot_us() -> u64 {
    micros(ClockId::CLOCK_BOOTTIME)
}

/// Since 1970.
#[must_use]
pub fn wall_us() -> u64 {
    micros(ClockId::CLOCK_REALTIME)
}

/// CPU time of this process, all threads.
#[must_use]
pub fn cpu_us() -> u64 {
    micros(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Wakes the loop at an absolute boot time.
#[derive(Debug)]
pub struct Timer {
    descriptor: AsyncFd<reactor::Timer>,
    armed_us: Option<u64>,
}

impl Timer {
    /// A timer that is not armed. Needs a runtime.
    pub fn new() -> io::Result<Self> {
        use nix::sys::timerfd::ClockId::CLOCK_BOOTTIME;
        let timer = TimerFd::new(CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        Ok(Self { descriptor: reactor::register(reactor::Timer(timer))?, armed_us: None })
    }

    /// Arms it for `deadline_us`, at once if that has passed. No system call when nothing changes.
    pub fn arm(&mut self, deadline_us: u64) -> io::Result<()> {
        if self.armed_us == Some(deadline_us) {
            return Ok(());
        }
        // Zero would disarm it.
        let at = deadline_us.max(1);
        let seconds = i64::try_from(at / SECOND_US).unwrap_or(i64::MAX);
        let nanos = i64::try_from(at % SECOND_US * 1000).unwrap_or_default();
        #[allow(clippy::useless_conversion, reason = "time_t and long are 32 bits wide on some targets")]
        let when = TimeSpec::new(seconds.try_into().unwrap_or_default(), nanos.try_into().unwrap_or_default());
        self.descriptor.get_ref().0.set(Expiration::OneShot(when), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        self.armed_us = Some(deadline_us);
        Ok(())
    }

    /// Registers the wake-up; the deadline that has passed, if one has.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        let mut expired = None;
        // On to "not ready": only then is the next expiry a wake-up.
        while let Poll::Ready(Ok(mut guard)) = self.descriptor.poll_read_ready(cx) {
            let read = guard.try_io(|timer| {
                let mut count = [0; 8];
                nix::unistd::read(timer.get_ref().0.as_fd(), &mut count).map_err(io::Error::from)
            });
            match read {
                Ok(Ok(_)) => expired = self.armed_us.take().or(expired),
                Ok(Err(_)) => break,
                Err(_would_block) => {}
            }
        }
        expired
    }
}
