//! The tripwire's hands, and what is done about a watched cgroup that is found throttled or frozen: it is said, and
//! nothing is touched unless it was asked for.

use super::Options;
use crate::scale::act::{Actor, Change};
use crate::scale::sense::{Found, Sense};
use crate::scale::tripwire::{Act, Seen, Tripwire};
use crate::scale::usage::Usage;
use std::fmt::Write;

const HIGH: &[u8] = b"memory.high";

#[derive(Debug)]
pub(super) struct Wire {
    tripwire: Option<Tripwire>,
    clear_high: bool,
    thaw: bool,
}

impl Wire {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            tripwire: options.tripwire.then(Tripwire::default),
            clear_high: options.clear_memory_high || options.tripwire,
            thaw: options.thaw,
        }
    }

    /// A cgroup is watched from now on.
    pub(super) fn found(&mut self, found: Found, sense: &Sense, actor: &Actor) {
        self.forget();
        let Some(group) = sense.group() else { return };
        let shown = String::from_utf8_lossy(group.directory());
        if let Some(high) = found.high {
            if self.clear_high {
                tracing::info!("/{shown}: memory.high is {high}; lifting it to max");
                lift(sense);
            } else {
                tracing::warn!(
                    "/{shown}: memory.high is {high}: above it the kernel throttles; --clear-memory-high lifts it"
                );
            }
        }
        if found.frozen {
            if self.thaw {
                tracing::info!("/{shown}: is frozen; thawing it");
                change(group.path(b"cgroup.freeze"), 0, false, actor);
            } else {
                tracing::warn!("/{shown}: is frozen: nothing in it runs; --thaw thaws it");
            }
        }
    }

    pub(super) fn look(&mut self, sense: &mut Sense, actor: &Actor, now_us: u64, total: u64, usage: Usage, high: u64) {
        let Some(tripwire) = &mut self.tripwire else { return };
        if let Some(written) = actor.take_written() {
            if let Err(error) = written {
                tracing::warn!("no tripwire: memory.high can not be set: {}", error.desc());
            }
            tripwire.is_set(written.is_ok());
        }
        // What is set is lifted whatever else can be read.
        let (current, max) = match sense.level() {
            Some(level) => level,
            None if tripwire.must_lift() => (u64::MAX, total),
            None => return,
        };
        match tripwire.look(&Seen { now_us, limit: max.min(total), current, usage, high }) {
            Some(Act::Lift) => lift(sense),
            Some(Act::Set(level)) => {
                if let Some(group) = sense.group() {
                    change(group.path(HIGH), level, true, actor);
                }
            }
            None => {}
        }
    }

    pub(super) fn must_lift(&self) -> bool {
        self.tripwire.as_ref().is_some_and(Tripwire::must_lift)
    }

    pub(super) fn forget(&mut self) {
        if let Some(tripwire) = &mut self.tripwire {
            tripwire.forget();
        }
    }

    /// The agent ends: nothing stays throttled.
    pub(super) fn end(&self, sense: &Sense) {
        if self.must_lift() {
            lift(sense);
        }
    }
}

/// In the loop, because it must not wait behind anything: the kernel reclaims when `memory.high` falls, and with `max`
/// it only stores the number.
fn lift(sense: &Sense) {
    let Some(group) = sense.group() else { return };
    if let Err(error) = sense.files.write(&group.path(HIGH), b"max") {
        tracing::warn!("memory.high can not be lifted: {}", error.desc());
    }
}

fn change(path: Box<[u8]>, number: u64, is_awaited: bool, actor: &Actor) {
    let mut value = heapless::String::new();
    let _ = write!(value, "{number}");
    if !actor.change(Change { path, value, is_awaited }) {
        tracing::warn!("too many writes to cgroups wait; one is left out");
    }
}
