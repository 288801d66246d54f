//! `informant-guest sample`: the collectors' values as JSON lines. Opens no socket.
//!
//! A line is `{"time_ms":..,"metrics":[{"name":"node_load1","labels":{},"value":0.5},...]}`: wall clock, then every
//! value that is there, in its published unit. What is absent, and a limit that is `max`, is not in the list. Counters
//! never fall from line to line: a kernel counter that steps back, or wraps, or begins anew, keeps its total.
//!
//! Names in labels may be any bytes in the kernel, and are valid UTF-8 here. A name that is UTF-8 stands as it is. One
//! that is not has `\xe9` for each odd byte and `\\` for each backslash of its own; so has one that would otherwise
//! look like that, which makes sure that two names never become one.

mod json;

use crate::collect::{Config, OwnFigures, Sensors};
use informant_wire::bits;
use informant_wire::counter::{Width, step};
use informant_wire::metric::{Kind, Metric, MetricId, SubjectKind, UNLIMITED};
use informant_wire::schema::Subject;
use nix::unistd::{SysconfVar, sysconf};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a line waits for file systems to answer: they do at once, but on a busy machine the thread that asks them
/// waits for its turn. One that hangs is waited for until it counts as hung.
const SETTLE: Duration = Duration::from_secs(1);
/// Newcomers bring newcomers (a disk that a cgroup uses): after this many schemas in a row the rest waits a line.
const MAX_RESCHEMAS: u32 = 4;

/// Why no samples could be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root is not a directory that can be opened.
    #[error("{}: {error}; --root takes a directory with proc and sys below it", path.display())]
    Root {
        /// The root.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The lines could not be written.
    #[error("writing samples: {0}")]
    Output(io::Error),
}

/// Writes `count` lines, `interval` apart. A reader that closes the pipe ends it quietly. `warn` is told once what was
/// asked for and is not there.
pub fn run(
    root: &Path,
    count: u64,
    interval: Duration,
    cgroup: Option<&Path>,
    out: &mut impl Write,
    warn: &mut dyn FnMut(&dyn Display),
) -> Result<(), Error> {
    std::fs::read_dir(root).map_err(|error| Error::Root { path: root.to_owned(), error })?;
    let config = Config { root: root.to_owned(), cgroup: cgroup.map(Path::to_owned), all_fresh: true };
    let mut sensors = Sensors::new(&config);
    let mut totals = Totals::default();
    let mut line = Vec::new();
    for n in 0..count {
        if n > 0 {
            std::thread::sleep(interval);
        }
        collect(&mut sensors);
        if n == 0
            && let Some(missing) = sensors.missing_cgroup()
        {
            warn(&missing);
        }
        line.clear();
        write_line(&mut line, &sensors, &mut totals);
        match out.write_all(&line).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(Error::Output)?,
        }
    }
    Ok(())
}

/// A pass whose row has every subject that there is now.
fn collect(sensors: &mut Sensors) {
    sensors.sample(&OwnFigures::default());
    for _ in 0..MAX_RESCHEMAS {
        if !sensors.wants_schema() {
            break;
        }
        sensors.reschema();
        sensors.sample(&OwnFigures::default());
    }
    sensors.settle(SETTLE);
    // The line has no place for events; the agent sends them.
    sensors.take_event(&mut |_, _| {});
}

/// Identity of a subject: kind, name, values of the other labels.
type Key = (SubjectKind, Vec<u8>, Vec<Vec<u8>>);

/// Published totals of every counter that was ever seen.
#[derive(Debug, Default)]
struct Totals(BTreeMap<Key, BTreeMap<MetricId, Counter>>);

impl Totals {
    fn of(&mut self, subject: &Subject<'_>) -> &mut BTreeMap<MetricId, Counter> {
        let labels = subject.labels.iter().map(|label| label.value.to_vec()).collect();
        self.0.entry((subject.kind, subject.name.to_vec(), labels)).or_default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    raw: u64,
    /// Of the subject that `raw` was read from.
    incarnation: u64,
    total: u64,
}

impl Counter {
    /// The total at a new reading. Another device under an old name begins anew: what it counted is not growth.
    fn advance(&mut self, raw: u64, incarnation: u64, width: Width) -> u64 {
        if incarnation == self.incarnation {
            self.total = self.total.wrapping_add(step(self.raw, raw, width).growth());
        }
        (self.raw, self.incarnation) = (raw, incarnation);
        self.total
    }
}

fn write_line(line: &mut Vec<u8>, sensors: &Sensors, totals: &mut Totals) {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u32::try_from(ticks).ok()).unwrap_or(100);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    line.extend_from_slice(b"{\"time_ms\":");
    json::integer(line, now.as_millis());
    line.extend_from_slice(b",\"metrics\":[");
    let row = sensors.row();
    let (mut series, mut is_first) = (0, true);
    for subject in sensors.subjects() {
        let counters = totals.of(&subject);
        let width = match subject.kind {
            SubjectKind::DISK | SubjectKind::NETWORK => Width::Maybe32,
            _ => Width::Bits64,
        };
        for id in subject.metrics.iter().flat_map(|range| range.first.0..range.first.0.saturating_add(range.count)) {
            let i = series;
            series += 1;
            let (Some(metric), Some(raw)) = (Metric::find(MetricId(id)), row.values.get(i).copied()) else { continue };
            if !bits::get(row.present, i) || (metric.kind == Kind::Limit && raw == UNLIMITED) {
                continue;
            }
            let value = if metric.kind == Kind::Counter {
                let first = Counter { raw, incarnation: subject.incarnation, total: raw };
                counters.entry(metric.id).or_insert(first).advance(raw, subject.incarnation, width)
            } else {
                raw
            };
            let (mul, div) = metric.unit.scale(ticks);
            let scaled = u128::from(value) * u128::from(mul);
            if scaled / u128::from(div.max(1)) > u128::from(u64::MAX) {
                // Readers hold 64 bits at most; nothing real is that large.
                continue;
            }
            if !std::mem::take(&mut is_first) {
                line.push(b',');
            }
            write_metric(line, metric, &subject, (scaled, u128::from(div)));
        }
    }
    line.extend_from_slice(b"]}\n");
}

/// `value` and what it is divided by.
fn write_metric(line: &mut Vec<u8>, metric: &Metric, subject: &Subject<'_>, (value, divisor): (u128, u128)) {
    line.extend_from_slice(b"{\"name\":");
    json::text(line, metric.name.as_bytes());
    line.extend_from_slice(b",\"labels\":{");
    let name = subject.kind.name_label().map(|key| (key, subject.name));
    let fixed = metric.labels.iter().map(|(key, value)| (*key, value.as_bytes()));
    let own = subject.labels.iter().map(|label| (label.key, label.value));
    for (i, (key, value)) in name.into_iter().chain(own).chain(fixed).enumerate() {
        if i > 0 {
            line.push(b',');
        }
        json::text(line, key.as_bytes());
        line.push(b':');
        json::text(line, value);
    }
    line.extend_from_slice(b"},\"value\":");
    json::ratio(line, value, divisor);
    line.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_never_falls_and_another_device_adds_nothing_of_its_past() {
        let mut counter = Counter { raw: 9000, incarnation: 1, total: 9000 };
        assert_eq!(counter.advance(8990, 1, Width::Bits64), 9000);
        assert_eq!(counter.advance(9010, 1, Width::Bits64), 9020);
        assert_eq!(counter.advance(50_000, 2, Width::Bits64), 9020);
        assert_eq!(counter.advance(50_001, 2, Width::Bits64), 9021);
        let mut counter = Counter { raw: 4_294_967_290, incarnation: 1, total: 4_294_967_290 };
        assert_eq!(counter.advance(4, 1, Width::Maybe32), 4_294_967_300);
    }

    #[test]
    fn a_closed_pipe_ends_quietly_and_a_missing_root_is_named() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let root = tempfile::tempdir().unwrap();
        assert!(run(root.path(), 2, Duration::ZERO, None, &mut Closed, &mut |_| {}).is_ok());
        let missing = root.path().join("gone");
        let error = run(&missing, 1, Duration::ZERO, None, &mut Vec::new(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
    }
}
