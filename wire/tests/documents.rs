//! The documents say what the code does: examples of PROTOCOL.md are golden vectors, METRICS.md is the table.
#![cfg(feature = "help")]

use informant_wire::metric::{Kind, SubjectKind};
use std::fmt::Write;
use std::path::PathBuf;

fn read(name: &str) -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn every_example_of_the_protocol_is_a_golden_vector() {
    let vectors: serde_json::Value = serde_json::from_str(&read("vectors/v1.json")).unwrap();
    let frames: Vec<_> = vectors.as_array().unwrap().iter().flat_map(|v| v["frames"].as_array().unwrap()).collect();
    let protocol = read("PROTOCOL.md");
    let examples: Vec<_> = protocol.lines().filter_map(|line| line.strip_prefix("    hex: ")).collect();
    assert!(examples.len() >= 15);
    for example in examples {
        assert!(frames.iter().any(|frame| *frame == example), "{example} is in no vector");
    }
}

#[test]
fn the_list_of_metrics_is_the_table() {
    let mut expected = "# Metrics\n\nMade from the metric table in `src/metric.rs`; `INFORMANT_BLESS=1 cargo test -p informant-wire --features help` \
        writes it anew.\nPublished = value × scale. Ticks are told in Hello (100 here).\n"
        .to_owned();
    for kind in SubjectKind::ALL {
        let label = kind.name_label().map_or(String::new(), |label| format!(", name published as `{label}`"));
        let (name, number) = (kind.name().unwrap(), kind.0);
        let _ = write!(
            expected,
            "\n## {name} (kind {number}{label})\n\n| id | name | kind | wire unit | scale | what |\n| --- | --- | --- | --- | --- | --- |\n"
        );
        for row in kind.rows() {
            let labels: Vec<_> = row.labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let kind = match row.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Limit => "limit",
            };
            let scale = match row.unit.scale(100) {
                (mul, 1) => mul.to_string(),
                (mul, div) => format!("{mul}/{div}"),
            };
            let (id, name, unit, help) = (row.id.0, row.name, row.unit.name(), row.help);
            let _ = writeln!(expected, "| {id} | `{name}{labels}` | {kind} | {unit} | {scale} | {help} |");
        }
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("METRICS.md");
    if std::env::var_os("INFORMANT_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), expected);
}
