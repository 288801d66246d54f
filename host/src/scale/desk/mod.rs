//! One instance's scaling: what the guest says, what the VMM says and what the policy wants, brought to one size. Pure:
//! the caller brings messages, answers and time, and carries out what comes of them.
//!
//! ```text
//!                   up, or nobody decides and it is forced
//!          +--------------------------------------------------------+
//!          |                                                        v
//!  +-> [idle] --down--> [asking the guest] --approved, forced--> [resizing: the VMM]
//!  |       ^                 |                                      |         |
//!  |       |    denied, not ready, silent, a demand came            |     refused, given up
//!  |       +-----------------+--------------------------------------|---------+
//!  |                                                            accepted
//!  |                                                                v
//!  +---- VMM and guest have it, or time is over: stuck -------- [settling] --more is wanted--> [resizing]
//! ```
//!
//! What the VMM was asked to give (its wish) is never asked of it twice: a decision is compared with the wish, and what
//! has not arrived is waited for, told to the guest again, and counted as stuck. A guest that begins a turn is told the
//! wish, so that a side that was killed at any step finds the other where it is.
//!
//! ```text
//! the guest's conversation               the host's
//!  1 resume → role answer                 1 observe the VMM
//!  2 demand → demand answer               2 decide
//!  3 (resized) online what was plugged    3 up: resize the VMM; down: ask the guest first
//!  4 applied: not yet, then applied       4 tell the guest what the VMM gives
//!  5 (downscale) answer                   5 wait until both have it
//! ```

mod act;
mod choose;
mod command;
mod talk;

#[cfg(test)]
mod tests;

pub use command::{MAX_STEPS, Refusal};
pub use talk::{Message, Said};

use super::policy::{self, Policy};
use crate::model::{Now, SECOND_US};
use crate::publish::scaling::{self, Amount, Decided, Demanded, Denial};
use crate::publish::status::Stamp;
use crate::vmm::{self, Reported, Retry};
use command::Running;
use informant_wire::id::SessionId;
use informant_wire::scale::{DemandId, DemandOutcome, DemandReason, Epoch, RequestId, Seen};
use informant_wire::size::{Bytes, MilliCpu, Size};

/// The VMM is asked this often when nothing happens, so that what others did to it is seen.
const OBSERVE_EVERY_US: u64 = 5 * SECOND_US;
/// And this often while something is to arrive.
const OBSERVE_SETTLING_US: u64 = SECOND_US / 2;
/// And this often while an agent is there and the VMM has not answered.
const OBSERVE_UNKNOWN_US: u64 = SECOND_US;
/// What the VMM said is believed for so long.
const OBSERVED_FOR_US: u64 = 15 * SECOND_US;
/// What was accepted has so long to arrive in the VMM and in the guest.
const SETTLE_US: u64 = 30 * SECOND_US;
/// The guest has so long to answer whether it may be smaller: its advisors have 2 s of them.
const QUESTION_MS: u32 = 4000;
/// Between two sizes that the VMM is told: what a guest demands must not set the pace.
const RESIZE_EVERY_US: u64 = SECOND_US / 2;
/// So much sooner than this host gives up the guest says what keeps a change from arriving.
const TRAVEL_US: u64 = 2 * SECOND_US;
/// After a change that came to no end, or a question without an answer, it is tried again no sooner.
const AFTER_FAILURE_US: u64 = 3 * SECOND_US;
/// A change that is stuck is told to the guest again so much later.
const STUCK_US: u64 = 10 * SECOND_US;

/// What an instance's scaling is configured to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The actuator.
    pub vmm: vmm::Config,
    /// `None`: only people resize it.
    pub policy: Option<Policy>,
    /// From `instance.toml`; what the VMM can not do is left out of it on the way.
    pub bounds: policy::Bounds,
}

/// Something to be asked of the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// What is true?
    Observe,
    /// Become this.
    Resize(Size),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    session: SessionId,
    epoch: Epoch,
}

#[derive(Clone, Debug)]
struct OpenDemand {
    id: DemandId,
    cpu: Option<MilliCpu>,
    memory: Option<Bytes>,
    disk: Option<(String, Bytes)>,
    urgency: u8,
    reason: DemandReason,
    first: Now,
    renewed: Now,
    expires_us: u64,
    answer: Option<DemandOutcome>,
    /// Since when it is for more than the VMM was asked to give; until the VMM is asked.
    lacks: Option<Now>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The guest was asked whether it can do with less.
    Asking {
        request: RequestId,
        wanted: Size,
        was: Size,
        forced: bool,
        until_us: u64,
    },
    /// The VMM is to be asked, or is being asked, or will be asked again.
    Resizing {
        wanted: Size,
        was: Size,
        not_before_us: u64,
        tries: u32,
    },
    /// The VMM has accepted `wanted`.
    Settling {
        wanted: Size,
        was: Size,
        told: Option<RequestId>,
        guest: Option<Seen>,
        until_us: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    settings: Option<Settings>,
    /// Sessions that take part, each with the id of its next request.
    sessions: Vec<(SessionId, RequestId)>,
    turn: Option<Turn>,
    /// The turn that is to end as soon as nothing is under way.
    draining: Option<(SessionId, RequestId)>,
    phase: Phase,
    since: Now,
    /// When the phase before this moment began a leg: the call to the VMM, or its acceptance.
    leg: Now,
    vmm: Option<(Reported, Now)>,
    vmm_error: Option<String>,
    acting: Option<(Act, Now)>,
    observe_at_us: u64,
    /// When it was asked last, whatever came of it.
    observed_us: u64,
    /// When it was told a size last.
    resized_us: Option<u64>,
    /// No question to the guest before.
    not_before_us: u64,
    /// Nothing of the policy's to the VMM before: it has just failed.
    failed_until_us: u64,
    retry: Retry,
    sample: Option<policy::Sample>,
    trend: policy::Trend,
    /// Who speaks for the VM is proven to be root there.
    trusted: bool,
    /// The guest is to be told the VMM's wish.
    owes_guest: bool,
    settle_again_us: u64,
    /// What the VM had before the changes that were accepted and have not arrived.
    uncounted: Option<Size>,
    /// What the guest says keeps a change from arriving.
    cause: Option<String>,
    demand: Option<OpenDemand>,
    guest: Option<Seen>,
    denied: Option<(Now, Size, String)>,
    held: Option<(Size, Now)>,
    command: Option<Running>,
    list: Option<ListRequest>,
    last: Option<(Now, Size, Size, String)>,
    stuck: Option<String>,
    counters: scaling::Counters,
    says: Vec<(SessionId, Message)>,
    changed: bool,
}

/// A question for the controllers that waits for its answer.
#[derive(Debug)]
struct ListRequest {
    session: SessionId,
    request: RequestId,
    lists: Vec<tokio::sync::oneshot::Sender<Vec<scaling::Controller>>>,
    until_us: u64,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            settings: None,
            sessions: Vec::new(),
            turn: None,
            draining: None,
            phase: Phase::Idle,
            since: Now::default(),
            leg: Now::default(),
            vmm: None,
            vmm_error: None,
            acting: None,
            observe_at_us: 0,
            observed_us: 0,
            resized_us: None,
            not_before_us: 0,
            failed_until_us: 0,
            retry: Retry::default(),
            sample: None,
            trend: policy::Trend::default(),
            trusted: false,
            owes_guest: false,
            settle_again_us: 0,
            uncounted: None,
            cause: None,
            demand: None,
            guest: None,
            denied: None,
            held: None,
            command: None,
            list: None,
            last: None,
            stuck: None,
            counters: scaling::Counters::default(),
            says: Vec::new(),
            changed: false,
        }
    }
}

impl Desk {
    /// Puts another configuration into force. What is under way comes to its end, but not with another VMM.
    pub fn configure(&mut self, settings: Option<Settings>, now: Now) {
        let of = |settings: &Option<Settings>| settings.as_ref().map(|settings| settings.vmm.clone());
        if of(&self.settings) != of(&settings) {
            self.finish_command(false, "its [actuator] is another one now".into(), now);
            // An answer that is still on its way is of the one before.
            (self.vmm, self.vmm_error, self.acting) = (None, None, None);
            (self.uncounted, self.stuck) = (None, None);
            self.owes_guest = self.turn.is_some();
            self.enter(Phase::Idle, now);
        }
        self.settings = settings;
        self.observe_at_us = 0;
        self.changed = true;
    }

    /// Another VM is at this address from now on.
    pub fn forget(&mut self, now: Now) {
        self.finish_command(false, "another VM is at this address now".into(), now);
        let (settings, counters) = (self.settings.take(), std::mem::take(&mut self.counters));
        *self = Self { settings, counters, sessions: std::mem::take(&mut self.sessions), ..Self::default() };
    }

    /// Another daemon has this part from now on.
    pub fn hand_over(&mut self, now: Now) {
        self.finish_command(false, "another daemon takes over: see there what came of it".into(), now);
    }

    /// Whether this host decides, and who would agree is proven to speak for the VM.
    const fn decides(&self) -> bool {
        self.turn.is_some() && self.draining.is_none() && self.trusted
    }

    /// Whether a person wants it whatever the guest says.
    fn is_forced(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command.force)
    }

    /// Messages for sessions, and whether something changed that readers see. Empty afterwards.
    pub fn take_effects(&mut self) -> (Vec<(SessionId, Message)>, bool) {
        (std::mem::take(&mut self.says), std::mem::take(&mut self.changed))
    }

    /// Whether there is something to resize.
    #[must_use]
    pub const fn has_actuator(&self) -> bool {
        self.settings.is_some()
    }

    fn enter(&mut self, phase: Phase, now: Now) {
        if phase != self.phase {
            self.phase = phase;
            self.since = now;
            self.changed = true;
        }
    }

    /// What the VMM said last, if that is not too long ago.
    fn reported(&self, now: Now) -> Option<Reported> {
        self.vmm.filter(|(_, at)| now.since_us(*at) <= OBSERVED_FOR_US).map(|(reported, _)| reported)
    }

    /// The state for readers.
    #[must_use]
    pub fn status(&self, now: Now) -> scaling::Scaling {
        let stamp = |at: Now| Stamp::from_ms(at.wall_ms);
        let wanted = match self.phase {
            Phase::Idle => self.vmm.map(|(reported, _)| reported.wish),
            Phase::Asking { wanted, .. } | Phase::Resizing { wanted, .. } | Phase::Settling { wanted, .. } => {
                Some(wanted)
            }
        };
        let settings = self.settings.as_ref();
        scaling::Scaling {
            actuator: settings.map(|settings| settings.vmm.name().into()),
            policy: settings.map(|settings| settings.policy.as_ref().map_or("none", Policy::name).into()),
            min: settings.map(|settings| settings.bounds.min.into()),
            max: settings.map(|settings| settings.bounds.max.into()),
            current: self.turn.is_some() && self.draining.is_none(),
            epoch: self.turn.map(|turn| turn.epoch.0),
            state: self.state().into(),
            state_age_ms: now.since_us(self.since) / 1000,
            wanted: wanted.map(Amount::from),
            vmm_has: self.vmm.map(|(reported, _)| reported.has.into()),
            vmm_wish: self.vmm.map(|(reported, _)| reported.wish.into()),
            vmm_age_ms: self.vmm.map(|(_, at)| now.since_us(at) / 1000),
            vmm_error: self.vmm_error.clone(),
            guest_cpus: self.guest.map(|seen| seen.cpus),
            guest_memory_bytes: self.guest.map(|seen| seen.memory_total.0),
            last_decision: self.last.as_ref().map(|(at, from, wanted, reason)| Decided {
                at: stamp(*at),
                wanted: (*wanted).into(),
                from: (*from).into(),
                reason: reason.clone(),
            }),
            demand: self
                .demand
                .as_ref()
                .filter(|demand| demand.expires_us > now.mono_us)
                .map(|demand| demanded(demand, now)),
            denied: self.denied.as_ref().map(|(at, wanted, reason)| Denial {
                at: stamp(*at),
                wanted: (*wanted).into(),
                reason: reason.clone(),
            }),
            held_until: self.held.filter(|(_, until)| until.mono_us > now.mono_us).map(|(_, until)| stamp(until)),
            stuck: self.stuck.clone(),
            counters: settings.map(|_| Box::new(self.counters.clone())),
        }
    }

    fn state(&self) -> &'static str {
        match self.phase {
            _ if self.settings.is_none() => "off",
            Phase::Idle => "idle",
            Phase::Asking { .. } => "asking",
            Phase::Resizing { .. } => "resizing",
            Phase::Settling { .. } => "settling",
        }
    }
}

fn demanded(demand: &OpenDemand, now: Now) -> Demanded {
    Demanded {
        id: format!("{:016x}", demand.id.0),
        cpu_milli: demand.cpu.map(|cpu| cpu.0),
        memory_bytes: demand.memory.map(|memory| memory.0),
        disk: demand.disk.as_ref().map(|(mount, total)| (mount.clone(), total.0)),
        urgency: demand.urgency,
        reason: demand.reason.name().map_or_else(|| format!("unknown({})", demand.reason.0), Into::into),
        answer: demand.answer.map(|outcome| outcome.name().unwrap_or("other").into()),
        age_ms: now.since_us(demand.first) / 1000,
    }
}
