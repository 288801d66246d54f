//! The size of the agent's file, for both architectures.

use anyhow::Result;

use super::Bench;
use super::agent::kib;
use super::row::{Row, Verdict};
use crate::project::Arch;
use crate::{guest, setup};

pub(super) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    let exporter = bench.exporter()?.program_bytes;
    let mut rows = Vec::new();
    for arch in Arch::ALL {
        let what = format!("agent, static and stripped, {arch}");
        rows.push(if setup::has_target(arch) {
            let size = guest::build(arch)?.size;
            Row::at_most(what, kib(size), kib(guest::LIMIT), |kib| format!("{kib:.0} KiB"))
                .beside(format!("node_exporter {:.1} MiB", kib(exporter) / 1024.0))
                .enforced("`cargo xtask guest`, part of `cargo xtask test`")
        } else {
            Row { verdict: Verdict::Missed, ..Row::shown(what, "not measured: its Rust target is not installed") }
        });
    }
    Ok(rows)
}
