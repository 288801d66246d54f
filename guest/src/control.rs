//! Doors: where hosts come to the agent, on the control port or at the address of `--listen`. Binds when it can (the
//! vsock device may arrive late), accepts at once, and lets in only whom it should.

use crate::link::Address;
use crate::link::listen::{Listener, Peer};
use crate::link::session::Origin;
use crate::link::stream::Stream;
use std::io;
use std::task::{Context, Poll};
use vsock::{VMADDR_CID_HOST, VMADDR_CID_LOCAL};

/// Between tries to bind.
const REBIND_US: u64 = 2_000_000;
/// Connections taken in one wake-up; more wait for the next.
const ACCEPTS_PER_WAKE: u32 = 16;

/// One listening address.
#[derive(Debug)]
pub struct Door {
    address: Address,
    origin: Origin,
    /// Vsock peers other than the host that may enter: the loopback, when the agent's own host is there.
    admit_loopback: bool,
    listener: Option<Listener>,
    retry_us: u64,
    told: bool,
}

impl Door {
    /// Binds at the first poll. `admit_loopback`: context id 1 is let in like the host.
    #[must_use]
    pub fn new(address: Address, origin: Origin, admit_loopback: bool) -> Self {
        Self { address, origin, admit_loopback, listener: None, retry_us: 0, told: false }
    }

    /// How the connections through it are called.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether it is bound.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.listener.is_some()
    }

    /// When to poll at the latest; `None` while it is bound.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        self.listener.is_none().then_some(self.retry_us)
    }

    /// Binds if it must, and hands every connection that may enter to `take`; the others are closed.
    pub fn poll(&mut self, cx: &mut Context<'_>, now_us: u64, take: &mut dyn FnMut(Stream)) {
        if self.listener.is_none() && now_us >= self.retry_us {
            match Listener::bind(&self.address) {
                Ok(listener) => {
                    tracing::info!("listening at {}", self.address);
                    (self.listener, self.told) = (Some(listener), false);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::info!("can not listen at {} yet: {}; trying on", self.address, error.desc());
                    }
                    self.retry_us = now_us + REBIND_US;
                }
            }
        }
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS_PER_WAKE {
            match listener.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok((stream, peer))) if may_enter(peer, self.admit_loopback) => take(stream),
                Poll::Ready(Ok((_, peer))) => {
                    tracing::warn!(
                        "turned away a connection to {} from {peer:?}: only the host may come",
                        self.address
                    );
                }
                // It went away before it was taken.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Poll::Ready(Err(error)) => {
                    // Out of descriptors, or the device went away: listening anew later costs nothing.
                    tracing::warn!("can not accept at {}: {error}", self.address);
                    (self.listener, self.retry_us) = (None, now_us + REBIND_US);
                    return;
                }
            }
        }
        cx.waker().wake_by_ref();
    }
}

fn may_enter(peer: Peer, admit_loopback: bool) -> bool {
    match peer {
        Peer::Local => true,
        Peer::Cid(cid) => cid == VMADDR_CID_HOST || (admit_loopback && cid == VMADDR_CID_LOCAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_may_come_over_vsock() {
        assert!(may_enter(Peer::Cid(2), false) && may_enter(Peer::Local, false));
        for cid in [0, 1, 3, 77, u32::MAX] {
            assert!(!may_enter(Peer::Cid(cid), false), "{cid}");
        }
        assert!(may_enter(Peer::Cid(1), true) && !may_enter(Peer::Cid(3), true));
    }
}
