//! `ls`: a line an instance.

use super::escape::{escape, width};
use super::quantity::{age, bytes, percent};
use super::reading::{Entry, Reading};
use super::table::{Align, Cell, Style, Table};
use super::{CommandError, Context, output, words};
use crate::publish::status::{Data, Status, Summary};
use jiff::tz::TimeZone;
use std::io::IsTerminal;

/// Columns of a version: `1.2.3-alpha.1+0123abc` fits.
const VERSION_COLUMNS: usize = 24;
/// Before a note in a line of its own.
const INDENT: &str = "  ";
/// Columns of a note on a terminal: an error with a path in it.
const NOTE_COLUMNS: usize = 160;
/// Columns of a note for a program: the longest path in the longest error.
const WHOLE_NOTE_COLUMNS: usize = 16 * 1024;

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
    reading.only(&context.dir, &args.names)?;
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
    let (entries, now_ms, colours) = (&reading.entries, reading.now_ms, output::colours());
    let lines = match output::terminal_size().filter(|_| std::io::stdout().is_terminal()) {
        Some((columns, _)) => lines(entries, now_ms, &context.zone, colours, columns),
        None => table(entries, now_ms, &context.zone, WHOLE_NOTE_COLUMNS, LeftOut::Nothing).lines(colours, None),
    };
    Ok(output::print_lines(&lines)?)
}

/// What a table is without, where a terminal is too narrow for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LeftOut {
    Nothing,
    /// Notes are in lines of their own.
    Notes,
    Pressure,
    Agent,
}

/// The table of `entries` as they look at `now_ms`, for a terminal: as much of it as fits, and every note.
#[must_use]
pub(super) fn lines(entries: &[Entry], now_ms: u64, zone: &TimeZone, colours: bool, columns: usize) -> Vec<String> {
    let without = |left| (left, table(entries, now_ms, zone, NOTE_COLUMNS, left));
    let fits = |table: &Table<8>| table.lines(false, None).iter().all(|line| width(line) <= columns);
    let mut wider = [LeftOut::Nothing, LeftOut::Notes, LeftOut::Pressure].into_iter().map(without);
    let (left, table) = wider.find(|(_, table)| fits(table)).unwrap_or_else(|| without(LeftOut::Agent));
    let mut rows = table.lines(colours, Some(columns)).into_iter();
    let mut lines: Vec<String> = rows.next().into_iter().collect();
    for (row, entry) in rows.zip(entries) {
        lines.push(row);
        let note = words::note(entry, now_ms, zone);
        if left > LeftOut::Nothing && !note.is_empty() && columns > INDENT.len() {
            let note = escape(&note, columns - INDENT.len());
            lines.push(Style::Dim.paint(&format!("{INDENT}{note}"), colours));
        }
    }
    lines
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

fn table(entries: &[Entry], now_ms: u64, zone: &TimeZone, note_columns: usize, left: LeftOut) -> Table<8> {
    let unless = |without: LeftOut, title: &'static str| if left >= without { "" } else { title };
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        (unless(LeftOut::Agent, "AGENT"), Align::Left),
        ("CPU", Align::Right),
        ("MEMORY", Align::Right),
        (unless(LeftOut::Pressure, "PRESSURE"), Align::Right),
        ("AGE", Align::Right),
        (unless(LeftOut::Notes, "NOTE"), Align::Left),
    ]);
    for entry in entries {
        let status = &entry.status;
        let (state, state_style) = words::state(entry, now_ms, zone);
        // Numbers of a guest that is not there any more are not the present.
        let fresh = !entry.stale && status.data.state == Data::Fresh;
        let style = if fresh { Style::Plain } else { Style::Dim };
        // Without values there is nothing that could have an age: it would be an earlier session's.
        let data_age_ms = status.data.age_ms.filter(|_| status.summary.is_some());
        let summary = status.summary.clone().unwrap_or_default();
        table.row([
            Cell::foreign(&status.name, 64),
            Cell::new(state).style(state_style),
            if left >= LeftOut::Agent { Cell::default() } else { agent(status) },
            Cell::new(summary.cpu_percent.map_or_else(absent, percent)).style(style),
            Cell::new(memory(&summary)).style(style),
            if left >= LeftOut::Pressure { Cell::default() } else { Cell::new(pressure(&summary)).style(style) },
            Cell::new(words::age_now(data_age_ms, status, now_ms).map_or_else(absent, age)).style(style),
            if left >= LeftOut::Notes {
                Cell::default()
            } else {
                Cell::foreign(&words::note(entry, now_ms, zone), note_columns)
            },
        ]);
    }
    table
}

fn absent() -> String {
    "-".to_owned()
}

fn agent(status: &Status) -> Cell {
    let Some(guest) = &status.guest else { return Cell::new("-").style(Style::Dim) };
    let mut text = escape(&guest.version, VERSION_COLUMNS);
    if text.is_empty() {
        text.push('?');
    }
    for (set, mark) in [(!guest.proven, " (unproven)"), (guest.clone, " (clone)")] {
        if set {
            text.push_str(mark);
        }
    }
    // Who trusts any guest has asked for it.
    let trusted = guest.proven || status.transport.as_ref().is_some_and(|transport| transport.trust == "any");
    Cell::new(text).style(if trusted && !guest.clone { Style::Plain } else { Style::Warning })
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

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW_MS, ago, listening, ready, silent};
    use super::*;
    use crate::publish::status::{Agent, Link};

    fn shown(entries: &[Entry]) -> Vec<String> {
        table(entries, NOW_MS, &TimeZone::UTC, NOTE_COLUMNS, LeftOut::Nothing).lines(false, None)
    }

    #[test]
    fn a_narrow_terminal_has_notes_in_lines_of_their_own_and_fewer_columns() {
        let mut broken = listening("broken");
        broken.status.link.state = Link::Off;
        broken.status.config_error = Some("unknown key `uid` (did you mean `uds`?)".to_owned());
        let entries = [broken, ready("web-1")];
        let at = |columns| lines(&entries, NOW_MS, &TimeZone::UTC, false, columns);
        assert_eq!(at(200), shown(&entries));
        assert_eq!(
            at(80),
            [
                "NAME    STATE         AGENT     CPU             MEMORY            PRESSURE   AGE",
                "broken  config error  -           -                  -                   -     -",
                "  unknown key `uid` (did you mean `uds`?)",
                "web-1   ready         0.1.0  12.3 %  412 MiB / 1.9 GiB  0.0 / 1.2 / 50.0 %  0.4s",
            ]
        );
        assert_eq!(
            at(66),
            [
                "NAME    STATE         AGENT     CPU             MEMORY     AGE",
                "broken  config error  -           -                  -       -",
                "  unknown key `uid` (did you mean `uds`?)",
                "web-1   ready         0.1.0  12.3 %  412 MiB / 1.9 GiB    0.4s",
            ]
        );
        for columns in 0..100 {
            assert!(at(columns).iter().all(|line| width(line) <= columns), "{columns}");
        }
    }

    #[test]
    fn every_state_has_its_line() {
        let mut broken = listening("broken");
        broken.status.link.state = Link::Off;
        broken.status.config_error = Some("instance.toml: unknown key `uid` (did you mean `uds`?)".to_owned());
        let mut stopped = ready("stopped");
        stopped.status.link.state = Link::Down;
        stopped.status.link.since = Some(ago(3700));
        stopped.status.agent.state = Agent::Stopped;
        stopped.status.data.age_ms = Some(3_700_000);
        let mut left = ready("left");
        left.stale = true;
        left.status.written = ago(300);
        let unseen = Entry { problem: Some("no daemon has seen it yet".to_owned()), ..listening("unseen") };
        let mut unproven = ready("unproven");
        unproven.status.guest.as_mut().unwrap().proven = false;
        unproven.status.summary.as_mut().unwrap().pressure_io_ratio = None;
        assert_eq!(
            shown(&[broken, left, listening("new"), silent("slept", 42), stopped, unproven, unseen, ready("web-1")]),
            [
                "NAME      STATE                            AGENT                CPU             MEMORY            PRESSURE     AGE  NOTE",
                "broken    config error                     -                      -                  -                   -       -  instance.toml: unknown key `uid` (did you mean `uds`?)",
                "left      stale, was ready                 0.1.0             12.3 %  412 MiB / 1.9 GiB  0.0 / 1.2 / 50.0 %  5m 00s  written 11:58:46 (5m 00s), no daemon since",
                "new       listening                        -                      -                  -                   -       -",
                "slept     silent since 12:03:04 (42s)      0.1.0             12.3 %  412 MiB / 1.9 GiB  0.0 / 1.2 / 50.0 %     42s",
                "stopped   stopped since 11:02:06 (1h 01m)  0.1.0             12.3 %  412 MiB / 1.9 GiB  0.0 / 1.2 / 50.0 %  1h 01m",
                "unproven  ready                            0.1.0 (unproven)  12.3 %  412 MiB / 1.9 GiB     0.0 / 1.2 / - %    0.4s",
                "unseen    unknown                          -                      -                  -                   -       -  no daemon has seen it yet",
                "web-1     ready                            0.1.0             12.3 %  412 MiB / 1.9 GiB  0.0 / 1.2 / 50.0 %    0.4s",
            ]
        );
    }

    #[test]
    fn a_session_without_a_sample_has_no_age_of_the_one_before() {
        let mut down = silent("vm", 42);
        down.status.summary = None;
        assert!(shown(&[down])[1].ends_with("  -"));
    }

    #[test]
    fn a_program_gets_the_whole_note() {
        let mut broken = listening("vm");
        broken.status.config_error = Some("x".repeat(500));
        let whole = table(&[broken], NOW_MS, &TimeZone::UTC, WHOLE_NOTE_COLUMNS, LeftOut::Nothing).lines(false, None);
        assert!(whole[1].ends_with(&"x".repeat(500)), "{whole:?}");
    }

    #[test]
    fn ages_go_on_after_the_status_was_written() {
        let entries = [silent("vm", 42), ready("web")];
        let later = lines(&entries, NOW_MS + 60_000, &TimeZone::UTC, false, 200);
        assert!(later[1].contains("silent since 12:03:04 (1m 42s)") && later[1].ends_with("  1m 42s"), "{later:?}");
        assert!(later[2].ends_with("  1m 00s"), "{later:?}");
    }

    #[test]
    fn hostile_strings_neither_escape_nor_bend_the_table() {
        let mut evil = ready("evil");
        let guest = evil.status.guest.as_mut().unwrap();
        guest.version = format!("\x1b[2J\u{202e}\u{5d0}{}", "9".repeat(300));
        guest.clone = true;
        evil.status.agent.detail = Some(format!("\x1b]0;owned\x07\r\n{}", "漢".repeat(300)));
        let lines = shown(&[evil, ready("web-1")]);
        assert!(lines.iter().all(|line| !line.chars().any(char::is_control)), "{lines:?}");
        assert!(lines[1].contains(r"  \u{1b}[2J\u{202e}… (clone)  "), "{lines:?}");
        // Everything before the note, which is last, is as wide as in the other lines.
        let cpu_at = |line: &str| width(line.split("12.3 %").next().unwrap());
        assert_eq!(cpu_at(&lines[1]), cpu_at(&lines[2]));
        assert!(width(&lines[1]) < width(&lines[2]) + 2 + NOTE_COLUMNS + 1, "{lines:?}");
    }

    #[test]
    fn json_is_one_array_with_a_line_an_instance() {
        let lines = json(&[ready("a"), silent("b", 20)]).unwrap();
        assert_eq!(lines.len(), 4);
        let parsed: Vec<serde_json::Value> = serde_json::from_str(&lines.join("\n")).unwrap();
        assert_eq!((&parsed[0]["name"], &parsed[1]["link"]["state"]), (&"a".into(), &"silent".into()));
        assert_eq!(json(&[]).unwrap(), ["[", "]"]);
    }
}
