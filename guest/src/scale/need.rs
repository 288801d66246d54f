//! What the VM needs, from what was seen. Pure: looks and times are arguments.
//!
//! A need lasts for as long as its cause and three seconds more, so that a demand does not come and go with each look;
//! what it wants never falls meanwhile. It is over at once when what it wants is there.

use super::brain::Wanted;
use super::decide::fits;
use informant_wire::limits::{DEMAND_EXPIRES_MS, MAX_NAME};
use informant_wire::scale::{DemandId, DemandReason};
use informant_wire::size::{Bytes, MilliCpu};

/// A need outlives its cause by so long.
const HOLD_US: u64 = 3_000_000;
/// Growth is looked ahead so many seconds: about what it takes to be given more.
const AHEAD_S: u64 = 5;
/// Slower growth, as a share of MemTotal a second, is noise: 1/256.
const NOISE: u64 = 256;
/// Amounts of memory are multiples of this: the usual size of a memory block.
pub const STEP: u64 = 128 * Bytes::MIB;
/// Tasks that want to run are averaged over about so long.
const QUEUE_US: u64 = 2_000_000;
/// A disk of which less than 1/20 is left, or less than this, is nearly full: the smaller of both.
const DISK_LEFT: u64 = 8 * Bytes::GIB;

/// What makes tasks wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Some task waited for memory for longer than its trigger allows (PSI).
    pub memory_some: bool,
    /// All did.
    pub memory_full: bool,
    /// Some task waited for a CPU.
    pub cpu_some: bool,
    /// The watched cgroup met its limit (`high`, `max`).
    pub limit: bool,
    /// Something in it ran out of memory.
    pub oom: bool,
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Boot time.
    pub now_us: u64,
    /// MemTotal, without what is promised away; 0: not known.
    pub total: u64,
    /// What the VM has beyond MemTotal.
    pub reserve: u64,
    /// Memory in use; none: not known.
    pub usage: Option<u64>,
    /// Its growth, bytes a second.
    pub growth: u64,
    /// What happened since the look before.
    pub signals: Signals,
    /// CPUs online; 0: not known.
    pub cpus: u32,
    /// Tasks that run or want to; none: not looked at this time.
    pub running: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Need<T> {
    total: T,
    until_us: u64,
    urgency: u8,
    reason: DemandReason,
}

/// What is needed by now.
#[derive(Debug, Default)]
pub struct Needs {
    memory: Option<Need<u64>>,
    cpu: Option<Need<u32>>,
    disk: Option<(heapless::Vec<u8, MAX_NAME>, Bytes, u8)>,
    /// Thousandths of tasks, averaged, and when last.
    queue: (u64, u64),
}

fn urgency_of(share_percent: u64) -> u8 {
    // 85 % is 50, all of it is 100.
    let above = share_percent.saturating_sub(85).min(15);
    u8::try_from(50 + above * 50 / 15).unwrap_or(100)
}

impl Needs {
    /// Takes a look in.
    pub fn look(&mut self, seen: &Seen) {
        self.memory(seen);
        self.cpu(seen);
    }

    fn memory(&mut self, seen: &Seen) {
        let present = seen.total.saturating_add(seen.reserve);
        if seen.total > 0
            && let Some(usage) = seen.usage
            && let Some((reason, urgency)) = memory_cause(seen, usage)
        {
            // One step up looks like growth for seconds: at most as much again is taken for what will come.
            let ahead = usage.saturating_add(seen.growth.saturating_mul(AHEAD_S).min(usage));
            // So that three quarters of it are used.
            let enough = (ahead / 3).saturating_mul(4).saturating_add(seen.reserve);
            let total = enough.max(present.saturating_add(STEP / 2));
            let total = total.checked_next_multiple_of(STEP).unwrap_or(u64::MAX);
            let before = self.memory.filter(|need| need.until_us > seen.now_us);
            self.memory = Some(Need {
                total: before.map_or(total, |need| need.total.max(total)),
                until_us: seen.now_us.saturating_add(HOLD_US),
                urgency,
                reason: before.filter(|need| need.urgency > urgency).map_or(reason, |need| need.reason),
            });
        }
        self.memory = self.memory.filter(|need| need.until_us > seen.now_us && need.total > present);
    }

    fn cpu(&mut self, seen: &Seen) {
        if let Some(running) = seen.running {
            let (average, at_us) = self.queue;
            let milli = u64::from(running) * 1000;
            let share_us = if at_us == 0 { 0 } else { seen.now_us.saturating_sub(at_us).min(QUEUE_US) };
            let average = (average * (QUEUE_US - share_us) + milli * share_us) / QUEUE_US;
            self.queue = (average, seen.now_us);
        }
        let (queue, online) = (self.queue.0, u64::from(seen.cpus) * 1000);
        let is_long = queue >= online + 500 || (seen.signals.cpu_some && queue > online);
        if seen.cpus > 0 && is_long {
            let wanted = u32::try_from(queue.div_ceil(1000)).unwrap_or(u32::MAX);
            let total = wanted.clamp(seen.cpus.saturating_add(1), seen.cpus.saturating_mul(2));
            let urgency = if seen.signals.cpu_some { 40 } else { 30 };
            let before = self.cpu.filter(|need| need.until_us > seen.now_us);
            self.cpu = Some(Need {
                total: before.map_or(total, |need| need.total.max(total)),
                until_us: seen.now_us.saturating_add(HOLD_US),
                urgency,
                reason: DemandReason::RUN_QUEUE,
            });
        }
        self.cpu = self.cpu.filter(|need| need.until_us > seen.now_us && need.total > seen.cpus);
    }

    /// The disk with the least room, now and then; none: there is no disk.
    pub fn disk(&mut self, disk: Option<(&[u8], u64, u64)>) {
        self.disk = disk.and_then(|(mount, size, available)| {
            let least = (size / 20).min(DISK_LEFT);
            if available >= least {
                return None;
            }
            let step = if size >= 16 * Bytes::GIB { Bytes::GIB } else { 64 * Bytes::MIB };
            let enough = (size.saturating_sub(available) / 4).saturating_mul(5).max(size.saturating_add(1));
            let total = enough.checked_next_multiple_of(step).unwrap_or(u64::MAX);
            let urgency = if available < least / 4 { 60 } else { 30 };
            Some((heapless::Vec::from_slice(mount).ok()?, Bytes(total), urgency))
        });
    }

    /// All of it as one demand; none: nothing is needed.
    #[must_use]
    pub fn wanted(&self) -> Option<Wanted> {
        let disk = self.disk.as_ref();
        let causes = [
            self.memory.map(|need| (need.urgency, need.reason)),
            self.cpu.map(|need| (need.urgency, need.reason)),
            disk.map(|(.., urgency)| (*urgency, DemandReason::LOW_DISK)),
        ];
        let (urgency, reason) = causes.into_iter().flatten().max_by_key(|(urgency, _)| *urgency)?;
        Some(Wanted {
            id: DemandId(0),
            cpu: self.cpu.map(|need| MilliCpu::from_cpus(need.total)),
            memory: self.memory.map(|need| Bytes(need.total)),
            disk: disk.map(|(mount, total, _)| (mount.clone(), *total)),
            urgency,
            reason,
            expires_ms: u32::try_from(DEMAND_EXPIRES_MS).unwrap_or(u32::MAX),
        })
    }
}

/// Why more memory is needed, and how much so.
fn memory_cause(seen: &Seen, usage: u64) -> Option<(DemandReason, u8)> {
    let percent = u64::try_from(u128::from(usage) * 100 / u128::from(seen.total.max(1))).unwrap_or(100);
    let is_over = |bytes: u128| !fits(bytes, seen.total) || bytes * 20 == u128::from(seen.total) * 17;
    let ahead = u128::from(usage) + u128::from(seen.growth) * u128::from(AHEAD_S);
    let urgency = urgency_of(percent);
    // What meets a cgroup's own limit with half of the VM unused is not helped by a larger VM.
    let is_half_used = percent >= 50;
    let signals = seen.signals;
    if signals.oom && is_half_used {
        Some((DemandReason::CGROUP_EVENT, 100))
    } else if signals.memory_full && is_half_used {
        Some((DemandReason::PRESSURE, urgency.max(80)))
    } else if is_over(u128::from(usage)) {
        Some((DemandReason::USAGE, urgency))
    } else if signals.limit && is_half_used {
        Some((DemandReason::CGROUP_EVENT, 60))
    } else if signals.memory_some && is_half_used {
        Some((DemandReason::PRESSURE, 60))
    } else if seen.growth > seen.total / NOISE && is_over(ahead) {
        Some((DemandReason::GROWTH, 45))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
