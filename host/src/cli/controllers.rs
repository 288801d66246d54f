//! `controllers`: which hosts have a session with a VM's agent, and which of them decides.

use super::client::{Client, ClientError, encode};
use super::escape::escape;
use super::quantity::age;
use super::reading::{check_schema, parse};
use super::table::{Align, Cell, Style, Table};
use super::{CommandError, Context, output};
use crate::publish::scaling::ControllerList;
use clap::builder::NonEmptyStringValueParser;

/// List the hosts that have a session with a VM's agent, and which one decides about its size
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The instance
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Print the daemon's answer as it is
    #[arg(long)]
    json: bool,
}

const HELP: &str = concat!(
    "\
The list is the agent's own. One controller is current: it decides; the others wait. Observers only read. The epoch
counts how often the agent made one current. The newest controller becomes current when it connects.

Examples:
  informant-host controllers web-1

",
    super::exit_codes!()
);

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), CommandError> {
    let client = Client::new(&context.dir);
    let name = escape(&args.name, 64);
    let answer = client.get(&format!("/v1/instances/{}/controllers", encode(&args.name))).await;
    let answer = match answer {
        Err(ClientError::Refused { text, .. }) => return Err(CommandError::Document { what: name, cause: text }),
        other => other.map_err(|error| error.with_lock(&context.dir))?,
    };
    let Some(answer) = answer else { return Err(CommandError::Unknown { names: vec![name], suggestion: None }) };
    let what = format!("the controllers of {name}");
    let list: ControllerList = parse(&what, &answer)?;
    check_schema(&what, list.schema)?;
    if args.json {
        return Ok(output::print_lines(&[output::harmless_json(String::from_utf8_lossy(&answer).trim_end())])?);
    }
    let mut table = Table::new([
        ("ROLE", Align::Left),
        ("NAME", Align::Left),
        ("EPOCH", Align::Right),
        ("HEARD", Align::Right),
        ("ID", Align::Left),
    ]);
    for controller in &list.controllers {
        let role = if controller.current { "current".to_owned() } else { escape(&controller.role, 20) };
        let style = if controller.current { Style::Good } else { Style::Plain };
        let epoch = if controller.epoch == 0 { "-".to_owned() } else { controller.epoch.to_string() };
        table.row([
            Cell::new(role).style(style),
            Cell::new(escape(&controller.name, 64)),
            Cell::new(epoch),
            Cell::new(format!("{} ago", age(controller.heard_ms))),
            Cell::new(escape(&controller.id, 32)),
        ]);
    }
    Ok(output::print_lines(&table.lines(output::colours(), None))?)
}
