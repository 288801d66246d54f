//! One instance at one moment, and its form as a [`Status`]. Metrics are written as they are read from the snapshot:
//! six thousand of them never exist at once as a tree.

use super::event::text;
use super::status::{Group, Number, Status};
use crate::model::series::Series;
use informant_wire::metric::{Kind, Metric, UNLIMITED};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

/// An instance at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All but the metrics.
    pub head: Status<()>,
    /// The values.
    pub series: Series,
    /// How old they are.
    pub data_age_ms: u64,
}

impl Snapshot {
    /// Writes the whole document.
    pub fn write_json(&self, out: impl std::io::Write) -> serde_json::Result<()> {
        let metrics = Metrics { series: &self.series, age_ms: self.data_age_ms };
        serde_json::to_writer(out, &self.head.clone().with_metrics(metrics))
    }

    /// The document without metrics.
    #[must_use]
    pub fn into_overview(self) -> Status {
        self.head.with_metrics(Vec::<Group>::new())
    }
}

impl<M> Status<M> {
    /// The same with other metrics.
    pub fn with_metrics<N>(self, metrics: N) -> Status<N> {
        Status {
            schema: self.schema,
            name: self.name,
            written: self.written,
            next_write_by: self.next_write_by,
            transport: self.transport,
            labels: self.labels,
            config_error: self.config_error,
            link: self.link,
            agent: self.agent,
            workload: self.workload,
            data: self.data,
            guest: self.guest,
            summary: self.summary,
            scaling: self.scaling,
            counters: self.counters,
            metrics,
        }
    }
}

struct Metrics<'a> {
    series: &'a Series,
    age_ms: u64,
}

impl Serialize for Metrics<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut groups = serializer.serialize_seq(None)?;
        if self.series.has_sample() {
            for (subject, range) in self.series.layout().subjects() {
                groups.serialize_element(&OneGroup { metrics: self, subject: &subject, range: &range })?;
            }
        }
        groups.end()
    }
}

struct OneGroup<'a> {
    metrics: &'a Metrics<'a>,
    subject: &'a informant_wire::schema::Subject<'a>,
    range: &'a std::ops::Range<usize>,
}

impl Serialize for OneGroup<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("subject", self.subject.kind.name().unwrap_or("unknown"))?;
        map.serialize_entry("labels", &Labels(self.subject))?;
        map.serialize_entry("source", "agent")?;
        map.serialize_entry("age_ms", &self.metrics.age_ms)?;
        map.serialize_entry("values", &Values(self))?;
        map.end()
    }
}

struct Labels<'a>(&'a informant_wire::schema::Subject<'a>);

impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let own = self.0.kind.name_label();
        if let Some(key) = own {
            map.serialize_entry(key, &text(self.0.name))?;
        }
        for (i, label) in self.0.labels.iter().enumerate() {
            // A guest may list a key twice; a document may not.
            let again = own == Some(label.key) || self.0.labels.iter().take(i).any(|before| before.key == label.key);
            if !again {
                map.serialize_entry(label.key, &text(label.value))?;
            }
        }
        map.end()
    }
}

struct Values<'a>(&'a OneGroup<'a>);

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let series = self.0.metrics.series;
        let mut values = serializer.serialize_seq(None)?;
        for i in self.0.range.clone() {
            if let Some(value) = series.layout().metric(i).and_then(|metric| OneValue::of(series, i, metric)) {
                values.serialize_element(&value)?;
            }
        }
        values.end()
    }
}

#[derive(Serialize)]
struct OneValue {
    name: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "pairs")]
    labels: &'static [(&'static str, &'static str)],
    value: Number,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
}

impl OneValue {
    fn of(series: &Series, i: usize, metric: &Metric) -> Option<Self> {
        let reading = series.reading(i, metric)?;
        let ticks = series.ticks_per_second();
        let value = if metric.kind == Kind::Limit && reading.value == UNLIMITED {
            Number::Max
        } else {
            Number::Finite(metric.unit.publish(reading.value, ticks))
        };
        #[expect(clippy::cast_precision_loss, reason = "the published form is a double")]
        let per_second = match (reading.growth, series.interval_us()) {
            (Some(growth), Some(us)) => Some(metric.unit.publish(growth, ticks) * 1e6 / us as f64),
            _ => None,
        };
        Some(Self { name: metric.name, labels: metric.labels, value, per_second })
    }
}

fn pairs<S: Serializer>(labels: &&'static [(&'static str, &'static str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter().copied())
}
