//! What advisors and persons of the guest want: each source by itself, until it expires or is taken back.

use super::brain::Wanted;
use informant_wire::size::{Bytes, MilliCpu, Size};

/// Sources at a time.
pub const MAX_SOURCES: usize = 16;

/// Who wants something: a connection to the local socket, or an executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(pub u64);

/// Too many want something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_SOURCES} others of this guest have an open demand; try again when one of them is done")]
pub struct TooMany;

#[derive(Debug)]
struct Entry {
    source: Source,
    wanted: Wanted,
    since_us: u64,
    until_us: u64,
    is_met: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Sources {
    entries: heapless::Vec<Entry, MAX_SOURCES>,
}

impl Sources {
    /// A source wants this from now on, in place of what it wanted before; nothing: it takes it back.
    pub fn put(&mut self, source: Source, wanted: Wanted, now_us: u64) -> Result<(), TooMany> {
        let same = |entry: &&mut Entry| entry.source == source;
        let until_us = now_us.saturating_add(u64::from(wanted.expires_ms) * 1000);
        if wanted.is_withdrawal() {
            self.remove(source);
            return Ok(());
        }
        if let Some(entry) = self.entries.iter_mut().find(same) {
            let renewed = (entry.wanted.cpu, entry.wanted.memory, &entry.wanted.disk)
                == (wanted.cpu, wanted.memory, &wanted.disk);
            if !renewed {
                (entry.since_us, entry.is_met) = (now_us, false);
            }
            (entry.wanted, entry.until_us) = (wanted, until_us);
            return Ok(());
        }
        let entry = Entry { source, wanted, since_us: now_us, until_us, is_met: false };
        self.entries.push(entry).map_err(|_| TooMany)
    }

    /// A source is gone, or wants nothing any more.
    pub fn remove(&mut self, source: Source) {
        self.entries.retain(|entry| entry.source != source);
    }

    /// Forgets what has expired, and notes what is there by now. A disk's size is not looked at: what is wanted of one
    /// stays wanted until it expires.
    pub fn look(&mut self, present: Size, now_us: u64) {
        self.entries.retain(|entry| entry.until_us > now_us);
        for entry in &mut self.entries {
            let Wanted { cpu, memory, disk, .. } = &entry.wanted;
            entry.is_met |= disk.is_none()
                && cpu.is_none_or(|cpu| present.cpu.0 > 0 && present.cpu.cpus() >= cpu.cpus())
                && memory.is_none_or(|memory| present.memory >= memory);
        }
    }

    /// What is wanted and not there yet, with what the guest itself needs: of each resource the largest.
    #[must_use]
    pub fn merge(&self, mut all: Option<Wanted>) -> Option<Wanted> {
        for entry in self.entries.iter().filter(|entry| !entry.is_met) {
            let Some(sum) = &mut all else {
                all = Some(entry.wanted.clone());
                continue;
            };
            let one = &entry.wanted;
            sum.cpu = sum.cpu.max(one.cpu);
            sum.memory = sum.memory.max(one.memory);
            // One disk at a time: the more urgent.
            if one.disk.is_some() && (sum.disk.is_none() || one.urgency > sum.urgency) {
                sum.disk.clone_from(&one.disk);
            }
            if one.urgency > sum.urgency {
                (sum.urgency, sum.reason) = (one.urgency, one.reason);
            }
        }
        all
    }

    /// What they want to have, there or not: less than that is not to be left.
    #[must_use]
    pub fn kept(&self) -> Size {
        let none = Size { cpu: MilliCpu(0), memory: Bytes(0) };
        self.entries.iter().fold(none, |size, entry| {
            let Wanted { cpu, memory, .. } = entry.wanted;
            size.max(Size { cpu: cpu.unwrap_or_default(), memory: memory.unwrap_or_default() })
        })
    }

    /// What a source wants, since when, and whether that is there; none: it wants nothing.
    #[must_use]
    pub fn state(&self, source: Source) -> Option<(&Wanted, u64, bool)> {
        let entry = self.entries.iter().find(|entry| entry.source == source)?;
        Some((&entry.wanted, entry.since_us, entry.is_met))
    }

    /// When the next one expires.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        self.entries.iter().map(|entry| entry.until_us).min().unwrap_or(u64::MAX)
    }
}
