//! The part of `show` about a VM's size.

use super::escape::escape;
use super::quantity::{age, clock};
use crate::publish::scaling::{Amount, Scaling};
use crate::scale::policy::Bounds;
use informant_wire::size::{Bytes, MilliCpu, Size};
use jiff::tz::TimeZone;

/// Columns of a reason: the guest's own words may be in it.
const REASON_COLUMNS: usize = 200;

fn size(amount: Amount) -> String {
    Size::from(amount).to_string()
}

/// A sentence a line; empty where nothing can resize the VM and nobody wants it.
pub(super) fn facts(scaling: &Scaling, now_ms: u64, zone: &TimeZone) -> Vec<String> {
    let mut facts = Vec::new();
    let (Some(actuator), Some(policy)) = (&scaling.actuator, &scaling.policy) else {
        facts
            .extend(scaling.demand.as_ref().map(|_| "the guest wants more, and nothing here can resize it".to_owned()));
        return facts;
    };
    let wanted = scaling
        .wanted
        .filter(|wanted| Some(*wanted) != scaling.vmm_wish)
        .map(|wanted| format!(" to {}", size(wanted)))
        .unwrap_or_default();
    let decides = if scaling.current { "decides" } else { "does not decide now" };
    let (actuator, policy) = (escape(actuator, 40), escape(policy, 40));
    facts.push(format!(
        "{}{wanted} for {}; {actuator}, policy {policy}; this host {decides}",
        escape(&scaling.state, 40),
        age(scaling.state_age_ms)
    ));
    if let (Some(min), Some(max)) = (scaling.min, scaling.max) {
        let bounds = Bounds { min: min.into(), max: max.into() };
        if bounds != Bounds::NONE {
            facts.push(bounds.to_string());
        }
    }
    if let (Some(has), Some(wish)) = (scaling.vmm_has, scaling.vmm_wish) {
        let asked = if has == wish { String::new() } else { format!(", asked for {}", size(wish)) };
        facts.push(format!("the VMM gives {}{asked} ({} ago)", size(has), age(scaling.vmm_age_ms.unwrap_or(0))));
    }
    if let (Some(cpus), Some(memory)) = (scaling.guest_cpus, scaling.guest_memory_bytes) {
        let plural = if cpus == 1 { "" } else { "s" };
        facts.push(format!("the guest has {cpus} CPU{plural}, MemTotal {}", Bytes(memory)));
    }
    if let Some(error) = &scaling.vmm_error {
        facts.push(format!("the VMM: {}", escape(error, REASON_COLUMNS)));
    }
    if let Some(decided) = &scaling.last_decision {
        let reason = escape(&decided.reason, REASON_COLUMNS);
        let (from, to) = (size(decided.from), size(decided.wanted));
        facts.push(format!("decided {}: {from} to {to}: {reason}", clock(decided.at.ms, now_ms, zone)));
    }
    if let Some(demand) = &scaling.demand {
        let cpu = demand.cpu_milli.map(|cpu| MilliCpu(cpu).to_string());
        let memory = demand.memory_bytes.map(|bytes| Bytes(bytes).to_string());
        let disk = demand.disk.as_ref().map(|(mount, bytes)| format!("{} at {}", Bytes(*bytes), escape(mount, 60)));
        let parts: Vec<_> = [cpu, memory, disk].into_iter().flatten().collect();
        let answer = demand.answer.as_deref().map(|answer| format!(", {}", escape(answer, 40).replace('_', " ")));
        facts.push(format!(
            "the guest wants {} ({}, urgency {}) for {}{}",
            parts.join(", "),
            escape(&demand.reason, 40),
            demand.urgency,
            age(demand.age_ms),
            answer.unwrap_or_default()
        ));
    }
    if let Some(denied) = &scaling.denied {
        let reason = escape(&denied.reason, REASON_COLUMNS);
        facts.push(format!("denied {} at {}: {reason}", size(denied.wanted), clock(denied.at.ms, now_ms, zone)));
    }
    if let Some(until) = &scaling.held_until {
        facts.push(format!("held for a person until {}", clock(until.ms, now_ms, zone)));
    }
    if let Some(stuck) = &scaling.stuck {
        facts.push(format!("stuck: {}", escape(stuck, REASON_COLUMNS)));
    }
    facts
}
