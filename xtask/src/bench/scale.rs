//! The daemon with thousands of instances, played by simulators in processes of their own: CPU, memory, age of data, and
//! how it all comes back after `kill -9`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit};

use super::Bench;
use super::ages::Ages;
use super::bare;
use super::process;
use super::row::Row;
use crate::child::{self, Child};
use crate::simulate::{self, Counts, Line, unix_ms};
use crate::{host, project, vm};

/// Descriptors that a process needs besides those of its instances: proofs of root and event logs while all connect.
const SPARE_DESCRIPTORS: u64 = 1_500;
/// A machine with other work takes its time over ten thousand handshakes.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long the bare system calls are measured.
const BARE: Duration = Duration::from_secs(15);

/// How many instances, and how each is reached.
#[derive(Clone, Copy, Debug)]
struct Plan {
    instances: u32,
    /// So many are dialled by the daemon: that takes one descriptor there instead of two.
    dialled: u32,
    /// Simulators.
    processes: u32,
}

impl Plan {
    fn new(wanted: u32, descriptors: u64) -> Self {
        let room = u32::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS)).unwrap_or(u32::MAX);
        let instances = wanted.min(room);
        let listening = instances.min(room.saturating_sub(instances));
        Self { instances, dialled: instances - listening, processes: (instances * 2).div_ceil(room.max(1)).max(1) }
    }
}

/// A running daemon and its simulators.
struct Scale {
    dir: PathBuf,
    plan: Plan,
    daemon: Child,
    simulators: Vec<(Child, PathBuf)>,
}

pub(super) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    // The daemon stretches a round of ten thousand status files over up to two minutes: a window holds a whole one.
    let (wanted, time) = if bench.quick { (1_000, 20) } else { (10_000, 130) };
    let plan = Plan::new(wanted, getrlimit(Resource::RLIMIT_NOFILE)?.1);
    let simulator = host::build_simulator()?;
    let mut rows = Vec::new();
    for cgroups in [0, 8] {
        let dir = super::agent::scratch(bench, &format!("scale-{cgroups}"))?;
        let mut scale = Scale::start(&dir, &simulator, plan, cgroups)?;
        let (steady, daemon_us, bytes) = scale.steady(Duration::from_secs(time))?;
        rows.extend(steady);
        if cgroups == 0 {
            rows.extend(scale.restart()?);
        }
        drop(scale);
        rows.push(beside_bare(plan, daemon_us, bytes)?);
    }
    Ok(rows)
}

/// The daemon's cost of a sample beside the system calls that it cannot do without.
fn beside_bare(plan: Plan, daemon_us: f64, bytes: usize) -> Result<Row> {
    // Both ends are in this process.
    let room = getrlimit(Resource::RLIMIT_NOFILE)?.1.saturating_sub(simulate::SPARE_DESCRIPTORS) / 2;
    let connections = room.min(u64::from(plan.instances));
    simulate::raise_descriptors(connections * 2)?;
    let connections = usize::try_from(connections)?;
    let step = crate::run::Step::new(format!("measuring bare system calls for {} s", BARE.as_secs()));
    let bare_us = bare::us_a_sample(connections, bytes, BARE)?;
    step.done("measured");
    let title =
        format!("CPU of a sample of {bytes} B in the daemon beside bare epoll_wait, recv and a fourth of a send");
    Ok(Row::shown(title, format!("{:.1} x", daemon_us / bare_us))
        .beside(format!("{daemon_us:.1} us, bare {bare_us:.1} us over {connections} socket pairs")))
}

impl Scale {
    fn start(dir: &Path, simulator: &Path, plan: Plan, cgroups: u32) -> Result<Self> {
        let host = dir.join("host");
        fs::create_dir_all(&host)?;
        let daemon = start_daemon(dir)?;
        let mut scale = Self { dir: dir.to_owned(), plan, daemon, simulators: Vec::new() };
        let each = plan.instances.div_ceil(plan.processes);
        for number in 0..plan.processes {
            let first = number * each;
            let instances = each.min(plan.instances - first);
            let dialled = plan.dialled.saturating_sub(first).min(instances);
            let mut command = child::command(simulator);
            command.arg("simulate").arg("--dir").arg(&host).arg("--sockets").arg(dir.join("s"));
            for (option, value) in
                [("instances", instances), ("first", first), ("dialled", dialled), ("cgroups", cgroups)]
            {
                command.arg(format!("--{option}={value}"));
            }
            let output = dir.join(format!("simulator-{number}.jsonl"));
            command.stdout(fs::File::create(&output)?);
            scale.simulators.push((Child::spawn("simulate", command)?, output));
        }
        scale.wait_acked(0)?;
        Ok(scale)
    }

    /// Waits until every simulator has all its instances acknowledged, later than a moment; gives the last such moment
    /// and the peaks of attempts and sessions.
    fn wait_acked(&mut self, after_ms: u64) -> Result<(u64, u64, u64)> {
        let step = crate::run::Step::new(format!("waiting for {} instances to be acknowledged", self.plan.instances));
        let mut seen = Vec::new();
        vm::wait_until("all instances acknowledged", PATIENCE, || {
            if let Some(status) = self.daemon.ended()? {
                bail!("the daemon ended with {}: {}", child::shown(status), tail(&self.dir.join("host.log")));
            }
            seen.clear();
            for (simulator, output) in &mut self.simulators {
                if let Some(status) = simulator.ended()? {
                    bail!("a simulator ended with {}", child::shown(status));
                }
                let last = lines(output)?.into_iter().rev().find_map(|line| match line {
                    Line::AllAcked(acked) if acked.unix_ms > after_ms => Some(acked),
                    _ => None,
                });
                seen.extend(last);
            }
            Ok(seen.len() == self.simulators.len())
        })
        .with_context(|| format!("{:?}; the daemon says: {}", self.counts(), tail(&self.dir.join("host.log"))))?;
        step.done("all are");
        let peak = |of: fn(&simulate::Acked) -> u64| seen.iter().map(of).sum();
        let last = seen.iter().map(|acked| acked.unix_ms).max().unwrap_or_default();
        Ok((last, peak(|acked| acked.peak_dials_100ms), peak(|acked| acked.peak_welcomes_100ms)))
    }

    /// The newest counts of all simulators together.
    fn counts(&self) -> Result<Counts> {
        let mut sum = Counts::default();
        for (_, output) in &self.simulators {
            let newest = lines(output)?.into_iter().rev().find_map(|line| match line {
                Line::Second(counts) => Some(counts),
                Line::AllAcked(_) => None,
            });
            let newest = newest.unwrap_or_default();
            sum.unix_ms = sum.unix_ms.max(newest.unix_ms);
            sum.series = newest.series;
            for (to, from) in [
                (&mut sum.connected, newest.connected),
                (&mut sum.acked, newest.acked),
                (&mut sum.refused, newest.refused),
                (&mut sum.lost, newest.lost),
                (&mut sum.proofs, newest.proofs),
                (&mut sum.samples, newest.samples),
                (&mut sum.unsent, newest.unsent),
                (&mut sum.sample_bytes, newest.sample_bytes),
            ] {
                *to += from;
            }
        }
        Ok(sum)
    }

    /// The rows, and of a sample the CPU microseconds and the bytes.
    fn steady(&mut self, time: Duration) -> Result<(Vec<Row>, f64, usize)> {
        // Proofs of root and first status files are behind us then.
        thread::sleep(Duration::from_secs(15));
        let step = crate::run::Step::new(format!("measuring the daemon for {} s", time.as_secs()));
        let (before, files) = (self.counts()?, self.status_files()?);
        let sim_before = self.simulators_cpu()?;
        let share = process::share(self.daemon.pid(), time)?;
        let simulators = (self.simulators_cpu()? - sim_before).as_secs_f64() / time.as_secs_f64();
        let after = self.counts()?;
        step.done("measured");
        let resident = process::memory(self.daemon.pid(), "VmRSS")? as f64 / 1e6;
        let rewritten = self.status_files()?.into_iter().filter(|(name, time)| files.get(name) != Some(time)).count();
        let ages = Ages::ask(&self.dir.join("host/informant.sock"))?;

        let Plan { instances, dialled, .. } = self.plan;
        let samples = (after.samples - before.samples) as f64;
        let seconds = (after.unix_ms - before.unix_ms) as f64 / 1000.0;
        let bytes = (after.sample_bytes - before.sample_bytes) / (after.samples - before.samples).max(1);
        let daemon_us = share * 1e6 / (samples / seconds);
        let title = format!("{instances} instances of {} series at 1 Hz", after.series);
        let rows = vec![
            Row::at_most(
                format!("daemon with {title}, share of a core over {} s", time.as_secs()),
                share * 100.0,
                10.0,
                |p| format!("{p:.1} %"),
            )
            .beside(format!(
                "{:.0} samples/s of {bytes} B, {daemon_us:.1} us each; simulators {:.1} %; {dialled} dialled by the daemon",
                samples / seconds,
                simulators * 100.0,
            )),
            Row::at_most(format!("daemon with {title}, resident memory"), resident, 300.0, |mb| format!("{mb:.0} MB"))
                .beside(format!("{:.1} KB an instance", resident * 1000.0 / f64::from(instances))),
            Row::shown(
                format!("age of data with {title}: median, 99th percentile, oldest"),
                format!("{} ms, {} ms, {} ms", ages.percentile(50), ages.percentile(99), ages.percentile(100)),
            )
            .beside(format!(
                "of {} instances; {} samples were late, {} sessions lost, {} without data",
                ages.count(),
                after.unsent - before.unsent,
                after.lost - before.lost,
                ages.without()
            )),
            Row::shown(
                format!("status files rewritten within {} s with {title}", time.as_secs()),
                format!("{rewritten} of {instances}"),
            ),
        ];
        Ok((rows, daemon_us, usize::try_from(bytes)?))
    }

    fn restart(&mut self) -> Result<Vec<Row>> {
        self.daemon.kill()?;
        let killed = unix_ms();
        self.daemon = start_daemon(&self.dir)?;
        let (last, dials, welcomes) = self.wait_acked(killed)?;
        let seconds = last.saturating_sub(killed) as f64 / 1000.0;
        let title =
            format!("kill -9 and start of the daemon to all {} reconnected and acknowledged", self.plan.instances);
        Ok(vec![
            Row::at_most(title, seconds, 10.0, |seconds| format!("{seconds:.1} s"))
                .beside(format!("at most {dials} attempts and {welcomes} sessions in any 100 ms")),
        ])
    }

    fn simulators_cpu(&self) -> Result<Duration> {
        self.simulators.iter().map(|(simulator, _)| process::cpu_time(simulator.pid())).sum()
    }

    /// When each status file was written.
    fn status_files(&self) -> Result<HashMap<String, SystemTime>> {
        let mut files = HashMap::new();
        for number in 0..self.plan.instances {
            let name = simulate::name(number);
            if let Ok(data) = fs::metadata(self.dir.join("host").join(&name).join("status.json")) {
                files.insert(name, data.modified()?);
            }
        }
        Ok(files)
    }
}

fn start_daemon(dir: &Path) -> Result<Child> {
    let mut command = child::command(project::host()?);
    command.arg("serve").arg("--dir").arg(dir.join("host"));
    child::log_to(&mut command, &dir.join("host.log"))?;
    Child::spawn("informant-host", command)
}

/// Whole lines; the last one may be half written.
fn lines(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("a simulator printed `{line}`")))
        .collect()
}

/// The newest warnings of a log.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let warnings: Vec<&str> = text.lines().filter(|line| !line.contains(" INFO ")).collect();
    warnings[warnings.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_decide_how_instances_are_reached() {
        let plan = Plan::new(10_000, 1 << 20);
        assert_eq!((plan.instances, plan.dialled, plan.processes), (10_000, 0, 1));
        // A listener and a session each would be 20,000.
        let plan = Plan::new(10_000, 20_000);
        assert_eq!((plan.instances, plan.dialled, plan.processes), (10_000, 1_500, 2));
        let plan = Plan::new(10_000, 4_096);
        assert_eq!((plan.instances, plan.dialled), (2_596, 2_596));
    }
}
