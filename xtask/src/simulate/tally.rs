//! What the simulator tells on standard output: one JSON line a second, and one for each moment that a benchmark waits
//! for. Times are of the wall clock, which other processes of this machine share.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Connection attempts are counted in windows of this length, milliseconds.
const WINDOW_MS: u64 = 100;

/// A line of the simulator's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "line")]
pub enum Line {
    /// Every second.
    Second(Counts),
    /// All instances have a session on which a sample was acknowledged.
    AllAcked(Acked),
}

/// Everything since the start, but for the first two, which are of now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Wall clock, milliseconds since 1970.
    pub unix_ms: u64,
    /// Instances with a session.
    pub connected: u64,
    /// Instances with a sample acknowledged on their present session.
    pub acked: u64,
    /// Attempts to connect.
    pub dials: u64,
    /// Handshakes refused by the daemon.
    pub refused: u64,
    /// Sessions that ended, for whatever reason.
    pub lost: u64,
    /// Proofs of root asked for.
    pub proofs: u64,
    /// Samples written.
    pub samples: u64,
    /// Samples not written, because the daemon had not taken the frame before.
    pub unsent: u64,
    /// Bytes of the samples written.
    pub sample_bytes: u64,
    /// Series of every sample.
    pub series: u64,
}

/// See [`Line::AllAcked`]; peaks are since the first loss before it, or since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acked {
    /// Wall clock, milliseconds since 1970.
    pub unix_ms: u64,
    /// Most attempts to connect in any tenth of a second.
    pub peak_dials_100ms: u64,
    /// Most sessions welcomed in any tenth of a second.
    pub peak_welcomes_100ms: u64,
}

/// Highest count in a window.
#[derive(Debug, Default)]
struct Peak {
    window: u64,
    count: u64,
    highest: u64,
}

impl Peak {
    fn add(&mut self, now_ms: u64) {
        let window = now_ms / WINDOW_MS;
        if window != self.window {
            self.window = window;
            self.count = 0;
        }
        self.count += 1;
        self.highest = self.highest.max(self.count);
    }
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    instances: u64,
    all_acked: bool,
    dials: Peak,
    welcomes: Peak,
}

impl Tally {
    pub(super) fn new(instances: u64, series: usize) -> Self {
        let series = u64::try_from(series).unwrap_or(u64::MAX);
        Self { instances, counts: Counts { series, ..Counts::default() }, ..Self::default() }
    }

    pub(super) fn dialled(&mut self) {
        self.counts.dials += 1;
        self.dials.add(unix_ms());
    }

    pub(super) fn welcomed(&mut self) {
        self.counts.connected += 1;
        self.welcomes.add(unix_ms());
    }

    pub(super) fn lost(&mut self, acked: bool) {
        self.counts.lost += 1;
        self.counts.connected = self.counts.connected.saturating_sub(1);
        self.counts.acked = self.counts.acked.saturating_sub(u64::from(acked));
        if std::mem::take(&mut self.all_acked) {
            (self.dials, self.welcomes) = (Peak::default(), Peak::default());
        }
    }

    pub(super) fn acked(&mut self) -> Result<()> {
        self.counts.acked += 1;
        if self.counts.acked == self.instances && !std::mem::replace(&mut self.all_acked, true) {
            print(&Line::AllAcked(Acked {
                unix_ms: unix_ms(),
                peak_dials_100ms: self.dials.highest,
                peak_welcomes_100ms: self.welcomes.highest,
            }))?;
        }
        Ok(())
    }

    pub(super) fn second(&mut self) -> Result<()> {
        self.counts.unix_ms = unix_ms();
        print(&Line::Second(self.counts.clone()))
    }
}

fn print(line: &Line) -> Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// Wall clock, milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
