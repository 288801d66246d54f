//! Drives the VMM of each instance that has an actuator: one task an instance, one call at a time. What to do the desk
//! says; this only asks, waits and tells it what came of it.

use super::shared::Shared;
use super::slot::Slot;
use crate::config::Config;
use crate::model::{SECOND_US, system};
use crate::scale::desk::{Act, Settings};
use crate::vmm::{self, Actuator, Vmm};
use std::sync::Arc;
use tokio::time::timeout_at;

/// A configuration is in force, or another one.
pub(super) fn configured(shared: &Arc<Shared>, slot: &Arc<Slot>) {
    let start = slot.with(shared, |core| {
        let settings = core.config.as_ref().and_then(settings);
        let drives = settings.is_some();
        core.desk.configure(settings, shared.now());
        drives && !std::mem::replace(&mut core.driving, true)
    });
    slot.scale.notify_one();
    if start {
        tokio::spawn(drive(Arc::clone(shared), Arc::clone(slot)));
    }
}

fn settings(config: &Config) -> Option<Settings> {
    let actuator = config.actuator.as_ref()?;
    let scaling = &config.scaling;
    Some(Settings { vmm: actuator.clone(), policy: scaling.policy, bounds: scaling.bounds })
}

/// What is to be done now.
enum Next {
    Over,
    Wait { until_us: u64 },
    Act(vmm::Config, Act),
}

async fn drive(shared: Arc<Shared>, slot: Arc<Slot>) {
    let mut actuator: Option<(vmm::Config, Actuator)> = None;
    let mut hand = shared.hand.changes();
    loop {
        let now = shared.now();
        let next = slot.with(&shared, |core| {
            let config = core.config.as_ref().and_then(|config| config.actuator.clone());
            let Some(config) = config.filter(|_| !core.removed && !shared.is_stopping()) else {
                core.driving = false;
                return Next::Over;
            };
            let trusted = core.instance.has_trusted();
            core.desk.tick(system::sample(&core.instance, now), trusted, now);
            // While another daemon has this part, or is about to, nothing is begun.
            if !shared.hand.may_act() {
                return Next::Wait { until_us: now.mono_us + SECOND_US };
            }
            match core.desk.take_act(now) {
                Some(act) => Next::Act(config, act),
                None => Next::Wait { until_us: core.desk.deadline_us(now) },
            }
        });
        match next {
            Next::Over => return,
            Next::Wait { until_us } => {
                let woken = async {
                    tokio::select! {
                        () = slot.scale.notified() => {}
                        () = hand.next() => {}
                    }
                };
                let _woken_or_due = timeout_at(shared.instant(until_us), woken).await;
            }
            Next::Act(config, act) => {
                if actuator.as_ref().is_none_or(|(of, _)| *of != config) {
                    actuator = Some((config.clone(), Actuator::new(&config)));
                }
                let _telling = matches!(act, Act::Resize(_)).then(|| shared.hand.tell());
                if let Some((_, actuator)) = &mut actuator {
                    carry_out(&shared, &slot, actuator, act).await;
                }
            }
        }
    }
}

async fn carry_out(shared: &Shared, slot: &Arc<Slot>, actuator: &mut Actuator, act: Act) {
    match act {
        Act::Observe => {
            let result = actuator.observe().await;
            slot.with(shared, |core| core.desk.observed(result, shared.now()));
        }
        Act::Resize(size) => {
            slot.say(shared, tracing::Level::INFO, format_args!("resizes to {size}"));
            let result = actuator.resize(size).await;
            if let Err(error) = &result {
                slot.say(shared, tracing::Level::WARN, format_args!("cannot resize to {size}: {error}"));
            }
            let mut chance = [0; 4];
            let _same_wait_for_all = getrandom::fill(&mut chance);
            slot.with(shared, |core| core.desk.resized(result, u32::from_le_bytes(chance), shared.now()));
        }
    }
}
