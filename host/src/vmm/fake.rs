//! An actuator without a VMM, for tests of what uses one: a size in memory whose wish and truth may differ, failures as
//! scripted, and a list of every size that was sent.

use super::bounds::{Capabilities, CpuRange, MemoryRange};
use super::error::VmmError;
use super::{Reported, Vmm};
use informant_wire::size::{Bytes, Size};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a call does instead of succeeding.
#[derive(Clone, Debug)]
pub enum Step {
    /// It succeeds.
    Pass,
    /// It fails, and nothing changed.
    Fail(VmmError),
    /// It fails, and took effect all the same.
    FailAfter(VmmError),
    /// It succeeds, after so long.
    Delay(Duration),
    /// It never answers.
    Hang,
}

/// See the module. A clone is another handle on the same VM.
#[derive(Clone, Debug)]
pub struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    reported: Reported,
    /// What is accepted is there at once.
    applies: bool,
    sends: VecDeque<Step>,
    observations: VecDeque<Step>,
    sent: Vec<Size>,
}

impl Fake {
    /// A running VM of this size, settled, that applies what it accepts at once. 1 to 16 CPUs; half to 16 times its
    /// memory, in blocks of 2 MiB.
    #[must_use]
    pub fn new(has: Size) -> Self {
        let memory = MemoryRange {
            min: Bytes(has.memory.0 / 2),
            max: Bytes(has.memory.0.saturating_mul(16)),
            block: Bytes::mib(2),
        };
        let can = Capabilities { cpu: CpuRange::whole(1, 16), memory, balloon: false };
        let reported = Reported { has, wish: has, can, running: true };
        let state =
            State { reported, applies: true, sends: VecDeque::new(), observations: VecDeque::new(), sent: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it says now.
    #[must_use]
    pub fn reported(&self) -> Reported {
        self.state().reported
    }

    /// Changes what it says.
    pub fn change(&self, change: impl FnOnce(&mut Reported)) {
        change(&mut self.state().reported);
    }

    /// Whether what is accepted is there at once, or only after [`Self::apply`].
    pub fn applies(&self, applies: bool) {
        self.state().applies = applies;
    }

    /// What was wished arrives.
    pub fn apply(&self) {
        let mut state = self.state();
        state.reported.has = state.reported.wish;
    }

    /// What the next sizes sent do, one after the other; those after them pass.
    pub fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.state().sends.extend(steps);
    }

    /// The same for observations.
    pub fn script_observations(&self, steps: impl IntoIterator<Item = Step>) {
        self.state().observations.extend(steps);
    }

    /// Every size that was sent, the failed ones too.
    #[must_use]
    pub fn sent(&self) -> Vec<Size> {
        self.state().sent.clone()
    }
}

impl Vmm for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let step = self.state().observations.pop_front();
        match step.unwrap_or(Step::Pass) {
            Step::Pass => {}
            Step::Fail(error) | Step::FailAfter(error) => return Err(error),
            Step::Delay(time) => tokio::time::sleep(time).await,
            Step::Hang => std::future::pending().await,
        }
        Ok(self.reported())
    }

    async fn send(&mut self, _now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        let step = {
            let mut state = self.state();
            state.sent.push(target);
            state.sends.pop_front().unwrap_or(Step::Pass)
        };
        let mut done = Ok(None);
        match step {
            Step::Pass => {}
            Step::Fail(error) => return Err(error),
            Step::FailAfter(error) => done = Err(error),
            Step::Delay(time) => tokio::time::sleep(time).await,
            Step::Hang => std::future::pending().await,
        }
        let mut state = self.state();
        state.reported.wish = target;
        if state.applies {
            state.reported.has = target;
        }
        done
    }
}
