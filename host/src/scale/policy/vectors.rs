//! Every published vector of the compute-unit policy, one row each, named by the section of the description they stand
//! in. Two published tests are of no use here: the ring buffer and the similarity check of a cgroup watcher that went
//! another way (the guest's sensing has its own).

use super::fixture::{half, inputs, sample, size, target, units};
use super::working_set::{self, Plateau};
use super::{ComputeUnit, Denied, Inputs, goal::Goal};
use informant_wire::size::{Bytes, Size};

/// What is worked out, and what should come out.
enum Row {
    /// Whole units for loads of one and five minutes and memory in use, by the published defaults.
    Units(f64, Bytes, u32),
    /// Units for loads alone, with the zones (stable, mixed), rounded, and exactly.
    Cpu((f64, f64), (f64, f64), u32, f64),
    /// No metrics at all.
    Nothing,
    /// Where a plateau ends.
    Plateau(&'static [f64], f64),
    /// What a series leads to.
    Project(&'static [f64], f64, f64),
    /// The working set of a series in units of cache, and whole units.
    Cache(&'static [f64], f64, u32),
    /// What a state leads to.
    State(Box<Inputs>, bool, Size),
}

const RISING: &[f64] = &[
    0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8,
    1.9, 2.0,
];
const EARLY: &[f64] = &[0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1];
const PAGES: &[f64] = &[
    0.0, 15e3, 30e3, 40e3, 50e3, 150e3, 175e3, 180e3, 185e3, 190e3, 250e3, 300e3, 350e3, 375e3, 400e3, 415e3, 425e3,
    430e3, 435e3, 435e3,
];

fn state(inputs: Inputs, cache: bool, expected: Size) -> Row {
    Row::State(Box::new(inputs), cache, expected)
}

fn rows() -> Vec<(&'static str, Row)> {
    let mib = |tenths: u64| Bytes(tenths * Bytes::MIB / 10);
    let load = |load| Some(sample(load, Bytes(0)));
    let denied = |size| Some(Denied { at_us: 0, size });
    let cache = working_set::bytes(PAGES, &Goal::default());
    vec![
        ("§7.2 load 0, 143.6 MiB", Row::Units(0.0, mib(1436), 1)),
        ("§7.2 load 0.1, 500 MiB", Row::Units(0.1, mib(5000), 1)),
        ("§7.2 load 0.34, 600 MiB", Row::Units(0.34, mib(6000), 2)),
        ("§7.2 load 0.5, 700 MiB", Row::Units(0.5, mib(7000), 2)),
        ("§7.2 load 1.0, 768 MiB", Row::Units(1.0, mib(7680), 4)),
        ("§7.2 load 3.6, 3000 MiB", Row::Units(3.6, mib(30000), 16)),
        ("§9 goalcu basic", Row::Nothing),
        ("§9 goalcu cpu-load1-1cu", Row::Cpu((0.2, 0.0), (0.0, 0.0), 1, 0.8)),
        ("§9 goalcu cpu-load1-4cu", Row::Cpu((1.0, 0.0), (0.0, 0.0), 4, 4.0)),
        ("§9 goalcu cpu-zone-load1", Row::Cpu((0.7, 0.0), (0.5, 0.0), 3, 2.8)),
        ("§9 goalcu cpu-zone-load5", Row::Cpu((1.0, 0.7), (0.5, 0.0), 3, 2.8)),
        ("§9 goalcu cpu-zone-mixed", Row::Cpu((1.75, 1.0), (0.5, 0.5), 5, 5.499_997_000_005_999)),
        ("§9 wss basic-plateau", Row::Plateau(RISING, 1.0)),
        ("§9 wss plateau-before-init", Row::Plateau(EARLY, 1.1)),
        ("§9 wss basic highest", Row::Project(&[0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0], 0.5, 1.05)),
        ("§9 wss second highest from bigger slope", Row::Project(&[0.0, 0.3, 0.5, 0.6], 2.0, 0.9)),
        ("§9 state BasicLFCScaleup, the cache alone", Row::Cache(PAGES, 2.0345, 3)),
        ("§9 state BasicScaleup", state(inputs(size(250, 1), load(0.3)), false, size(500, 2))),
        (
            "§9 state MismatchedApprovedNoScaledown",
            state(Inputs { denied: denied(size(250, 1)), ..inputs(size(250, 2), load(0.0)) }, false, size(500, 2)),
        ),
        (
            "§9 state MismatchedApprovedNoScaledownButVMAtMaximum",
            state(Inputs { denied: denied(size(1000, 4)), ..inputs(size(1000, 5), load(0.0)) }, false, size(1000, 5)),
        ),
        ("§9 state BasicLFCScaleup", state(Inputs { cache, ..inputs(size(250, 1), load(0.0)) }, true, size(750, 3))),
        ("§9 state CanScaleUpWithoutExpectedLFCMetrics", state(inputs(size(250, 1), load(0.3)), true, size(500, 2))),
        ("§9 state CanScaleToBoundsWithoutExpectedMetrics", state(inputs(size(750, 5), load(0.3)), true, size(750, 4))),
        (
            "§9 state CanScaleUpWithoutExpectedSystemMetrics",
            state(Inputs { cache, ..inputs(size(250, 1), None) }, true, size(750, 3)),
        ),
    ]
}

#[test]
fn every_published_vector() {
    let published = ComputeUnit::published();
    let close = |name: &str, got: f64, expected: f64, within: f64| {
        assert!((got - expected).abs() <= within, "{name}: {got} where {expected} is published");
    };
    for (name, row) in rows() {
        match row {
            Row::Units(load, used, expected) => {
                let mut inputs = inputs(units(1), Some(sample(load, used)));
                inputs.bounds.max = units(64);
                assert_eq!(target(&published, &inputs), Some(units(expected)), "{name}");
                // What is seen ahead changes nothing where there is neither pressure nor growth.
                let ahead = ComputeUnit { ahead: ComputeUnit::default().ahead, ..published };
                assert_eq!(target(&ahead, &inputs), Some(units(expected)), "{name}, looking ahead");
            }
            Row::Cpu(loads, (stable_zone, mixed_zone), expected, exact) => {
                let goal = Goal { load_fraction: 1.0, stable_zone, mixed_zone, ..published.goal };
                let cpu = goal.cpu(loads);
                close(name, cpu, exact, 1e-12);
                let parts = super::goal::Parts { cpu: Some(cpu), ..Default::default() };
                assert_eq!(parts.units(), Some(expected), "{name}");
            }
            Row::Nothing => {
                assert_eq!(super::goal::Parts::default().units(), None, "{name}");
                assert_eq!(target(&published, &inputs(units(1), None)), None, "{name}");
            }
            Row::Plateau(series, expected) => {
                let rule = Plateau { factor: 2.0, first: 9, window: 5 };
                assert_eq!(working_set::plateau(series, rule), Some(expected), "{name}");
            }
            Row::Project(series, length, expected) => {
                close(name, working_set::project(series, length).unwrap(), expected, 1e-12);
            }
            Row::Cache(series, exact, expected) => {
                let units = published.goal.cache(working_set::bytes(series, &published.goal).unwrap());
                close(name, units, exact, 1e-4);
                let parts = super::goal::Parts { cache: Some(units), ..Default::default() };
                assert_eq!(parts.units(), Some(expected), "{name}");
            }
            Row::State(inputs, cache, expected) => {
                let mut policy = half();
                policy.goal.cache = cache;
                assert_eq!(target(&policy, &inputs), Some(expected), "{name}");
            }
        }
    }
}

#[test]
fn a_series_that_is_too_short_or_no_numbers_is_no_working_set() {
    let goal = Goal::default();
    assert_eq!(working_set::bytes(&[], &goal), None);
    assert_eq!(working_set::bytes(&[1.0; 4], &goal), None);
    assert_eq!(working_set::bytes(&[f64::NAN; 60], &goal), None);
    assert_eq!(working_set::bytes(&[-1.0; 60], &goal), None);
    assert_eq!(working_set::bytes(&[100.0; 60], &goal), Some(Bytes(100 * working_set::PAGE)));
    let largest = Goal { cache_largest_window: true, ..goal };
    assert!(working_set::bytes(PAGES, &largest) > working_set::bytes(PAGES, &goal));
    let huge = [0.0, f64::MAX, f64::MAX, f64::MAX, f64::MAX, f64::MAX];
    assert_eq!(working_set::bytes(&huge, &goal), Some(Bytes(u64::MAX)));
}

#[test]
fn a_cache_that_is_needed_stays_beside_what_is_used() {
    let goal = Goal::default();
    let alone = goal.memory(Bytes::gib(1), None);
    assert_eq!(goal.memory(Bytes::gib(1), Some((Bytes::gib(9), Bytes(0)))), alone, "what is not cached needs nothing");
    let both = goal.memory(Bytes::gib(1), Some((Bytes::gib(3), Bytes::gib(2))));
    assert!((both - (3.0 + 100.0 / 1024.0) / 0.9).abs() < 1e-9, "{both}");
}
