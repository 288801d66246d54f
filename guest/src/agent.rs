//! The loop: one task that samples on time and serves every host connection, and never waits for any of them.
//!
//! It is one `poll` over everything that can wake it: the timer, signals, doors, the dialler, the connections. Nothing
//! in it blocks; what could (statvfs) has its own thread in the collectors. No allocation in a wake-up in which
//! neither subjects nor connections change.

use crate::advise::Advice;
use crate::clock::{self, Timer};
use crate::collect::Sensors;
use crate::control::Door;
use crate::hosts::{Context as HostContext, Hosts};
use crate::link::dialler::Dialler;
use crate::link::session::Origin;
use crate::outbox::Outbox;
use crate::own::Own;
use crate::pace::{Governor, Pace};
use crate::scale::brain::Mind;
use informant_wire::event::{EventKind, RateChanged};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::limits::SCHEMA_EVERY_S;
use informant_wire::sample::SampleHead;
use nix::sys::signalfd::SignalFd;
use std::io;
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;

/// After a signal events may still be acknowledged for this long.
const STOPPING_US: u64 = 2_000_000;

/// Everything the loop works with; built by `run`.
#[derive(Debug)]
pub struct Agent {
    /// What is collected.
    pub sensors: Sensors,
    /// When.
    pub pace: Pace,
    /// The agent's budget.
    pub governor: Governor,
    /// Its counts.
    pub own: Own,
    /// Undelivered events.
    pub outbox: Outbox,
    /// Connections and who this agent says it is.
    pub hosts: Hosts,
    /// What this guest wants and what it may lose.
    pub mind: Box<dyn Mind>,
    /// Dials the host; `None` when the host dials.
    pub dialler: Option<Dialler>,
    /// Where hosts come in.
    pub doors: Vec<Door>,
    /// Advisors and the local socket.
    pub advice: Advice,
    /// The loop's timer.
    pub timer: Timer,
    /// SIGTERM and SIGINT.
    pub signals: AsyncFd<SignalFd>,
    /// The newest sample; `None` before the first.
    pub newest: Option<SampleHead>,
    /// When the last schema was made.
    pub reschemed_us: u64,
    /// Since when the agent is ending.
    pub stopping_us: Option<u64>,
}

impl Agent {
    /// One wake-up. Ready when the agent has ended.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let expired = self.timer.poll_expired(cx);
        let now_us = clock::boot_us();
        if let Some(deadline_us) = expired {
            let lag_us = now_us.saturating_sub(deadline_us);
            self.own.loop_lag_us = self.own.loop_lag_us.max(lag_us);
            self.hosts.note_lag(u32::try_from(lag_us).unwrap_or(u32::MAX));
        }
        if self.poll_signals(cx, now_us) {
            return Poll::Ready(Ok(()));
        }
        if let Some(tick) = self.pace.due(now_us) {
            self.own.samples_late += u64::from(tick.is_late);
            self.sample(now_us);
        }
        self.mind.poll(cx, now_us);
        for door in &mut self.doors {
            let origin = door.origin();
            let hosts = &mut self.hosts;
            let outbox = &self.outbox;
            door.poll(cx, now_us, &mut |stream| hosts.add(stream, origin, outbox, now_us));
        }
        self.hosts.listens = self.doors.iter().any(|door| door.origin() == Origin::Control && door.is_open());
        if self.stopping_us.is_none()
            && let Some(dialler) = &mut self.dialler
            && let Some(stream) = dialler.poll(cx, now_us)
        {
            self.hosts.add(stream, Origin::Dialled, &self.outbox, now_us);
        }
        self.hosts.poll(
            cx,
            &mut HostContext {
                sensors: &self.sensors,
                newest: self.newest,
                outbox: &mut self.outbox,
                own: &mut self.own,
                dialler: self.dialler.as_mut(),
                brain: &mut *self.mind,
                now_us,
                serve_again: false,
            },
        );
        let outbox = &mut self.outbox;
        if self.advice.poll(cx, &mut *self.mind, &mut |kind, body| outbox.append(kind, now_us, body), now_us) {
            cx.waker().wake_by_ref();
        }
        if self.is_over(cx, now_us) {
            return Poll::Ready(Ok(()));
        }
        self.timer.arm(self.deadline_us())?;
        Poll::Pending
    }

    /// Begins to end at the first signal; true at the second.
    fn poll_signals(&mut self, cx: &mut Context<'_>, now_us: u64) -> bool {
        while let Poll::Ready(Ok(mut guard)) = self.signals.poll_read_ready(cx) {
            match guard
                .try_io(|signals| signals.get_ref().read_signal()?.ok_or_else(|| io::ErrorKind::WouldBlock.into()))
            {
                Ok(Ok(_)) if self.stopping_us.is_some() => return true,
                Ok(Ok(_)) => {
                    tracing::info!("told to end; delivering events");
                    self.outbox.append(EventKind::AGENT_STOPPING, now_us, &[]);
                    self.stopping_us = Some(now_us);
                }
                Ok(Err(_)) => return false,
                Err(_would_block) => {}
            }
        }
        false
    }

    /// Says goodbye once the host has every event, or time is up; true when all connections are gone.
    fn is_over(&mut self, cx: &mut Context<'_>, now_us: u64) -> bool {
        let Some(since_us) = self.stopping_us else { return false };
        let delivered = self.outbox.first_pending() == self.outbox.next_sequence();
        let enough = delivered || !self.hosts.has_primary() || now_us >= since_us + STOPPING_US;
        if enough && self.hosts.close_all(ByeReason::STOPPING, now_us) {
            cx.waker().wake_by_ref();
        }
        self.hosts.is_empty() || now_us >= since_us + STOPPING_US * 2
    }

    fn deadline_us(&self) -> u64 {
        let dialler = self.dialler.as_ref().filter(|_| self.stopping_us.is_none()).and_then(Dialler::deadline_us);
        let doors = self.doors.iter().filter_map(Door::deadline_us);
        let stopping = self.stopping_us.map(|since_us| {
            if clock::boot_us() < since_us + STOPPING_US { since_us + STOPPING_US } else { since_us + 2 * STOPPING_US }
        });
        let hosts = self.hosts.deadline_us(&*self.mind);
        let others = doors.chain(dialler).chain(stopping).chain(hosts).chain(self.advice.deadline_us()).min();
        others.unwrap_or(u64::MAX).min(self.pace.next_us()).min(self.mind.deadline_us())
    }

    fn sample(&mut self, now_us: u64) {
        if let Some(newest) = self.newest
            && !self.hosts.primary_has(newest.sequence)
        {
            self.own.samples_unsent += 1;
        }
        let cpu_us = clock::cpu_us();
        let figures = self.own.figures(self.pace.interval_us(), self.outbox.dropped());
        match self.newest {
            // The first row: there is none before a schema, and no schema before something was seen.
            None => {
                self.sensors.sample(&figures);
                if let Some(missing) = self.sensors.missing_cgroup() {
                    tracing::warn!("{missing}");
                }
                self.reschema(now_us);
            }
            Some(_) if self.sensors.wants_schema() && self.may_reschema(now_us) => self.reschema(now_us),
            Some(_) => {}
        }
        self.sensors.sample(&figures);
        self.mind.observe(&self.sensors);
        let sequence = self.newest.map_or(1, |newest| newest.sequence + 1);
        self.newest = Some(SampleHead { generation: self.sensors.generation(), sequence, boot_time_us: now_us });
        let outbox = &mut self.outbox;
        self.sensors.take_event(&mut |kind, body| outbox.append(kind, now_us, body));
        let now_cpu_us = clock::cpu_us();
        self.own.sample_cost_us = now_cpu_us.saturating_sub(cpu_us);
        if let Some(change) = self.governor.observe(&mut self.pace, now_us, now_cpu_us) {
            let kind = if change.restored { EventKind::RATE_RESTORED } else { EventKind::RATE_REDUCED };
            tracing::info!(
                "sampling every {} ms: the last minute cost {} ppm of a CPU",
                change.interval_ms,
                change.cost_ppm
            );
            let changed = RateChanged { interval_ms: change.interval_ms, cost_ppm: change.cost_ppm };
            let mut body = [0; 16];
            if let Ok(body) = postcard::to_slice(&changed, &mut body) {
                self.outbox.append(kind, now_us, body);
            }
        }
    }

    /// At most one schema in 5 s on the dialled session, and none while a host is in the middle of the old one (that
    /// lasts at most until its write deadline).
    fn may_reschema(&self, now_us: u64) -> bool {
        let since_us = self.reschemed_us.max(self.hosts.primary_schema_us().unwrap_or_default());
        now_us >= since_us + SCHEMA_EVERY_S * 1_000_000 && !self.hosts.is_amid_schema()
    }

    fn reschema(&mut self, now_us: u64) {
        self.sensors.reschema();
        self.reschemed_us = now_us;
    }
}
