//! What one core decodes and stores: `host/examples/ingest.rs` runs real frames through the daemon's session and model.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Bench;
use super::row::Row;
use crate::{host, run};

#[derive(Debug, Deserialize)]
struct Ingest {
    samples_per_second: f64,
    series: u64,
    bytes: f64,
}

pub(super) fn rows(_: &Bench) -> Result<Vec<Row>> {
    let output = run::read(&mut Command::new(host::build_example("ingest")?))?;
    let ingest: Ingest =
        serde_json::from_str(output.trim()).with_context(|| format!("ingest printed `{}`", output.trim()))?;
    let what = format!("decode and store on one core, samples of {} series and {:.0} B", ingest.series, ingest.bytes);
    Ok(vec![Row::at_least(what, ingest.samples_per_second, 300_000.0, |rate| format!("{rate:.0}/s"))])
}
