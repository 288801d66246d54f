//! Properties of the protocol both ways: splits anywhere, unknown types anywhere, arbitrary bytes, wraps and backward
//! steps, appearing and vanishing series, dropped samples.

use informant_wire::event::{Event, EventKind};
use informant_wire::frame::{self, Frame, kind};
use informant_wire::limits::{MAX_FRAME, MAX_NAME, MAX_SCHEMA_BYTES, max_sample_body};
use informant_wire::metric::{MetricId, SubjectKind};
use informant_wire::sample::{self, Applied, Base, Row, SampleBody, SampleHead};
use informant_wire::schema::{
    Label, MetricRange, SchemaError, SchemaPart, SchemaReader, SchemaWriter, Subject, shorten,
};
use informant_wire::{Decoder, GuestToHost, HostToGuest, bits};
use proptest::prelude::*;

/// Frames of any type, as one stream and as a list.
fn stream(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, body) in frames {
        let mut out = vec![0; body.len() + 3];
        let end = frame::encode_with(&mut out, *kind, |to| {
            to[..body.len()].copy_from_slice(body);
            Ok(body.len())
        })
        .unwrap();
        bytes.extend_from_slice(&out[..end]);
    }
    bytes
}

/// Feeds `bytes` in the given pieces and gives what came out.
fn decode_in_pieces(bytes: &[u8], pieces: &[usize]) -> Vec<(u8, Vec<u8>)> {
    let mut decoder = Decoder::new(vec![0; MAX_FRAME]);
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(1).clamp(1, rest.len());
        let (mut piece, behind) = rest.split_at(size);
        rest = behind;
        while let Some(Frame { kind, body }) = decoder.next(&mut piece).unwrap() {
            frames.push((kind, body.to_vec()));
        }
        assert!(piece.is_empty(), "all of a piece is taken");
    }
    assert!(!decoder.is_mid_frame());
    frames
}

#[derive(Clone, Debug)]
struct Tick {
    values: Vec<Option<u64>>,
    dropped: bool,
}

/// Rows of the same number of series whose values grow, wrap, fall, appear and vanish.
fn ticks() -> impl Strategy<Value = Vec<Tick>> {
    let value = prop_oneof![
        Just(None),
        Just(Some(0)),
        Just(Some(u64::MAX)),
        Just(Some(1 << 63)),
        (0_u64..1000).prop_map(Some),
        any::<u64>().prop_map(Some),
    ];
    (0_usize..40).prop_flat_map(move |series| {
        prop::collection::vec(
            (prop::collection::vec(value.clone(), series), prop::bool::weighted(0.2))
                .prop_map(|(values, dropped)| Tick { values, dropped }),
            1..70,
        )
    })
}

fn row(values: &[Option<u64>]) -> (Vec<u64>, Vec<u8>) {
    let mut present = vec![0; bits::bytes_for(values.len())];
    for (i, value) in values.iter().enumerate() {
        bits::put(&mut present, i, value.is_some());
    }
    // What stands at an absent series must not matter.
    (values.iter().map(|value| value.unwrap_or(0xdead)).collect(), present)
}

fn read(values: &[u64], present: &[u8]) -> Vec<Option<u64>> {
    values.iter().enumerate().map(|(i, value)| bits::get(present, i).then_some(*value)).collect()
}

#[test]
fn a_schema_over_the_limit_of_bytes_is_told_from_one_of_too_many_series() {
    let name = [b'n'; MAX_NAME];
    let subject = Subject {
        kind: SubjectKind::CGROUP,
        name: &name,
        labels: heapless::Vec::new(),
        incarnation: 1,
        metrics: heapless::Vec::new(),
    };
    let (mut writer, mut reader, mut out) = (SchemaWriter::new(1), SchemaReader::default(), vec![0; 4096]);
    let mut bytes = 0;
    let error = loop {
        let (end, _) = writer.part(&mut out, std::iter::repeat_n(subject.clone(), 8)).unwrap();
        let body = &out[3..end];
        bytes += body.len();
        if let Err(error) = reader.part(&SchemaPart::decode(body).unwrap(), body) {
            break error;
        }
        assert!(bytes <= MAX_SCHEMA_BYTES);
    };
    assert_eq!(error, SchemaError::TooManyBytes);
    assert!(bytes > MAX_SCHEMA_BYTES);
}

/// The series and the subjects' names of a stream that is one schema.
fn read_schema(stream: &[u8]) -> Result<(usize, Vec<Vec<u8>>), SchemaError> {
    let (mut reader, mut seen) = (SchemaReader::default(), Vec::new());
    for (kind, body) in decode_in_pieces(stream, &[97]) {
        match GuestToHost::decode(Frame { kind, body: &body }).unwrap() {
            GuestToHost::SchemaPart(part) => {
                reader.part(&part, &body)?;
                seen.extend(part.subjects().map(|subject| subject.name.to_vec()));
            }
            GuestToHost::SchemaEnd(end) => return Ok((reader.end(&end)?, seen)),
            other => panic!("{other:?} in a schema"),
        }
    }
    panic!("no end")
}

struct Side {
    values: Vec<u64>,
    present: Vec<u8>,
}

impl Side {
    fn new(series: usize) -> Self {
        Self { values: vec![0; series], present: vec![0; bits::bytes_for(series)] }
    }

    fn base(&mut self) -> Base<'_> {
        Base { values: &mut self.values, present: &mut self.present }
    }
}

proptest! {
    #[test]
    fn split_anywhere_with_unknown_types_anywhere(
        frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..12),
        pieces in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let bytes = stream(&frames);
        for pieces in [&pieces[..], &[1], &[bytes.len().max(1)]] {
            prop_assert_eq!(&decode_in_pieces(&bytes, pieces), &frames);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), size in 3_usize..600) {
        let mut decoder = Decoder::new(vec![0; size]);
        for piece in bytes.chunks(7) {
            let mut piece = piece;
            while let Ok(Some(frame)) = decoder.next(&mut piece) {
                let _ = GuestToHost::decode(frame);
                let _ = HostToGuest::decode(frame);
            }
        }
        for kind in 0..=0x10 {
            let frame = Frame { kind, body: &bytes };
            let _ = HostToGuest::decode(frame);
            if let Ok(GuestToHost::SchemaPart(part)) = GuestToHost::decode(frame) {
                prop_assert_eq!(part.subjects().count(), part.count);
            }
        }
    }

    #[test]
    fn every_sent_row_arrives(ticks in ticks()) {
        let series = ticks[0].values.len();
        let (mut sender, mut receiver) = (Side::new(series), Side::new(series));
        let mut out = vec![0; 3 + max_sample_body(series)];
        let mut sent = 0_u64;
        for (sequence, tick) in (1..).zip(&ticks) {
            if tick.dropped {
                continue;
            }
            let key = sent.is_multiple_of(60);
            let (values, present) = row(&tick.values);
            let head = SampleHead { generation: 3, sequence, boot_time_us: sequence * 1_000_000 };
            let end = sample::encode(&mut out, head, key, Row { values: &values, present: &present }, &mut sender.base()).unwrap();
            let body = SampleBody::decode(&out[3..end]).unwrap();
            prop_assert_eq!(body.head, head);
            prop_assert_eq!(body.apply(&mut receiver.base()), Ok(Applied { key, mismatches: 0 }));
            prop_assert_eq!(read(&receiver.values, &receiver.present), tick.values.clone());
            sent += 1;
        }
    }

    #[test]
    fn a_bad_sample_changes_nothing(
        first in prop::collection::vec(any::<Option<u64>>(), 1..40),
        second in prop::collection::vec(any::<Option<u64>>(), 1..40),
        cut in any::<prop::sample::Index>(),
        extra in any::<u8>(),
    ) {
        let series = first.len().min(second.len());
        let (mut sender, mut receiver) = (Side::new(series), Side::new(series));
        let mut out = vec![0; 3 + max_sample_body(series)];
        for (key, tick) in [(true, &first[..series]), (false, &second[..series])] {
            let (values, present) = row(tick);
            let row = Row { values: &values, present: &present };
            let end = sample::encode(&mut out, SampleHead::default(), key, row, &mut sender.base()).unwrap();
            let body = &out[3..end];
            let before = (receiver.values.clone(), receiver.present.clone());
            let mut longer = body.to_vec();
            longer.push(extra);
            prop_assert!(SampleBody::decode(&longer).unwrap().apply(&mut receiver.base()).is_err());
            if let Ok(short) = SampleBody::decode(&body[..cut.index(body.len())]) {
                prop_assert!(short.apply(&mut receiver.base()).is_err());
            }
            prop_assert_eq!(&before, &(receiver.values.clone(), receiver.present.clone()));
            SampleBody::decode(body).unwrap().apply(&mut receiver.base()).unwrap();
        }
    }

    #[test]
    fn a_key_frame_tells_what_the_receiver_holds_wrongly(values in prop::collection::vec(any::<u64>(), 1..40), wrong in any::<prop::sample::Index>()) {
        let series = values.len();
        let (mut sender, mut receiver) = (Side::new(series), Side::new(series));
        let (values, present) = row(&values.into_iter().map(Some).collect::<Vec<_>>());
        let mut out = vec![0; 3 + max_sample_body(series)];
        let row = Row { values: &values, present: &present };
        let first = sample::encode(&mut out, SampleHead::default(), true, row, &mut sender.base()).unwrap();
        SampleBody::decode(&out[3..first]).unwrap().apply(&mut receiver.base()).unwrap();
        receiver.values[wrong.index(series)] ^= 1;
        let again = sample::encode(&mut out, SampleHead::default(), true, row, &mut sender.base()).unwrap();
        let applied = SampleBody::decode(&out[3..again]).unwrap().apply(&mut receiver.base()).unwrap();
        prop_assert_eq!(applied.mismatches, 1);
        prop_assert_eq!(receiver.values, values);
    }

    #[test]
    fn schemas_arrive_whole_or_not_at_all(
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=MAX_NAME), 0..300),
        part_size in 700_usize..4000,
        flip in any::<prop::sample::Index>(),
    ) {
        let subjects: Vec<_> = names.iter().map(|name| Subject {
            kind: SubjectKind::CGROUP,
            name,
            labels: [Label { key: "device", value: b"254:0" }].into_iter().collect(),
            incarnation: 7,
            metrics: [MetricRange { first: MetricId(1400), count: 3 }].into_iter().collect(),
        }).collect();
        let mut writer = SchemaWriter::new(9);
        let mut out = vec![0; part_size];
        let (mut stream, mut done) = (Vec::new(), 0);
        while done < subjects.len() {
            let (end, taken) = writer.part(&mut out, subjects[done..].iter().cloned()).unwrap();
            stream.extend_from_slice(&out[..end]);
            done += taken;
        }
        let end = writer.end(&mut out).unwrap();
        stream.extend_from_slice(&out[..end]);

        prop_assert_eq!(read_schema(&stream), Ok((3 * names.len(), names.clone())));

        // A flipped bit in a name, which still decodes, is found by the checksum.
        if let Some(name) = names.iter().find(|name| name.len() > 8) {
            let at = stream.windows(name.len()).position(|window| window == name).unwrap() + flip.index(name.len());
            stream[at] ^= 1;
            prop_assert_eq!(read_schema(&stream), Err(SchemaError::Incomplete));
        }
    }

    #[test]
    fn events_of_unknown_kinds_arrive_as_they_are(sequence in 1_u64.., boot_time_us: u64, kind: u16, body in prop::collection::vec(any::<u8>(), 0..512)) {
        let event = Event { sequence, boot_time_us, kind: EventKind(kind), body: &body };
        let mut out = [0; 1024];
        let end = event.encode(&mut out).unwrap();
        let frame = Frame { kind: kind::EVENT, body: &out[3..end] };
        prop_assert_eq!(GuestToHost::decode(frame), Ok(GuestToHost::Event(event)));
    }

    #[test]
    fn shortened_names_fit_and_stay_distinct(tail_a in "[a-z]{1,200}", tail_b in "[a-z]{1,200}") {
        prop_assume!(tail_a != tail_b);
        let (mut a, mut b) = ([0; MAX_NAME], [0; MAX_NAME]);
        let (long_a, long_b) = (format!("{}{tail_a}", "x".repeat(255)), format!("{}{tail_b}", "x".repeat(255)));
        let (a, b) = (shorten(long_a.as_bytes(), &mut a), shorten(long_b.as_bytes(), &mut b));
        prop_assert!(a.len() == MAX_NAME && b.len() == MAX_NAME && a != b);
        prop_assert_eq!(&a[..238], &[b'x'; 238]);
    }
}

#[test]
fn a_frame_longer_than_the_buffer_or_empty_ends_the_stream() {
    let mut decoder = Decoder::new([0; 10]);
    let mut input: &[u8] = &[9, 0, 1];
    assert_eq!(decoder.next(&mut input), Err(frame::FrameError::TooLong { length: 9, limit: 8 }));
    let mut decoder = Decoder::new([0; 10]);
    let mut input: &[u8] = &[0];
    assert_eq!(decoder.next(&mut input), Ok(None));
    assert!(decoder.is_mid_frame());
    let mut input: &[u8] = &[0];
    assert_eq!(decoder.next(&mut input), Err(frame::FrameError::Empty));
}

#[test]
fn a_key_frame_of_the_most_series_fits_a_frame() {
    let series = informant_wire::limits::MAX_SERIES;
    let mut side = Side::new(series);
    let (values, present) = (vec![u64::MAX; series], vec![0xff; bits::bytes_for(series)]);
    let head = SampleHead { generation: u32::MAX, sequence: u64::MAX, boot_time_us: u64::MAX };
    let mut out = vec![0; MAX_FRAME];
    let row = Row { values: &values, present: &present };
    assert!(sample::encode(&mut out, head, true, row, &mut side.base()).is_ok());
}
