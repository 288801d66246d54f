//! What scaling policies make of the same traces: `host/examples/policies.rs` plays them against the model of a VM that
//! `host/src/scale/policy/replay` is. No clock and no chance: the figures are the same on every machine.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Bench;
use super::row::{Row, Verdict};
use crate::{host, run};

#[derive(Debug, Deserialize)]
struct Played {
    trace: String,
    policy: String,
    oom_kills: u32,
    gib_hours: f64,
    cpu_hours: f64,
    resizes: u32,
    denials: u32,
    memory_wait_s: f64,
    cpu_wait_s: f64,
}

pub(super) fn rows(_: &Bench) -> Result<Vec<Row>> {
    let output = run::read(Command::new(host::build_example("policies")?).arg("--json"))?;
    let played: Vec<Played> = output
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("policies printed `{line}`")))
        .collect::<Result<_>>()?;
    Ok(table(&played))
}

/// Of each trace the published compute unit, which the others are measured by.
fn table(played: &[Played]) -> Vec<Row> {
    let mut rows = Vec::new();
    for base in played.iter().filter(|played| played.policy.ends_with("as published")) {
        rows.push(Row::shown(what(base), figures(base)));
        for other in played.iter().filter(|other| other.trace == base.trace && other.policy != base.policy) {
            let row = Row::shown(what(other), figures(other));
            rows.push(if other.policy == "pressure" {
                let met = other.oom_kills <= base.oom_kills && other.gib_hours < base.gib_hours;
                let goal = format!("<= {} OOM kills, < {:.2} GiB-hours", base.oom_kills, base.gib_hours);
                let verdict = if met { Verdict::Met } else { Verdict::Missed };
                Row { goal, verdict, ..row }.enforced("`pressure_kills_no_more_and_takes_less_than_the_compute_unit`")
            } else {
                row
            });
        }
    }
    rows
}

fn what(played: &Played) -> String {
    format!("scaling policy {} on the replayed trace `{}`", played.policy, played.trace)
}

fn figures(played: &Played) -> String {
    let Played { oom_kills, gib_hours, cpu_hours, resizes, denials, memory_wait_s, cpu_wait_s, .. } = played;
    format!(
        "{oom_kills} OOM kills, {gib_hours:.2} GiB-hours, {cpu_hours:.2} CPU-hours, {resizes} resizes, {denials} denials, \
         waited {memory_wait_s:.0} s for memory and {cpu_wait_s:.0} s for CPUs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_measured_by_the_published_compute_unit() {
        let line = |policy: &str, kills: u32, hours: f64| {
            let text = format!(
                r#"{{"trace":"burst","policy":"{policy}","oom_kills":{kills},"gib_hours":{hours},"cpu_hours":1,
                "resizes":2,"denials":3,"memory_wait_s":4.0,"cpu_wait_s":5.0}}"#
            );
            serde_json::from_str::<Played>(&text).unwrap()
        };
        let base = || line("compute-unit, as published", 1, 3.0);
        let verdicts = |pressure| {
            table(&[base(), line("compute-unit", 0, 4.0), pressure]).iter().map(|row| row.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(line("pressure", 1, 2.0)), [Verdict::Shown, Verdict::Shown, Verdict::Met]);
        assert_eq!(verdicts(line("pressure", 2, 2.0)), [Verdict::Shown, Verdict::Shown, Verdict::Missed]);
        assert_eq!(verdicts(line("pressure", 1, 3.0)), [Verdict::Shown, Verdict::Shown, Verdict::Missed]);
    }
}
