//! The one demand that is being asked, and of whom. Pure. It is asked of the host that decides, and resolves once: by
//! the answer, after 2 s, or with that host's turn; in the last two cases it is there to be asked again.

use super::controllers::{Key, Registry};
use informant_wire::limits::DEMAND_DEADLINE_S;
use informant_wire::scale::Epoch;

/// An answer may take this long.
pub const DEADLINE_US: u64 = DEMAND_DEADLINE_S * 1_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Asking {
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Open {
    key: Key,
    epoch: Epoch,
    until_us: u64,
}

impl Asking {
    /// Whom a demand may be asked of now: the host that decides, if none is open. One that is being suspended begins
    /// nothing new and is not asked.
    #[must_use]
    pub fn may_ask(&self, registry: &Registry) -> Option<Key> {
        self.open.is_none().then(|| registry.current()).flatten().map(|(key, _)| key)
    }

    /// It was asked of the host that decides.
    pub fn asked(&mut self, registry: &Registry, now_us: u64) {
        self.open = registry.current().map(|(key, epoch)| Open { key, epoch, until_us: now_us + DEADLINE_US });
    }

    /// An answer from that session: true if it resolves the demand, false if it is late.
    pub fn answered(&mut self, key: Key, registry: &Registry) -> bool {
        let fits = self.open.is_some_and(|open| open.key == key && registry.may_command(key, open.epoch).is_ok());
        if fits {
            self.open = None;
        }
        fits
    }

    /// The session of which it was asked in vain, once: its turn or the time is over.
    pub fn check(&mut self, registry: &Registry, now_us: u64) -> Option<Key> {
        let is_over = |open: &Open| now_us >= open.until_us || registry.may_command(open.key, open.epoch).is_err();
        let over = self.open.filter(is_over)?;
        self.open = None;
        Some(over.key)
    }

    /// When to check at the latest.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        self.open.map(|open| open.until_us)
    }

    /// As if now were 0: for comparing states.
    #[cfg(test)]
    pub(super) fn normalised(mut self, now_us: u64, epoch: u64) -> Self {
        if let Some(open) = &mut self.open {
            open.until_us = open.until_us.saturating_sub(now_us);
            open.epoch = Epoch(epoch - open.epoch.0);
        }
        self
    }
}
