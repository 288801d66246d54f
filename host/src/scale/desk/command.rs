//! `resize` by a person: the same way as a decision of the policy, with each step told.

use super::{Desk, Phase};
use crate::model::{Now, SECOND_US};
use crate::publish::scaling::{ResizeRequest, ResizeStep};
use crate::scale::policy::Bounds;
use crate::vmm::Retry;
use informant_wire::size::{Bytes, MilliCpu, Size};
use tokio::sync::mpsc;

/// The whole way, to more and to less.
const DEADLINE_US: u64 = 90 * SECOND_US;
/// Where a policy decides too, it leaves the size alone for so long.
const HELD_US: u64 = 300 * SECOND_US;
/// Steps that may wait for a slow reader.
pub const MAX_STEPS: usize = 64;

/// Why a resize is not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No `[actuator]`.
    #[error("this instance has no [actuator] in its instance.toml: nothing here can resize it")]
    NoActuator,
    /// Neither CPU nor memory.
    #[error("neither a number of CPUs nor an amount of memory is given")]
    Nothing,
    /// One at a time.
    #[error("another resize is under way")]
    Busy,
    /// Beyond the bounds.
    #[error("{wanted} is beyond the bounds of this instance ({bounds}); --force goes there all the same")]
    Bounds {
        /// What of it.
        wanted: String,
        /// The least and the most.
        bounds: Bounds,
    },
    /// Beyond what the VMM can do.
    #[error("{0}")]
    Vmm(String),
    /// The VMM has not answered yet.
    #[error("the VMM has not said what it has: {0}")]
    Unknown(String),
}

#[derive(Debug)]
pub(super) struct Running {
    cpu: Option<MilliCpu>,
    memory: Option<Bytes>,
    pub(super) force: bool,
    steps: mpsc::Sender<ResizeStep>,
    began: Now,
}

impl Running {
    /// What the VM should have, where it has `wish`.
    pub(super) fn target(&self, wish: Size) -> Size {
        Size { cpu: self.cpu.unwrap_or(wish.cpu), memory: self.memory.unwrap_or(wish.memory) }
    }
}

impl Desk {
    /// Begins a resize. The steps come through `steps`, the last one with `done`.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing has changed then.
    pub fn command(
        &mut self,
        request: ResizeRequest,
        steps: mpsc::Sender<ResizeStep>,
        now: Now,
    ) -> Result<(), Refusal> {
        let settings = self.settings.as_ref().ok_or(Refusal::NoActuator)?;
        if request.cpu_milli.is_none() && request.memory_bytes.is_none() {
            return Err(Refusal::Nothing);
        }
        if self.command.is_some() {
            return Err(Refusal::Busy);
        }
        let Some(reported) = self.reported(now) else {
            return Err(Refusal::Unknown(self.vmm_error.clone().unwrap_or_else(|| "it was not asked yet".into())));
        };
        let wanted = Size {
            cpu: request.cpu_milli.map_or(reported.wish.cpu, MilliCpu),
            memory: request.memory_bytes.map_or(reported.wish.memory, Bytes),
        };
        let bounds = settings.bounds;
        // What is not asked for may be where it is.
        let cpu = request.cpu_milli.map(MilliCpu).filter(|cpu| !(bounds.min.cpu..=bounds.max.cpu).contains(cpu));
        let memory =
            request.memory_bytes.map(Bytes).filter(|memory| !(bounds.min.memory..=bounds.max.memory).contains(memory));
        let beyond: Vec<_> =
            cpu.map(|cpu| cpu.to_string()).into_iter().chain(memory.map(|memory| memory.to_string())).collect();
        if !beyond.is_empty() && !request.force {
            return Err(Refusal::Bounds { wanted: beyond.join(", "), bounds });
        }
        let target = reported.can.target(wanted).map_err(|error| Refusal::Vmm(error.to_string()))?;
        let cpu = request.cpu_milli.map(|_| target.cpu);
        let memory = request.memory_bytes.map(|_| target.memory);
        self.command = Some(Running { cpu, memory, force: request.force, steps, began: now });
        let guest = self.guest.map_or_else(String::new, |seen| format!("; the guest: {}", super::talk::shown(seen)));
        self.narrate(
            format!("the VMM gives {}, asked for {}{guest}; wanted {target}", reported.has, reported.wish),
            now,
        );
        self.denied = None;
        self.not_before_us = now.mono_us;
        // Who asks now may have mended what was wrong.
        self.retry = Retry::default();
        self.changed = true;
        self.advance(now);
        Ok(())
    }

    /// Tells who waits for a resize what happened. A reader that is too slow misses steps, never the end.
    pub(super) fn narrate(&mut self, step: String, now: Now) {
        if let Some(command) = &self.command {
            let step = ResizeStep { after_ms: now.since_us(command.began) / 1000, step, done: None };
            // One place is kept for the last.
            if command.steps.capacity() > 1 {
                let _gone = command.steps.try_send(step);
            }
        }
    }

    /// The resize, if there is one, is over.
    pub(super) fn finish_command(&mut self, done: bool, step: String, now: Now) {
        let Some(command) = self.command.take() else { return };
        self.changed = true;
        let mut step = ResizeStep { after_ms: now.since_us(command.began) / 1000, step, done: Some(done) };
        if done && self.settings.as_ref().is_some_and(|settings| settings.policy.is_some()) {
            let until = Now { mono_us: now.mono_us + HELD_US, wall_ms: now.wall_ms + HELD_US / 1000 };
            if let Some((reported, _)) = self.vmm {
                self.held = Some((reported.wish, until));
                step.step = format!("{}; held for {} s, then the policy decides again", step.step, HELD_US / SECOND_US);
            }
        }
        let _gone = command.steps.try_send(step);
    }

    pub(super) fn expire_command(&mut self, now: Now) {
        let late = |command: &Running| now.since_us(command.began) >= DEADLINE_US || command.steps.is_closed();
        if self.command.as_ref().is_some_and(late) {
            let seconds = DEADLINE_US / SECOND_US;
            self.finish_command(false, format!("not there after {seconds} s; given up"), now);
            // Nor is the VMM told any more, if it has not been.
            if matches!(self.phase, Phase::Resizing { .. }) && !self.is_telling() {
                self.enter(Phase::Idle, now);
            }
        }
    }
}
