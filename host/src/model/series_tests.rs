//! What a guest's counters become: totals that never fall, rates only where two readings allow one.

use super::*;
use crate::model::layout::LayoutBuilder;
use informant_wire::frame::{Split, split};
use informant_wire::guest_to_host::GuestToHost;
use informant_wire::metric::{MetricId, id};
use informant_wire::sample::{Row, SampleHead, encode};
use informant_wire::schema::{MetricRange, SchemaWriter, Subject};

use proptest::prelude::*;

type Series1 = (SubjectKind, &'static str, u64, MetricId);

const ETH0: Series1 = (SubjectKind::NETWORK, "eth0", 2, id::NET_RX_BYTES);
const CPU0_STEAL: Series1 = (SubjectKind::CPU, "0", 0, id::CPU_STEAL);
const LOAD: Series1 = (SubjectKind::VM, "", 0, id::LOAD1);

const CGROUP_STALLED: Series1 = (SubjectKind::CGROUP, "/db", 7, id::CGROUP_PRESSURE_CPU_SOME);
const CGROUP_CPU: Series1 = (SubjectKind::CGROUP, "/db", 7, id::CGROUP_CPU_USAGE);

/// A guest with one series a subject, and the host's view of it.
#[derive(Default)]
struct Pair {
    generation: u32,
    base: (Vec<u64>, Vec<u8>),
    sequence: u64,
    first: bool,
    key: bool,
    host: Series,
}

impl Pair {
    fn new(subjects: &[Series1]) -> Self {
        let mut pair = Self::default();
        pair.connect(subjects);
        pair
    }

    /// A new session.
    fn connect(&mut self, subjects: &[Series1]) {
        self.host.reconnect(100);
        self.first = true;
        self.generation = 0;
        self.schema(subjects);
    }

    fn schema(&mut self, subjects: &[Series1]) {
        self.generation += 1;
        self.base = (vec![0; subjects.len()], vec![0; bits::bytes_for(subjects.len())]);
        self.key = true;
        let list = subjects.iter().map(|(kind, name, incarnation, first)| Subject {
            kind: *kind,
            name: name.as_bytes(),
            labels: Default::default(),
            incarnation: *incarnation,
            metrics: [MetricRange { first: *first, count: 1 }].into_iter().collect(),
        });
        let mut writer = SchemaWriter::new(self.generation);
        let mut builder = LayoutBuilder::default();
        let mut out = vec![0; 60_000];
        writer.part(&mut out, list).unwrap();
        let Ok(Split::Frame(frame, _)) = split(&out, 60_000) else { panic!("a frame") };
        let Ok(GuestToHost::SchemaPart(part)) = GuestToHost::decode(frame) else { panic!("a part") };
        builder.part(&part, frame.body).unwrap();
        let mut out = vec![0; 100];
        writer.end(&mut out).unwrap();
        let Ok(Split::Frame(frame, _)) = split(&out, 100) else { panic!("a frame") };
        let Ok(GuestToHost::SchemaEnd(end)) = GuestToHost::decode(frame) else { panic!("an end") };
        self.host.set_layout(builder.end(&end).unwrap());
    }

    fn sample(&mut self, boot_s: u64, values: &[Option<u64>]) -> Result<Taken, SampleError> {
        self.sequence += 1;
        let raw: Vec<u64> = values.iter().map(|value| value.unwrap_or(0)).collect();
        let mut present = vec![0; bits::bytes_for(values.len())];
        for (i, value) in values.iter().enumerate() {
            bits::put(&mut present, i, value.is_some());
        }
        let head =
            SampleHead { generation: self.generation, sequence: self.sequence, boot_time_us: boot_s * 1_000_000 };
        let mut out = vec![0; 1000];
        let mut base = Base { values: &mut self.base.0, present: &mut self.base.1 };
        encode(&mut out, head, self.key, Row { values: &raw, present: &present }, &mut base).unwrap();
        self.key = false;
        let Ok(Split::Frame(frame, _)) = split(&out, 1000) else { panic!("a frame") };
        let Ok(GuestToHost::Sample(sample)) = GuestToHost::decode(frame) else { panic!("a sample") };
        let taken = self.host.take(&sample, self.first, None);
        self.first = false;
        taken
    }

    /// The published total and the growth of a series.
    fn reading(&self, series: usize) -> Option<(u64, Option<u64>)> {
        let metric = self.host.layout().metric(series)?;
        self.host.reading(series, metric).map(|reading| (reading.value, reading.growth))
    }
}

#[test]
fn a_rate_needs_two_samples_of_one_session() {
    let mut pair = Pair::new(&[ETH0, LOAD]);
    pair.sample(10, &[Some(1000), Some(7)]).unwrap();
    assert_eq!(pair.reading(0), Some((1000, None)));
    pair.sample(12, &[Some(1500), Some(5)]).unwrap();
    assert_eq!((pair.reading(0), pair.host.interval_us()), (Some((1500, Some(500))), Some(2_000_000)));
    assert_eq!(pair.reading(1), Some((5, None)), "a gauge has no rate");
    pair.connect(&[ETH0, LOAD]);
    assert_eq!(pair.reading(0), None, "nothing is published before the first sample");
    pair.sample(20, &[Some(2000), Some(5)]).unwrap();
    assert_eq!(pair.reading(0), Some((2000, None)), "none across a restart");
}

#[test]
fn a_step_back_clamps_one_field_for_one_interval() {
    let mut pair = Pair::new(&[CPU0_STEAL, ETH0]);
    pair.sample(1, &[Some(35_312_117_399), Some(10)]).unwrap();
    let taken = pair.sample(2, &[Some(35_312_117_390), Some(20)]).unwrap();
    assert_eq!(taken.back, 1);
    assert_eq!(pair.reading(0), Some((35_312_117_399, None)), "the total stays");
    assert_eq!(pair.reading(1), Some((20, Some(10))), "the other goes on");
    pair.sample(3, &[Some(35_312_117_400), Some(30)]).unwrap();
    assert_eq!(pair.reading(0), Some((35_312_117_409, Some(10))));
}

#[test]
fn interface_counters_wrap_at_32_bits() {
    let mut pair = Pair::new(&[ETH0]);
    pair.sample(1, &[Some(4_294_960_000)]).unwrap();
    pair.sample(2, &[Some(5000)]).unwrap();
    assert_eq!(pair.reading(0), Some((4_294_972_296, Some(12_296))));
}

#[test]
fn a_new_schema_keeps_what_the_same_subject_had() {
    let mut pair = Pair::new(&[ETH0, CPU0_STEAL]);
    pair.sample(1, &[Some(4_294_967_290), Some(100)]).unwrap();
    pair.sample(2, &[Some(4), Some(110)]).unwrap();
    pair.schema(&[CPU0_STEAL, LOAD, ETH0]);
    pair.sample(3, &[Some(120), Some(1), Some(14)]).unwrap();
    assert_eq!(pair.reading(0), Some((120, Some(10))));
    assert_eq!(pair.reading(2), Some((4_294_967_310, Some(10))), "its wrap is remembered in another place");
    pair.schema(&[(SubjectKind::NETWORK, "eth0", 3, id::NET_RX_BYTES)]);
    pair.sample(4, &[Some(20)]).unwrap();
    assert_eq!(pair.reading(0), Some((20, None)), "another incarnation is another series");
}

#[test]
fn totals_never_fall_across_a_reconnect_and_an_absence() {
    let mut pair = Pair::new(&[ETH0]);
    pair.sample(1, &[Some(500)]).unwrap();
    pair.sample(2, &[None]).unwrap();
    assert_eq!(pair.reading(0), None, "absent is not zero");
    pair.sample(3, &[Some(100)]).unwrap();
    assert_eq!(pair.reading(0), Some((500, None)), "no rate over a gap");
    pair.connect(&[ETH0]);
    pair.connect(&[ETH0]);
    pair.sample(9, &[Some(50)]).unwrap();
    assert_eq!(pair.reading(0), Some((500, None)));
    pair.sample(10, &[Some(60)]).unwrap();
    assert_eq!(pair.reading(0), Some((510, Some(10))));
}

#[test]
fn samples_that_can_not_be_trusted_are_refused() {
    let mut pair = Pair::new(&[ETH0]);
    pair.key = false;
    assert_eq!(pair.sample(1, &[Some(1)]), Err(SampleError::NoKey));
    pair.key = true;
    pair.sample(1, &[Some(1)]).unwrap();
    pair.sequence += 3;
    assert_eq!(pair.sample(2, &[Some(2)]).unwrap().missed, 3);
    pair.sequence -= 2;
    assert!(matches!(pair.sample(3, &[Some(2)]), Err(SampleError::Sequence { .. })));
    pair.generation += 1;
    assert!(matches!(pair.sample(4, &[Some(2)]), Err(SampleError::Generation { .. })));
}

/// What one series should read as, from all its raw values so far.
#[derive(Clone, Copy, Default)]
struct Expected {
    last: Option<u64>,
    total: u64,
    was_there: bool,
    reading: Option<(u64, Option<u64>)>,
}

impl Expected {
    fn take(&mut self, raw: Option<u64>, rates: bool, metric: &Metric) {
        self.reading = raw.map(|raw| {
            let moved = self.last.map(|last| step(last, raw, width(metric)));
            self.total = moved.map_or(raw, |moved| self.total + moved.growth());
            let growth = moved.filter(|moved| rates && self.was_there && *moved != Step::Back).map(Step::growth);
            self.last = Some(raw);
            if metric.kind == Kind::Counter { (self.total, growth) } else { (raw, None) }
        });
        self.was_there = raw.is_some();
    }
}

#[derive(Clone, Debug)]
enum Act {
    Sample([Option<u64>; 3]),
    Connect,
    Schema,
}

fn act() -> impl Strategy<Value = Act> {
    let raw =
        || prop_oneof![1 => Just(None), 2 => (0_u64..4).prop_map(Some), 3 => any::<u32>().prop_map(|n| Some(n.into()))];
    prop_oneof![
        8 => [raw(), raw(), raw()].prop_map(Act::Sample),
        1 => Just(Act::Connect),
        1 => Just(Act::Schema),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_and_goes_totals_add_up_and_rates_are_of_neighbours(
        acts in proptest::collection::vec(act(), 1..60),
    ) {
        let mut order = vec![(0, ETH0), (1, CPU0_STEAL), (2, LOAD)];
        let subjects = |order: &[(usize, Series1)]| order.iter().map(|(_, series)| *series).collect::<Vec<_>>();
        let mut pair = Pair::new(&subjects(&order));
        let mut expected = [Expected::default(); 3];
        let mut seconds = 0;
        for act in acts {
            match act {
                Act::Connect => pair.connect(&subjects(&order)),
                Act::Schema => {
                    order.rotate_left(1);
                    pair.schema(&subjects(&order));
                }
                Act::Sample(raw) => {
                    seconds += 1;
                    let rates = !pair.first;
                    let row: Vec<_> = order.iter().map(|(number, _)| raw[*number]).collect();
                    pair.sample(seconds, &row).unwrap();
                    for (at, (number, _)) in order.iter().enumerate() {
                        expected[*number].take(raw[*number], rates, pair.host.layout().metric(at).unwrap());
                        prop_assert_eq!(pair.reading(at), expected[*number].reading, "series {}", number);
                    }
                }
            }
        }
    }
}

/// A counter that is read at every fifth sample has the growth of five on one: it is spread over them.
#[test]
fn what_is_read_every_fifth_sample_grows_evenly() {
    let mut pair = Pair::new(&[CGROUP_STALLED, CGROUP_CPU]);
    let growths = |pair: &Pair| [0, 1].map(|series| pair.reading(series).and_then(|(_, growth)| growth));
    let (mut stalled, mut seen) = (0, Vec::new());
    for second in 0..24_u64 {
        // From the 15th second on nothing happens.
        if second % 5 == 2 && second < 15 {
            stalled += 4_000_000;
        }
        pair.sample(100 + second, &[Some(stalled), Some(second * 1000)]).unwrap();
        seen.push(growths(&pair));
    }
    assert_eq!(seen[0], [None, None]);
    assert!(seen[1..].iter().all(|[_, cpu]| *cpu == Some(1000)), "{seen:?}");
    let stalled: Vec<_> = seen.iter().map(|[stalled, _]| stalled.unwrap_or(0)).collect();
    assert_eq!(stalled[..2], [0, 0]);
    assert_eq!(stalled[2..18], [800_000; 16], "from the first change to five seconds behind the last");
    assert_eq!(stalled[18..], [0; 6]);
}

/// Another agent may read it at every sample.
#[test]
fn what_is_read_at_every_sample_is_not_spread() {
    let mut pair = Pair::new(&[CGROUP_STALLED]);
    for second in 0..4_u64 {
        pair.sample(100 + second, &[Some(second * 700)]).unwrap();
    }
    assert_eq!(pair.reading(0).and_then(|(_, growth)| growth), Some(700));
}
