//! A process may be killed between any two writes: whatever it leaves must be read back as it was, or a step before.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BOOT: BootId = BootId([7; 16]);

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Ack(u64),
    NewStream,
    /// Killed after this many of the writes of the next step, and started again.
    KillIn(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_usize..=MAX_EVENT_BODY).prop_map(Step::Append),
        3 => (0_u64..60).prop_map(Step::Ack),
        1 => Just(Step::NewStream),
        2 => (0_usize..3).prop_map(Step::KillIn),
    ]
}

/// The ring, its file, and a process that can be killed.
struct Process {
    ring: Ring,
    file: Vec<u8>,
    /// Writes that still reach the file.
    left: usize,
}

impl Process {
    fn start() -> Self {
        let mut process = Self { ring: Ring::new(), file: vec![0; SIZE], left: usize::MAX };
        process.change(|ring, write| ring.begin(BOOT, StreamId(1), write));
        process
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut Ring, Write<'_>) -> R) -> R {
        let Self { ring, file, left } = self;
        change(ring, &mut |offset, bytes| {
            if *left > 0 {
                *left -= 1;
                file[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        })
    }

    fn restart(&mut self) {
        let (ring, left) = Ring::recover(&self.file, BOOT);
        assert_eq!(left, Left::ThisBoot);
        self.ring = ring;
        self.left = usize::MAX;
    }

    fn all(&self, cursor: u64) -> Vec<(u64, EventKind, Vec<u8>)> {
        let (mut cursor, mut all, mut body) = (cursor, Vec::new(), [0; MAX_EVENT_BODY]);
        while let Some(event) = self.ring.read(cursor, &mut body) {
            cursor = event.sequence + 1;
            all.push((event.sequence, event.kind, event.body.to_vec()));
        }
        all
    }
}

fn dropped(body: &[u8]) -> u64 {
    postcard::from_bytes::<Dropped>(body).unwrap().count.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A host that reads in order sees every event it ever can exactly once, and the dropped ones counted.
    #[test]
    fn every_event_is_read_once_or_counted_as_dropped(steps in prop::collection::vec(step(), 1..150)) {
        let mut process = Process::start();
        let mut written: u8 = 0;
        // By number, which unlike the sequence does not begin anew with a stream.
        let mut bodies: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut stream = 1_u64;
        let mut kill = None;
        for step in steps {
            if let Some(writes) = kill.take() {
                process.left = writes;
            }
            let base = process.ring.header.base;
            match step {
                Step::Append(length) => {
                    written = written.wrapping_add(1);
                    let body = vec![written; length];
                    bodies.insert(process.ring.next_sequence() + base, body.clone());
                    process.change(|ring, write| ring.append(EventKind(900), 1, &body, write));
                }
                Step::Ack(by) => {
                    let upto = (process.ring.first_pending() - 1 + by).min(process.ring.next_sequence() - 1);
                    process.change(|ring, write| ring.acknowledge(upto, write));
                    prop_assert_eq!(process.ring.first_pending(), upto + 1);
                }
                Step::NewStream => {
                    stream += 1;
                    process.change(|ring, write| ring.move_to(StreamId(stream), write));
                    prop_assert_eq!(process.ring.first_pending(), 1);
                }
                Step::KillIn(writes) => kill = Some(writes),
            }
            if process.left != usize::MAX {
                // What was not wholly written has not happened; what was acknowledged may come again.
                process.restart();
                let next = process.ring.next_sequence() + process.ring.header.base;
                bodies.retain(|number, _| *number < next);
            }
            let base = process.ring.header.base;
            prop_assert_eq!(bodies.last_key_value().map_or(1, |(number, _)| number + 1), process.ring.next_sequence() + base);
            let mut expected = process.ring.first_pending();
            for (sequence, kind, body) in process.all(0) {
                if kind == EventKind::DROPPED {
                    prop_assert_eq!(expected + dropped(&body), sequence + 1);
                } else {
                    prop_assert_eq!(sequence, expected);
                    prop_assert_eq!(&body, &bodies[&(sequence + base)]);
                }
                expected = sequence + 1;
            }
            prop_assert_eq!(expected, process.ring.next_sequence());
        }
    }

    #[test]
    fn arbitrary_files_are_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), SIZE), header: bool) {
        if header {
            let sound = Header { version: 9, boot: BOOT, tail: 16_000, tail_number: 40, first_lost: 38, base: 3, ..Header::default() };
            bytes[..HEADER + 4].copy_from_slice(&sound.bytes());
        }
        let (mut ring, left) = Ring::recover(&bytes, BOOT);
        prop_assert_eq!(left, if header { Left::ThisBoot } else { Left::Unreadable });
        if left == Left::Unreadable {
            ring.begin(BOOT, StreamId(5), &mut |_, _| {});
            prop_assert_eq!(ring.next_sequence(), 1);
        }
        ring.append(EventKind(1), 2, b"x", &mut |_, _| {});
        prop_assert!(ring.read(ring.next_sequence() - 1, &mut [0; MAX_EVENT_BODY]).is_some());
    }
}

#[test]
fn a_full_ring_drops_the_oldest_and_says_how_many_a_reader_missed() {
    let mut process = Process::start();
    let mut dropped_by_append = 0;
    for i in 0..40_u8 {
        dropped_by_append += process.change(|ring, write| ring.append(EventKind(900), 5, &[i; MAX_EVENT_BODY], write));
    }
    let all = process.all(0);
    assert_eq!((all[0].1, dropped(&all[0].2), all[0].0), (EventKind::DROPPED, dropped_by_append, dropped_by_append));
    assert_eq!(all.last().unwrap().0, 40);
    // A reader that had some of them already is told of the others only.
    assert_eq!(dropped(&process.all(4)[0].2), dropped_by_append - 3);
    // Once told of, they are not told of again.
    process.change(|ring, write| ring.acknowledge(dropped_by_append, write));
    assert_eq!(process.all(0)[0].0, dropped_by_append + 1);
    process.restart();
    assert_eq!(process.all(0)[0].0, dropped_by_append + 1);
}

#[test]
fn another_boots_events_are_counted_and_its_records_never_come_back() {
    let mut process = Process::start();
    for _ in 0..3 {
        process.change(|ring, write| ring.append(EventKind(900), 5, b"old", write));
    }
    process.change(|ring, write| ring.acknowledge(1, write));
    let (mut ring, left) = Ring::recover(&process.file, BootId([8; 16]));
    assert_eq!(left, Left::OtherBoot(2));
    ring.begin(BootId([8; 16]), StreamId(2), &mut |_, _| {});
    assert_eq!((ring.first_pending(), ring.next_sequence()), (1, 1));
    assert!(ring.read(0, &mut [0; MAX_EVENT_BODY]).is_none());
}

#[test]
fn a_blank_file_is_no_loss_and_a_cut_one_is() {
    assert_eq!(Ring::recover(&[0; SIZE], BOOT).1, Left::Nothing);
    assert_eq!(Ring::recover(&[0; SIZE - 1], BOOT).1, Left::Unreadable);
}
