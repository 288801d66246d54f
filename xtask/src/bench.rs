//! `cargo xtask bench`: every figure of the design that exists by now, measured side by side in one run.
//!
//! CPU times and counts, not wall time, wherever the figure allows it: a busy machine disturbs them little. Nothing here
//! is asserted; `cargo xtask test` holds what can be held without a clock.

mod agent;
mod ages;
mod bare;
mod cgroups;
mod cost;
mod exporter;
mod in_vm;
mod ingest;
mod legs;
mod policies;
mod process;
mod receiver;
mod report;
mod row;
mod scale;
mod size;

use std::cell::OnceCell;
use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use lexopt::{Arg, Parser};
use tempfile::TempDir;

use crate::{guest, host, project, run, setup};
use exporter::Exporter;
use project::Arch;
use row::Row;

/// For `cargo xtask bench --help`.
pub const HELP: &str = "\
  --quick                 short times and 1,000 instances; writes target/BENCHMARKS-quick.md instead of BENCHMARKS.md
  NAME...                 only these, and write nothing: size memory sample idle bytes vm legs ingest scale policies
";

struct Group {
    name: &'static str,
    what: &'static str,
    run: fn(&Bench) -> Result<Vec<Row>>,
}

const GROUPS: &[Group] = &[
    Group { name: "size", what: "size of the agent's file", run: size::rows },
    Group { name: "memory", what: "memory of the agent", run: agent::memory },
    Group { name: "sample", what: "cost of a sample beside bare reads", run: cost::rows },
    Group { name: "idle", what: "CPU of an idle agent", run: agent::idle },
    Group { name: "bytes", what: "bytes of a sample", run: agent::bytes },
    Group { name: "vm", what: "the agent in a real VM", run: in_vm::rows },
    Group { name: "legs", what: "from a need to memory that is online", run: legs::rows },
    Group { name: "ingest", what: "decode and store on one core", run: ingest::rows },
    Group { name: "scale", what: "the daemon with thousands of instances", run: scale::rows },
    Group { name: "policies", what: "scaling policies on replayed traces", run: policies::rows },
];

/// What all groups share in one run.
struct Bench {
    quick: bool,
    dir: TempDir,
    exporter: OnceCell<Exporter>,
}

impl Bench {
    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// node_exporter's figures, taken once.
    fn exporter(&self) -> Result<&Exporter> {
        if self.exporter.get().is_none() {
            let step = run::Step::new("measuring node_exporter");
            self.exporter.set(exporter::measure(self.dir())?).ok();
            step.done("measured");
        }
        self.exporter.get().context("node_exporter was measured")
    }
}

/// Runs what is asked for, prints the table, and writes the document after a whole run.
pub fn run(mut args: Parser) -> Result<()> {
    let (mut quick, mut names) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("quick") => quick = true,
            Arg::Value(name) => names.push(name.to_string_lossy().into_owned()),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if let Some(unknown) = names.iter().find(|name| GROUPS.iter().all(|group| group.name != **name)) {
        bail!("no benchmark `{unknown}`; `cargo xtask bench --help` lists them");
    }
    setup::all()?;
    // Programs that somebody names in the environment are measured as they are.
    if env::var_os("INFORMANT_GUEST").is_none() {
        guest::build(Arch::X86_64)?;
    }
    if env::var_os("INFORMANT_HOST").is_none() {
        host::build()?;
    }
    // A short path: unix sockets lie in it.
    let dir = tempfile::Builder::new().prefix("ib-").tempdir()?;
    let bench = Bench { quick, dir, exporter: OnceCell::new() };

    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for group in GROUPS.iter().filter(|group| names.is_empty() || names.iter().any(|name| name == group.name)) {
        let step = run::Step::new(format!("bench {}: {}", group.name, group.what));
        match (group.run)(&bench) {
            Ok(measured) => {
                step.done("done");
                print!("{}", report::table(&measured));
                rows.extend(measured);
            }
            Err(error) => {
                step.done("failed");
                eprintln!("error: {}: {error:#}", group.name);
                failures.push((group.name, format!("{error:#}")));
            }
        }
    }
    if names.is_empty() {
        let (place, command) = if quick {
            (project::target().join("BENCHMARKS-quick.md"), "cargo xtask bench --quick")
        } else {
            (project::root().join("BENCHMARKS.md"), "cargo xtask bench")
        };
        fs::write(&place, report::document(command, &rows, &failures))
            .with_context(|| format!("cannot write {}", place.display()))?;
        println!("written: {}", project::shown(&place));
    }
    if let [(first, _), ..] = failures.as_slice() {
        bail!("{} of the benchmarks could not be measured; the first is `{first}`", failures.len());
    }
    Ok(())
}
