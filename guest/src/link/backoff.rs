//! When to dial again. Pure: randomness and what happened are arguments.

use nix::errno::Errno;

/// The first pause, and the one after traffic that the peer acknowledged.
const FIRST_US: u64 = 50_000;
/// The longest pause.
const LONGEST_US: u64 = 2_000_000;
/// Redials without a pause are at least so far apart, whatever the host acknowledges in between.
const AT_ONCE_EVERY_US: u64 = 1_000_000;
/// Between tries while the kernel has no vsock or does not let us: modules load late, privileges seldom change.
const CONFIGURATION_US: u64 = 2_000_000;

/// What kind of obstacle a failed dial met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Not yet: nobody listens, the device or driver is not there, the network of the VM was reset.
    NotYet,
    /// The kernel lacks the address family, or the process the right.
    Configuration,
}

/// Sorts an error of socket, bind or connect. The connect errors of vsock say little about the cause (one VMM
/// answers with a reset where another lets the attempt time out), so all but three mean "not yet".
#[must_use]
pub fn obstacle(error: Errno) -> Obstacle {
    match error {
        Errno::EAFNOSUPPORT | Errno::EPERM | Errno::EACCES => Obstacle::Configuration,
        _ => Obstacle::NotYet,
    }
}

/// Jittered exponential back-off, 50 ms to 2 s; starts over only when the host acknowledged something.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pause_us: u64,
    /// One redial without a pause may be had; earned by an acknowledgement.
    at_once: bool,
    /// When the last one was had.
    at_once_us: Option<u64>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause_us: FIRST_US, at_once: true, at_once_us: None }
    }
}

impl Backoff {
    /// The peer acknowledged: the link works.
    pub fn acknowledged(&mut self) {
        *self = Self { at_once_us: self.at_once_us, ..Self::default() };
    }

    /// The pause after a failure: half of it fixed, half of it random, so that a thousand guests of one restarted
    /// host do not come back together. `random`: any bits.
    pub fn pause_us(&mut self, random: u64) -> u64 {
        let half = self.pause_us / 2;
        self.pause_us = (self.pause_us * 2).min(LONGEST_US);
        half + random % (half + 1)
    }

    /// The pause when the host asked for a redial at once. A host that asks again and again without ever
    /// acknowledging, or within a second, gets the usual pauses.
    pub fn at_once_us(&mut self, now_us: u64, random: u64) -> u64 {
        let is_soon = self.at_once_us.is_some_and(|last_us| now_us < last_us.saturating_add(AT_ONCE_EVERY_US));
        if is_soon || !std::mem::take(&mut self.at_once) {
            return self.pause_us(random);
        }
        self.at_once_us = Some(now_us);
        0
    }

    /// The pause after an obstacle.
    pub fn after_us(&mut self, obstacle: Obstacle, random: u64) -> u64 {
        match obstacle {
            Obstacle::NotYet => self.pause_us(random),
            Obstacle::Configuration => CONFIGURATION_US,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_errno_of_a_missing_host_is_not_yet() {
        use Errno::*;
        for errno in [
            ECONNRESET,
            ETIMEDOUT,
            ENODEV,
            ENETUNREACH,
            EHOSTUNREACH,
            ECONNREFUSED,
            EPIPE,
            ENOTCONN,
            EADDRNOTAVAIL,
            EINTR,
            ENOENT,
            EAGAIN,
        ] {
            assert_eq!(obstacle(errno), Obstacle::NotYet, "{errno}");
        }
        for errno in [EAFNOSUPPORT, EPERM, EACCES] {
            assert_eq!(obstacle(errno), Obstacle::Configuration, "{errno}");
        }
    }

    #[test]
    fn a_host_that_asks_for_redials_without_acknowledging_gets_one() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.at_once_us(5, 7), 0);
        assert!(backoff.at_once_us(2_000_000, 7) >= FIRST_US / 2);
        backoff.acknowledged();
        assert_eq!(backoff.at_once_us(2_000_000, 7), 0);
        // One a second, also when it acknowledges each time.
        backoff.acknowledged();
        assert!(backoff.at_once_us(2_999_999, 7) >= FIRST_US / 2);
        backoff.acknowledged();
        assert_eq!(backoff.at_once_us(3_000_000, 7), 0);
    }

    proptest! {
        #[test]
        fn a_hundred_failures_take_at_least_95_seconds(randoms in prop::collection::vec(any::<u64>(), 100)) {
            let mut backoff = Backoff::default();
            let pauses: Vec<u64> = randoms.iter().map(|random| backoff.pause_us(*random)).collect();
            prop_assert!(pauses.iter().all(|pause| (FIRST_US / 2..=LONGEST_US).contains(pause)));
            prop_assert!(pauses.iter().sum::<u64>() >= 94_000_000);
            backoff.acknowledged();
            prop_assert!(backoff.pause_us(randoms[0]) <= FIRST_US);
        }
    }
}
