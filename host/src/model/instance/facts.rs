//! What an instance says to its callers, and is told by them.

use crate::model::Now;
use crate::scale::desk::Message;
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Hello, PeerKind, RefusedCode};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{BootId, Nonce, SessionId, StreamId};

/// What is known of a session's privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Root in the guest, by the transport or by a proof; or nobody asks (`trust = "any"`).
    Proven,
    /// A proof is under way or queued.
    Pending,
    /// Not proven, and will not be.
    Unproven,
}

/// The facts of a valid Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What kind of process.
    pub kind: PeerKind,
    /// Its name for itself; the guest's own words.
    pub name: Box<str>,
    /// Its version; the guest's own words.
    pub version: Box<str>,
    /// The boot.
    pub boot: BootId,
    /// The process.
    pub nonce: Nonce,
    /// Its event stream.
    pub stream: StreamId,
    /// The first event it will send.
    pub next_event: u64,
    /// `USER_HZ`.
    pub ticks_per_second: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The protocol version agreed.
    pub protocol: u16,
}

impl Facts {
    /// Of a Hello.
    #[must_use]
    pub fn new(hello: &Hello<'_>, protocol: u16) -> Self {
        Self {
            kind: hello.kind,
            name: hello.name.into(),
            version: hello.version.into(),
            boot: hello.boot_id,
            nonce: hello.nonce,
            stream: hello.stream,
            next_event: hello.next_event,
            ticks_per_second: hello.ticks_per_second,
            capabilities: hello.capabilities,
            protocol,
        }
    }
}

/// What a session is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Say Bye and close.
    End(ByeReason),
    /// Go on: it was held.
    Resume,
    /// Events up to this one are in the file.
    Stored(u64),
    /// Say that it must draw a new nonce and stream.
    Renonce,
    /// Say this about scaling.
    Say(Message),
}

/// Something the daemon saw, for the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// As in `events.log`.
    pub kind: &'static str,
    /// More of it.
    pub detail: Option<String>,
}

/// The answer to a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Send Welcome.
    Open {
        /// The last stored event of its stream.
        last_event: u64,
        /// It may not speak until [`Order::Resume`].
        held: bool,
        /// It may send schemas and samples.
        agent: bool,
    },
    /// Send Refused.
    Refuse {
        /// Why.
        code: RefusedCode,
        /// Asking again soon does not help.
        permanent: bool,
        /// For people.
        text: &'static str,
    },
}

/// A state and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked<S> {
    /// Which.
    pub state: S,
    /// Since when.
    pub since: Now,
    /// Why, for people.
    pub detail: Option<String>,
}

impl<S: PartialEq> Tracked<S> {
    pub(super) fn set(&mut self, state: S, since: Now, detail: Option<String>) -> bool {
        let changed = self.state != state;
        if changed {
            self.since = since;
        }
        let changed = changed || self.detail != detail;
        self.state = state;
        self.detail = detail;
        changed
    }
}

/// The agent that speaks for the VM, or did last.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Its session.
    pub session: SessionId,
    /// What its Hello said.
    pub facts: Facts,
    /// What is known of its privileges.
    pub standing: Standing,
    /// When its session began.
    pub connected: Now,
    /// Its newest heartbeat, and when it came.
    pub heartbeat: Option<(Heartbeat, Now)>,
}
