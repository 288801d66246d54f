//! What a policy looks at, from the newest sample.

use super::Now;
use super::instance::Instance;
use crate::publish::status::Data;
use crate::scale::policy::Sample;
use informant_wire::metric::{MetricId, id};
use informant_wire::size::Bytes;

/// Reads it; `None` while the data is not fresh, or lacks what every policy needs.
#[must_use]
pub fn sample(instance: &Instance, now: Now) -> Option<Sample> {
    if instance.data(now).0 != Data::Fresh {
        return None;
    }
    let series = &instance.series;
    let ticks = series.ticks_per_second();
    let mut found = [None; WANTED.len()];
    for (i, metric) in series.layout().metrics().enumerate() {
        let Some(metric) = metric else { continue };
        let Some(at) = WANTED.iter().position(|wanted| *wanted == metric.id) else { continue };
        if let (Some(slot), Some(reading)) = (found.get_mut(at), series.reading(i, metric)) {
            *slot = Some((
                reading.value.saturating_mul(metric.unit.scale(ticks).0),
                metric.unit.publish(reading.value, ticks),
            ));
        }
    }
    let whole = |id| value(&found, id).map(|(whole, _)| whole);
    let published = |id| value(&found, id).map(|(_, published)| published);
    Some(Sample {
        taken_us: instance.sampled?.mono_us,
        load1: published(id::LOAD1)?,
        load5: published(id::LOAD5)?,
        cpus_online: u32::try_from(whole(id::CPUS_ONLINE)?).unwrap_or(u32::MAX),
        memory_total: Bytes(whole(id::MEM_TOTAL)?),
        memory_available: Bytes(whole(id::MEM_AVAILABLE).or_else(|| whole(id::MEMORY_AVAILABLE_ESTIMATE))?),
        cached: whole(id::MEM_CACHED).map(Bytes),
        psi_memory_some_avg10: published(id::PRESSURE_MEMORY_SOME_AVG10),
        psi_memory_full_avg10: published(id::PRESSURE_MEMORY_FULL_AVG10),
        psi_cpu_some_avg10: published(id::PRESSURE_CPU_SOME_AVG10),
    })
}

const WANTED: [MetricId; 10] = [
    id::LOAD1,
    id::LOAD5,
    id::CPUS_ONLINE,
    id::MEM_TOTAL,
    id::MEM_AVAILABLE,
    id::MEMORY_AVAILABLE_ESTIMATE,
    id::MEM_CACHED,
    id::PRESSURE_MEMORY_SOME_AVG10,
    id::PRESSURE_MEMORY_FULL_AVG10,
    id::PRESSURE_CPU_SOME_AVG10,
];

fn value(found: &[Option<(u64, f64)>; WANTED.len()], id: MetricId) -> Option<(u64, f64)> {
    WANTED.iter().position(|wanted| *wanted == id).and_then(|at| found.get(at).copied().flatten())
}
