//! The fake of the library keeps the same contract: what is tested with it holds for the others.

use crate::suite::{Mode, Peer, REFUSAL, contract, size};
use informant_host::vmm::fake::{Fake, Step};
use informant_host::vmm::{Actuator, VmmError};
use informant_wire::size::{Bytes, MilliCpu};

struct InProcess(Fake);

impl InProcess {
    fn start() -> Self {
        let fake = Fake::new(size(1, 512));
        fake.change(|reported| {
            reported.can.memory.min = Bytes::mib(512);
            reported.can.memory.max = Bytes::mib(2560);
            reported.can.cpu.max = MilliCpu::from_cpus(4);
        });
        Self(fake)
    }
}

impl Peer for InProcess {
    fn actuator(&self) -> Actuator {
        Actuator::Fake(self.0.clone())
    }

    /// For one call: its script is used up then.
    fn set(&self, mode: Mode) {
        let text = || format!("fake: {REFUSAL}");
        match mode {
            Mode::Normal => {}
            Mode::NotYet => self.0.script([Step::Fail(VmmError::NotYet(text()))]),
            Mode::Refuse => self.0.script([Step::Fail(VmmError::Refused(text()))]),
            Mode::TakeAndHang => self.0.script([Step::FailAfter(VmmError::Timeout(text()))]),
            Mode::Hang => self.0.script([Step::Fail(VmmError::Timeout(text()))]),
            Mode::Silent => self.0.script_observations([Step::Hang]),
            Mode::Garbage | Mode::Half | Mode::Endless => {
                self.0.script_observations([Step::Fail(VmmError::Protocol(text()))]);
            }
        }
    }

    fn applies(&self, applies: bool) {
        self.0.applies(applies);
    }

    fn apply(&self) {
        self.0.apply();
    }

    fn sent(&self) -> Vec<String> {
        self.0.sent().iter().map(ToString::to_string).collect()
    }

    fn stop(&self) {
        let gone = || Step::Fail(VmmError::Unreachable("fake: gone".into()));
        self.0.script_observations([gone(), gone()]);
    }
}

contract!(InProcess::start());
