//! What one sample costs beside the bare reads under it: `guest/examples/sample_cost.rs` does the work.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Bench;
use super::row::Row;
use crate::{guest, run};

/// The example's line.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cost {
    pub(super) sample_us: f64,
    pub(super) bare_us: f64,
    pub(super) ratio: f64,
    preads: f64,
    opens: f64,
    files: u64,
    series: u64,
}

impl Cost {
    pub(super) fn parse(output: &str) -> Result<Self> {
        serde_json::from_str(output.trim()).with_context(|| format!("sample_cost printed `{}`", output.trim()))
    }

    pub(super) fn row(&self, place: &str) -> Row {
        let Self { sample_us, bare_us, preads, opens, files, series, .. } = self;
        Row::at_most(
            format!("CPU of a full sample (collect, parse, encode; {series} series of {files} files), {place}"),
            self.ratio,
            1.25,
            |ratio| format!("{ratio:.2} x"),
        )
        .beside(format!(
            "the same {preads:.0} preads alone: {bare_us:.0} us, a sample {sample_us:.0} us with {opens:.1} opens"
        ))
    }
}

pub(super) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    let cost = Cost::parse(&run::read(&mut Command::new(guest::build_example("sample_cost")?))?)?;
    let scrape = bench.exporter()?.scrape_ms;
    Ok(vec![
        cost.row("native"),
        Row::shown("CPU of a full sample, native", format!("{:.2} ms", cost.sample_us / 1000.0))
            .beside(format!("node_exporter {scrape:.1} ms a scrape, {:.0} x", scrape * 1000.0 / cost.sample_us)),
    ])
}
