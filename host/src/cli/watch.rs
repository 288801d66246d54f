//! `watch`: the table of `ls`, drawn again each second; or the changes as JSON lines.

use super::escape::escape;
use super::feed::{self, Update};
use super::quantity::clock;
use super::reading::{Entry, Reading};
use super::screen::Screen;
use super::table::Style;
use super::{CommandError, Context, ls, now_ms, output, words};
use crate::publish::status::{EventLine, Status, WatchLine};
use jiff::tz::TimeZone;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal as _};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Between two pictures.
const REDRAW: Duration = Duration::from_secs(1);
/// Events shown below the table.
const RECENT_EVENTS: usize = 5;
/// Columns of an event's text, where the terminal has them.
const EVENT_COLUMNS: usize = 200;

/// Watch instances live: the table of `ls` each second, or the changes as JSON lines
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only these instances; it is an error when one of them does not exist at the start
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON lines, also on a terminal
    #[arg(long)]
    json: bool,
    /// End after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

const HELP: &str = concat!(
    "\
On a terminal the table of `ls` is drawn again each second, with the newest events below it. Ctrl-C ends it.

Elsewhere, and with --json, every change is one line of JSON as soon as it is known:
  {\"type\":\"status\",\"status\":{...}}                 an instance, as in `ls --json`: all of them first, then whenever
                                                   one changes, at most once a second each unless a state changes
  {\"type\":\"event\",\"instance\":NAME,\"event\":{...}}   something happened
  {\"type\":\"removed\",\"name\":NAME}                   its folder is gone
  {\"type\":\"lost\",\"count\":N}                        this reader was too slow: so many lines were left out
  {\"type\":\"stopping\"}                              the daemon ends

While there is no daemon the statuses come from the folders, a line on standard error says so, and the daemon is asked
again each second.

Examples:
  informant-host watch
  informant-host watch web-1
  informant-host watch --json | jq -c 'select(.type == \"event\")'

",
    super::exit_codes!()
);

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), CommandError> {
    let mut first = Reading::take(context).await?;
    first.only(&context.dir, &args.names)?;
    let updates = feed::open(context, &args.names);
    let end = end(args.seconds)?;
    let watch = async {
        if args.json || !io::stdout().is_terminal() {
            print_changes(&args.names, updates).await
        } else {
            draw(context, &args.names, first, updates).await
        }
    };
    tokio::select! {
        () = end => Ok(()),
        result = watch => result,
    }
}

/// Completes at the first signal to end, or after `seconds`.
fn end(seconds: Option<u64>) -> Result<impl Future<Output = ()>, CommandError> {
    let listen = |kind| signal(kind).map_err(CommandError::Runtime);
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let timer = async move {
        match seconds {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            () = timer => {}
        }
    })
}

/// JSON lines, until the feed fails or nobody reads them.
async fn print_changes(names: &[String], mut updates: Receiver<Update>) -> Result<(), CommandError> {
    // Writes happen on another thread: a reader that does not read must not keep a signal from ending this.
    let mut out = tokio::io::stdout();
    let mut changes = FolderChanges::default();
    while let Some(update) = updates.recv().await {
        let lines = match update {
            Update::Connected => {
                changes = FolderChanges::default();
                continue;
            }
            Update::Line(line) => vec![String::from_utf8_lossy(&line).into_owned()],
            Update::Folders(reading) => {
                if changes.is_first() {
                    output::complain(&reading.fallback_notice().unwrap_or_default());
                }
                changes.lines(names, reading)
            }
            Update::Failed(error) => return Err(error),
        };
        for line in lines {
            out.write_all(format!("{}\n", output::harmless_json(&line)).as_bytes()).await?;
        }
        out.flush().await?;
    }
    Ok(())
}

/// What changed between two readings of the folders.
#[derive(Debug, Default)]
struct FolderChanges {
    /// When each instance's status was written that was told last; `None` before the first reading.
    told: Option<BTreeMap<String, u64>>,
}

impl FolderChanges {
    const fn is_first(&self) -> bool {
        self.told.is_none()
    }

    fn lines(&mut self, names: &[String], reading: Reading) -> Vec<String> {
        let before = self.told.take().unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut changes = Vec::new();
        for entry in reading.entries {
            let (name, written) = (entry.status.name.clone(), entry.status.written.ms);
            if !names.is_empty() && !names.contains(&name) {
                continue;
            }
            if before.get(&name) != Some(&written) {
                changes.push(WatchLine::Status { status: Box::new(entry.status) });
            }
            now.insert(name, written);
        }
        let removed = before.into_keys().filter(|name| !now.contains_key(name));
        changes.extend(removed.map(|name| WatchLine::Removed { name }));
        self.told = Some(now);
        // A document of strings and numbers always has a JSON text.
        changes.iter().filter_map(|change| serde_json::to_string(change).ok()).collect()
    }
}

/// Draws until the feed fails.
async fn draw(
    context: &Context,
    names: &[String],
    first: Reading,
    mut updates: Receiver<Update>,
) -> Result<(), CommandError> {
    let mut view = View::new(names);
    view.take(Update::Folders(first));
    let screen = Screen::enter()?;
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let (columns, rows) = output::terminal_size().unwrap_or((80, 24));
                screen.draw(&view.lines(now_ms(), &context.zone, output::colours(), columns, rows), rows)?;
            }
            update = updates.recv() => match update {
                None => return Ok(()),
                Some(Update::Failed(error)) => return Err(error),
                Some(update) => view.take(update),
            },
        }
    }
}

/// What the picture shows.
#[derive(Debug)]
struct View {
    names: Vec<String>,
    entries: BTreeMap<String, Entry>,
    /// Instance and event, the newest at the end.
    events: VecDeque<(String, EventLine)>,
    /// Why the daemon does not tell this, if so.
    notice: Option<String>,
}

impl View {
    fn new(names: &[String]) -> Self {
        Self { names: names.to_vec(), entries: BTreeMap::new(), events: VecDeque::new(), notice: None }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Connected => {
                self.entries.clear();
                self.notice = None;
            }
            Update::Folders(reading) => {
                self.notice = reading.fallback_notice();
                let named = |entry: &Entry| self.names.is_empty() || self.names.contains(&entry.status.name);
                let entries = reading.entries.into_iter().filter(named);
                self.entries = entries.map(|entry| (entry.status.name.clone(), entry)).collect();
            }
            // A line that does not parse is a newer daemon's.
            Update::Line(line) => match serde_json::from_slice(&line) {
                Ok(WatchLine::Status { status }) => self.put(*status),
                Ok(WatchLine::Event { instance, event }) => {
                    if self.events.len() == RECENT_EVENTS {
                        self.events.pop_front();
                    }
                    self.events.push_back((instance, *event));
                }
                Ok(WatchLine::Removed { name }) => drop(self.entries.remove(&name)),
                Ok(WatchLine::Lost { .. } | WatchLine::Stopping | WatchLine::Unknown) | Err(_) => {}
            },
            Update::Failed(_) => {}
        }
    }

    fn put(&mut self, status: Status) {
        self.entries.insert(status.name.clone(), Entry { status, ..Entry::default() });
    }

    /// The picture: heading, table, events. At most `rows` lines of `columns`.
    fn lines(&self, now_ms: u64, zone: &TimeZone, colours: bool, columns: usize, rows: usize) -> Vec<String> {
        let mut lines = vec![Style::Bold.paint(&escape(&self.heading(now_ms, zone), columns), colours)];
        if let Some(notice) = &self.notice {
            lines.push(Style::Warning.paint(&escape(notice, columns), colours));
        }
        lines.push(String::new());
        // Instances come first where there is little room.
        let recent = self.events.iter().skip(self.events.len().saturating_sub(rows / 5));
        let events: Vec<_> = recent.map(|(name, event)| event_line(name, event, now_ms, zone)).collect();
        // The table's heading, the blank line before the events.
        let taken = lines.len() + 1 + if events.is_empty() { 0 } else { events.len() + 1 };
        let room = rows.saturating_sub(taken).max(1);
        let left_out = self.entries.len().saturating_sub(room);
        // The line that says so takes the place of one more.
        let shown = if left_out > 0 { room - 1 } else { room };
        let entries: Vec<_> = self.entries.values().take(shown).cloned().collect();
        lines.extend(ls::lines(&entries, now_ms, zone, colours, columns));
        if left_out > 0 {
            let more = format!("… and {} more: name those to watch, or make the window taller", left_out + 1);
            lines.push(Style::Dim.paint(&escape(&more, columns), colours));
        }
        if !events.is_empty() {
            lines.push(String::new());
            lines.extend(events.iter().map(|event| Style::Dim.paint(&escape(event, columns), colours)));
        }
        lines.truncate(rows);
        lines
    }

    /// `12:03:04  3 instances: 2 ready, 1 silent`.
    fn heading(&self, now_ms: u64, zone: &TimeZone) -> String {
        let mut states = BTreeMap::<String, usize>::new();
        for entry in self.entries.values() {
            let (state, _) = words::state(entry, now_ms, zone);
            let state = state.split_once(" since").map_or(state.as_str(), |(state, _)| state);
            *states.entry(state.to_owned()).or_default() += 1;
        }
        let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let plural = if self.entries.len() == 1 { "" } else { "s" };
        let list = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        format!("informant  {}  {} instance{plural}{list}", clock(now_ms, now_ms, zone), self.entries.len())
    }
}

/// `12:03:04  web-1  agent_started {"pid":1}`. Not escaped.
fn event_line(instance: &str, event: &EventLine, now_ms: u64, zone: &TimeZone) -> String {
    let body = match (&event.body, &event.body_hex) {
        (Some(body), _) => body.to_string(),
        (None, Some(hex)) => hex.clone(),
        (None, None) => String::new(),
    };
    let text = format!("{}  {instance}  {} {body}", clock(event.time.ms, now_ms, zone), event.kind);
    text.chars().take(EVENT_COLUMNS).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW_MS, listening, ready, silent};
    use super::*;
    use crate::cli::client::Client;
    use std::path::Path;

    fn reading(entries: Vec<Entry>, daemon: bool) -> Reading {
        let down = || Client::new(Path::new("/d")).ended();
        Reading { entries, now_ms: NOW_MS, without_daemon: (!daemon).then(down) }
    }

    fn status_line(entry: Entry) -> Update {
        let line = WatchLine::Status { status: Box::new(entry.status) };
        Update::Line(serde_json::to_vec(&line).unwrap())
    }

    fn shown(view: &View, columns: usize, rows: usize) -> Vec<String> {
        view.lines(NOW_MS, &TimeZone::UTC, false, columns, rows)
    }

    #[test]
    fn the_picture_follows_the_stream() {
        let mut view = View::new(&[]);
        view.take(Update::Folders(reading(vec![ready("gone")], true)));
        view.take(Update::Connected);
        view.take(status_line(ready("web-1")));
        view.take(status_line(ready("web-2")));
        view.take(status_line(silent("web-2", 42)));
        view.take(status_line(listening("db")));
        view.take(Update::Line(br#"{"type":"removed","name":"db"}"#.to_vec()));
        view.take(Update::Line(
            br#"{"type":"event","instance":"web-1","event":{"id":1,"kind":"mount_hung","body":"/a\u001b[2J"}}"#
                .to_vec(),
        ));
        view.take(Update::Line(b"{\"type\":\"song\"}".to_vec()));
        let lines = shown(&view, 200, 24);
        assert_eq!(lines[0], "informant  12:03:46  2 instances: 1 ready, 1 silent");
        assert!(lines[3].starts_with("web-1  ready") && lines[4].starts_with("web-2  silent since 12:03:04 (42s)"));
        assert_eq!(lines[6], r#"1970-01-01 00:00:00  web-1  mount_hung "/a\\u001b[2J""#);
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn the_picture_says_that_the_daemon_is_down_and_until_when() {
        let mut view = View::new(&["b".to_owned()]);
        view.take(Update::Folders(reading(vec![ready("a"), ready("b")], false)));
        let lines = shown(&view, 200, 24);
        assert_eq!(lines[0], "informant  12:03:46  1 instance: 1 ready");
        assert_eq!(lines[1], "no daemon answers at /d/informant.sock; reading the folders, last written 0.0s ago");
        view.take(Update::Connected);
        assert_eq!(shown(&view, 200, 24)[1], "");
    }

    #[test]
    fn the_picture_fits_any_terminal() {
        let mut view = View::new(&[]);
        view.take(Update::Folders(reading((0..100).map(|i| ready(&format!("vm-{i:03}"))).collect(), true)));
        for (columns, rows) in [(1, 1), (20, 2), (40, 5), (80, 24), (300, 200)] {
            let lines = shown(&view, columns, rows);
            assert!(lines.len() <= rows, "{columns} x {rows}: {lines:#?}");
            assert!(lines.iter().all(|line| crate::cli::escape::width(line) <= columns), "{lines:#?}");
        }
        let lines = shown(&view, 100, 24);
        assert_eq!((lines.len(), lines[22].split(' ').next().unwrap()), (24, "vm-019"));
        assert_eq!(lines[23], "… and 80 more: name those to watch, or make the window taller");
    }

    #[test]
    fn folders_are_told_once_then_only_their_changes() {
        let mut changes = FolderChanges::default();
        let names = [String::from("a"), String::from("b")];
        let first = changes.lines(&names, reading(vec![ready("a"), ready("b"), ready("c")], false));
        assert_eq!(first.len(), 2);
        assert!(changes.lines(&names, reading(vec![ready("a"), ready("b")], false)).is_empty());
        let mut later = ready("b");
        later.status.written.ms += 1000;
        let changed = changes.lines(&names, reading(vec![later], false));
        assert!(changed[0].starts_with(r#"{"type":"status","status":{"schema":1,"name":"b""#), "{changed:?}");
        assert_eq!(changed[1..], [r#"{"type":"removed","name":"a"}"#]);
    }
}
