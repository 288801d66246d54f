//! An instance's states in a few words. Pure: the present and the time zone are arguments.

use super::quantity::{age, clock};
use super::reading::Entry;
use super::table::Style;
use crate::publish::status::{Agent, Data, Link, State, Status};
use jiff::tz::TimeZone;

/// Since when, and how long that is: `12:03:04 (42s)`.
#[must_use]
pub(super) fn since(since_ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    if since_ms == 0 {
        return "an unknown time".to_owned();
    }
    format!("{} ({})", clock(since_ms, now_ms, zone), age(now_ms.saturating_sub(since_ms)))
}

/// How old something is now that had an age when the status was written.
#[must_use]
pub(super) fn age_now(age_ms: Option<u64>, status: &Status, now_ms: u64) -> Option<u64> {
    age_ms.map(|age| age.saturating_add(now_ms.saturating_sub(status.written.ms)))
}

/// The states merged into the one that matters most to somebody who looks at many instances.
#[must_use]
pub(super) fn state(entry: &Entry, now_ms: u64, zone: &TimeZone) -> (String, Style) {
    let status = &entry.status;
    if entry.problem.is_some() {
        return ("unknown".to_owned(), Style::Warning);
    }
    let (text, style) = live_state(status, now_ms, zone);
    if entry.stale { (format!("stale, was {text}"), Style::Dim) } else { (text, style) }
}

fn live_state(status: &Status, now_ms: u64, zone: &TimeZone) -> (String, Style) {
    let since = |state: &State<Link>| since(state.since.as_ref().map_or(0, |since| since.ms), now_ms, zone);
    match (status.link.state, status.agent.state) {
        _ if status.config_error.is_some() => ("config error".to_owned(), Style::Bad),
        (Link::Silent, _) => (format!("silent since {}", since(&status.link)), Style::Bad),
        (Link::Up, Agent::Ready) if status.data.state == Data::Stale => {
            ("ready, data stale".to_owned(), Style::Warning)
        }
        (Link::Up, agent @ Agent::Ready) => (agent.name().to_owned(), Style::Good),
        (Link::Up, agent) => (agent.name().to_owned(), Style::Warning),
        (Link::Down, Agent::Stopped) => (format!("stopped since {}", since(&status.link)), Style::Plain),
        (Link::Down, _) => (format!("down since {}", since(&status.link)), Style::Bad),
        (_, Agent::Refused) => ("refused".to_owned(), Style::Bad),
        (link @ (Link::Listening | Link::Waiting), _) => (link.name().to_owned(), Style::Plain),
        (link, _) => (link.name().to_owned(), Style::Warning),
    }
}

/// What else somebody should know, in one line; empty if nothing. Not escaped.
#[must_use]
pub(super) fn note(entry: &Entry, now_ms: u64, zone: &TimeZone) -> String {
    let status = &entry.status;
    if let Some(problem) = &entry.problem {
        return problem.clone();
    }
    if let Some(error) = &status.config_error {
        return error.clone();
    }
    if entry.stale {
        return format!("written {}, no daemon since", since(status.written.ms, now_ms, zone));
    }
    let detail = match status.link.state {
        Link::Up | Link::Silent => status.agent.detail.as_ref(),
        _ => status.link.detail.as_ref().or(status.agent.detail.as_ref()),
    };
    detail.cloned().unwrap_or_default()
}
