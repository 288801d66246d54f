//! `ls`: a line an instance.

use super::escape::escape;
use super::quantity::{age, bytes, percent};
use super::reading::{Entry, Reading};
use super::table::{Align, Cell, Style, Table};
use super::{CommandError, Context, output, words};
use crate::publish::status::{Data, Guest, Summary};
use jiff::tz::TimeZone;

/// Columns of a version: `1.2.3-alpha.1+0123abc` fits.
const VERSION_COLUMNS: usize = 24;
/// Columns of a note: an error with a path in it.
const NOTE_COLUMNS: usize = 160;

/// List instances: state, agent, CPU, memory, pressure and the age of that data
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only these instances; it is an error when one of them does not exist
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print one JSON array with the status documents of `show --json`, without their metrics, an instance a line
    #[arg(long)]
    json: bool,
}

const HELP: &str = concat!(
    "\
Columns:
  STATE     ready: the agent reports. starting: it has a session and has sent no sample yet. listening: no guest has
            connected. waiting: for the VMM's socket. silent since: nothing arrived for 15 s (the VM may be paused).
            down since: the session ended. stopped since: the agent said that it stops. config error: see NOTE.
            stale, was ...: the daemon is gone and this is what it wrote last
  AGENT     the agent's version; (unproven): nothing proves that root in the guest speaks;
            (clone): another instance runs from the same memory image
  CPU       busy share of all CPUs
  MEMORY    used / total; used is what is not available
  PRESSURE  share of the last 10 s in which something waited for CPU / memory / I/O (PSI some avg10)
  AGE       of the newest sample
  -         the guest does not have this value; it is not zero

Without a daemon the table comes from the folders, and a line on standard error says so.

Examples:
  informant-host ls
  informant-host ls web-1 web-2
  informant-host ls --json | jq -r '.[] | select(.link.state == \"silent\") | .name'

",
    super::exit_codes!()
);

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), CommandError> {
    let mut reading = Reading::take(context).await?;
    if let Some(notice) = reading.fallback_notice() {
        output::complain(&notice);
    }
    reading.only(&args.names)?;
    if args.json {
        return Ok(output::print_lines(&json(&reading.entries)?)?);
    }
    if reading.entries.is_empty() {
        output::complain(&format!(
            "no instances yet in {} (make a folder with an instance.toml there)",
            context.dir.display()
        ));
        return Ok(());
    }
    let table = table(&reading.entries, reading.now_ms, &context.zone);
    Ok(output::print_lines(&table.lines(output::colours(), None))?)
}

/// One array; an element a line, for `grep` and for people.
fn json(entries: &[Entry]) -> Result<Vec<String>, CommandError> {
    let mut lines = vec!["[".to_owned()];
    for (index, entry) in entries.iter().enumerate() {
        let text = serde_json::to_string(&entry.status)
            .map_err(|error| CommandError::Document { what: entry.status.name.clone(), cause: error.to_string() })?;
        let comma = if index + 1 < entries.len() { "," } else { "" };
        lines.push(format!("{}{comma}", output::harmless_json(&text)));
    }
    lines.push("]".to_owned());
    Ok(lines)
}

/// The table of `entries` as they look at `now_ms`.
#[must_use]
pub(super) fn table(entries: &[Entry], now_ms: u64, zone: &TimeZone) -> Table<8> {
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("AGENT", Align::Left),
        ("CPU", Align::Right),
        ("MEMORY", Align::Right),
        ("PRESSURE", Align::Right),
        ("AGE", Align::Right),
        ("NOTE", Align::Left),
    ]);
    for entry in entries {
        let status = &entry.status;
        let (state, state_style) = words::state(entry, now_ms, zone);
        // Numbers of a guest that is not there any more are not the present.
        let fresh = !entry.stale && status.data.state == Data::Fresh;
        let style = if fresh { Style::Plain } else { Style::Dim };
        let summary = status.summary.clone().unwrap_or_default();
        table.row([
            Cell::foreign(&status.name, 64),
            Cell::new(state).style(state_style),
            agent(status.guest.as_ref()),
            Cell::new(summary.cpu_percent.map_or_else(absent, percent)).style(style),
            Cell::new(memory(&summary)).style(style),
            Cell::new(pressure(&summary)).style(style),
            Cell::new(words::age_now(status.data.age_ms, status, now_ms).map_or_else(absent, age)).style(style),
            Cell::foreign(&words::note(entry, now_ms, zone), NOTE_COLUMNS),
        ]);
    }
    table
}

fn absent() -> String {
    "-".to_owned()
}

fn agent(guest: Option<&Guest>) -> Cell {
    let Some(guest) = guest else { return Cell::new("-").style(Style::Dim) };
    // Versions are ASCII; letters that a terminal writes from the right would reorder the numbers behind them.
    let ascii: String = guest.version.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect();
    let mut text = escape(&ascii, VERSION_COLUMNS);
    if text.is_empty() {
        text.push('?');
    }
    for (set, mark) in [(!guest.proven, " (unproven)"), (guest.clone, " (clone)")] {
        if set {
            text.push_str(mark);
        }
    }
    Cell::new(text).style(if guest.proven && !guest.clone { Style::Plain } else { Style::Warning })
}

/// `412 MiB / 1.9 GiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn memory(summary: &Summary) -> String {
    let part = |value: Option<u64>| value.map_or_else(absent, |value| bytes(value as f64));
    match (summary.memory_used_bytes, summary.memory_total_bytes) {
        (None, None) => absent(),
        (used, total) => format!("{} / {}", part(used), part(total)),
    }
}

/// CPU, memory, I/O: `0.0 / 1.2 / 0.3 %`.
pub(super) fn pressure(summary: &Summary) -> String {
    let parts = [summary.pressure_cpu_ratio, summary.pressure_memory_ratio, summary.pressure_io_ratio];
    if parts.iter().all(Option::is_none) {
        return absent();
    }
    let shown = parts.map(|part| part.map_or_else(absent, |ratio| format!("{:.1}", ratio * 100.0)));
    format!("{} %", shown.join(" / "))
}
