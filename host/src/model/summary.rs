//! The few numbers of a table row, from the newest sample.

use super::series::Series;
use crate::publish::status::Summary;
use informant_wire::metric::{MetricId, id};

/// Reads them.
#[must_use]
pub fn summary(series: &Series) -> Summary {
    let mut busy = 0_u64;
    let mut total = 0_u64;
    let mut summary = Summary::default();
    let mut estimate = None;
    let ticks = series.ticks_per_second();
    for (i, metric) in series.layout().metrics().enumerate() {
        let Some(metric) = metric else { continue };
        if !is_wanted(metric.id) {
            continue;
        }
        let Some(reading) = series.reading(i, metric) else { continue };
        let published = metric.unit.publish(reading.value, ticks);
        let bytes = reading.value.saturating_mul(metric.unit.scale(ticks).0);
        match metric.id {
            id::CPU_IDLE | id::CPU_IOWAIT => total = total.saturating_add(reading.growth.unwrap_or(0)),
            id::CPU_USER | id::CPU_NICE | id::CPU_SYSTEM | id::CPU_IRQ | id::CPU_SOFTIRQ | id::CPU_STEAL => {
                // Guest time is a part of user and nice: not added again.
                busy = busy.saturating_add(reading.growth.unwrap_or(0));
                total = total.saturating_add(reading.growth.unwrap_or(0));
            }
            id::CPUS_ONLINE => summary.cpus = Some(reading.value),
            id::MEM_TOTAL => summary.memory_total_bytes = Some(bytes),
            id::MEM_AVAILABLE => summary.memory_available_bytes = Some(bytes),
            id::MEMORY_AVAILABLE_ESTIMATE => estimate = Some(bytes),
            id::LOAD1 => summary.load1 = Some(published),
            id::PRESSURE_CPU_SOME_AVG10 => summary.pressure_cpu_ratio = Some(published),
            id::PRESSURE_MEMORY_SOME_AVG10 => summary.pressure_memory_ratio = Some(published),
            id::PRESSURE_IO_SOME_AVG10 => summary.pressure_io_ratio = Some(published),
            _ => {}
        }
    }
    summary.memory_available_bytes = summary.memory_available_bytes.or(estimate);
    summary.memory_used_bytes = match (summary.memory_total_bytes, summary.memory_available_bytes) {
        (Some(total), Some(available)) => Some(total.saturating_sub(available)),
        _ => None,
    };
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    if total > 0 {
        summary.cpu_percent = Some(busy as f64 * 100.0 / total as f64);
    }
    summary
}

fn is_wanted(id: MetricId) -> bool {
    (id::CPU_USER..=id::CPU_STEAL).contains(&id) || id <= id::MEM_AVAILABLE
}
