//! What a simulated VM has to report: a schema of real rows, and values that move as those of idle and busy VMs do.
//!
//! Only numbers: no clock and no socket. The values are plausible, not meaningful.

use informant_wire::bits;
use informant_wire::metric::{Kind, Metric, SubjectKind, UNLIMITED, id};
use informant_wire::schema::{Label, MetricRange, Subject};
use informant_wire::units::Unit;

/// Values that move in every VM at every second, whatever runs in it.
const RESTLESS: &[informant_wire::metric::MetricId] = &[
    id::UPTIME,
    id::INTERRUPTS,
    id::CONTEXT_SWITCHES,
    id::MEM_FREE,
    id::MEM_AVAILABLE,
    id::VMSTAT_PGFAULT,
    id::AGENT_CPU,
    id::AGENT_SENT,
    id::AGENT_SAMPLE_COST,
    id::AGENT_LOOP_LAG,
    id::CPU_IDLE,
];

/// Chances are out of this.
const CERTAIN: u64 = 1024;

/// Marsaglia's xorshift with a multiplier: a few instructions, and the same numbers at every run.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring streams, and 0 would give only zeros.
        let mut random = Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn id128(&mut self) -> [u8; 16] {
        ((u128::from(self.next()) << 64) | u128::from(self.next())).to_le_bytes()
    }
}

#[derive(Debug)]
struct Thing {
    kind: SubjectKind,
    name: String,
    labels: &'static [(&'static str, &'static str)],
}

/// How one series behaves.
#[derive(Debug)]
struct Series {
    kind: Kind,
    start: u64,
    present: bool,
    idle_chance: u64,
    busy_chance: u64,
}

/// The schema that all simulated VMs share.
#[derive(Debug)]
pub(super) struct Layout {
    things: Vec<Thing>,
    series: Vec<Series>,
}

impl Layout {
    /// A VM with 2 CPUs, a disk, an interface, two file systems and as many cgroups as asked for.
    pub(super) fn new(cgroups: u32) -> Self {
        let thing = |kind, name: &str, labels| Thing { kind, name: name.to_owned(), labels };
        let mut things = vec![
            thing(SubjectKind::VM, "", &[]),
            thing(SubjectKind::CPU, "0", &[]),
            thing(SubjectKind::CPU, "1", &[]),
            thing(SubjectKind::DISK, "vda", &[]),
            thing(SubjectKind::NETWORK, "eth0", &[]),
            thing(SubjectKind::FILESYSTEM, "/", &[("device", "/dev/vda1"), ("fstype", "ext4")]),
            thing(SubjectKind::FILESYSTEM, "/boot", &[("device", "/dev/vda15"), ("fstype", "vfat")]),
        ];
        things
            .extend((0..cgroups).map(|n| thing(SubjectKind::CGROUP, &format!("/system.slice/unit-{n}.service"), &[])));
        let series = things.iter().flat_map(|thing| thing.kind.rows()).map(series).collect();
        Self { things, series }
    }

    pub(super) fn len(&self) -> usize {
        self.series.len()
    }

    /// In the order of the values.
    pub(super) fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        self.things.iter().map(|thing| {
            let rows = thing.kind.rows();
            let range = rows
                .first()
                .map(|row| MetricRange { first: row.id, count: u16::try_from(rows.len()).unwrap_or(u16::MAX) });
            Subject {
                kind: thing.kind,
                name: thing.name.as_bytes(),
                labels: thing.labels.iter().map(|(key, value)| Label { key, value: value.as_bytes() }).collect(),
                incarnation: 1,
                metrics: range.into_iter().collect(),
            }
        })
    }

    /// The first row of a VM, and which of its values are there.
    pub(super) fn first(&self, random: &mut Random) -> (Vec<u64>, Vec<u8>) {
        let mut present = vec![0; bits::bytes_for(self.len())];
        for (i, series) in self.series.iter().enumerate() {
            bits::put(&mut present, i, series.present);
        }
        let values = self.series.iter().map(|series| match series.kind {
            Kind::Counter => series.start + random.next() % 1_000_000,
            Kind::Gauge | Kind::Limit => series.start,
        });
        (values.collect(), present)
    }

    /// Moves a row on by a second.
    pub(super) fn step(&self, values: &mut [u64], busy: bool, random: &mut Random) {
        for (series, value) in self.series.iter().zip(values) {
            let dice = random.next();
            let chance = if busy { series.busy_chance } else { series.idle_chance };
            if dice % CERTAIN >= chance {
                continue;
            }
            let much = (dice / CERTAIN) % if busy { 4096 } else { 64 };
            *value = match series.kind {
                Kind::Counter => value.wrapping_add(1 + much),
                Kind::Gauge => series.start + much,
                Kind::Limit => *value,
            };
        }
    }
}

fn series(row: &Metric) -> Series {
    let restless = RESTLESS.contains(&row.id);
    // Some values do not exist on a given kernel: which, is the same in all VMs.
    let present = restless || row.id == id::MEM_TOTAL || row.subject == SubjectKind::CPU || row.id.0 % 8 != 3;
    let still = matches!(row.unit, Unit::Seconds | Unit::Mbits) || row.id == id::MEM_TOTAL || row.kind == Kind::Limit;
    let (idle_chance, busy_chance) = match row.kind {
        _ if still => (0, 0),
        _ if restless => (900, CERTAIN),
        Kind::Counter => (60, 700),
        _ if row.unit == Unit::Count => (0, 20),
        _ => (20, 500),
    };
    let start = match (row.kind, row.unit) {
        _ if row.id == id::MEM_TOTAL => 4 << 20,
        (Kind::Limit, _) => UNLIMITED,
        (Kind::Counter, _) => 1_000_000,
        (_, Unit::Kib) => 300_000,
        (_, Unit::Bytes) => 1 << 30,
        (_, Unit::Seconds) => 1_700_000_000,
        (_, Unit::Sectors) => 1 << 24,
        _ => 0,
    };
    Series { kind: row.kind, start, present, idle_chance, busy_chance }
}
