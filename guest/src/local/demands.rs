//! The demands of processes of this guest, until they are taken back or expire. They outlive their connections: a
//! person asks and goes.

use super::desk::{Desk, Standing};
use informant_wire::limits::DEMAND_EXPIRES_MS;
use informant_wire::scale::{Demand, DemandId, DemandOutcome, DemandReason};
use informant_wire::size::{Bytes, MilliCpu};

/// Demands at a time.
const MAX_DEMANDS: usize = 16;

#[derive(Debug)]
struct Held {
    source: u32,
    id: DemandId,
    wanted: Wanted,
    expires_us: u64,
}

type Wanted = (Option<MilliCpu>, Option<Bytes>, Option<Bytes>);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Demands(heapless::Vec<Held, MAX_DEMANDS>);

impl Demands {
    /// Passes a demand on and tells how it stands: pending when it is new, and what the host said when it is renewed.
    pub(super) fn take(&mut self, source: u32, demand: &Demand<'_>, desk: &mut dyn Desk, now_us: u64) -> Standing {
        if demand.is_withdrawal() {
            self.0.retain(|held| held.source != source);
            desk.withdraw_local(source, now_us);
            return Standing::of(DemandOutcome::APPLIED, 0);
        }
        // Only the agent itself speaks of usage and pressure.
        let reason = if demand.reason == DemandReason::PERSON { DemandReason::PERSON } else { DemandReason::ADVISOR };
        let lives_ms = u64::from(demand.expires_ms).clamp(1, DEMAND_EXPIRES_MS);
        let held = Held {
            source,
            id: demand.id,
            wanted: (demand.cpu, demand.memory, demand.disk.map(|disk| disk.total)),
            expires_us: now_us.saturating_add(lives_ms * 1000),
        };
        let known = self.0.iter_mut().find(|known| known.source == source);
        let renewed = known.as_ref().is_some_and(|known| known.id == held.id && known.wanted == held.wanted);
        match known {
            Some(known) => *known = held,
            None => {
                if self.0.push(held).is_err() {
                    let retry_ms = u32::try_from(DEMAND_EXPIRES_MS).unwrap_or(u32::MAX);
                    return Standing::of(DemandOutcome::DENIED, retry_ms);
                }
            }
        }
        desk.local_demand(source, &Demand { reason, ..*demand }, now_us);
        if renewed { desk.demand_state(source) } else { Standing::PENDING }
    }

    /// Takes back what was not renewed.
    pub(super) fn expire(&mut self, desk: &mut dyn Desk, now_us: u64) {
        self.0.retain(|held| {
            let lives = now_us < held.expires_us;
            if !lives {
                desk.withdraw_local(held.source, now_us);
            }
            lives
        });
    }

    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.0.iter().map(|held| held.expires_us).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::tally::Verdict;
    use informant_wire::scale::RequestId;
    use informant_wire::size::Size;

    #[derive(Debug, Default)]
    struct Log(Vec<(u32, Option<DemandReason>)>);

    impl Desk for Log {
        fn take_question(&mut self) -> Option<(Size, Size)> {
            None
        }
        fn verdict(&mut self, _: &Verdict, _: u64) {}
        fn local_demand(&mut self, source: u32, demand: &Demand<'_>, _: u64) {
            self.0.push((source, Some(demand.reason)));
        }
        fn withdraw_local(&mut self, source: u32, _: u64) {
            self.0.push((source, None));
        }
        fn demand_state(&self, _: u32) -> Standing {
            Standing::of(DemandOutcome::GRANTED, 0)
        }
    }

    fn demand(id: u64, cpu: Option<u32>, reason: DemandReason) -> Demand<'static> {
        let cpu = cpu.map(MilliCpu);
        let id = DemandId(id);
        Demand { request: RequestId(1), id, cpu, memory: None, disk: None, urgency: 0, reason, expires_ms: u32::MAX }
    }

    #[test]
    fn pending_when_new_or_changed_and_the_hosts_word_when_renewed() {
        let (mut demands, mut desk) = (Demands::default(), Log::default());
        let mut take = |demand, now_us| demands.take(7, &demand, &mut desk, now_us).outcome;
        assert_eq!(take(demand(1, Some(2000), DemandReason::PERSON), 0), DemandOutcome::PENDING);
        assert_eq!(take(demand(1, Some(2000), DemandReason::PRESSURE), 1), DemandOutcome::GRANTED);
        assert_eq!(take(demand(1, Some(3000), DemandReason::PERSON), 2), DemandOutcome::PENDING);
        assert_eq!(take(demand(2, Some(3000), DemandReason::PERSON), 3), DemandOutcome::PENDING);
        assert_eq!(demands.deadline_us(), Some(3 + 10_000_000), "no demand lives for longer than 10 s unrenewed");
        demands.expire(&mut desk, 3 + 9_999_999);
        assert!(demands.deadline_us().is_some());
        demands.expire(&mut desk, 3 + 10_000_000);
        assert_eq!(demands.deadline_us(), None);
        let (person, advisor) = (Some(DemandReason::PERSON), Some(DemandReason::ADVISOR));
        assert_eq!(desk.0, [(7, person), (7, advisor), (7, person), (7, person), (7, None)]);
    }

    #[test]
    fn taken_back_and_too_many() {
        let (mut demands, mut desk) = (Demands::default(), Log::default());
        for source in 0..16 {
            let outcome = demands.take(source, &demand(1, Some(1), DemandReason::PERSON), &mut desk, 0).outcome;
            assert_eq!(outcome, DemandOutcome::PENDING);
        }
        let one_more = demands.take(16, &demand(1, Some(1), DemandReason::PERSON), &mut desk, 0);
        assert_eq!((one_more.outcome, one_more.retry_after_ms), (DemandOutcome::DENIED, 10_000));
        demands.take(3, &demand(1, None, DemandReason::PERSON), &mut desk, 0);
        assert_eq!((desk.0.len(), desk.0.last()), (17, Some(&(3, None))));
        let again = demands.take(16, &demand(1, Some(1), DemandReason::PERSON), &mut desk, 0).outcome;
        assert_eq!(again, DemandOutcome::PENDING);
    }
}
