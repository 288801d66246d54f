//! The scaling conversation: who decides, what the guest wants, what it may lose, and what has arrived.
//!
//! Requests carry an id; each side counts its own, the guest odd and the host even, so that no answer can be taken for
//! one of the other side. A request lives on its connection and resolves once: by its answer, by its deadline, or with
//! the connection. An answer to a request that is not open any more has no effect.

use crate::frame::{DecodeError, EncodeError, decode, encode, kind};
use crate::hello::Role;
use crate::id::ControllerId;
use crate::limits::{MAX_CONTROLLERS, MAX_NAME, MAX_PEER_NAME, MAX_SCALE_TEXT};
use crate::size::{Bytes, MilliCpu, Size};
use serde::{Deserialize, Serialize};

/// A request of one side on one connection: odd from the guest, even from the host, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u32);

impl RequestId {
    /// The guest's first.
    pub const FIRST_OF_GUEST: Self = Self(1);
    /// The host's first.
    pub const FIRST_OF_HOST: Self = Self(2);

    /// The same side's next.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(2) {
            Some(next) => Self(next),
            // Round once more, on the same side: the last of 2^31 on one connection.
            None => Self(if self.0 % 2 == 1 { 1 } else { 2 }),
        }
    }
}

/// Which turn of deciding it is: counts, per agent process, how often a controller was made current. Valid on the
/// session to which it was told alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A demand: it outlives connections, and has the same id on each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DemandId(pub u64);

macro_rules! codes {
    ($(#[$doc:meta])* $type:ident { $($(#[$const_doc:meta])* $id:literal $const:ident $name:literal;)* }) => {
        $(#[$doc])*
        ///
        /// Open: one that a reader does not know is shown as its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub struct $type(pub u16);

        impl $type {
            $($(#[$const_doc])* pub const $const: Self = Self($id);)*

            /// Every code this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$const),*];

            /// The code's name in logs and JSON.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($id => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Why something is wanted.
    DemandReason {
        /// Memory in use passed its share of what is usable.
        1 USAGE "usage";
        /// It would pass it within seconds at the rate at which it grows.
        2 GROWTH "growth";
        /// Tasks wait for memory or CPU (PSI).
        3 PRESSURE "pressure";
        /// More tasks want to run than there are CPUs.
        4 RUN_QUEUE "run_queue";
        /// A file system is nearly full.
        5 LOW_DISK "low_disk";
        /// A process of the guest that advises asked for it.
        6 ADVISOR "advisor";
        /// A person or a script asked for it (`informant-guest demand`).
        7 PERSON "person";
        /// The watched cgroup met its own limit (`memory.events`).
        8 CGROUP_EVENT "cgroup_event";
        /// Nothing is wanted any more.
        9 WITHDRAWN "withdrawn";
    }
}

codes! {
    /// What becomes of a demand.
    DemandOutcome {
        /// All of it is on its way.
        1 GRANTED "granted";
        /// Some of it is on its way; the rest is not to be had now.
        2 PARTIAL "partial";
        /// Nothing now; ask again after the time that is told.
        3 DENIED "denied";
        /// This host can not give that at all.
        4 UNSUPPORTED "unsupported";
        /// The VM is as large as it may be; ask again after the time that is told.
        5 AT_MAXIMUM "at_maximum";
        /// From an agent to a process of its own guest: passed on, not answered yet.
        6 PENDING "pending";
        /// From an agent to a process of its own guest: what was wanted is there.
        7 APPLIED "applied";
    }
}

codes! {
    /// What the guest says to being made smaller.
    DownscaleOutcome {
        /// It may be done.
        1 APPROVED "approved";
        /// It would harm; the numbers say how.
        2 DENIED "denied";
        /// Not known yet: ask again after the time that is told.
        3 NOT_READY "not_ready";
        /// The guest can not tell: its sensors are dead.
        4 FAILED "failed";
    }
}

codes! {
    /// Why.
    DownscaleReason {
        /// There is room.
        1 ROOM "room";
        /// Usage and headroom do not fit into what would be left.
        2 MEMORY_IN_USE "memory_in_use";
        /// An advisor is against it; its line is in the text.
        3 ADVISOR "advisor";
        /// Too few samples since the agent began.
        4 TOO_FEW_SAMPLES "too_few_samples";
        /// No sample for over 5 s.
        5 NO_SAMPLES "no_samples";
        /// It was forced.
        6 FORCED "forced";
        /// There is no memory to be taken: only CPUs, or nothing.
        7 NO_MEMORY_TAKEN "no_memory_taken";
        /// An advisor did not answer within 2 s.
        8 ADVISOR_SILENT "advisor_silent";
        /// A demand is open.
        9 DEMAND_OPEN "demand_open";
    }
}

codes! {
    /// Whether a change of size has arrived in the guest.
    AppliedOutcome {
        /// The kernel has what was told.
        1 APPLIED "applied";
        /// Not all of it, yet; another answer to the same request follows.
        2 NOT_YET "not_yet";
        /// It will not come: the kernel refuses, or nothing came in time.
        3 FAILED "failed";
    }
}

codes! {
    /// What keeps a change of size from arriving.
    AppliedCause {
        /// Nothing does.
        0 NONE "none";
        /// No memory block or CPU has appeared.
        1 NOT_PLUGGED "not_plugged";
        /// The kernel does not online a memory block.
        2 MEMORY_OFFLINE "memory_offline";
        /// The kernel does not online a CPU.
        3 CPU_OFFLINE "cpu_offline";
        /// Memory is online and MemTotal has not moved.
        4 MEMORY_TOTAL_STANDS "memory_total_stands";
        /// What was to be taken is still there.
        5 NOT_UNPLUGGED "not_unplugged";
    }
}

codes! {
    /// What is wrong with an advisor. None of these is a voice: it decides nothing.
    AdvisorFault {
        /// It did not answer in time, or is not heard any more.
        1 SILENT "silent";
        /// It ended without an answer.
        2 CRASHED "crashed";
        /// It is not called: its file, or the directory, is not what the agent may trust.
        3 REFUSED "refused";
        /// It is not called: there are too many.
        4 LEFT_OUT "left_out";
    }
}

/// Guest to host: decide no more. The host finishes what it has begun, asks nothing new, and answers within 5 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspend {
    /// Answered with [`RoleAnswer`].
    pub request: RequestId,
    /// The turn that ends.
    pub epoch: Epoch,
}

/// Guest to host: you decide from here on. The host answers within 2 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Answered with [`RoleAnswer`].
    pub request: RequestId,
    /// The turn that begins: every command carries it.
    pub epoch: Epoch,
}

/// Disk space that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskWanted<'a> {
    /// Where it is mounted, at most 255 bytes.
    pub mount: &'a [u8],
    /// How large the file system should be.
    pub total: Bytes,
}

/// Guest to host: what it wants to have. Repeating it is harmless: the amounts are totals. One in which nothing is
/// wanted takes back the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand<'a> {
    /// Answered with [`DemandAnswer`].
    pub request: RequestId,
    /// Which demand.
    pub id: DemandId,
    /// CPU in all; none: as it is.
    pub cpu: Option<MilliCpu>,
    /// Memory in all, of the VM; none: as it is.
    pub memory: Option<Bytes>,
    /// Disk space; none: as it is.
    #[serde(borrow)]
    pub disk: Option<DiskWanted<'a>>,
    /// From 0 (would be good) to 100 (it fails without).
    pub urgency: u8,
    /// Why.
    pub reason: DemandReason,
    /// Forget it after so many milliseconds unless it comes again.
    pub expires_ms: u32,
}

/// What the guest's kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// CPUs online.
    pub cpus: u32,
    /// MemTotal.
    pub memory_total: Bytes,
    /// The memory blocks that are online; none where the kernel does not tell.
    pub memory_online: Option<Bytes>,
}

/// Guest to host: whether what [`Resized`] told has arrived. "Not yet" is said at least every second until one of the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Of [`Resized`].
    pub request: RequestId,
    /// Whether.
    pub outcome: AppliedOutcome,
    /// What keeps it.
    pub cause: AppliedCause,
    /// What is there.
    pub seen: Seen,
}

/// Guest to host: an answer to [`Downscale`], with the numbers that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownscaleAnswer<'a> {
    /// Of [`Downscale`].
    pub request: RequestId,
    /// What.
    pub outcome: DownscaleOutcome,
    /// Why.
    pub reason: DownscaleReason,
    /// Memory in use, that can not be reclaimed.
    pub usage: Bytes,
    /// What must stay free beside it.
    pub headroom: Bytes,
    /// What usage and headroom may come to: 0.85 of what would be usable.
    pub limit: Bytes,
    /// Asking sooner gives the same answer.
    pub retry_after_ms: u32,
    /// For people: an advisor's line, at most 120 bytes.
    pub text: &'a str,
}

/// Guest to host: a command was not carried out, because another turn has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// The command.
    pub request: RequestId,
    /// The turn of now; 0 before the first.
    pub current: Epoch,
}

/// A host that may decide, or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller<'a> {
    /// Its process.
    pub id: ControllerId,
    /// Its name, at most 64 bytes.
    pub name: &'a str,
    /// What it is.
    pub role: Role,
    /// Whether it decides now.
    pub current: bool,
    /// The last turn it was given; 0 for none.
    pub epoch: Epoch,
    /// Milliseconds since something came from it.
    pub heard_ms: u64,
}

/// Guest to host: an answer to [`ListControllers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controllers<'a> {
    /// Of [`ListControllers`].
    pub request: RequestId,
    /// All hosts that have a session, the oldest first.
    #[serde(borrow)]
    pub list: heapless::Vec<Controller<'a>, MAX_CONTROLLERS>,
}

/// Guest to host, the answer to a controller's Bye.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unregistered {
    /// Whether it was the one that decides.
    pub was_current: bool,
}

/// Host to guest: an answer to [`Suspend`] (what was begun is finished) or [`Resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleAnswer {
    /// Of [`Suspend`] or [`Resume`].
    pub request: RequestId,
    /// False: it can not.
    pub accepted: bool,
}

/// Host to guest: an answer to [`Demand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandAnswer {
    /// Of [`Demand`].
    pub request: RequestId,
    /// What becomes of it.
    pub outcome: DemandOutcome,
    /// The size that the VM is to have.
    pub granted: Size,
    /// Asking sooner does not help.
    pub retry_after_ms: u32,
}

/// Host to guest, a command: the VMM gives another size. The guest brings online what was plugged and answers
/// [`Applied`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Answered with [`Applied`], more than once.
    pub request: RequestId,
    /// The sender's turn.
    pub epoch: Epoch,
    /// What the VMM gave before.
    pub was: Size,
    /// What it gives now.
    pub now: Size,
    /// Say "failed" if it has not arrived after so many milliseconds.
    pub within_ms: u32,
}

/// Host to guest, a command: may the VM become smaller?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downscale {
    /// Answered with [`DownscaleAnswer`].
    pub request: RequestId,
    /// The sender's turn.
    pub epoch: Epoch,
    /// What the VMM gives.
    pub present: Size,
    /// What it is to give.
    pub wanted: Size,
    /// It will be done whatever the answer.
    pub forced: bool,
    /// Answer within so many milliseconds.
    pub within_ms: u32,
}

/// Host to guest: which hosts are there? Answered in any role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListControllers {
    /// Answered with [`Controllers`].
    pub request: RequestId,
}

macro_rules! messages {
    ($($type:ident $(<$life:lifetime>)? = $kind:ident $(, $valid:expr)?;)*) => {$(
        impl $(<$life>)? $type $(<$life>)? {
            /// Writes the frame.
            pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
                $(
                    let valid: fn(&Self) -> bool = $valid;
                    if !valid(self) {
                        return Err(EncodeError);
                    }
                )?
                encode(out, kind::$kind, self)
            }
        }
    )*};
}

messages! {
    Suspend = SUSPEND;
    Resume = RESUME;
    Demand<'a> = DEMAND, Demand::is_valid;
    Applied = APPLIED;
    DownscaleAnswer<'a> = DOWNSCALE_ANSWER, DownscaleAnswer::is_valid;
    Stale = STALE;
    Controllers<'a> = CONTROLLERS, Controllers::is_valid;
    Unregistered = UNREGISTERED;
    RoleAnswer = ROLE_ANSWER;
    DemandAnswer = DEMAND_ANSWER;
    Resized = RESIZED;
    Downscale = DOWNSCALE;
    ListControllers = LIST_CONTROLLERS;
}

impl<'a> Demand<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        decode(body).and_then(|demand: Self| if demand.is_valid() { Ok(demand) } else { Err(DecodeError::Malformed) })
    }

    /// Whether nothing is wanted: the one before is taken back.
    #[must_use]
    pub const fn is_withdrawal(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.disk.is_none()
    }

    fn is_valid(&self) -> bool {
        self.urgency <= 100 && self.disk.is_none_or(|disk| disk.mount.len() <= MAX_NAME)
    }
}

impl<'a> DownscaleAnswer<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        decode(body).and_then(|answer: Self| if answer.is_valid() { Ok(answer) } else { Err(DecodeError::Malformed) })
    }

    fn is_valid(&self) -> bool {
        self.text.len() <= MAX_SCALE_TEXT
    }
}

impl<'a> Controllers<'a> {
    /// Decodes the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        decode(body).and_then(|list: Self| if list.is_valid() { Ok(list) } else { Err(DecodeError::Malformed) })
    }

    fn is_valid(&self) -> bool {
        self.list.iter().all(|controller| controller.name.len() <= MAX_PEER_NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_keeps_to_its_own_ids() {
        let mut id = RequestId::FIRST_OF_GUEST;
        for _ in 0..3 {
            id = id.next();
            assert_eq!(id.0 % 2, 1);
        }
        assert_eq!(RequestId(u32::MAX).next(), RequestId::FIRST_OF_GUEST);
        assert_eq!(RequestId(u32::MAX - 1).next(), RequestId::FIRST_OF_HOST);
    }

    #[test]
    fn what_is_over_a_limit_is_neither_written_nor_read() {
        let demand = Demand {
            request: RequestId(1),
            id: DemandId(1),
            cpu: None,
            memory: Some(Bytes(1)),
            disk: None,
            urgency: 101,
            reason: DemandReason::USAGE,
            expires_ms: 1,
        };
        let mut out = [0; 64];
        assert!(demand.encode(&mut out).is_err());
        let end = encode(&mut out, kind::DEMAND, &demand).unwrap();
        assert_eq!(Demand::decode(&out[3..end]), Err(DecodeError::Malformed));
    }
}
