//! Which host decides about this guest's size. Pure: times and what happened are arguments, what is to be said comes
//! out as [`Action`]s.
//!
//! ```text
//!              a controller may be tried                       accepted
//!   [vacant] ---------------------------> [resuming] ----------------------------> [held]
//!      ^ ^                                    |                                      | |
//!      | |   refuses, silent for 2 s, ends    |                        ends, Bye     | | a newer one registers:
//!      | +------------------------------------+------------------------<-------------+ | suspend
//!      |                                                                               v
//!      +--------------------- drained, 5 s over, ends, Bye ---------------------- [draining]
//! ```
//!
//! Who is tried: the newest that has not been since it registered; then the one that decided before; then the newest
//! of the others. One that failed waits, 1 s and twice as long each time up to 30 s, and never takes the turn from one
//! that holds it. Each turn has an epoch of its own: a command with another is stale, whatever its sender believes,
//! so a controller that does not answer is fenced, not trusted.
//!
//! Being alive is the session's matter (15 s without an Ack end it, in any role) and never judged by one answer.

use heapless::Vec;
use informant_wire::hello::Role;
use informant_wire::id::ControllerId;
use informant_wire::limits::{
    MAX_CONTROLLERS, MAX_HOST_SESSIONS, MAX_PEER_NAME, RESUME_DEADLINE_S, SUSPEND_DEADLINE_S,
};
use informant_wire::scale::{Controller, Epoch};

const SECOND_US: u64 = 1_000_000;
/// The pause after the first failed try.
const FIRST_PAUSE_US: u64 = SECOND_US;
/// The longest.
const LONGEST_PAUSE_US: u64 = 30 * SECOND_US;

/// A session. Never used twice by one agent process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u32);

/// What is said to a host about its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Finish, then decide no more.
    Suspend,
    /// Decide from here on.
    Resume,
    /// Suspend, to one that did not answer Resume in time: it may do so late. Its turn is over already, and nobody
    /// waits for the answer.
    Withdraw,
}

/// Something to be said on a session. A newer one takes the place of one that has not been said yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// To whom.
    pub key: Key,
    /// What.
    pub step: Step,
    /// Of which turn.
    pub epoch: Epoch,
}

/// Why a host did not become the one that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// It answered so.
    #[error("it refuses")]
    Refused,
    /// It did not answer.
    #[error("no answer in {RESUME_DEADLINE_S} s")]
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: Key,
    role: Role,
    id: ControllerId,
    name: heapless::String<MAX_PEER_NAME>,
    /// Its last turn.
    epoch: Epoch,
    heard_us: u64,
    /// Not tried since it registered.
    is_new: bool,
    /// Tries that failed in a row.
    failures: u32,
    /// Not to be tried before.
    barred_until_us: u64,
    unsaid: Option<(Step, Epoch)>,
}

/// Whose turn it is. The turn's epoch is the registry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    Vacant,
    Resuming { key: Key, until_us: u64 },
    Held { key: Key },
    Draining { key: Key, until_us: u64 },
}

/// See the module. Fixed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// The oldest registration first.
    entries: Vec<Entry, MAX_HOST_SESSIONS>,
    turn: Turn,
    /// The last that was given out.
    epoch: Epoch,
    /// Who decided before.
    previous: Option<Key>,
    failure: Option<(Key, Failure)>,
    /// Turns that were taken up.
    switches: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Nobody yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), turn: Turn::Vacant, epoch: Epoch(0), previous: None, failure: None, switches: 0 }
    }

    /// A session began: a controller's is registered, and wins; every other is listed only. False: there is no room,
    /// and it is not known here.
    pub fn welcomed(&mut self, key: Key, role: Role, id: ControllerId, name: &str, now_us: u64) -> bool {
        // A key that comes again is a new registration.
        self.remove(key);
        let entry = Entry {
            key,
            role,
            id,
            name: name.try_into().unwrap_or_default(),
            epoch: Epoch(0),
            heard_us: now_us,
            is_new: role == Role::CONTROLLER,
            failures: 0,
            barred_until_us: 0,
            unsaid: None,
        };
        let has_room = self.entries.push(entry).is_ok();
        self.advance(now_us);
        has_room
    }

    /// A session ended, or says goodbye: what it would say from here on has no effect.
    pub fn ended(&mut self, key: Key, now_us: u64) {
        self.remove(key);
        self.advance(now_us);
    }

    /// A host says Bye: it is not registered any more. Whether it was the one that decides.
    pub fn bye(&mut self, key: Key, now_us: u64) -> bool {
        let was_current = self.holder().is_some_and(|(holder, _)| holder == key);
        self.ended(key, now_us);
        was_current
    }

    /// Something came from it.
    pub fn heard(&mut self, key: Key, now_us: u64) {
        if let Some(entry) = self.entry(key) {
            entry.heard_us = now_us;
        }
    }

    /// The answer to a step. False: nobody waits for it any more, and it has no effect.
    pub fn answered(&mut self, key: Key, step: Step, epoch: Epoch, accepted: bool, now_us: u64) -> bool {
        let is_awaited = epoch == self.epoch
            && match self.turn {
                Turn::Resuming { key: asked, .. } => asked == key && step == Step::Resume,
                Turn::Draining { key: asked, .. } => asked == key && step == Step::Suspend,
                Turn::Vacant | Turn::Held { .. } => false,
            };
        if !is_awaited {
            return false;
        }
        match (step, accepted) {
            (Step::Resume, true) => self.take_up(key),
            (Step::Resume, false) => self.failed(key, Failure::Refused, now_us),
            (_, true) => self.drained(key),
            // It can not stop: what it has begun may be under way still, and has the rest of its time.
            (_, false) => {}
        }
        self.advance(now_us);
        true
    }

    /// Carries out what time has brought. To be called at [`Self::deadline_us`] and whenever convenient.
    pub fn check(&mut self, now_us: u64) {
        match self.turn {
            Turn::Resuming { key, until_us } if now_us >= until_us => {
                self.failed(key, Failure::Silent, now_us);
                let epoch = self.epoch;
                if let Some(entry) = self.entry(key) {
                    entry.unsaid = Some((Step::Withdraw, epoch));
                }
            }
            // Not drained, but fenced: the next turn's epoch is another.
            Turn::Draining { key, until_us } if now_us >= until_us => self.drained(key),
            _ => {}
        }
        self.advance(now_us);
    }

    /// When to check at the latest; `None` while one decides, or while there is none that could.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        match self.turn {
            Turn::Resuming { until_us, .. } | Turn::Draining { until_us, .. } => Some(until_us),
            Turn::Held { .. } => None,
            Turn::Vacant => self.controllers().map(|entry| entry.barred_until_us).min(),
        }
    }

    /// What is to be said next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.entries.iter_mut().find_map(|entry| {
            let (step, epoch) = entry.unsaid.take()?;
            Some(Action { key: entry.key, step, epoch })
        })
    }

    /// The one that decides and may be asked for something.
    #[must_use]
    pub fn current(&self) -> Option<(Key, Epoch)> {
        if let Turn::Held { key } = self.turn { Some((key, self.epoch)) } else { None }
    }

    /// The one whose turn is not over: the current one, or one that finishes what it has begun.
    #[must_use]
    pub fn holder(&self) -> Option<(Key, Epoch)> {
        match self.turn {
            Turn::Held { key } | Turn::Draining { key, .. } => Some((key, self.epoch)),
            Turn::Vacant | Turn::Resuming { .. } => None,
        }
    }

    /// Whether a command of this session and turn is to be carried out: only of the turn that is not over. Else the
    /// turn of now: the last that was given out, 0 before the first.
    pub fn may_command(&self, key: Key, epoch: Epoch) -> Result<(), Epoch> {
        if self.holder() == Some((key, epoch)) { Ok(()) } else { Err(self.epoch) }
    }

    /// The newest failure that was not taken yet.
    pub fn take_failure(&mut self) -> Option<(Key, Failure)> {
        self.failure.take()
    }

    /// How often a turn was taken up.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// All hosts that have a session, the oldest first.
    #[must_use]
    pub fn list(&self, now_us: u64) -> Vec<Controller<'_>, MAX_CONTROLLERS> {
        let holder = self.holder().map(|(key, _)| key);
        self.entries
            .iter()
            .map(|entry| Controller {
                id: entry.id,
                name: &entry.name,
                role: entry.role,
                current: holder == Some(entry.key),
                epoch: entry.epoch,
                heard_ms: now_us.saturating_sub(entry.heard_us) / 1000,
            })
            .collect()
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    fn controllers(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.role == Role::CONTROLLER)
    }

    fn remove(&mut self, key: Key) {
        self.entries.retain(|entry| entry.key != key);
        if self.previous == Some(key) {
            self.previous = None;
        }
        match self.turn {
            Turn::Resuming { key: gone, .. } | Turn::Held { key: gone } | Turn::Draining { key: gone, .. }
                if gone == key =>
            {
                self.turn = Turn::Vacant;
            }
            _ => {}
        }
    }

    fn take_up(&mut self, key: Key) {
        self.turn = Turn::Held { key };
        self.switches += 1;
        // Whoever registered before it has lost to it.
        for entry in &mut self.entries {
            entry.is_new = false;
            if entry.key == key {
                (entry.failures, entry.barred_until_us) = (0, 0);
                break;
            }
        }
    }

    fn failed(&mut self, key: Key, failure: Failure, now_us: u64) {
        self.turn = Turn::Vacant;
        self.failure = Some((key, failure));
        if let Some(entry) = self.entry(key) {
            let pause_us = FIRST_PAUSE_US.checked_shl(entry.failures).unwrap_or(LONGEST_PAUSE_US).min(LONGEST_PAUSE_US);
            // Six are enough for the longest pause.
            entry.failures = (entry.failures + 1).min(6);
            entry.barred_until_us = now_us + pause_us;
        }
    }

    fn drained(&mut self, key: Key) {
        self.turn = Turn::Vacant;
        self.previous = Some(key);
    }

    /// Goes on until nothing is left to do now.
    fn advance(&mut self, now_us: u64) {
        match self.turn {
            Turn::Vacant => {
                let Some(key) = self.next_to_try(now_us) else { return };
                self.epoch = Epoch(self.epoch.0.saturating_add(1));
                self.turn = Turn::Resuming { key, until_us: now_us + RESUME_DEADLINE_S * SECOND_US };
                self.say(key, Step::Resume);
            }
            // Only newer ones are new still, see `take_up`.
            Turn::Held { key } if self.entries.iter().any(|entry| entry.is_new) => {
                self.turn = Turn::Draining { key, until_us: now_us + SUSPEND_DEADLINE_S * SECOND_US };
                self.say(key, Step::Suspend);
            }
            Turn::Held { .. } | Turn::Resuming { .. } | Turn::Draining { .. } => {}
        }
    }

    fn say(&mut self, key: Key, step: Step) {
        let epoch = self.epoch;
        if let Some(entry) = self.entry(key) {
            (entry.epoch, entry.unsaid, entry.is_new) = (epoch, Some((step, epoch)), false);
        }
    }

    fn next_to_try(&self, now_us: u64) -> Option<Key> {
        let may_be_tried = |entry: &&Entry| now_us >= entry.barred_until_us;
        let newest_new = self.controllers().rev().find(|entry| entry.is_new);
        let before = || self.controllers().filter(may_be_tried).find(|entry| Some(entry.key) == self.previous);
        let newest = || self.controllers().rev().find(may_be_tried);
        newest_new.or_else(before).or_else(newest).map(|entry| entry.key)
    }
}

#[cfg(test)]
mod explore;
#[cfg(test)]
mod tests;
