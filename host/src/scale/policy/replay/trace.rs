//! Traces: what a workload needs, second by second, and the generator that made the committed ones.

use informant_wire::size::Bytes;
use std::fmt::Write as _;

/// Traces that are committed, as `tests/traces/NAME.csv`.
pub const NAMES: [&str; 3] = ["steady", "burst", "page-cache"];
/// Seconds of a generated one.
const SECONDS: u32 = 1800;
const HEAD: &str = "second,anon_mib,cache_mib,runnable";

/// What a workload needs in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Memory that can not be given up.
    pub anon: Bytes,
    /// Page cache that it would fill.
    pub cache: Bytes,
    /// Tasks that run or wait for a CPU, on average.
    pub runnable: f64,
}

/// A line that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected `{HEAD}` with numbers, seconds from 1 on")]
pub struct TraceError {
    /// Which.
    pub line: usize,
}

/// Reads a trace.
///
/// # Errors
/// For a line that is none.
pub fn parse(text: &str) -> Result<Vec<Second>, TraceError> {
    let mut lines = text.lines().zip(1..);
    if lines.next().is_none_or(|(head, _)| head != HEAD) {
        return Err(TraceError { line: 1 });
    }
    let mut trace = Vec::new();
    for (text, line) in lines {
        let second = second(text, trace.len() + 1).ok_or(TraceError { line })?;
        trace.push(second);
    }
    Ok(trace)
}

fn second(line: &str, expected: usize) -> Option<Second> {
    let mut cells = line.split(',');
    if cells.next()?.parse() != Ok(expected) {
        return None;
    }
    let mut mib = || cells.next()?.parse().ok().map(Bytes::mib);
    let (anon, cache) = (mib()?, mib()?);
    let runnable = cells.next()?.parse().ok().filter(|runnable| (0.0..=1e4).contains(runnable))?;
    cells.next().is_none().then_some(Second { anon, cache, runnable })
}

/// The text of a committed trace; `None`: there is no such one.
///
/// - `steady`: a service that starts within a minute, and then has 1,900 to 2,100 MiB that works on and off on one CPU and reads some files.
/// - `burst`: 800 MiB, and every five minutes a job beside it that takes four CPUs and, at 120 MiB a second, 3 to 5 GiB,
///   keeps that for a minute and ends.
/// - `page-cache`: 700 MiB, and scans of files that are much larger than the VM and are read once.
#[must_use]
pub fn generate(name: &str) -> Option<String> {
    let of: fn(u32, &mut Chance) -> (u32, u32, u32) = match name {
        "steady" => |second, chance| ((second * 30).min(1900) + chance.below(200), 600, 40 + chance.below(80)),
        "burst" => |second, chance| {
            let (turn, at) = (second / 300, second % 300);
            let peak = 3000 + 500 * (turn % 5);
            let job = match at.saturating_sub(120) {
                0 => 0,
                since if since * 120 < peak => since * 120,
                since if since < peak / 120 + 60 => peak,
                _ => 0,
            };
            let busy = if job > 0 { 400 } else { 30 };
            (800 + job + chance.below(20), 300, busy + chance.below(30))
        },
        "page-cache" => |second, chance| {
            let scans = second % 600 >= 200;
            let cache = if scans { (second % 600 - 200) * 150 } else { 200 };
            (690 + chance.below(20), cache, if scans { 110 + chance.below(40) } else { 20 + chance.below(20) })
        },
        _ => return None,
    };
    let mut chance = Chance(1);
    let mut text = format!("{HEAD}\n");
    for second in 1..=SECONDS {
        let (anon, cache, hundredths) = of(second, &mut chance);
        let _ = writeln!(text, "{second},{anon},{cache},{}.{:02}", hundredths / 100, hundredths % 100);
    }
    Some(text)
}

/// The minimal standard generator of Park and Miller: the same on every machine.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0 * 48_271 % 2_147_483_647;
        u32::try_from(self.0 % u64::from(limit.max(1))).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_traces_are_what_the_generator_makes() {
        for name in NAMES {
            let path = format!("{}/tests/traces/{name}.csv", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(
                Some(&text) == generate(name).as_ref(),
                "{path}: write it with `cargo run --example policies traces`"
            );
            assert_eq!(parse(&text).unwrap().len(), 1800);
        }
        assert_eq!(generate("other"), None);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, line) in [
            ("", 1),
            ("second", 1),
            ("second,anon_mib,cache_mib,runnable\n1,2,3,0.5\n3,2,3,0.5", 3),
            ("second,anon_mib,cache_mib,runnable\n1,2,3", 2),
            ("second,anon_mib,cache_mib,runnable\n1,2,3,4,5", 2),
            ("second,anon_mib,cache_mib,runnable\n1,2,3,NaN", 2),
            ("second,anon_mib,cache_mib,runnable\n1,-2,3,1", 2),
        ] {
            assert_eq!(parse(text), Err(TraceError { line }), "{text}");
        }
    }
}
