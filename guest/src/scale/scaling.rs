//! Scaling put together: looks, needs and the demand made of them, answers to the host, and what is done about them.
//! The loop calls [`Scaling::poll`] with each wake-up; sessions talk to it as a [`Brain`]; advisors and persons of the
//! guest see it as a [`crate::local::desk::Desk`].

mod answer;
mod arrival;
mod desk;
mod wire;

use super::act::Actor;
use super::apply::may_keep;
use super::ask::Asking;
use super::brain::{Brain, Mind, Wanted};
use super::decide::Approved;
use super::local::{Source, Sources, TooMany};
use super::need::{self, Needs, Signals};
use super::record::Record;
use super::sense::Sense;
use super::trigger::{Stalls, Triggers};
use super::usage::{History, Usage};
use crate::collect::Sensors;
use crate::collect::cgroup::files::Events;
use answer::Pending;
use arrival::Arrival;
use informant_wire::id::BootId;
use informant_wire::limits::MAX_SCALE_TEXT;
use informant_wire::scale::{Applied, DemandAnswer, DemandOutcome, Downscale, DownscaleAnswer, Resized};
use informant_wire::size::{Bytes, MilliCpu, Size};
use std::path::{Path, PathBuf};
use std::task::Context;
use wire::Wire;

/// From one look to the next.
const LOOK_US: u64 = 100_000;
/// What wakes the loop brings the next look forward, but not closer than this to the last: `memory.events` may change
/// a thousand times a second.
const LOOK_LEAST_US: u64 = 20_000;
/// An approved shrink that did not come in this time will not come.
const APPROVAL_US: u64 = 600_000_000;

/// How to scale.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where approvals are kept: the directory of the outbox.
    pub state: PathBuf,
    /// This boot.
    pub boot: BootId,
    /// Random: ids of demands begin there.
    pub seed: u64,
    /// Set `memory.high` of the watched cgroup to be told early.
    pub tripwire: bool,
    /// Lift a `memory.high` that is found.
    pub clear_memory_high: bool,
    /// Thaw a watched cgroup that is found frozen.
    pub thaw: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Scaling {
    sense: Sense,
    history: History,
    needs: Needs,
    sources: Sources,
    asking: Asking,
    actor: Actor,
    triggers: Option<Triggers>,
    wire: Wire,
    record: Record,
    approved: Option<Approved>,
    /// What the VM has beyond MemTotal, as far as that is known.
    reserve: Option<u64>,
    pending: Option<Pending>,
    text: heapless::String<MAX_SCALE_TEXT>,
    has_advisors: bool,
    arrival: Arrival,
    stalls: Stalls,
    /// Counts of the watched cgroup when last looked at.
    events: Option<Events>,
    last_look_us: Option<u64>,
    next_look_us: u64,
    directory: Vec<u8>,
}

impl Scaling {
    /// Starts the thread that acts, and takes up what an earlier agent of this boot promised. `root`: the tree that is
    /// read.
    #[must_use]
    pub fn new(options: &Options, root: &Path, now_us: u64) -> Self {
        let record = Record::new(&options.state, options.boot);
        Self {
            sense: Sense::new(root),
            history: History::new(now_us),
            needs: Needs::default(),
            sources: Sources::default(),
            asking: Asking::new(options.seed),
            actor: Actor::start(root),
            triggers: None,
            wire: Wire::new(options),
            approved: record.load(),
            record,
            reserve: None,
            pending: None,
            text: heapless::String::new(),
            has_advisors: false,
            arrival: Arrival::default(),
            stalls: Stalls::default(),
            events: None,
            last_look_us: None,
            next_look_us: now_us,
            directory: Vec::new(),
        }
    }

    /// From here on the kernel wakes the loop when tasks wait for memory. Needs the runtime; on a root that is not this
    /// machine's it does nothing.
    pub fn arm(&mut self) {
        if !self.sense.files.is_live() {
            return;
        }
        match Triggers::new(&mut self.sense.files) {
            Ok(triggers) => self.triggers = Some(triggers),
            Err(error) => tracing::warn!("no pressure triggers: {error}"),
        }
    }

    /// `vm`: the VM's memory as its host counts it. The least that was ever seen is taken: what makes it seem larger is
    /// memory that is not online.
    fn learn_reserve(&mut self, vm: u64, total: u64) {
        if let Some(reserve) = vm.checked_sub(total).filter(|reserve| may_keep(*reserve, total)) {
            self.reserve = Some(self.reserve.map_or(reserve, |before| before.min(reserve)));
        }
    }

    fn look(&mut self, now_us: u64) {
        self.last_look_us = Some(now_us);
        // On a grid, so that lateness does not add up; what was missed is not made up for.
        let next_us = self.next_look_us.saturating_add(LOOK_US);
        self.next_look_us = if next_us > now_us { next_us } else { now_us.saturating_add(LOOK_US) };
        let sight = self.sense.look(now_us, self.arrival.is_open());
        if let Some(look) = sight.look {
            self.history.push(look);
        }
        let signals = self.signals(sight.events);
        self.retire_approval(now_us);
        let total = self.usable();
        let usage = self.history.usage(now_us);
        self.needs.look(&need::Seen {
            now_us,
            total,
            reserve: self.reserve.unwrap_or(0),
            usage: if let Usage::Known(usage) = usage { Some(usage) } else { None },
            growth: self.history.growth(now_us),
            signals,
            cpus: self.sense.cpus(),
            running: sight.running,
        });
        self.sources.look(self.present(), now_us);
        self.asking.want(self.sources.merge(self.needs.wanted()), now_us);
        let high = sight.events.map_or(0, |events| events.high);
        self.wire.look(&mut self.sense, &self.actor, now_us, total, usage, high);
        self.arrival.look(&self.actor, now_us);
    }

    fn signals(&mut self, events: Option<Events>) -> Signals {
        let [memory_some, memory_full, cpu_some] = std::mem::take(&mut self.stalls);
        let before = std::mem::replace(&mut self.events, events);
        // Of another cgroup counts begin anew: what is less than before is no event.
        let (before, now) = before.zip(events).unwrap_or_default();
        Signals {
            memory_some,
            memory_full,
            cpu_some,
            limit: now.high > before.high || now.max > before.max,
            oom: now.oom > before.oom || now.oom_kill > before.oom_kill,
        }
    }

    /// MemTotal without what is promised away; 0: not known.
    fn usable(&self) -> u64 {
        let total = self.history.newest().map_or(0, |look| look.total);
        self.approved.map_or(total, |approved| total.min(approved.total))
    }

    /// The size of the VM, as its host counts it, and a little more: what the kernel needs to manage memory is not
    /// missing.
    fn present(&self) -> Size {
        let total = self.usable();
        let memory = match (total, self.reserve) {
            (0, _) => 0,
            (total, Some(reserve)) => total.saturating_add(reserve).saturating_add(total / 32),
            (total, None) => total.saturating_add(total / 16).saturating_add(64 * Bytes::MIB),
        };
        Size { cpu: MilliCpu::from_cpus(self.sense.cpus()), memory: Bytes(memory) }
    }

    /// An approval is over when the memory is gone, and when it never went.
    fn retire_approval(&mut self, now_us: u64) {
        let Some(approved) = self.approved else { return };
        let total = self.history.newest().map_or(u64::MAX, |look| look.total);
        let is_old = now_us.saturating_sub(approved.at_us) > APPROVAL_US;
        if is_old || total <= approved.total.saturating_add(approved.total / 64) {
            self.approve(None);
        }
    }

    fn approve(&mut self, approved: Option<Approved>) {
        if self.approved != approved {
            self.approved = approved;
            self.record.store(approved);
        }
    }

    /// The VMM gives, or is going to give, this much: a promise to go without it is void.
    fn given(&mut self, memory: Bytes) {
        if self.approved.is_some_and(|approved| memory.0 > approved.memory) {
            self.approve(None);
        }
    }

    /// A source inside the guest wants this, in place of what it wanted before.
    pub fn demand_of(&mut self, source: Source, wanted: Wanted, now_us: u64) -> Result<(), TooMany> {
        self.sources.put(source, wanted, now_us)?;
        self.sources.look(self.present(), now_us);
        self.asking.want(self.sources.merge(self.needs.wanted()), now_us);
        Ok(())
    }

    /// A source wants nothing any more, or is gone.
    pub fn withdraw(&mut self, source: Source, now_us: u64) {
        self.sources.remove(source);
        self.asking.want(self.sources.merge(self.needs.wanted()), now_us);
    }

    /// What became of what a source wants: pending until the host answered it, applied once it is there. With the size
    /// that was granted, and how long asking again does not help, ms. None: it wants nothing, or it expired.
    #[must_use]
    pub fn outcome_of(&self, source: Source, now_us: u64) -> Option<(DemandOutcome, Size, u32)> {
        let (wanted, since_us, is_met) = self.sources.state(source)?;
        if is_met {
            return Some((DemandOutcome::APPLIED, self.present(), 0));
        }
        Some(match self.asking.outcome_for(wanted, since_us, now_us) {
            None => (DemandOutcome::PENDING, Size::default(), 0),
            Some(outcome) => {
                let again_ms = outcome.again_us.saturating_sub(now_us) / 1000;
                (outcome.outcome, outcome.granted, u32::try_from(again_ms).unwrap_or(u32::MAX))
            }
        })
    }
}

impl Brain for Scaling {
    fn demand(&mut self, now_us: u64) -> Option<Wanted> {
        self.asking.next(now_us)
    }

    fn demand_due_us(&self) -> u64 {
        self.asking.due_us()
    }

    fn demand_answered(&mut self, answer: &DemandAnswer, now_us: u64) {
        if self.asking.answered(answer, now_us)
            && matches!(answer.outcome, DemandOutcome::GRANTED | DemandOutcome::PARTIAL)
        {
            self.given(answer.granted.memory);
            self.arrival.granted(answer.granted, now_us);
        }
    }

    fn demand_unanswered(&mut self, now_us: u64) {
        self.asking.unanswered(now_us);
    }

    fn downscale(&mut self, question: &Downscale, now_us: u64) {
        self.ask_downscale(question, now_us);
    }

    fn downscale_answer(&mut self, now_us: u64) -> Option<DownscaleAnswer<'_>> {
        self.answer_downscale(now_us)
    }

    fn resized(&mut self, told: &Resized, now_us: u64) {
        self.given(told.now.memory);
        self.arrival.told(told, now_us);
        self.next_look_us = self.next_look_us.min(now_us);
    }

    fn applied(&mut self, now_us: u64) -> Option<Applied> {
        // Without any look nothing arrives, and that is said at the end of the time as well.
        let look = self.history.newest().unwrap_or_default();
        self.arrival.answer(look, self.sense.cpus(), self.reserve, now_us)
    }

    fn current_gone(&mut self, now_us: u64) {
        self.asking.unanswered(now_us);
        self.pending = None;
        self.arrival.forget();
    }
}

impl Mind for Scaling {
    fn poll(&mut self, cx: &mut Context<'_>, now_us: u64) {
        if let Some(triggers) = &mut self.triggers {
            let (woke, stalls) = triggers.poll(cx, &mut self.sense.files);
            self.stalls.iter_mut().zip(stalls).for_each(|(sum, stall)| *sum |= stall);
            if woke {
                let least_us = self.last_look_us.map_or(0, |last_us| last_us.saturating_add(LOOK_LEAST_US));
                // Nothing is throttled for longer than this wake-up.
                let soonest_us = if self.wire.must_lift() { now_us } else { least_us };
                self.next_look_us = self.next_look_us.min(soonest_us);
            }
        }
        if now_us >= self.next_look_us {
            self.look(now_us);
        }
    }

    fn deadline_us(&self) -> u64 {
        self.next_look_us
    }

    fn observe(&mut self, sensors: &Sensors) {
        if !sensors.watched_directory(&mut self.directory) {
            self.directory.clear();
        }
        if self.directory.is_empty() && self.sense.group().is_some() {
            self.wire.forget();
        }
        if let Some(found) = self.sense.watch(&self.directory) {
            self.events = None;
            if let (Some(triggers), Some(group)) = (&self.triggers, self.sense.group()) {
                // Where it can not be waited for, it is looked at.
                let _ = triggers.watch(&group.events);
            }
            self.wire.found(found, &self.sense, &self.actor);
        }
        if let (None, Some(blocks), Some(look)) = (self.reserve, sensors.memory_blocks(), self.history.newest()) {
            self.learn_reserve(blocks.online_bytes, look.total);
        }
        let disk = sensors.fullest_disk().map(|disk| (disk.mount, disk.size_bytes, disk.available_bytes));
        self.needs.disk(disk);
    }
}

impl Drop for Scaling {
    fn drop(&mut self) {
        self.actor.close();
        self.wire.end(&self.sense);
    }
}

#[cfg(test)]
mod tests;
