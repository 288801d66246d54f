//! An actuator by hand and for tests against real VMMs: `actuate 'qemu = "/run/vm/qmp.sock"'` takes the table `actuator`
//! of an `instance.toml`, then lines `observe` or `resize MILLI_CPU BYTES`, and prints a JSON line for each.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use informant_host::vmm::{self, Actuator, Reported, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actuate: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Error> {
    let table: toml::Table = std::env::args().nth(1).ok_or("which actuator?")?.parse()?;
    let mut actuator = Actuator::new(&vmm::parse(&table.into())?);
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let result = match words.as_slice() {
            ["observe"] => actuator.observe().await,
            ["resize", cpu, memory] => {
                actuator.resize(Size { cpu: MilliCpu(cpu.parse()?), memory: Bytes(memory.parse()?) }).await
            }
            _ => return Err(format!("`{line}` is neither `observe` nor `resize MILLI_CPU BYTES`").into()),
        };
        println!("{}", shown(&result));
        io::stdout().flush()?;
    }
    Ok(())
}

fn shown(result: &Result<Reported, VmmError>) -> Value {
    let size = |size: Size| json!([size.cpu.0, size.memory.0]);
    match result {
        Ok(Reported { has, wish, can, running }) => json!({
            "has": size(*has), "wish": size(*wish), "running": running, "balloon": can.balloon,
            "min": [can.cpu.min.0, can.memory.min.0], "max": [can.cpu.max.0, can.memory.max.0],
        }),
        Err(error) => json!({ "error": error.kind(), "text": error.to_string() }),
    }
}
