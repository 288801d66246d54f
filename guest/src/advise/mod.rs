//! Advisors: a workload's own voice in making the VM smaller. Executables of a directory and processes on the local
//! socket are asked at the same time and have two seconds together. Whoever is silent, slow or crashes is reported and
//! decides nothing; the loop never waits for any of them.

mod child;
mod programs;
mod vet;

use crate::local::desk::Desk;
use crate::local::tally::{Complaints, Verdict, Voice};
use crate::local::{Local, Work};
use informant_wire::event::EventKind;
use informant_wire::limits::ADVISOR_DEADLINE_S;
use informant_wire::scale::AdvisorFault;
use informant_wire::size::Size;
use programs::{Programs, Question};
use std::path::PathBuf;
use std::task::Context;

const DEADLINE_US: u64 = ADVISOR_DEADLINE_S * 1_000_000;
/// Programs are ended so much sooner: then it is known which did not answer.
const PROGRAMS_SOONER_US: u64 = 100_000;

#[derive(Debug)]
struct Asked {
    deadline_us: u64,
    programs: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Advice {
    local: Local,
    programs: Programs,
    complaints: Complaints,
    round: u64,
    asked: Option<Asked>,
    tally: Verdict,
    verdict: Option<Verdict>,
}

impl Advice {
    /// Starts the helper thread. `socket`: where processes of this VM are heard, `None` for nowhere; `directory`: of
    /// the executables; `name`: what the agent calls itself.
    #[must_use]
    pub fn new(socket: Option<PathBuf>, directory: PathBuf, name: &str) -> Self {
        Self {
            local: Local::new(socket, name),
            programs: Programs::start(directory),
            complaints: Complaints::default(),
            round: 0,
            asked: None,
            tally: Verdict::default(),
            verdict: None,
        }
    }

    /// Asks every advisor whether the VM may become `wanted`; takes the place of an open question, which then gets no
    /// verdict. The verdict comes within 2 s, through [`Self::verdict`].
    pub fn ask(&mut self, present: Size, wanted: Size, now_us: u64) {
        self.round += 1;
        (self.tally, self.verdict) = (Verdict::default(), None);
        self.local.ask(present, wanted);
        let deadline_us = now_us + DEADLINE_US;
        let question = Question { round: self.round, present, wanted, deadline_us: deadline_us - PROGRAMS_SOONER_US };
        self.asked = Some(Asked { deadline_us, programs: self.programs.ask(question) });
    }

    /// What the advisors said to the last question; once.
    pub fn verdict(&mut self) -> Option<Verdict> {
        self.verdict.take()
    }

    /// Serves the socket and the open question, and takes the next one from the desk. `append` takes events. True when
    /// an event was appended or the desk heard something: what was served before should be served again.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        desk: &mut dyn Desk,
        append: &mut dyn FnMut(EventKind, &[u8]),
        now_us: u64,
    ) -> bool {
        if self.asked.is_none()
            && let Some((present, wanted)) = desk.take_question()
        {
            self.ask(present, wanted, now_us);
        }
        let (verdict, complaints) = (&mut self.tally, &mut self.complaints);
        let mut work = Work { desk: &mut *desk, verdict, complaints, append, now_us, told: false };
        self.local.poll(cx, &mut work);
        if let Some(asked) = &mut self.asked {
            if asked.programs
                && let Some(voices) = self.programs.take(self.round, cx.waker())
            {
                asked.programs = false;
                for (name, voice) in voices {
                    work.heard(&name, voice);
                }
            }
            let late = now_us >= asked.deadline_us;
            if late {
                self.local.give_up(&mut work);
                if asked.programs {
                    // The helper itself is held up, by a file system perhaps.
                    work.heard("--advisors", Voice::Failed(AdvisorFault::SILENT));
                }
            }
            if late || !(asked.programs || self.local.is_waiting()) {
                self.asked = None;
                self.verdict = Some(std::mem::take(work.verdict));
            }
        }
        let mut again = work.told;
        if let Some(verdict) = self.verdict() {
            desk.verdict(&verdict, now_us);
            again = true;
        }
        again
    }

    /// When to poll at the latest.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        self.asked.as_ref().map(|asked| asked.deadline_us).into_iter().chain(self.local.deadline_us()).min()
    }
}
