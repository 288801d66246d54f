//! What was told to be given, from "resized" to "applied": plugged CPUs and blocks are brought online meanwhile.

use crate::scale::act::{Actor, Report};
use crate::scale::apply::{View, judge};
use crate::scale::usage::Look;
use informant_wire::scale::{Applied, AppliedOutcome, Resized};
use informant_wire::size::{Bytes, Size};

/// From one job of the thread to the next.
const BRING_US: u64 = 250_000;
/// "Not yet" is said at least every second.
const SAY_US: u64 = 900_000;
/// What was granted comes within this, or is told by "resized".
const GRANTED_US: u64 = 10_000_000;
/// No change of size takes longer.
const LONGEST_MS: u32 = 600_000;

#[derive(Debug)]
struct Told {
    resized: Resized,
    since_us: u64,
    until_us: u64,
    say_us: u64,
}

#[derive(Debug, Default)]
pub(super) struct Arrival {
    told: Option<Told>,
    /// Bring online up to this size, until then.
    bring: Option<(Size, u64)>,
    bring_us: u64,
    report: Option<Report>,
}

impl Arrival {
    /// Whether something is told and not there.
    pub(super) const fn is_open(&self) -> bool {
        self.told.is_some() || self.bring.is_some()
    }

    pub(super) fn told(&mut self, told: &Resized, now_us: u64) {
        let until_us = now_us.saturating_add(u64::from(told.within_ms.min(LONGEST_MS)) * 1000);
        let say_us = now_us.saturating_add(SAY_US);
        self.told = Some(Told { resized: *told, since_us: now_us, until_us, say_us });
        // What is being taken is not to be brought back.
        let (was, now) = (told.was, told.now);
        let bring = Size {
            cpu: if now.cpu >= was.cpu { now.cpu } else { Size::default().cpu },
            memory: if now.memory >= was.memory { now.memory } else { Bytes(0) },
        };
        self.bring = Some((bring, until_us));
        (self.bring_us, self.report) = (now_us, None);
    }

    pub(super) fn granted(&mut self, size: Size, now_us: u64) {
        if self.told.is_none() {
            self.bring = Some((size, now_us.saturating_add(GRANTED_US)));
            self.bring_us = now_us;
        }
    }

    /// What is being taken away is not brought online.
    pub(super) fn shrinks(&mut self) {
        if self.told.is_none() {
            self.bring = None;
        }
    }

    pub(super) fn forget(&mut self) {
        self.told = None;
    }

    pub(super) fn look(&mut self, actor: &Actor, now_us: u64) {
        if let Some(report) = actor.take_report() {
            self.report = Some(report);
        }
        match self.bring {
            Some((_, until_us)) if now_us >= until_us => self.bring = None,
            Some((size, _)) if now_us >= self.bring_us => {
                self.bring_us = now_us.saturating_add(BRING_US);
                actor.bring(size);
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, look: Look, cpus: u32, reserve: Option<u64>, now_us: u64) -> Option<Applied> {
        let told = self.told.as_mut()?;
        let is_over = now_us >= told.until_us;
        if look.at_us < told.since_us && !is_over {
            return None;
        }
        let report = self.report.unwrap_or_default();
        let cpus = if cpus > 0 { cpus } else { report.cpus };
        let view = View { cpus, cpus_present: report.cpus_present, total: look.total, blocks: report.blocks, reserve };
        let (outcome, cause) = judge(told.resized.was, told.resized.now, &view, is_over);
        let request = told.resized.request;
        if outcome == AppliedOutcome::NOT_YET {
            if now_us < told.say_us {
                return None;
            }
            told.say_us = now_us.saturating_add(SAY_US);
        } else {
            (self.told, self.bring) = (None, None);
        }
        Some(Applied { request, outcome, cause, seen: view.seen() })
    }
}
