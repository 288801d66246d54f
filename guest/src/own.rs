//! What the agent knows of itself: CPU time, memory, and what it sent, missed and dropped.

use crate::clock;
use crate::collect::OwnFigures;
use nix::unistd::{SysconfVar, sysconf};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Counts since the agent began, and where its size is read.
#[derive(Debug)]
pub struct Own {
    statm: Option<File>,
    page_bytes: u64,
    /// Bytes the kernel took for host sessions.
    pub sent_bytes: u64,
    /// CPU time of the newest sample, microseconds.
    pub sample_cost_us: u64,
    /// The latest wake-up of the loop since the newest sample, microseconds.
    pub loop_lag_us: u64,
    /// Samples taken more than half an interval late.
    pub samples_late: u64,
    /// Samples replaced before they were sent to the dialled host.
    pub samples_unsent: u64,
    /// Sessions begun.
    pub connects: u64,
    /// Frames skipped.
    pub unknown_frames: u64,
    /// What was said about scaling.
    pub scaling: Scaling,
}

/// Counts of the scaling conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scaling {
    /// Demands that were not answered in time or in the host's turn.
    pub demands_unanswered: u64,
    /// Demands that were answered, by [`DemandOutcome`]; the first for those that this version does not know.
    ///
    /// [`DemandOutcome`]: informant_wire::scale::DemandOutcome
    pub demands_answered: [u64; 6],
    /// Commands of hosts that were carried out.
    pub commands: u64,
    /// Commands of hosts whose turn it was not.
    pub stale_commands: u64,
    /// Turns that a host took up.
    pub switches: u64,
    /// Turns that a host did not take up.
    pub failed_switches: u64,
    /// Answers that nobody waited for.
    pub late_answers: u64,
}

impl Own {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            // The agent's own file, whatever root is read.
            statm: File::open("/proc/self/statm").ok(),
            page_bytes: sysconf(SysconfVar::PAGE_SIZE)
                .ok()
                .flatten()
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(4096),
            sent_bytes: 0,
            sample_cost_us: 0,
            loop_lag_us: 0,
            samples_late: 0,
            samples_unsent: 0,
            connects: 0,
            unknown_frames: 0,
            scaling: Scaling::default(),
        }
    }

    /// The figures as the collectors publish them; the loop's lag starts anew.
    pub fn figures(&mut self, interval_us: u64, events_dropped: u64) -> OwnFigures {
        OwnFigures {
            cpu_us: Some(clock::cpu_us()),
            resident_bytes: self.resident_bytes(),
            sent_bytes: Some(self.sent_bytes),
            interval_ms: Some(interval_us / 1000),
            sample_cost_us: Some(self.sample_cost_us),
            loop_lag_us: Some(std::mem::take(&mut self.loop_lag_us)),
            samples_late: Some(self.samples_late),
            samples_unsent: Some(self.samples_unsent),
            events_dropped: Some(events_dropped),
            connects: Some(self.connects),
            unknown_frames: Some(self.unknown_frames),
            log_suppressed: Some(crate::log::suppressed()),
            scaling: Some(self.scaling),
        }
    }

    /// The second number of statm, in pages.
    fn resident_bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let number = text.get(..length)?.split(|byte| *byte == b' ').nth(1)?;
        std::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(self.page_bytes)
    }
}

impl Default for Own {
    fn default() -> Self {
        Self::new()
    }
}
