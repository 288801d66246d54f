//! The tripwire (`--tripwire`): `memory.high` of the watched cgroup just below what it may have, so that the kernel
//! tells at once when it gets there. Pure: says what to write.
//!
//! Above `memory.high` the kernel throttles, which is the worst for a workload that is short of memory already: the
//! first event lifts it to `max`, in the wake-up in which it is seen, and it is set again only after relief. One that
//! an agent left behind that was killed is lifted at the start.

use super::usage::Usage;

/// Of what the cgroup may have, so much, in hundredths.
const LEVEL: u64 = 95;
/// It is set again when use was below this share of the level …
const RELIEF: u64 = 85;
/// … for so long.
const RELIEF_US: u64 = 5_000_000;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Write `max` to `memory.high`, now.
    Lift,
    /// Write this to `memory.high`; the writer tells when it is done.
    Set(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not set; use is below the level since then, or it is not.
    Lifted(Option<u64>),
    /// Being set, with the events counted before, at this level.
    Setting(u64, u64),
    /// Set, likewise.
    Set(u64, u64),
    /// The kernel refuses it.
    Refused,
}

/// See the module.
#[derive(Debug)]
pub struct Tripwire {
    state: State,
}

/// What is seen of the watched cgroup.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Boot time.
    pub now_us: u64,
    /// What it may have: its `memory.max`, at most MemTotal; bytes.
    pub limit: u64,
    /// What it has: `memory.current`, page cache and all; bytes.
    pub current: u64,
    /// The VM's memory in use.
    pub usage: Usage,
    /// The count `high` of its `memory.events`.
    pub high: u64,
}

impl Default for Tripwire {
    fn default() -> Self {
        Self { state: State::Lifted(None) }
    }
}

impl Tripwire {
    /// Takes a look in.
    pub fn look(&mut self, seen: &Seen) -> Option<Act> {
        let level = seen.limit / 100 * LEVEL;
        match self.state {
            State::Refused | State::Setting(..) => None,
            State::Set(high, at) if seen.high > high || level < at => {
                // It was met; or the VM became smaller, and where it stands it would never be met.
                self.state = State::Lifted(None);
                Some(Act::Lift)
            }
            State::Set(..) => None,
            State::Lifted(since_us) => {
                let is_known = matches!(seen.usage, Usage::Known(_)) && seen.limit > 0;
                if !is_known || seen.current >= level / 100 * RELIEF {
                    self.state = State::Lifted(None);
                    return None;
                }
                let since_us = since_us.unwrap_or(seen.now_us);
                if seen.now_us.saturating_sub(since_us) < RELIEF_US {
                    self.state = State::Lifted(Some(since_us));
                    return None;
                }
                self.state = State::Setting(seen.high, level);
                Some(Act::Set(level))
            }
        }
    }

    /// The writer is done with [`Act::Set`]. False: the kernel refused; it is not tried again.
    pub fn is_set(&mut self, done: bool) {
        if let State::Setting(high, level) = self.state {
            self.state = if done { State::Set(high, level) } else { State::Refused };
        }
    }

    /// The cgroup is gone; another may come.
    pub fn forget(&mut self) {
        self.state = State::Lifted(None);
    }

    /// Whether it must be lifted when the agent ends.
    #[must_use]
    pub const fn must_lift(&self) -> bool {
        matches!(self.state, State::Set(..) | State::Setting(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000;
    const MIB: u64 = 1024 * 1024;

    fn seen(now_us: u64, current: u64, high: u64) -> Seen {
        Seen { now_us, limit: 1000 * MIB, current, usage: Usage::Known(current), high }
    }

    const LEVEL_BYTES: u64 = 1000 * MIB / 100 * 95;

    fn set() -> Tripwire {
        let mut wire = Tripwire::default();
        assert_eq!(wire.look(&seen(0, 0, 7)), None);
        assert_eq!(wire.look(&seen(5 * S, 0, 7)), Some(Act::Set(LEVEL_BYTES)));
        wire.is_set(true);
        wire
    }

    /// as#44, neon#5348, neon#5444: nothing stays throttled.
    #[test]
    fn the_first_event_lifts_it_and_relief_sets_it_again() {
        let mut wire = set();
        assert_eq!(wire.look(&seen(6 * S, 940 * MIB, 7)), None);
        assert_eq!(wire.look(&seen(7 * S, 955 * MIB, 8)), Some(Act::Lift));
        assert!(!wire.must_lift());
        for second in 8..30 {
            assert_eq!(wire.look(&seen(second * S, 955 * MIB, 9)), None, "not while it is full");
        }
        assert_eq!(wire.look(&seen(30 * S, 100 * MIB, 9)), None);
        assert_eq!(wire.look(&seen(33 * S, 900 * MIB, 9)), None, "no relief yet");
        assert_eq!(wire.look(&seen(34 * S, 100 * MIB, 9)), None);
        assert_eq!(wire.look(&seen(39 * S, 100 * MIB, 9)), Some(Act::Set(LEVEL_BYTES)));
    }

    #[test]
    fn an_event_while_it_is_being_set_lifts_it_as_soon_as_it_is() {
        let mut wire = Tripwire::default();
        wire.look(&seen(0, 0, 0));
        wire.look(&seen(5 * S, 0, 0)).unwrap();
        assert_eq!(wire.look(&seen(6 * S, 0, 1)), None);
        wire.is_set(true);
        assert_eq!(wire.look(&seen(6 * S + 1, 0, 1)), Some(Act::Lift));
    }

    /// neon#5488: an upscale that lowered it, and a shrink that left it where it is never met.
    #[test]
    fn a_smaller_vm_has_no_old_wire() {
        let mut wire = set();
        assert_eq!(wire.look(&Seen { limit: 2000 * MIB, ..seen(6 * S, 0, 7) }), None);
        assert_eq!(wire.look(&Seen { limit: 500 * MIB, ..seen(7 * S, 0, 7) }), Some(Act::Lift));
    }

    #[test]
    fn what_the_kernel_refuses_is_not_tried_for_ever() {
        let mut wire = Tripwire::default();
        wire.look(&seen(0, 0, 0));
        wire.look(&seen(5 * S, 0, 0)).unwrap();
        wire.is_set(false);
        assert_eq!(wire.look(&seen(50 * S, 0, 0)), None);
        assert!(!wire.must_lift());
    }

    proptest! {
        /// neon#5303: the creep logic was wrong in its second version.
        #[test]
        fn whatever_comes_an_event_is_answered_at_once(
            steps in prop::collection::vec((0_u64..3_000_000, 0_u64..1_200, 0_u64..2, any::<bool>()), 1..200)
        ) {
            let mut wire = Tripwire::default();
            let (mut now_us, mut high) = (0, 0);
            for (step, current, events, writes) in steps {
                now_us += step;
                high += events;
                let was_set = matches!(wire.state, State::Set(..));
                let act = wire.look(&seen(now_us, current * MIB, high));
                if was_set && events > 0 {
                    prop_assert_eq!(act, Some(Act::Lift));
                }
                if let Some(Act::Set(level)) = act {
                    prop_assert!(current * MIB < level);
                    if writes { wire.is_set(true); }
                }
            }
        }
    }
}
