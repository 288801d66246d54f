//! Golden vectors: the bytes in `vectors/` and their JSON reading, both ways.
//!
//! If a test here fails, do not change the vector: something released was reordered, renumbered or changed. Revert
//! that instead. A new message gets a new vector: write its reading with empty `frames`, run the tests once with
//! `INFORMANT_BLESS=1`, and check the bytes by hand against PROTOCOL.md. Blessing never touches bytes that are there.

use informant_wire::event::{Event, EventKind};
use informant_wire::frame::{self, kind};
use informant_wire::guest_to_host::{Heartbeat, Proof};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind, Refused, RefusedCode, Role, Welcome};
use informant_wire::host_to_guest::{Ack, Bye, ByeReason, Prove};
use informant_wire::id::{BootId, Challenge, ControllerId, Nonce, SessionId, StreamId};
use informant_wire::limits::MAX_FRAME;
use informant_wire::metric::{MetricId, SubjectKind};
use informant_wire::sample::{self, Base, Row, SampleHead};
use informant_wire::schema::{Label, MetricRange, SchemaReader, SchemaWriter, Subject};
use informant_wire::{Decoder, Frame, GuestToHost, HostToGuest, bits};
use serde_json::{Value, json};
use std::path::PathBuf;

#[path = "vectors/scale.rs"]
mod scale;

/// What both directions of a connection remember.
#[derive(Default)]
struct State {
    values: Vec<u64>,
    present: Vec<u8>,
    reader: SchemaReader,
    writer: Option<SchemaWriter>,
    series: usize,
}

impl State {
    fn begin_schema(&mut self) {
        self.values = vec![0; self.series];
        self.present = vec![0; bits::bytes_for(self.series)];
        self.series = 0;
    }

    fn base(&mut self) -> Base<'_> {
        Base { values: &mut self.values, present: &mut self.present }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The JSON reading of a frame.
fn reading(from_guest: bool, frame: Frame<'_>, state: &mut State) -> Value {
    if from_guest { guest_reading(frame, state) } else { host_reading(frame) }
}

fn host_reading(frame: Frame<'_>) -> Value {
    match HostToGuest::decode(frame).unwrap() {
        HostToGuest::Welcome(m) => json!({"type": "welcome", "version": m.version, "session": m.session.0,
            "challenge": hex(&m.challenge.0), "role": m.role.0, "controller": hex(&m.controller.0),
            "controller_name": m.controller_name, "last_event": m.last_event}),
        HostToGuest::Refused(m) => {
            json!({"type": "refused", "code": m.code.0, "permanent": m.permanent, "text": m.text})
        }
        HostToGuest::Ack(m) => json!({"type": "ack", "sample": m.sample, "event": m.event}),
        HostToGuest::Bye(m) => json!({"type": "bye", "reason": m.reason.0}),
        HostToGuest::Renonce => json!({"type": "renonce"}),
        HostToGuest::Prove(m) => json!({"type": "prove", "session": m.session.0}),
        HostToGuest::RoleAnswer(m) => scale::reading("role_answer", &m),
        HostToGuest::DemandAnswer(m) => scale::reading("demand_answer", &m),
        HostToGuest::Resized(m) => scale::reading("resized", &m),
        HostToGuest::Downscale(m) => scale::reading("downscale", &m),
        HostToGuest::ListControllers(m) => scale::reading("list_controllers", &m),
        HostToGuest::Unknown(kind) => json!({"type": "unknown", "kind": kind, "body": hex(frame.body)}),
    }
}

fn guest_reading(frame: Frame<'_>, state: &mut State) -> Value {
    match GuestToHost::decode(frame).unwrap() {
        GuestToHost::Hello(m) => json!({"type": "hello", "min_version": m.min_version, "max_version": m.max_version,
            "kind": m.kind.0, "name": m.name, "boot_id": hex(&m.boot_id.0), "nonce": hex(&m.nonce.0),
            "stream": m.stream.0, "next_event": m.next_event, "ticks_per_second": m.ticks_per_second,
            "capabilities": m.capabilities.0, "version": m.version}),
        GuestToHost::SchemaPart(m) => {
            state.reader.part(&m, frame.body).unwrap();
            let subjects: Vec<_> = m
                .subjects()
                .map(|subject| {
                    let labels: Vec<_> = subject
                        .labels
                        .iter()
                        .map(|label| json!({"key": label.key, "value": hex(label.value)}))
                        .collect();
                    let metrics: Vec<_> =
                        subject.metrics.iter().map(|range| json!([range.first.0, range.count])).collect();
                    json!({"kind": subject.kind.0, "name": hex(subject.name), "labels": labels,
                        "incarnation": subject.incarnation, "metrics": metrics})
                })
                .collect();
            json!({"type": "schema_part", "generation": m.generation, "subjects": subjects})
        }
        GuestToHost::SchemaEnd(m) => {
            state.series = state.reader.end(&m).unwrap();
            state.begin_schema();
            json!({"type": "schema_end", "generation": m.generation, "subjects": m.subjects, "crc32": m.crc32})
        }
        GuestToHost::Sample(m) => {
            let key = m.apply(&mut state.base()).unwrap().key;
            let values: Vec<_> = (0..state.values.len())
                .map(|i| if bits::get(&state.present, i) { json!(state.values[i]) } else { Value::Null })
                .collect();
            json!({"type": "sample", "generation": m.head.generation, "sequence": m.head.sequence,
                "boot_time_us": m.head.boot_time_us, "key": key, "values": values})
        }
        GuestToHost::Heartbeat(m) => json!({"type": "heartbeat", "boot_time_us": m.boot_time_us,
            "wall_time_us": m.wall_time_us, "loop_lag_us": m.loop_lag_us, "sample_cost_us": m.sample_cost_us}),
        GuestToHost::Event(m) => json!({"type": "event", "sequence": m.sequence, "boot_time_us": m.boot_time_us,
            "kind": m.kind.0, "body": hex(m.body)}),
        GuestToHost::Bye(m) => json!({"type": "bye", "reason": m.reason.0}),
        GuestToHost::Proof(m) => json!({"type": "proof", "challenge": hex(&m.challenge.0)}),
        GuestToHost::NotMine => json!({"type": "not_mine"}),
        GuestToHost::Suspend(m) => scale::reading("suspend", &m),
        GuestToHost::Resume(m) => scale::reading("resume", &m),
        GuestToHost::Demand(m) => scale::demand_reading(&m),
        GuestToHost::Applied(m) => scale::reading("applied", &m),
        GuestToHost::DownscaleAnswer(m) => scale::reading("downscale_answer", &m),
        GuestToHost::Stale(m) => scale::reading("stale", &m),
        GuestToHost::Controllers(m) => scale::controllers_reading(&m),
        GuestToHost::Unregistered(m) => scale::reading("unregistered", &m),
        GuestToHost::Unknown(kind) => json!({"type": "unknown", "kind": kind, "body": hex(frame.body)}),
    }
}

fn int<T: TryFrom<u64>>(value: &Value) -> T
where
    T::Error: std::fmt::Debug,
{
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number")).try_into().unwrap()
}

fn id(value: &Value) -> [u8; 16] {
    unhex(text(value)).try_into().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The frame of a JSON reading.
fn bytes(m: &Value, state: &mut State) -> Vec<u8> {
    let mut out = vec![0; MAX_FRAME];
    let to = &mut out[..];
    let end = match text(&m["type"]) {
        "hello" => Hello {
            magic: MAGIC,
            min_version: int(&m["min_version"]),
            max_version: int(&m["max_version"]),
            kind: PeerKind(int(&m["kind"])),
            name: text(&m["name"]),
            boot_id: BootId(id(&m["boot_id"])),
            nonce: Nonce(id(&m["nonce"])),
            stream: StreamId(int(&m["stream"])),
            next_event: int(&m["next_event"]),
            ticks_per_second: int(&m["ticks_per_second"]),
            capabilities: Capabilities(int(&m["capabilities"])),
            version: text(&m["version"]),
        }
        .encode(to),
        "welcome" => Welcome {
            version: int(&m["version"]),
            session: SessionId(int(&m["session"])),
            challenge: Challenge(id(&m["challenge"])),
            role: Role(int(&m["role"])),
            controller: ControllerId(id(&m["controller"])),
            controller_name: text(&m["controller_name"]),
            last_event: int(&m["last_event"]),
        }
        .encode(to),
        "refused" => Refused {
            code: RefusedCode(int(&m["code"])),
            permanent: m["permanent"].as_bool().unwrap(),
            text: text(&m["text"]),
        }
        .encode(to),
        "schema_part" => schema_part(m, state, to),
        "schema_end" => {
            state.begin_schema();
            state.writer.take().unwrap_or_else(|| SchemaWriter::new(int(&m["generation"]))).end(to)
        }
        "sample" => {
            let values: Vec<_> = m["values"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap_or(0)).collect();
            let mut present = vec![0; bits::bytes_for(values.len())];
            for (i, value) in m["values"].as_array().unwrap().iter().enumerate() {
                bits::put(&mut present, i, !value.is_null());
            }
            let head = SampleHead {
                generation: int(&m["generation"]),
                sequence: int(&m["sequence"]),
                boot_time_us: int(&m["boot_time_us"]),
            };
            let row = Row { values: &values, present: &present };
            sample::encode(to, head, m["key"].as_bool().unwrap(), row, &mut state.base())
        }
        "heartbeat" => Heartbeat {
            boot_time_us: int(&m["boot_time_us"]),
            wall_time_us: int(&m["wall_time_us"]),
            loop_lag_us: int(&m["loop_lag_us"]),
            sample_cost_us: int(&m["sample_cost_us"]),
        }
        .encode(to),
        "event" => Event {
            sequence: int(&m["sequence"]),
            boot_time_us: int(&m["boot_time_us"]),
            kind: EventKind(int(&m["kind"])),
            body: &unhex(text(&m["body"])),
        }
        .encode(to),
        "ack" => Ack { sample: int(&m["sample"]), event: int(&m["event"]) }.encode(to),
        "bye" => Bye { reason: ByeReason(int(&m["reason"])) }.encode(to),
        "prove" => Prove { session: SessionId(int(&m["session"])) }.encode(to),
        "proof" => Proof { challenge: Challenge(id(&m["challenge"])) }.encode(to),
        "renonce" => frame::encode(to, kind::RENONCE, &()),
        "not_mine" => frame::encode(to, kind::NOT_MINE, &()),
        "unknown" => frame::encode_with(to, int(&m["kind"]), |body| {
            let bytes = unhex(text(&m["body"]));
            body[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }),
        other => scale::encode(other, m, to),
    };
    let end = end.unwrap();
    out.truncate(end);
    out
}

fn schema_part(m: &Value, state: &mut State, to: &mut [u8]) -> Result<usize, frame::EncodeError> {
    let subjects = m["subjects"].as_array().unwrap();
    let names: Vec<_> = subjects.iter().map(|subject| unhex(text(&subject["name"]))).collect();
    let labels: Vec<Vec<(&str, Vec<u8>)>> = subjects
        .iter()
        .map(|s| s["labels"].as_array().unwrap().iter().map(|l| (text(&l["key"]), unhex(text(&l["value"])))).collect())
        .collect();
    let subjects: Vec<_> = subjects
        .iter()
        .zip(&names)
        .zip(&labels)
        .map(|((subject, name), labels)| Subject {
            kind: SubjectKind(int(&subject["kind"])),
            name,
            labels: labels.iter().map(|(key, value)| Label { key, value }).collect(),
            incarnation: int(&subject["incarnation"]),
            metrics: subject["metrics"]
                .as_array()
                .unwrap()
                .iter()
                .map(|range| MetricRange { first: MetricId(int(&range[0])), count: int(&range[1]) })
                .collect(),
        })
        .collect();
    state.series += subjects.iter().map(Subject::series).sum::<usize>();
    let writer = state.writer.get_or_insert_with(|| SchemaWriter::new(int(&m["generation"])));
    let (end, taken) = writer.part(to, subjects.iter().cloned())?;
    assert_eq!(taken, subjects.len(), "the part fits");
    Ok(end)
}

#[test]
fn bytes_and_readings_agree_both_ways() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors/v1.json");
    let mut vectors: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let bless = std::env::var_os("INFORMANT_BLESS").is_some();
    assert!(vectors.len() >= 14, "vectors are never removed");
    for vector in &mut vectors {
        let name = text(&vector["name"]).to_owned();
        let from_guest = match text(&vector["from"]) {
            "guest" => true,
            "host" => false,
            other => panic!("{name}: from {other}"),
        };
        let mut state = State::default();
        let readings = vector["readings"].as_array().unwrap();
        let encoded: Vec<_> = readings.iter().map(|m| json!(hex(&bytes(m, &mut state)))).collect();
        let fresh = bless && vector["frames"].as_array().unwrap().is_empty();
        if fresh {
            vector["frames"] = json!(encoded);
        }
        assert_eq!(vector["frames"], json!(encoded), "{name}: encoding its reading gives other bytes");

        let stream = unhex(&vector["frames"].as_array().unwrap().iter().map(text).collect::<String>());
        let (mut state, mut decoder, mut read) = (State::default(), Decoder::new(vec![0; MAX_FRAME]), Vec::new());
        for mut piece in stream.chunks(5) {
            while let Some(frame) = decoder.next(&mut piece).unwrap() {
                read.push(reading(from_guest, frame, &mut state));
            }
        }
        if fresh {
            // A checksum in a new reading is filled in, too.
            vector["readings"] = json!(read);
        }
        assert_eq!(vector["readings"], json!(read), "{name}: decoding its bytes gives another reading");
    }
    if bless {
        std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(&vectors).unwrap())).unwrap();
    }
}
