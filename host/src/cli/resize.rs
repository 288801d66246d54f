//! `resize`: another size for a VM, by the same way as the policy's decisions, each step printed.

use super::client::{Client, ClientError, encode};
use super::escape::escape;
use super::reading::parse;
use super::{CommandError, Context, output};
use crate::publish::scaling::{ResizeRequest, ResizeStep};
use crate::quantity::{parse_bytes, parse_cpu};
use clap::ArgGroup;
use clap::builder::NonEmptyStringValueParser;
use informant_wire::size::{Bytes, MilliCpu};
use std::time::Duration;

/// Columns of a step: the guest's own words may be in it.
const STEP_COLUMNS: usize = 300;
/// Longest time between two steps: the daemon gives up after 90 s.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// Give a VM another number of CPUs or another amount of memory, and print each step on the way
#[derive(Debug, clap::Args)]
#[command(after_help = HELP, group(ArgGroup::new("size").args(["cpu", "memory"]).required(true).multiple(true)))]
pub struct Args {
    /// The instance
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// CPUs: a number, or thousandths with an m (2, 1.5, 500m); rounded up to what the VMM can do
    #[arg(long, value_name = "CPUS", value_parser = parse_cpu)]
    cpu: Option<MilliCpu>,
    /// Memory in all: 2GiB, 1536MiB; rounded up to the VMM's blocks
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<Bytes>,
    /// Whatever the guest says, without one, and beyond the bounds of the instance: it may lose what runs in it
    #[arg(long)]
    force: bool,
}

const HELP: &str = concat!(
    "\
To more: the VMM is told, then the guest, which brings it online. To less: the guest is asked first, and may refuse;
with --force it is told, and has 5 s to answer. It is done when VMM and guest both have it.

Where a policy decides too, it leaves the size for 5 minutes to this; what the guest demands is given meanwhile.

Examples:
  informant-host resize web-1 --memory 4GiB
  informant-host resize web-1 --cpu 2 --memory 1536MiB
  informant-host resize web-1 --memory 1GiB --force

",
    super::exit_codes!()
);

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), CommandError> {
    let request = ResizeRequest {
        cpu_milli: args.cpu.map(|cpu| cpu.0),
        memory_bytes: args.memory.map(|memory| memory.0),
        force: args.force,
    };
    let name = escape(&args.name, 64);
    let body = serde_json::to_string(&request).map_err(std::io::Error::from)?;
    let client = Client::new(&context.dir);
    let lines = client.post(&format!("/v1/instances/{}/resize", encode(&args.name)), body).await;
    let lines = match lines {
        Err(ClientError::Refused { text, .. }) => return Err(CommandError::NotResized { name, why: text }),
        other => other.map_err(|error| error.with_lock(&context.dir))?,
    };
    let Some(mut lines) = lines else {
        return Err(CommandError::Unknown { names: vec![name], suggestion: None });
    };
    loop {
        let line = tokio::time::timeout(STEP_DEADLINE, lines.next()).await;
        let Ok(Some(line)) = line.unwrap_or(Ok(None)) else { return Err(client.ended().into()) };
        let step: ResizeStep = parse("the answer of the daemon", &line)?;
        #[expect(clippy::cast_precision_loss, reason = "a decimal is shown")]
        let after = step.after_ms as f64 / 1000.0;
        let text = escape(&step.step, STEP_COLUMNS);
        match step.done {
            None => output::print_lines(&[format!("{after:6.1} s  {text}")])?,
            Some(true) => return Ok(output::print_lines(&[format!("{after:6.1} s  done: {text}")])?),
            Some(false) => return Err(CommandError::NotResized { name, why: text }),
        }
    }
}
