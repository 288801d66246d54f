//! The result as a table for a terminal and as BENCHMARKS.md.

use std::fs;

use super::row::{Row, Verdict};
use crate::vm;

/// Figures of DESIGN §8 whose subject does not exist yet.
const NOT_YET: &[(&str, &str)] = &[
    ("`memory.events` or PSI event to host handler", "p99 <= 5 ms natively"),
    ("memory pressure to memory really online (QEMU TCG, virtio-mem)", "<= 5 s"),
    ("flight recorder's share beside the daemon's 10,000 instances", "printed beside it"),
    ("idle agent with all watchers on (events)", "<= 0.1 % of a core; so far without watchers"),
];

/// For a terminal.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let goal = if row.goal.is_empty() { String::new() } else { format!(" (goal {}", row.goal) + ")" };
        let verdict = match row.verdict {
            Verdict::Met => "ok    ",
            Verdict::Missed => "MISSED",
            Verdict::Shown => "      ",
        };
        text.push_str(&format!("{verdict} {}: {}{goal}\n", row.what, row.measured));
        if !row.beside.is_empty() {
            text.push_str(&format!("         beside: {}\n", row.beside));
        }
    }
    text
}

/// The whole of BENCHMARKS.md. `failures`: groups that could not be measured, and why.
pub(super) fn document(command: &str, rows: &[Row], failures: &[(&str, String)]) -> String {
    let mut text = format!(
        "# Benchmarks\n\n\
         Written by `{command}`: do not edit. Everything in the tables was measured in that one run, side by side; wall\n\
         time is used only for \"restart to all reconnected\" and for ages. How each figure is measured stands at the\n\
         head of its file in `xtask/src/bench/`.\n\n{}\n",
        machine()
    );
    text.push_str("| what | goal | measured | | beside | enforced by |\n| --- | --- | --- | --- | --- | --- |\n");
    for Row { what, goal, measured, beside, verdict, enforced } in rows {
        let cells = [what, goal, measured, verdict.name(), beside, *enforced];
        text.push_str(&format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")));
    }
    let missed: Vec<&Row> = rows.iter().filter(|row| row.verdict == Verdict::Missed).collect();
    if missed.is_empty() && failures.is_empty() {
        text.push_str("\nNo goal is missed.\n");
    } else {
        text.push_str("\n## Missed\n\n");
        for row in missed {
            text.push_str(&format!("- {}: {} where the goal is {}.\n", row.what, row.measured, row.goal));
        }
        for (group, error) in failures {
            text.push_str(&format!("- `{group}` could not be measured: {error}.\n"));
        }
    }
    text.push_str("\n## Not yet\n\nFigures of parts that do not exist yet.\n\n| what | goal |\n| --- | --- |\n");
    for (what, goal) in NOT_YET {
        text.push_str(&format!("| {what} | {goal} |\n"));
    }
    text
}

/// What the figures depend on; no name, no path.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let find = |path: &str, key: &str| {
        let text = line(path);
        let found = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
        found.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let accel = vm::accel().map_or_else(|_| "no VM".to_owned(), |accel| format!("QEMU with {}", accel.name()));
    format!(
        "Machine: {cores} cores ({}), {} of memory, Linux {}; VMs: {accel}.\n",
        find("/proc/cpuinfo", "model name"),
        find("/proc/meminfo", "MemTotal"),
        line("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_is_said_in_words_and_nothing_breaks_the_table() {
        let shown = |value: f64| format!("{value} B");
        let rows = [
            Row::at_most("small", 1.0, 2.0, shown),
            Row::at_most("a|b", 3.0, 2.0, shown).beside("c"),
            Row::shown("d", "4"),
        ];
        let text = document("cargo xtask bench", &rows, &[("vm", "no kernel".to_owned())]);
        assert!(text.contains("| a\\|b | <= 2 B | 3 B | **missed** | c | bench only |"), "{text}");
        assert!(text.contains("- a|b: 3 B where the goal is <= 2 B."), "{text}");
        assert!(text.contains("- `vm` could not be measured: no kernel."), "{text}");
        assert!(!text.contains("No goal is missed"));
        assert!(document("x", &rows[..1], &[]).contains("No goal is missed"));
        assert!(table(&rows).contains("MISSED a|b: 3 B (goal <= 2 B)\n         beside: c\n"));
    }
}
