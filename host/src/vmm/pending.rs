//! A wish that the VMM itself does not tell: remembered from when it was accepted until it arrived, and no longer than
//! a guest may be expected to take. After that what is true is what is wished, so that the next resize asks anew.

use std::time::Duration;
use tokio::time::Instant;

/// A guest that drops half its page cache or moves a CPU's work is quicker; one that ignores it never does it. Longer
/// than the 30 s for which a change is waited for: a wish that lapsed sooner would look like one that arrived.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending<T> {
    asked: Option<(T, Instant)>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { asked: None }
    }
}

impl<T: Copy + PartialEq> Pending<T> {
    /// It was accepted.
    pub(super) fn accepted(&mut self, wish: T) {
        self.asked = Some((wish, Instant::now()));
    }

    /// What is wished where `has` is what is true.
    pub(super) fn wish(&mut self, has: T) -> T {
        match self.asked {
            Some((wish, since)) if wish != has && since.elapsed() < PATIENCE => wish,
            _ => {
                self.asked = None;
                has
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wish_is_kept_until_it_arrived_or_was_ignored_for_long() {
        let mut pending = Pending::default();
        assert_eq!(pending.wish(1), 1);
        pending.accepted(2);
        assert_eq!(pending.wish(1), 2);
        assert_eq!(pending.wish(2), 2);
        assert_eq!(pending.wish(1), 1, "it arrived once: what came after is somebody else's doing");
        pending.accepted(2);
        tokio::time::advance(PATIENCE).await;
        assert_eq!(pending.wish(1), 1);
    }
}
