//! `/proc/loadavg` and `/proc/uptime`. See `proc_loadavg(5)`, `proc_uptime(5)`.

use super::Context;
use crate::kfile::KFile;
use crate::parse::{fields, hundredths};
use informant_wire::metric::id;

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
