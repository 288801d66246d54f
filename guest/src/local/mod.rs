//! The agent's local socket: processes of this guest advise on scaling, demand, and show that they live. It plays the
//! host's side of the protocol there. At most eight connections, four of them greeting; each has fixed buffers and
//! deadlines, so none can hold up the loop, the host's sessions, or another.

mod demands;
pub mod desk;
mod peer;
pub mod tally;

use crate::link::listen::Listener;
use crate::link::stream::Stream;
use crate::random;
use demands::Demands;
use desk::Desk;
use informant_wire::event::EventKind;
use informant_wire::hello::RefusedCode;
use informant_wire::id::ControllerId;
use informant_wire::scale::AdvisorFault;
use informant_wire::size::Size;
use nix::errno::Errno;
use peer::{End, Hearing, Host, Peer};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::task::{Context, Poll};
use tally::{Complaints, Verdict, Voice, line};

const MAX_PEERS: usize = 8;
const MAX_GREETINGS: usize = 4;
/// Between tries to bind: a directory that can not be written stays so for long.
const REBIND_US: u64 = 30_000_000;
const ACCEPTS_PER_WAKE: u32 = 8;
const TURNS_PER_WAKE: u32 = 4;
const RECEIVE_BYTES: usize = 1024;

/// What the socket works with during one wake-up.
pub struct Work<'a> {
    /// The part that scales.
    pub desk: &'a mut dyn Desk,
    /// What the open question has come to.
    pub verdict: &'a mut Verdict,
    /// Reports.
    pub complaints: &'a mut Complaints,
    /// Takes events.
    pub append: &'a mut dyn FnMut(EventKind, &[u8]),
    /// Boot time, microseconds.
    pub now_us: u64,
    /// Whether an event was appended.
    pub told: bool,
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("verdict", &self.verdict).field("now_us", &self.now_us).finish_non_exhaustive()
    }
}

impl Work<'_> {
    /// Counts a voice, and reports one that is none.
    pub fn heard(&mut self, name: &str, voice: Voice) {
        match &voice {
            Voice::Failed(what) => self.report(*what, name),
            Voice::Against(text) => tracing::info!("advisor '{name}' is against a smaller VM: {text}"),
            Voice::For => {}
        }
        self.verdict.add(voice);
    }

    fn report(&mut self, what: AdvisorFault, name: &str) {
        self.told |= self.complaints.tell(what, name, self.now_us, self.append);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Local {
    path: Option<PathBuf>,
    listener: Option<Listener>,
    retry_us: u64,
    told: bool,
    host: Host,
    peers: Vec<(Stream, Peer)>,
    demands: Demands,
    next_source: u32,
}

impl Local {
    /// Binds at the first poll; never without a path. `name`: what the agent calls itself.
    #[must_use]
    pub fn new(path: Option<PathBuf>, name: &str) -> Self {
        // Not the nonce that hosts know: that one is for hosts alone.
        let host = Host { id: ControllerId(random::bytes()), name: line(name.as_bytes()) };
        Self {
            path,
            listener: None,
            retry_us: 0,
            told: false,
            host,
            peers: Vec::new(),
            demands: Demands::default(),
            next_source: 1,
        }
    }

    /// Asks every advisor that is there.
    pub fn ask(&mut self, present: Size, wanted: Size) {
        for (_, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_advisor()) {
            peer.ask(present, wanted);
        }
    }

    /// Whether an advisor that was asked may still answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.peers.iter().any(|(_, peer)| peer.is_asked())
    }

    /// The time to answer is over.
    pub fn give_up(&mut self, work: &mut Work<'_>) {
        for (_, peer) in &mut self.peers {
            if peer.give_up() {
                work.heard(&peer.name, Voice::Failed(AdvisorFault::SILENT));
            }
        }
    }

    /// When to poll at the latest.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        let bind = (self.path.is_some() && self.listener.is_none()).then_some(self.retry_us);
        let peers = self.peers.iter().map(|(_, peer)| peer.deadline_us());
        peers.chain(bind).chain(self.demands.deadline_us()).min()
    }

    /// Serves every connection, and takes new ones.
    pub fn poll(&mut self, cx: &mut Context<'_>, work: &mut Work<'_>) {
        self.demands.expire(work.desk, work.now_us);
        self.accept(cx, work.now_us);
        let mut at = 0;
        while let Some((stream, peer)) = self.peers.get_mut(at) {
            let served = serve(stream, peer, cx, &self.host, &mut self.demands, work);
            if let Some(voice) = peer.take_answer() {
                work.heard(&peer.name, voice);
            }
            match served {
                Ok(()) => at += 1,
                Err(end) => {
                    // The last one moves here and is served next.
                    let (_, mut peer) = self.peers.swap_remove(at);
                    ended(&mut peer, &end, work);
                }
            }
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>, now_us: u64) {
        let Some(path) = &self.path else { return };
        if self.listener.is_none() && now_us >= self.retry_us {
            match Listener::bind_local(path) {
                Ok(listener) => {
                    tracing::info!("processes of this VM are heard at {}", path.display());
                    (self.listener, self.told) = (Some(listener), false);
                    self.peers.reserve_exact(MAX_PEERS);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.told, true) {
                        let (path, why) = (path.display(), error.desc());
                        tracing::info!("processes of this VM are not heard: {path}: {why}; trying on");
                    }
                    self.retry_us = now_us + REBIND_US;
                }
            }
        }
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS_PER_WAKE {
            match listener.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok((stream, _))) => {
                    // The group may be changed while the agent runs.
                    let group = std::fs::symlink_metadata(path).map(|file| file.gid()).ok();
                    let trusted =
                        stream.credentials().is_some_and(|(uid, gid)| uid == 0 || group.is_some_and(|own| own == gid));
                    let mut peer = Peer::new(self.next_source, trusted, now_us);
                    self.next_source = self.next_source.wrapping_add(1);
                    let greetings = self.peers.iter().filter(|(_, peer)| peer.is_greeting()).count();
                    if self.peers.len() < MAX_PEERS && greetings < MAX_GREETINGS {
                        self.peers.push((stream, peer));
                        continue;
                    }
                    tracing::warn!("turned away a process at the local socket: too many connections");
                    if peer.refuse(RefusedCode::TOO_MANY, "too many connections", now_us).is_ok() {
                        stream.send_last(peer.output(now_us));
                    }
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Poll::Ready(Err(error)) => {
                    tracing::warn!("can not accept at {}: {error}", path.display());
                    (self.listener, self.retry_us) = (None, now_us + REBIND_US);
                    return;
                }
            }
        }
        cx.waker().wake_by_ref();
    }
}

fn serve(
    stream: &Stream,
    peer: &mut Peer,
    cx: &mut Context<'_>,
    host: &Host,
    demands: &mut Demands,
    work: &mut Work<'_>,
) -> Result<(), End> {
    let now_us = work.now_us;
    let mut bytes = [0; RECEIVE_BYTES];
    let mut turns = 0;
    while let Poll::Ready(received) = stream.poll_recv(cx, &mut bytes) {
        let count = received.map_err(|error| broken(&error))?;
        if count == 0 {
            return Err(End::Closed);
        }
        let mut input = bytes.get(..count).unwrap_or_default();
        let mut hearing = Hearing { host, demands: &mut *demands, desk: &mut *work.desk, now_us };
        peer.receive(&mut input, &mut hearing)?;
        turns += 1;
        if turns == TURNS_PER_WAKE {
            cx.waker().wake_by_ref();
            break;
        }
    }
    while !peer.output(now_us).is_empty()
        && let Poll::Ready(sent) = stream.poll_send(cx, peer.output(now_us))
    {
        peer.sent(sent.map_err(|error| broken(&error))?, now_us);
    }
    peer.check(now_us)
}

fn ended(peer: &mut Peer, end: &End, work: &mut Work<'_>) {
    let (asked, advises) = (peer.give_up(), peer.is_advisor());
    if !matches!(end, End::Closed | End::Bye | End::Broken(_)) {
        tracing::warn!("process '{}' at the local socket: {end}", peer.name);
    }
    let fault = if *end == End::Silent { AdvisorFault::SILENT } else { AdvisorFault::CRASHED };
    match end {
        // It went in good order: it is no advisor any more.
        End::Bye => {}
        _ if asked => work.heard(&peer.name, Voice::Failed(fault)),
        End::Silent if advises => work.report(fault, &peer.name),
        _ => {}
    }
}

fn broken(error: &io::Error) -> End {
    End::Broken(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)))
}
