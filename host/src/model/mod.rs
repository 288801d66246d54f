//! What is known of each instance: newest values, rates, states. Pure: no clock, no file, no socket.

pub mod budget;
pub mod cursors;
pub mod instance;
pub mod layout;
pub mod series;
pub mod summary;
pub mod system;

/// A moment: both clocks of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of a clock that never steps, from some moment in the past.
    pub mono_us: u64,
    /// Milliseconds since 1970. Information only: no rule depends on it.
    pub wall_ms: u64,
}

impl Now {
    /// Microseconds from an earlier moment to this one.
    #[must_use]
    pub const fn since_us(self, earlier: Self) -> u64 {
        self.mono_us.saturating_sub(earlier.mono_us)
    }
}

/// Microseconds of a second.
pub const SECOND_US: u64 = 1_000_000;
