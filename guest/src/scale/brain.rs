//! What the conversation with hosts needs of whoever knows what this guest wants: demands, and answers to what hosts
//! ask. It knows no session; the one that decides is chosen by [`super::controllers`], and a question or an order is
//! void with its turn.

use crate::collect::Sensors;
use crate::local::desk::Desk;
use informant_wire::limits::MAX_NAME;
use informant_wire::scale::{Applied, DemandAnswer, DemandId, DemandReason, Downscale, DownscaleAnswer, Resized};
use informant_wire::size::{Bytes, MilliCpu};
use std::fmt;
use std::task::Context;

/// What the guest wants to have, in all. Nothing wanted: what was wanted before is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The same wherever and however often it is asked.
    pub id: DemandId,
    /// CPU; none: as it is.
    pub cpu: Option<MilliCpu>,
    /// Memory of the VM; none: as it is.
    pub memory: Option<Bytes>,
    /// A mount point and how large its file system should be; none: as they are.
    pub disk: Option<(heapless::Vec<u8, MAX_NAME>, Bytes)>,
    /// From 0 to 100; what is over counts as 100.
    pub urgency: u8,
    /// Why.
    pub reason: DemandReason,
    /// Milliseconds that it lives unless it is asked again.
    pub expires_ms: u32,
}

impl Wanted {
    /// Whether nothing is wanted: the demand of that id is taken back.
    #[must_use]
    pub const fn is_withdrawal(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.disk.is_none()
    }
}

/// See the module. Times are boot time, microseconds. No call blocks or allocates.
pub trait Brain {
    /// What should be asked now: asked of the host that decides, and not called again before it is resolved by one of
    /// the next two. Gives the same demand again when it is time to repeat it, at most once a second.
    fn demand(&mut self, now_us: u64) -> Option<Wanted>;
    /// When [`Self::demand`] may have something.
    fn demand_due_us(&self) -> u64;
    /// The host that decides has answered.
    fn demand_answered(&mut self, answer: &DemandAnswer, now_us: u64);
    /// No answer: time is over, or the host decides no more. The next one is to be asked.
    fn demand_unanswered(&mut self, now_us: u64);
    /// The host that decides asks; an earlier question is void.
    fn downscale(&mut self, question: &Downscale, now_us: u64);
    /// The answer, once, when it is known.
    fn downscale_answer(&mut self, now_us: u64) -> Option<DownscaleAnswer<'_>>;
    /// The host that decides tells another size; an earlier one is void.
    fn resized(&mut self, told: &Resized, now_us: u64);
    /// Whether it has arrived, when that is to be said: "not yet" again and again, then another outcome, the last.
    fn applied(&mut self, now_us: u64) -> Option<Applied>;
    /// That host decides no more: what it asked and told needs no answer.
    fn current_gone(&mut self, now_us: u64);
}

/// All that the loop has of scaling: one thing that knows, seen by hosts as a [`Brain`] and by advisors as a [`Desk`].
pub trait Mind: Brain + Desk {
    /// One wake-up: looks when it is time to.
    fn poll(&mut self, cx: &mut Context<'_>, now_us: u64);
    /// A sample was taken: what the collectors know.
    fn observe(&mut self, sensors: &Sensors);
    /// When [`Self::poll`] has something to do.
    fn deadline_us(&self) -> u64;
}

/// By hand: as a part of the trait it would bring the text of all that it knows into the program.
impl fmt::Debug for dyn Brain + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Brain")
    }
}

/// By hand: as a part of the trait it would bring the text of all that it knows into the program.
impl fmt::Debug for dyn Mind + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mind")
    }
}
