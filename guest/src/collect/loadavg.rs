//! `/proc/loadavg` and `/proc/uptime`. See `proc_loadavg(5)`, `proc_uptime(5)`.

use super::Context;
use crate::kfile::KFile;
use crate::parse::{fields, find, hundredths, number};
use informant_wire::metric::id;

/// Tasks that run or want to, from the bytes of `/proc/loadavg`: the reader is one of them and not counted.
#[must_use]
pub fn running(bytes: &[u8]) -> Option<u32> {
    let field = fields(bytes).nth(3)?;
    let slash = find(field, b'/')?;
    let tasks = number(field.get(..slash)?)?;
    u32::try_from(tasks).ok().map(|tasks| tasks.saturating_sub(1))
}

/// The collector.
#[derive(Debug)]
pub struct LoadAverage {
    load: KFile,
    uptime: KFile,
}

impl Default for LoadAverage {
    fn default() -> Self {
        Self { load: KFile::new(b"proc/loadavg"), uptime: KFile::new(b"proc/uptime") }
    }
}

impl LoadAverage {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        cx.row.absent(cx.vm, id::LOAD1, id::UPTIME);
        if let Some(bytes) = cx.files.read(&mut self.load) {
            for (metric, field) in [id::LOAD1, id::LOAD5, id::LOAD15].into_iter().zip(fields(bytes)) {
                cx.row.put(cx.vm, metric, hundredths(field));
            }
        }
        if let Some(bytes) = cx.files.read(&mut self.uptime) {
            cx.row.put(cx.vm, id::UPTIME, fields(bytes).next().and_then(hundredths));
        }
    }
}
