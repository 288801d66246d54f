//! Pressure stall information: `/proc/pressure/*` and a cgroup's `*.pressure`. See Documentation/accounting/psi.rst.
//!
//! Each line stands for itself: `cpu` has no `full` line before Linux 5.13, `irq` never has a `some` line.

use super::Context;
use super::row::{Place, Row};
use crate::kfile::KFile;
use crate::parse::{fields, hundredths, lines, number, pair};
use informant_wire::metric::{MetricId, id};

/// Where the numbers of one pressure file go.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// Total and avg10 of the line `some`.
    pub some: Option<(MetricId, MetricId)>,
    /// Total and avg10 of the line `full`.
    pub full: (MetricId, MetricId),
}

/// Total, microseconds, of the line `some` or, else, `full` of a file.
#[must_use]
pub fn total_us(bytes: &[u8], full: bool) -> Option<u64> {
    let word: &[u8] = if full { b"full" } else { b"some" };
    let line = lines(bytes).find(|line| fields(line).next() == Some(word))?;
    fields(line).filter_map(pair).find(|(key, _)| *key == b"total").and_then(|(_, value)| number(value))
}

/// Fills a file's numbers in; what is not there is absent.
pub fn fill(row: &mut Row, at: Place, targets: Targets, bytes: Option<&[u8]>) {
    let (mut some, mut full) = ((None, None), (None, None));
    for line in lines(bytes.unwrap_or_default()) {
        let mut fields = fields(line);
        let slot = match fields.next() {
            Some(b"some") => &mut some,
            Some(b"full") => &mut full,
            _ => continue,
        };
        for (key, value) in fields.filter_map(pair) {
            match key {
                b"total" => slot.0 = number(value),
                b"avg10" => slot.1 = hundredths(value),
                _ => {}
            }
        }
    }
    for (target, (total, avg10)) in [(targets.some, some), (Some(targets.full), full)] {
        if let Some((total_id, avg10_id)) = target {
            row.put(at, total_id, total);
            row.put(at, avg10_id, avg10);
        }
    }
}

/// The collector of the VM's pressure.
#[derive(Debug)]
pub struct Pressure {
    files: [(KFile, Targets); 4],
}

impl Default for Pressure {
    fn default() -> Self {
        let file = |path: &[u8], some, full| (KFile::new(path), Targets { some, full });
        Self {
            files: [
                file(
                    b"proc/pressure/cpu",
                    Some((id::PRESSURE_CPU_SOME, id::PRESSURE_CPU_SOME_AVG10)),
                    (id::PRESSURE_CPU_FULL, id::PRESSURE_CPU_FULL_AVG10),
                ),
                file(
                    b"proc/pressure/io",
                    Some((id::PRESSURE_IO_SOME, id::PRESSURE_IO_SOME_AVG10)),
                    (id::PRESSURE_IO_FULL, id::PRESSURE_IO_FULL_AVG10),
                ),
                file(
                    b"proc/pressure/memory",
                    Some((id::PRESSURE_MEMORY_SOME, id::PRESSURE_MEMORY_SOME_AVG10)),
                    (id::PRESSURE_MEMORY_FULL, id::PRESSURE_MEMORY_FULL_AVG10),
                ),
                file(b"proc/pressure/irq", None, (id::PRESSURE_IRQ_FULL, id::PRESSURE_IRQ_FULL_AVG10)),
            ],
        }
    }
}

impl Pressure {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        for (file, targets) in &mut self.files {
            let bytes = cx.files.read(file);
            fill(cx.row, cx.vm, *targets, bytes);
        }
    }
}
