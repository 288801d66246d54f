//! What the VMM answers.

use super::{AFTER_FAILURE_US, Act, Desk, Phase, SETTLE_US};
use crate::model::Now;
use crate::vmm::{Reported, VmmError};
use informant_wire::size::Size;

/// A change that fails for a passing reason is tried so often, then decided anew.
const MAX_TRIES: u32 = 3;

impl Desk {
    /// The VMM said what is true, or did not.
    pub fn observed(&mut self, result: Result<Reported, VmmError>, now: Now) {
        // Else it is the answer of a VMM that was another one's.
        if self.acting.take_if(|(act, _)| *act == Act::Observe).is_none() {
            return;
        }
        self.learn(&result, now);
        self.observe_later(now);
        self.advance(now);
    }

    /// The VMM took the size, or did not. `chance`: any number, for the jitter of the next try.
    pub fn resized(&mut self, result: Result<Reported, VmmError>, chance: u32, now: Now) {
        let Some((Act::Resize(wanted), began)) = self.acting.take() else { return };
        self.counters.vmm_answer.took(now.since_us(began));
        self.learn(&result, now);
        let Phase::Resizing { was, tries, .. } = self.phase else { return self.advance(now) };
        match result {
            Ok(reported) => {
                self.retry.succeeded();
                self.uncounted.get_or_insert(was);
                self.cause = None;
                self.narrate(format!("the VMM accepted it; it gives {} now", reported.has), now);
                let until_us = now.mono_us + SETTLE_US;
                self.enter(Phase::Settling { wanted: reported.wish, was, told: None, guest: None, until_us }, now);
                self.leg = now;
                self.observe_later(now);
            }
            Err(error) => self.failed(was, wanted, tries, &error, chance, now),
        }
        self.advance(now);
    }

    fn failed(&mut self, was: Size, wanted: Size, tries: u32, error: &VmmError, chance: u32, now: Now) {
        self.retry.failed(wanted, error, now, chance);
        let what = format!("the VMM did not become {wanted}: {error}");
        self.observe_at_us = now.mono_us;
        if error.is_transient() && tries + 1 < MAX_TRIES && (self.decides() || self.is_forced()) {
            self.narrate(format!("{what}; trying again"), now);
            let not_before_us = now.mono_us + self.retry.wait_us(wanted, now);
            return self.enter(Phase::Resizing { wanted, was, not_before_us, tries: tries + 1 }, now);
        }
        self.counters.stuck(if error.is_transient() { "vmm_unreachable" } else { "vmm_refused" });
        self.failed_until_us = now.mono_us + AFTER_FAILURE_US;
        self.not_before_us = self.failed_until_us;
        self.enter(Phase::Idle, now);
        self.finish_command(false, what.clone(), now);
        self.stuck = Some(what);
    }

    fn learn(&mut self, result: &Result<Reported, VmmError>, now: Now) {
        let error = result.as_ref().err().map(ToString::to_string);
        let before = self.vmm.map(|(reported, _)| (reported.has, reported.wish));
        if let Ok(reported) = result {
            self.vmm = Some((*reported, now));
        }
        let after = self.vmm.map(|(reported, _)| (reported.has, reported.wish));
        self.changed |= before != after || self.vmm_error != error;
        self.vmm_error = error;
    }
}
