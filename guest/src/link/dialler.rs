//! Keeps one connection to the host: dials, waits, dials again. Decides how long to wait; logs changes of state, one
//! line each.

use super::Address;
use super::backoff::{Backoff, Obstacle, obstacle};
use super::dial::{Dial, SourcePorts};
use super::session::End;
use super::stream::Stream;
use crate::random;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::limits::REDIAL_REFUSED_S;
use nix::errno::Errno;
use std::task::{Context, Poll};

/// ```text
/// waiting --time--> dialling --connected--> in use
///    ^                 |                       |
///    +--- failed ------+------- ended ---------+
/// ```
#[derive(Debug)]
enum State {
    Waiting { until_us: u64 },
    Dialling(Dial),
    InUse,
}

/// See the module.
#[derive(Debug)]
pub struct Dialler {
    address: Address,
    ports: SourcePorts,
    backoff: Backoff,
    state: State,
    /// The failure that was logged last; `None` since the last session.
    told: Option<Errno>,
    /// The kind of end that was logged last; `None` since the last acknowledgement.
    told_end: Option<std::mem::Discriminant<End>>,
    told_unprivileged: bool,
}

impl Dialler {
    /// Dials at the first poll.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            ports: SourcePorts::default(),
            backoff: Backoff::default(),
            state: State::Waiting { until_us: 0 },
            told: None,
            told_end: None,
            told_unprivileged: false,
        }
    }

    /// The host's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// When to poll at the latest.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        match &self.state {
            State::Waiting { until_us } => Some(*until_us),
            State::Dialling(dial) => Some(dial.deadline_us),
            State::InUse => None,
        }
    }

    /// A fresh connection, when there is one.
    pub fn poll(&mut self, cx: &mut Context<'_>, now_us: u64) -> Option<Stream> {
        if let State::Waiting { until_us } = self.state {
            if now_us < until_us {
                return None;
            }
            match Dial::start(&self.address, &mut self.ports, random::bits(), now_us) {
                Ok(dial) => self.state = State::Dialling(dial),
                Err(error) => {
                    self.failed(error, now_us);
                    return None;
                }
            }
        }
        let State::Dialling(dial) = &mut self.state else { return None };
        let unprivileged = dial.source_port.is_none() && matches!(self.address, Address::Vsock { .. });
        match dial.poll(cx, now_us) {
            Poll::Pending => None,
            Poll::Ready(Ok(stream)) => {
                if unprivileged && !std::mem::replace(&mut self.told_unprivileged, true) {
                    tracing::warn!(
                        "no privileged source port: the host may take this agent for an unprivileged process; \
                         run it as root or with CAP_NET_BIND_SERVICE"
                    );
                }
                self.state = State::InUse;
                Some(stream)
            }
            Poll::Ready(Err(error)) => {
                self.failed(error, now_us);
                None
            }
        }
    }

    fn failed(&mut self, error: Errno, now_us: u64) {
        let obstacle = obstacle(error);
        if self.told.is_none() {
            let hint = match obstacle {
                Obstacle::NotYet => "",
                Obstacle::Configuration => "; `informant-guest doctor` says what is missing",
            };
            let reason = error.desc();
            tracing::info!("host at {} can not be reached yet: {reason}{hint}; dialling on", self.address);
        } else if self.told != Some(error) {
            tracing::debug!("host at {} can not be reached: {}", self.address, error.desc());
        }
        self.told = Some(error);
        self.state = State::Waiting { until_us: now_us + self.backoff.after_us(obstacle, random::bits()) };
    }

    /// The host acknowledged something.
    pub fn acknowledged(&mut self) {
        self.backoff.acknowledged();
        (self.told, self.told_end) = (None, None);
    }

    /// The session over this connection ended.
    pub fn ended(&mut self, end: &End, now_us: u64) {
        let kind = Some(std::mem::discriminant(end));
        if self.told_end == kind || *end == End::Done {
            tracing::debug!("session with the host ended: {end}");
        } else {
            tracing::info!("session with the host ended: {end}; dialling on");
        }
        self.told_end = kind;
        let random = random::bits();
        let pause_us = match end {
            // A flood has Acks in it, too: the back-off says nothing.
            End::Refused { permanent: true, .. } | End::Flooding => REDIAL_REFUSED_S * 1_000_000,
            End::Bye(ByeReason::MOVED) | End::Renonce | End::Ahead => self.backoff.at_once_us(now_us, random),
            _ => self.backoff.pause_us(random),
        };
        self.state = State::Waiting { until_us: now_us + pause_us };
    }
}
