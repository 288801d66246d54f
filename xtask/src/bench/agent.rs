//! The real agent on this machine, over a unix socket: memory, CPU while idle, bytes of its samples.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::cgroups::Cgroups;
use super::process;
use super::receiver::{Receiver, Sample};
use super::row::Row;
use crate::child::{self, Child};
use crate::{load, project};

/// Samples before anything counts: schema, key frame, file systems, buffers.
const WARM_UP: usize = 12;
/// What bytes are reckoned for.
const SERIES: f64 = 120.0;

/// An agent and the host it reports to.
pub(super) struct Agent {
    child: Child,
    pub(super) receiver: Receiver,
}

impl Agent {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let socket = dir.join("host.sock");
        fs::remove_file(&socket).ok();
        let receiver = Receiver::listen(&socket)?;
        let mut command = child::command(project::guest()?);
        command.args(["run", "--control", "off", "--interval", "1s", "--connect"]);
        command.arg(format!("unix:{}", socket.display())).arg("--state").arg(dir.join("state"));
        child::log_to(&mut command, &dir.join("agent.log"))?;
        let child = Child::spawn("informant-guest", command)?;
        let agent = Self { child, receiver };
        agent.receiver.wait(WARM_UP, Duration::from_secs(60)).with_context(|| {
            format!("the agent does not report: {}", fs::read_to_string(dir.join("agent.log")).unwrap_or_default())
        })?;
        agent.receiver.forget();
        Ok(agent)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

pub(super) fn memory(bench: &Bench) -> Result<Vec<Row>> {
    let agent = Agent::start(bench.dir())?;
    agent.receiver.wait(if bench.quick { 10 } else { 60 }, Duration::from_secs(120))?;
    let (resident, locked) = (process::memory(agent.pid(), "VmRSS")?, process::memory(agent.pid(), "VmLck")?);
    let exporter = bench.exporter()?;
    let what =
        if locked > 0 { "agent's resident memory, locked, native" } else { "agent's resident memory, NOT locked" };
    Ok(vec![
        Row::at_most(what, kib(resident), 1024.0, |kib| format!("{kib:.0} KiB"))
            .beside(format!("node_exporter {:.1} MiB", kib(exporter.resident_bytes) / 1024.0)),
    ])
}

pub(super) fn idle(bench: &Bench) -> Result<Vec<Row>> {
    let time = Duration::from_secs(if bench.quick { 60 } else { 300 });
    let mut rows = Vec::new();
    for (count, goal) in [(8, 0.1), (64, 0.25)] {
        let cgroups = Cgroups::make(count);
        let agent = Agent::start(bench.dir())?;
        let percent = process::share(agent.pid(), time)? * 100.0;
        let there = match &cgroups {
            Ok(cgroups) => format!("{count} cgroups, controllers: {}", cgroups.controllers()),
            Err(error) => format!("without the {count} cgroups: {error:#}"),
        };
        let what = format!("idle agent over {} s, native, share of a core ({there})", time.as_secs());
        rows.push(
            Row::at_most(what, percent, goal, |percent| format!("{percent:.3} %"))
                .beside(format!("node_exporter scraped once a second: {:.1} %", bench.exporter()?.scrape_ms / 10.0)),
        );
    }
    Ok(rows)
}

pub(super) fn bytes(bench: &Bench) -> Result<Vec<Row>> {
    let agent = Agent::start(bench.dir())?;
    let count = if bench.quick { 30 } else { 130 };
    let patience = Duration::from_secs(60 + count as u64 * 2);
    agent.receiver.wait(count, patience)?;
    let idle = agent.receiver.samples();
    let load = load::start()?;
    agent.receiver.wait(agent.receiver.samples().len() + 5, patience)?;
    agent.receiver.forget();
    agent.receiver.wait(count, patience)?;
    let busy = agent.receiver.samples();
    drop(load);

    let exporter = bench.exporter()?;
    let beside = format!("node_exporter {} B a scrape ({} B with gzip)", exporter.page_bytes, exporter.gzip_bytes);
    let shown = |bytes: f64| format!("{bytes:.1} B");
    let row = |name: &str, samples: &[Sample], goal| {
        let present = samples.last().map_or(0, |sample| sample.present);
        Row::at_most(
            format!("bytes of a 1 Hz sample per 120 series, {name} ({present} series)"),
            per_120(samples, false),
            goal,
            shown,
        )
        .beside(beside.clone())
    };
    let mut rows = vec![row("mean while idle", &idle, 64.0), row("mean under `cargo xtask load`", &busy, 160.0)];
    let keys = per_120(&idle, true).max(per_120(&busy, true));
    if keys > 0.0 {
        rows.push(Row::shown("bytes of a key frame per 120 series (every 60th sample)", shown(keys)));
    }
    Ok(rows)
}

/// Mean bytes of the samples of one kind, each brought to 120 series. Both kinds count in the mean: a key frame is part
/// of what is sent.
fn per_120(samples: &[Sample], keys_only: bool) -> f64 {
    let counted: Vec<f64> = samples
        .iter()
        .filter(|sample| sample.key || !keys_only)
        .map(|sample| sample.bytes as f64 * SERIES / (sample.present.max(1)) as f64)
        .collect();
    if counted.is_empty() { 0.0 } else { counted.iter().sum::<f64>() / counted.len() as f64 }
}

pub(super) fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Files that a group leaves behind on purpose.
pub(super) fn scratch(bench: &Bench, name: &str) -> Result<PathBuf> {
    let dir = bench.dir().join(name);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}
