//! Events as lines of `events.log`: known kinds decoded to readable JSON, unknown ones kept as hexadecimal digits.

use super::status::{EventLine, Stamp};
use crate::model::instance::Facts;
use informant_wire::event::{
    AdvisorFailed, AgentStarted, Changed, ClockStepped, Dropped, Event, EventKind, RateChanged, SchemaCut,
};
use informant_wire::frame::decode;
use informant_wire::hello::PeerKind;
use informant_wire::id::{BootId, StreamId};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A guest's event. `proven`: what is known of its session.
#[must_use]
pub fn from_guest(id: u64, wall_ms: u64, facts: &Facts, proven: bool, event: &Event<'_>) -> EventLine {
    let body = readable(event);
    EventLine {
        id,
        time: Stamp::from_ms(wall_ms),
        source: if facts.kind == PeerKind::AGENT { "agent" } else { "reporter" }.into(),
        from: Some(facts.name.as_ref().into()),
        proven: Some(proven),
        boot_id: Some(facts.boot.to_string()),
        stream: Some(format!("{:016x}", facts.stream.0)),
        sequence: Some(event.sequence),
        boot_time_us: Some(event.boot_time_us),
        kind: event.kind.name().map_or_else(|| format!("unknown({})", event.kind.0), Into::into),
        body_hex: if body.is_none() && !event.body.is_empty() { Some(hex(event.body)) } else { None },
        body,
    }
}

/// Something the daemon saw.
#[must_use]
pub fn from_host(id: u64, wall_ms: u64, kind: &str, detail: Option<&str>) -> EventLine {
    EventLine {
        id,
        time: Stamp::from_ms(wall_ms),
        source: "host".into(),
        kind: kind.into(),
        body: detail.map(|detail| json!({ "detail": detail })),
        ..EventLine::default()
    }
}

/// The stream and sequence of a line that came from a guest.
#[must_use]
pub fn cursor(line: &EventLine) -> Option<(BootId, StreamId, u64)> {
    let boot = BootId::parse(line.boot_id.as_ref()?.as_bytes())?;
    let stream = u64::from_str_radix(line.stream.as_ref()?, 16).ok()?;
    Some((boot, StreamId(stream), line.sequence?))
}

fn readable(event: &Event<'_>) -> Option<Value> {
    let bytes = event.body;
    Some(match event.kind {
        EventKind::AGENT_STARTED => {
            let body: AgentStarted<'_> = decode(bytes).ok()?;
            json!({ "pid": body.pid, "continued": body.continued, "version": body.version })
        }
        EventKind::DROPPED => json!({ "count": decode::<Dropped>(bytes).ok()?.count }),
        EventKind::SCHEMA_CUT => {
            let body: SchemaCut = decode(bytes).ok()?;
            json!({ "kept": body.kept, "dropped": body.dropped })
        }
        EventKind::MOUNT_HUNG | EventKind::MOUNT_RECOVERED => json!({ "mountpoint": text(bytes) }),
        EventKind::RATE_REDUCED | EventKind::RATE_RESTORED => {
            let body: RateChanged = decode(bytes).ok()?;
            json!({ "interval_ms": body.interval_ms, "cost_ppm": body.cost_ppm })
        }
        EventKind::CPUS_CHANGED => {
            let body: Changed = decode(bytes).ok()?;
            json!({ "old_cpus": body.old, "new_cpus": body.new })
        }
        EventKind::MEMORY_CHANGED => {
            let body: Changed = decode(bytes).ok()?;
            json!({ "old_bytes": body.old, "new_bytes": body.new })
        }
        EventKind::ADVISOR_FAILED => {
            let body: AdvisorFailed<'_> = decode(bytes).ok()?;
            let what = body.what.name().map_or_else(|| format!("unknown({})", body.what.0), Into::into);
            json!({ "what": what, "advisor": body.name })
        }
        EventKind::CLOCK_STEPPED => json!({ "step_us": decode::<ClockStepped>(bytes).ok()?.step_us }),
        _ => return None,
    })
}

/// Bytes as text: those that are not UTF-8 become `\xNN`, and so does a backslash before an `x`, so that two names
/// that differ stay distinct.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        if chunk.valid().contains("\\x") {
            out.push_str(&chunk.valid().replace("\\x", "\\x5cx"));
        } else {
            out.push_str(chunk.valid());
        }
        for byte in chunk.invalid() {
            let _infallible = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _infallible = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_advisor_is_told_by_name_or_number() {
        let told = |body| {
            let kind = EventKind::ADVISOR_FAILED;
            readable(&Event { sequence: 1, boot_time_us: 0, kind, body })
        };
        assert_eq!(told(b"\x01\x08postgres"), Some(json!({"what": "silent", "advisor": "postgres"})));
        assert_eq!(told(b"\xe8\x07\x00"), Some(json!({"what": "unknown(1000)", "advisor": ""})));
        assert_eq!(told(b"\x01\x08post"), None);
    }

    #[test]
    fn names_that_differ_stay_distinct() {
        assert_eq!(text("/srv/d\u{e4}ta".as_bytes()), "/srv/d\u{e4}ta");
        assert_eq!(text(b"/srv/\xff"), "/srv/\\xff");
        assert_eq!(text(b"/srv/\\xff"), "/srv/\\x5cxff");
        assert_eq!(text(b"a\\b"), "a\\b");
    }
}
