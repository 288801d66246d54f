//! How many samples a second one core decodes and stores: real frames through the daemon's session and model, without
//! sockets. Only for benchmarks (`cargo xtask bench`); prints one JSON line.

use std::fs;
use std::process::ExitCode;

use informant_host::model::Now;
use informant_host::model::instance::{Admission, Facts, Instance, Standing};
use informant_host::session::{Heard, Session};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind};
use informant_wire::id::{BootId, Nonce, SessionId, StreamId};
use informant_wire::limits::{KEY_FRAME_EVERY, MAX_FRAME};
use informant_wire::metric::{Kind, SubjectKind};
use informant_wire::sample::{self, Base, Row, SampleHead};
use informant_wire::schema::{MetricRange, SchemaWriter, Subject};
use informant_wire::{MAX_VERSION, MIN_VERSION, bits};

type Error = Box<dyn std::error::Error>;

/// So many that their state does not stay in a cache by accident.
const INSTANCES: u64 = 2_000;
/// Samples of every instance: three key frames.
const SAMPLES: u64 = 180;
/// A VM with 2 CPUs, a disk, an interface and 2 file systems.
const SUBJECTS: [(SubjectKind, &str); 7] = [
    (SubjectKind::VM, ""),
    (SubjectKind::CPU, "0"),
    (SubjectKind::CPU, "1"),
    (SubjectKind::DISK, "vda"),
    (SubjectKind::NETWORK, "eth0"),
    (SubjectKind::FILESYSTEM, "/"),
    (SubjectKind::FILESYSTEM, "/boot"),
];

fn main() -> ExitCode {
    match measure() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<String, Error> {
    // One in four is busy; which bytes an instance reads makes no difference to the work.
    let streams = [stream(60, 64)?, stream(60, 64)?, stream(60, 64)?, stream(600, 4096)?];
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        instances.push(Guest::new(number, &streams[usize::try_from(number % 4)?])?);
    }
    let before = cpu_ns()?;
    for (sample, turn) in (0..SAMPLES).enumerate() {
        let now = Now { mono_us: 2_000_000 + turn * 1_000_000, wall_ms: turn };
        for (number, guest) in instances.iter_mut().enumerate() {
            guest.hear(&streams[number % 4].samples[sample], now)?;
        }
    }
    let seconds = (cpu_ns()? - before) as f64 / 1e9;
    let taken: u64 = instances.iter().map(|guest| guest.instance.counters.samples).sum();
    if taken != INSTANCES * SAMPLES || instances.iter().any(|guest| guest.instance.counters.mismatches > 0) {
        return Err(format!("{taken} of {} samples were taken", INSTANCES * SAMPLES).into());
    }
    let bytes: usize = streams.iter().flat_map(|stream| &stream.samples).map(Vec::len).sum();
    Ok(format!(
        "{{\"samples_per_second\":{:.0},\"series\":{},\"bytes\":{:.1}}}",
        taken as f64 / seconds,
        streams[0].series,
        bytes as f64 / (4.0 * SAMPLES as f64)
    ))
}

/// CPU time of this thread.
fn cpu_ns() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().ok_or("an empty schedstat")?.parse()?)
}

struct Guest {
    id: SessionId,
    session: Session,
    instance: Instance,
}

impl Guest {
    fn new(number: u64, stream: &Stream) -> Result<Self, Error> {
        let now = Now { mono_us: 1_000_000, wall_ms: 1 };
        let mut guest = Self { id: SessionId(number), session: Session::new(now), instance: Instance::default() };
        let hello = Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::AGENT,
            name: "vm",
            boot_id: BootId(u128::from(number).to_le_bytes()),
            nonce: Nonce(u128::from(number).to_be_bytes()),
            stream: StreamId(number),
            next_event: 1,
            ticks_per_second: 100,
            capabilities: Capabilities::SAMPLES,
            version: "0",
        };
        let mut out = [0; 1024];
        let end = hello.encode(&mut out)?;
        let facts = match guest.session.next(now, &out[..end], &mut 0) {
            Some(Heard::Hello(said, version)) => Facts::new(&said, version),
            other => return Err(format!("{other:?} where a Hello was sent").into()),
        };
        match guest.instance.hello(guest.id, &facts, Standing::Proven, now) {
            Admission::Open { last_event, held, agent } => guest.session.open(now, agent, last_event, held),
            Admission::Refuse { text, .. } => return Err(text.into()),
        }
        guest.hear(&stream.schema, now)?;
        Ok(guest)
    }

    /// As the daemon's connections do with what they read.
    fn hear(&mut self, bytes: &[u8], now: Now) -> Result<(), Error> {
        self.instance.bytes(self.id, bytes.len(), now);
        let mut used = 0;
        loop {
            let mut taken = None;
            match self.session.next(now, bytes, &mut used) {
                None => return Ok(()),
                Some(Heard::SchemaPart(part, body)) => self.instance.schema_part(self.id, &part, body)?,
                Some(Heard::SchemaEnd(end)) => self.instance.schema_end(self.id, &end)?,
                Some(Heard::Sample(sample)) => {
                    self.instance.sample(self.id, &sample, now)?;
                    taken = Some(sample.head.sequence);
                }
                Some(other) => return Err(format!("{other:?}").into()),
            }
            if let Some(sequence) = taken {
                self.session.sample_taken(sequence);
            }
        }
    }
}

/// What an agent sends.
struct Stream {
    schema: Vec<u8>,
    samples: Vec<Vec<u8>>,
    series: usize,
}

/// `chance`: out of 1024, that a counter or gauge moves in a second; by at most `most`.
fn stream(chance: u64, most: u64) -> Result<Stream, Error> {
    let subjects = SUBJECTS.map(|(kind, name)| Subject {
        kind,
        name: name.as_bytes(),
        labels: Default::default(),
        incarnation: 1,
        metrics: kind
            .rows()
            .first()
            .map(|row| MetricRange { first: row.id, count: u16::try_from(kind.rows().len()).unwrap_or(u16::MAX) })
            .into_iter()
            .collect(),
    });
    let kinds: Vec<Kind> = SUBJECTS.iter().flat_map(|(kind, _)| kind.rows()).map(|row| row.kind).collect();
    let mut out = vec![0; MAX_FRAME];
    let (mut schema, mut writer, mut rest) = (Vec::new(), SchemaWriter::new(1), &subjects[..]);
    while !rest.is_empty() {
        let (end, taken) = writer.part(&mut out, rest.iter().cloned())?;
        schema.extend_from_slice(&out[..end]);
        rest = &rest[taken..];
    }
    let end = writer.end(&mut out)?;
    schema.extend_from_slice(&out[..end]);

    let (mut values, mut present) = (vec![1_000_000_u64; kinds.len()], vec![0; bits::bytes_for(kinds.len())]);
    (0..kinds.len()).filter(|i| i % 8 != 3).for_each(|i| bits::put(&mut present, i, true));
    let (mut base_values, mut base_present) = (vec![0; values.len()], vec![0; present.len()]);
    let (mut samples, mut dice) = (Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    for sequence in 1..=SAMPLES {
        for (value, kind) in values.iter_mut().zip(&kinds) {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            if dice % 1024 < chance {
                *value = if *kind == Kind::Counter {
                    *value + 1 + dice / 1024 % most
                } else {
                    1_000_000 + dice / 1024 % most
                };
            }
        }
        let head = SampleHead { generation: 1, sequence, boot_time_us: sequence * 1_000_000 };
        let mut base = Base { values: &mut base_values, present: &mut base_present };
        let key = (sequence - 1).is_multiple_of(KEY_FRAME_EVERY);
        let end = sample::encode(&mut out, head, key, Row { values: &values, present: &present }, &mut base)?;
        samples.push(out[..end].to_vec());
    }
    Ok(Stream { schema, samples, series: kinds.len() })
}
