//! Instances for the tests of this folder, as they look at [`NOW_MS`]. Only compiled for tests.

use super::reading::Entry;
use crate::publish::status::{Agent, Data, Group, Guest, Link, Number, SCHEMA, Stamp, Status, Summary, Value};

/// 2026-11-29 12:03:46 UTC.
pub(super) const NOW_MS: u64 = 1_795_953_826_000;

/// A moment before [`NOW_MS`].
pub(super) fn ago(seconds: u64) -> Stamp {
    Stamp::from_ms(NOW_MS - seconds * 1000)
}

/// An instance whose agent reports and that has a few metrics.
pub(super) fn ready(name: &str) -> Entry {
    let value = |name: &str, value, per_second| Value { name: name.to_owned(), value, per_second, ..Value::default() };
    let mut status = Status {
        schema: SCHEMA,
        name: name.to_owned(),
        written: ago(0),
        next_write_by: Stamp::from_ms(NOW_MS + 5000),
        guest: Some(Guest { name: name.to_owned(), version: "0.1.0".to_owned(), proven: true, ..Guest::default() }),
        summary: Some(Summary {
            cpu_percent: Some(12.34),
            cpus: Some(2),
            memory_total_bytes: Some(2_040_109_465),
            memory_used_bytes: Some(432_013_312),
            memory_available_bytes: Some(1_608_096_153),
            pressure_cpu_ratio: Some(0.0),
            pressure_memory_ratio: Some(0.012),
            pressure_io_ratio: Some(0.5),
            load1: Some(0.42),
        }),
        metrics: vec![
            Group {
                subject: "vm".to_owned(),
                source: "agent".to_owned(),
                age_ms: 400,
                values: vec![
                    value("node_load1", Number::Finite(0.42), None),
                    value("node_forks_total", Number::Finite(12_345.0), Some(0.333)),
                ],
                ..Group::default()
            },
            Group {
                subject: "cgroup".to_owned(),
                labels: [("id".to_owned(), "/a\x1b[2J\u{202e}b".to_owned())].into(),
                source: "agent".to_owned(),
                age_ms: 2400,
                values: vec![value("container_spec_memory_limit_bytes", Number::Max, None)],
            },
        ],
        ..Status::default()
    };
    status.link.state = Link::Up;
    status.link.since = Some(ago(182));
    status.link.age_ms = Some(400);
    status.agent.state = Agent::Ready;
    status.agent.since = Some(ago(182));
    status.data.state = Data::Fresh;
    status.data.age_ms = Some(400);
    Entry { status, ..Entry::default() }
}

/// The same, and nothing has arrived for so many seconds.
pub(super) fn silent(name: &str, seconds: u64) -> Entry {
    let mut entry = ready(name);
    entry.status.link.state = Link::Silent;
    entry.status.link.since = Some(ago(seconds));
    entry.status.agent.state = Agent::Lost;
    entry.status.data.state = Data::Stale;
    entry.status.data.age_ms = Some(seconds * 1000 + 500);
    entry
}

/// An instance to which no guest has connected.
pub(super) fn listening(name: &str) -> Entry {
    let mut entry = Entry::default();
    entry.status.schema = SCHEMA;
    entry.status.name = name.to_owned();
    entry.status.written = ago(0);
    entry.status.link.state = Link::Listening;
    entry.status.data.state = Data::None;
    entry
}
