//! `show`: everything that is known about one instance.

use super::client::{Client, ClientError, encode};
use super::escape::escape;
use super::quantity::{age, bytes, count, percent, ratio, seconds};
use super::reading::{Entry, check_schema, is_stale, no_such_api, notice, parse, unknown};
use super::table::{Align, Cell, Style, Table};
use super::{CommandError, Context, folders, ls, metric, now_ms, output, scaling, suggest, words};
use crate::publish::status::{Counters, Group, Guest, State, Status};
use clap::builder::NonEmptyStringValueParser;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Columns of a text from outside: a whole path of most file systems' lengths.
const TEXT_COLUMNS: usize = 160;

/// Show everything that is known about one instance: link, agent, data, size, counters and every metric
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The instance
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Print the instance's status document (the same as its status.json) as it is
    #[arg(long)]
    json: bool,
}

const HELP: &str = concat!(
    "\
Metrics are grouped by what they are about (the VM, a CPU, a disk, ...), with units for people; counters with their
growth a second. What the guest does not have is not listed; it is not zero. `max` is a limit without a bound.
With --json the values are exact, in the unit that the metric's name says.

Without a daemon this comes from the instance's status.json, and a line on standard error says so.

Examples:
  informant-host show web-1
  informant-host show web-1 --json | jq .summary
  informant-host show web-1 --json | jq '.metrics[] | select(.subject == \"disk\")'

",
    super::exit_codes!()
);

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), CommandError> {
    let (text, without_daemon) = document(context, &args.name).await?;
    let what = format!("the status of {}", escape(&args.name, 64));
    let status: Status = parse(&what, text.as_bytes())?;
    check_schema(&what, status.schema)?;
    let now_ms = now_ms();
    if let Some(why) = &without_daemon {
        output::complain(&notice(why, status.written.ms, now_ms));
    }
    if args.json {
        return Ok(output::print_lines(&[output::harmless_json(text.trim_end())])?);
    }
    let stale = is_stale(&status, without_daemon.as_ref(), now_ms);
    let metrics = status.metrics.clone();
    let entry = Entry { status, problem: None, stale };
    Ok(output::print_lines(&lines(&entry, &metrics, now_ms, &context.zone, output::colours()))?)
}

/// The status document's text, and why it does not come from the daemon.
async fn document(context: &Context, name: &str) -> Result<(String, Option<ClientError>), CommandError> {
    let client = Client::new(&context.dir);
    let (text, why) = match client.get(&format!("/v1/instances/{}", encode(name))).await {
        Ok(text) => (text, None),
        Err(error @ ClientError::Refused { .. }) => return Err(error.into()),
        Err(error) => {
            let text = folders::status_text(&context.dir, name)?;
            if text.is_none() && folders::list(&context.dir)?.is_empty() {
                return Err(CommandError::Nothing { dir: context.dir.clone() });
            }
            (text.map(Into::into), Some(error.with_lock(&context.dir)))
        }
    };
    match text {
        Some(text) => {
            let text = String::from_utf8(text.into()).map_err(|_| no_such_api())?;
            Ok((text, why))
        }
        None => {
            let known = folders::list(&context.dir).unwrap_or_default();
            let misnamed = known.iter().find(|folder| folder.is_left_alone() && folder.status.name == name);
            if let Some(cause) = misnamed.and_then(|folder| folder.status.config_error.clone()) {
                return Err(CommandError::Document { what: escape(name, 64), cause });
            }
            let known = known.iter().map(|folder| folder.status.name.as_str());
            Err(unknown(&context.dir, &[&name.to_owned()], suggest::nearest(name, known)))
        }
    }
}

/// The whole report.
fn lines(entry: &Entry, metrics: &[Group], now_ms: u64, zone: &TimeZone, colours: bool) -> Vec<String> {
    let status = &entry.status;
    let (state, style) = words::state(entry, now_ms, zone);
    let mut lines =
        vec![format!("{}  {}", Style::Bold.paint(&escape(&status.name, 64), colours), style.paint(&state, colours))];
    lines.extend(facts(entry, now_ms, zone).lines(colours, None));
    lines.push(String::new());
    lines.push(Style::Bold.paint("counters of the link since the daemon started", colours));
    lines.extend(counters(&status.counters).lines(colours, None));
    // One table for all groups, so that their columns line up; headings go between its lines.
    let mut table = Table::new([("", Align::Left), ("", Align::Right), ("", Align::Right)]);
    for value in metrics.iter().flat_map(|group| &group.values) {
        table.row([
            Cell::new(format!("  {}{}", escape(&value.name, TEXT_COLUMNS), label_set(&value.labels))),
            Cell::new(metric::value(value, now_ms, zone)),
            Cell::new(metric::rate(value)),
        ]);
    }
    let mut rows = table.lines(colours, None).into_iter();
    for group in metrics {
        lines.push(String::new());
        lines.push(heading(group, status, now_ms, colours));
        lines.extend(rows.by_ref().take(group.values.len()));
    }
    lines
}

/// `disk device="vda"  0.4s old, by agent`.
fn heading(group: &Group, status: &Status, now_ms: u64, colours: bool) -> String {
    let old = words::age_now(Some(group.age_ms), status, now_ms).map(age).unwrap_or_default();
    let mut name = escape(&group.subject, TEXT_COLUMNS);
    for (key, value) in &group.labels {
        let _ = write!(name, " {}=\"{}\"", escape(key, TEXT_COLUMNS), escape(value, TEXT_COLUMNS));
    }
    let origin = Style::Dim.paint(&format!("{old} old, by {}", escape(&group.source, TEXT_COLUMNS)), colours);
    format!("{}  {origin}", Style::Bold.paint(&name, colours))
}

fn label_set(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pair =
        |(key, value): (&String, &String)| format!("{}=\"{}\"", escape(key, TEXT_COLUMNS), escape(value, TEXT_COLUMNS));
    format!("{{{}}}", labels.iter().map(pair).collect::<Vec<_>>().join(","))
}

/// What is known apart from counters and metrics: a subject and a sentence a line.
fn facts(entry: &Entry, now_ms: u64, zone: &TimeZone) -> Table<2> {
    let status = &entry.status;
    let mut table = Table::new([("", Align::Left), ("", Align::Left)]);
    let mut fact = |about: &str, text: String| {
        if !text.is_empty() {
            table.row([Cell::new(format!("  {about}")), Cell::new(text)]);
        }
    };
    fact("note", escape(&words::note(entry, now_ms, zone), TEXT_COLUMNS));
    // Without a daemon they are what it saw last.
    let word = |name: &str| if entry.stale { format!("was {name}") } else { name.to_owned() };
    fact("link", state(&status.link, &word(status.link.state.name()), status, now_ms, zone));
    if let Some(transport) = &status.transport {
        let verb = if transport.dial { "dials" } else { "listens" };
        let address = escape(&transport.address, TEXT_COLUMNS);
        let trust = escape(&transport.trust, TEXT_COLUMNS);
        let kind = escape(&transport.kind, TEXT_COLUMNS);
        // A plain socket has no ports.
        let port = if kind == "unix" { String::new() } else { format!(" on port {}", transport.port) };
        fact("", format!("{kind} {address}, {verb}{port}, trusts {trust}"));
    }
    fact("agent", state(&status.agent, &word(status.agent.state.name()), status, now_ms, zone));
    if let Some(guest) = &status.guest {
        for text in guest_facts(guest, now_ms, zone) {
            fact("", text);
        }
    }
    fact("workload", state(&status.workload, &word(status.workload.state.name()), status, now_ms, zone));
    fact("data", state(&status.data, &word(status.data.state.name()), status, now_ms, zone));
    let written = format!("{} ago", age(now_ms.saturating_sub(status.written.ms)));
    fact("status", if status.written.ms == 0 { "never written".to_owned() } else { format!("as of {written}") });
    if !status.labels.is_empty() {
        fact("labels", label_set(&status.labels));
    }
    if let Some(summary) = &status.summary {
        let cpus = summary.cpus.map(|cpus| format!(" of {cpus} CPUs")).unwrap_or_default();
        let load = summary.load1.map(|load| format!(", load {load:.2}")).unwrap_or_default();
        fact("cpu", format!("{}{cpus}{load}", summary.cpu_percent.map_or_else(|| "-".to_owned(), percent)));
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let available = summary.memory_available_bytes.map(|available| bytes(available as f64));
        let available = available.map(|available| format!(", {available} available")).unwrap_or_default();
        fact("memory", format!("{} used{available}", ls::memory(summary)));
        let parts = [
            ("cpu", summary.pressure_cpu_ratio),
            ("memory", summary.pressure_memory_ratio),
            ("I/O", summary.pressure_io_ratio),
        ];
        let parts: Vec<_> =
            parts.iter().filter_map(|(name, part)| part.map(|part| format!("{name} {}", ratio(part)))).collect();
        fact("pressure", if parts.is_empty() { "-".to_owned() } else { parts.join(", ") });
    }
    for (at, text) in scaling::facts(&status.scaling, now_ms, zone).into_iter().enumerate() {
        fact(if at == 0 { "scaling" } else { "" }, text);
    }
    table
}

/// `up since 12:03:04 (3m 02s), last heard of 0.4s ago: why`.
fn state<S>(state: &State<S>, name: &str, status: &Status, now_ms: u64, zone: &TimeZone) -> String {
    let mut text = name.to_owned();
    if let Some(since) = &state.since {
        let _ = write!(text, " since {}", words::since(since.ms, now_ms, zone));
    }
    if let Some(old) = words::age_now(state.age_ms, status, now_ms) {
        let _ = write!(text, ", last heard of {} ago", age(old));
    }
    if let Some(detail) = &state.detail {
        let _ = write!(text, ": {}", escape(detail, TEXT_COLUMNS));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn guest_facts(guest: &Guest, now_ms: u64, zone: &TimeZone) -> Vec<String> {
    let text = |text: &str| escape(text, TEXT_COLUMNS);
    let proven = if guest.proven { "root is proven" } else { "unproven: nothing shows that root speaks" };
    let mut facts = vec![
        format!("version {}, calls itself \"{}\"", text(&guest.version), text(&guest.name)),
        format!("{proven}; protocol {}", guest.protocol),
        format!("boot {}, up {}", text(&guest.boot_id), age(guest.boot_time_us / 1000)),
        format!(
            "session {} since {}; {} open, {} of them unproven",
            text(&guest.session),
            words::since(guest.connected.ms, now_ms, zone),
            guest.sessions,
            guest.sessions_unproven
        ),
    ];
    if guest.clone {
        facts.push("clone: another instance runs from the same memory image".to_owned());
    }
    let own: Vec<_> = [
        guest.interval_ms.map(|ms| format!("samples every {}", seconds(ms as f64 / 1e3))),
        guest.sample_cost_us.map(|us| format!("{} of CPU each", seconds(f64::from(us) / 1e6))),
        guest.loop_lag_us.map(|us| format!("loop at most {} late", seconds(f64::from(us) / 1e6))),
        guest.clock_skew_ms.map(|ms| match ms {
            0 => "its clock agrees".to_owned(),
            _ => {
                let word = if ms < 0 { "behind" } else { "ahead" };
                format!("its clock {} {word}", seconds(ms.unsigned_abs() as f64 / 1e3))
            }
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    facts.push(own.join(", "));
    facts
}

/// The counters in their own words: the field names, which are also those of the JSON.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
fn counters(counters: &Counters) -> Table<2> {
    let mut table = Table::new([("", Align::Left), ("", Align::Right)]);
    if let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(counters) {
        for (name, value) in fields {
            let value = value.as_u64().map(|value| count(value as f64)).unwrap_or_default();
            table.row([Cell::new(format!("  {}", name.replace('_', " "))), Cell::new(value)]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW_MS, ready};
    use super::*;
    use crate::publish::status::Transport;

    #[test]
    fn everything_is_shown_once_and_hostile_names_are_spelled_out() {
        let mut entry = ready("web-1");
        entry.status.transport = Some(Transport {
            kind: "uds".to_owned(),
            address: "/run/web-1.sock".to_owned(),
            port: 5252,
            dial: false,
            trust: "root".to_owned(),
        });
        let guest = entry.status.guest.as_mut().unwrap();
        guest.name = "x\x1b[31m".to_owned();
        (guest.sample_cost_us, guest.clock_skew_ms, guest.boot_time_us) = (Some(812), Some(-3), 190_000_000);
        let metrics = std::mem::take(&mut entry.status.metrics);
        let shown = lines(&entry, &metrics, NOW_MS, &TimeZone::UTC, false);
        let (head, tail) = shown.split_at(shown.iter().position(String::is_empty).unwrap());
        assert_eq!(
            head,
            [
                "web-1  ready",
                "  link      up since 12:00:44 (3m 02s), last heard of 0.4s ago",
                "            uds /run/web-1.sock, listens on port 5252, trusts root",
                "  agent     ready since 12:00:44 (3m 02s)",
                "            version 0.1.0, calls itself \"x\\u{1b}[31m\"",
                "            root is proven; protocol 0",
                "            boot , up 3m 10s",
                "            session  since an unknown time; 0 open, 0 of them unproven",
                "            812 us of CPU each, its clock 3.0 ms behind",
                "  workload  unknown",
                "  data      fresh, last heard of 0.4s ago",
                "  status    as of 0.0s ago",
                "  cpu       12.3 % of 2 CPUs, load 0.42",
                "  memory    412 MiB / 1.9 GiB used, 1.5 GiB available",
                "  pressure  cpu 0.0 %, memory 1.2 %, I/O 50.0 %",
            ]
        );
        let metrics_at = tail.iter().position(|line| line.starts_with("vm")).unwrap();
        assert_eq!(
            tail[metrics_at..],
            [
                "vm  0.4s old, by agent",
                "  node_load1                           0.42",
                "  node_forks_total                   12,345  0.33/s",
                "",
                "cgroup id=\"/a\\u{1b}[2J\\u{202e}b\"  2.4s old, by agent",
                "  container_spec_memory_limit_bytes     max",
            ]
        );
    }
}
