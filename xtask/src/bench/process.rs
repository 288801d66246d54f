//! What a running process costs, from its files in /proc.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// CPU time of all threads so far, user and system. The scheduler's nanoseconds: the ticks of `stat` are too coarse
/// for a process that uses a thousandth of a core.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))? {
        // A thread may end between the listing and the reading.
        if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
            total += nanoseconds(&text)?;
        }
    }
    Ok(Duration::from_nanos(total))
}

/// The first number of a `schedstat`.
pub(super) fn nanoseconds(schedstat: &str) -> Result<u64> {
    let first = schedstat.split_whitespace().next().context("an empty schedstat: is CONFIG_SCHED_INFO on?")?;
    first.parse().with_context(|| format!("`{first}` in schedstat"))
}

/// A field of `/proc/PID/status` that is in kB, as bytes.
pub(super) fn memory(pid: u32, field: &str) -> Result<u64> {
    status_bytes(&fs::read_to_string(format!("/proc/{pid}/status"))?, field)
}

/// The same from the text of such a file, wherever it came from.
pub(super) fn status_bytes(text: &str, field: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()).with_context(|| format!("no field {field}"))?;
    Ok(number.parse::<u64>()? * 1024)
}

/// Share of one core that a process uses over a time, 1.0 for all of it.
pub(super) fn share(pid: u32, time: Duration) -> Result<f64> {
    let (cpu, since) = (cpu_time(pid)?, Instant::now());
    thread::sleep(time);
    Ok((cpu_time(pid)? - cpu).as_secs_f64() / since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_rises_with_work_and_memory_is_read() {
        let before = cpu_time(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while cpu_time(std::process::id()).unwrap() == before {
            sum = sum.wrapping_add((0..100_000_u64).sum::<u64>());
        }
        assert_ne!(sum, 1);
        assert!(memory(std::process::id(), "VmRSS").unwrap() > 100_000);
        assert!(memory(std::process::id(), "VmNone").is_err());
    }
}
