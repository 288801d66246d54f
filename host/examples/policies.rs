//! What each policy makes of the committed traces, in the model of `policy::replay`. Only for benchmarks
//! (`cargo xtask bench`) and people: prints a table, or JSON lines with `--json`; with `traces` writes the traces anew.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use informant_host::scale::policy::replay::{self, trace};
use informant_host::scale::policy::{ComputeUnit, Policy, Pressure, Rules};
use informant_wire::size::MilliCpu;

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let done = match std::env::args().nth(1).as_deref() {
        None => compare(&traces, false),
        Some("--json") => compare(&traces, true),
        Some("traces") => write(&traces),
        Some(_) => Err("usage: policies [--json | traces]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(traces: &Path) -> Result<(), Error> {
    for name in trace::NAMES {
        fs::write(traces.join(name).with_extension("csv"), trace::generate(name).ok_or("no such trace")?)?;
    }
    Ok(())
}

fn compare(traces: &Path, json: bool) -> Result<(), Error> {
    let published = ComputeUnit::published();
    // As published, but for whole CPUs: the model has no others.
    let rules = Rules { cpu_step: MilliCpu::from_cpus(1), ..published.rules };
    let policies = [
        ("compute-unit, as published", Policy::ComputeUnit(ComputeUnit { rules, ..published })),
        ("compute-unit", Policy::default()),
        ("pressure", Policy::Pressure(Pressure::default())),
    ];
    if !json {
        println!(
            "{:<12}{:<28}{:>10}{:>12}{:>12}{:>9}{:>9}{:>14}{:>12}",
            "trace",
            "policy",
            "OOM kills",
            "GiB-hours",
            "CPU-hours",
            "resizes",
            "denials",
            "memory wait s",
            "CPU wait s"
        );
    }
    for name in trace::NAMES {
        let seconds = trace::parse(&fs::read_to_string(traces.join(name).with_extension("csv"))?)?;
        for (policy, rules) in &policies {
            let replay::Outcome { oom_kills, gib_hours, cpu_hours, resizes, denials, memory_wait_s, cpu_wait_s } =
                replay::play(rules, &seconds);
            if json {
                println!(
                    "{{\"trace\":\"{name}\",\"policy\":\"{policy}\",\"oom_kills\":{oom_kills},\
                     \"gib_hours\":{gib_hours:.3},\"cpu_hours\":{cpu_hours:.3},\"resizes\":{resizes},\
                     \"denials\":{denials},\"memory_wait_s\":{memory_wait_s:.1},\"cpu_wait_s\":{cpu_wait_s:.1}}}"
                );
            } else {
                println!(
                    "{name:<12}{policy:<28}{oom_kills:>10}{gib_hours:>12.2}{cpu_hours:>12.2}{resizes:>9}{denials:>9}\
                     {memory_wait_s:>14.0}{cpu_wait_s:>12.0}"
                );
            }
        }
    }
    Ok(())
}
