//! How large the working set of a workload's cache is, from what it would be over windows of one, two, three ... minutes.
//! A workload that starts to scan new data grows all the longer windows: the estimate ends at the plateau before that.

use super::goal::Goal;
use super::number;
use informant_wire::size::Bytes;

/// Bytes of a page of the series.
pub const PAGE: u64 = 8192;

/// How a plateau is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// It ends where the growth after it is more than so many times the growth before it.
    pub factor: f64,
    /// The first index that may be its end.
    pub first: usize,
    /// Points of a window, the ends included.
    pub window: usize,
}

/// The value at the end of the first plateau; the last value where there is none. `None`: too few points for one window
/// on either side of the first index.
#[must_use]
pub fn plateau(series: &[f64], rule: Plateau) -> Option<f64> {
    let reach = rule.window.saturating_sub(1);
    if series.len() <= rule.first || series.len() <= reach {
        return None;
    }
    let at = |i: usize| series.get(i).copied();
    let step = |from: usize, to: usize| Some((at(to)? - at(from)?).max(0.0));
    for i in rule.first.max(reach)..series.len() {
        let Some(after) = step(i, i.saturating_add(reach)) else { break };
        let Some(before) = step(i - reach, i) else { break };
        if after > rule.factor * before {
            return at(i);
        }
    }
    series.last().copied()
}

/// The highest that any two points one after the other lead to, `length` steps ahead. Two that fall lead nowhere.
#[must_use]
pub fn project(series: &[f64], length: f64) -> Option<f64> {
    let pairs = series.windows(2).filter_map(|pair| {
        let (from, to) = (*pair.first()?, *pair.last()?);
        (to >= from).then_some(to + length * (to - from))
    });
    pairs.reduce(f64::max)
}

/// Steps ahead that an estimate looks.
pub const AHEAD: f64 = 0.5;

/// The estimate in bytes: the plateau of `series` (pages over windows of 1, 2, 3 ... minutes), projected ahead. `None`:
/// too few points, or values that are none.
#[must_use]
pub fn bytes(series: &[f64], goal: &Goal) -> Option<Bytes> {
    if !series.iter().all(|pages| pages.is_finite() && *pages >= 0.0) {
        return None;
    }
    let (first, window) = (goal.cache_wait_minutes.saturating_sub(1), goal.cache_window_minutes);
    let estimate = if goal.cache_largest_window {
        *series.last()?
    } else {
        plateau(series, Plateau { factor: 3.0, first: number::index(first), window: number::index(window) })?
    };
    let before = series.iter().position(|pages| *pages > estimate).unwrap_or(series.len());
    let pages = project(series.get(..before)?, AHEAD).unwrap_or(estimate);
    Some(Bytes(number::whole(pages * number::real(PAGE))))
}
