//! Three hosts that do everything they can, in every order, to depth ten; and long runs at random. The world beside
//! the registry is written as hosts see it: whoever was told to decide does so until it has said that it stopped, its
//! time to say so is over, or it is gone.

use super::*;
use crate::scale::asking::Asking;
use informant_wire::limits::DEMAND_EXPIRES_MS;
use proptest::prelude::*;
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

const HOSTS: u32 = 3;
const DEPTH: usize = 10;

#[derive(Clone, Copy, Debug)]
enum Event {
    Welcome(Key, Role),
    End(Key),
    Bye(Key),
    /// To the newest request of that session.
    Answer(Key, bool),
    /// On to the next deadline, whosever it is.
    Deadline,
    /// Not as far.
    Second,
    Want,
    AnswerDemand(Key),
}

/// What a session was told last and has not answered.
#[derive(Clone, Copy, Debug, Hash)]
struct Told {
    step: Step,
    epoch: Epoch,
    at_us: u64,
}

#[derive(Clone, Copy, Debug, Default, Hash)]
struct Seen {
    told: Option<Told>,
    /// It may act: the turn that it was told and that has neither ended nor been fenced.
    acts: Option<Epoch>,
    /// When it was told to stop acting.
    stop_us: Option<u64>,
    /// When it was told to act, until it has answered.
    begin_us: Option<u64>,
    must_be_withdrawn: bool,
}

#[derive(Clone, Debug)]
struct World {
    now_us: u64,
    registry: Registry,
    asking: Asking,
    /// A demand that is open, until then.
    wanted_until_us: Option<u64>,
    /// It is the one that is being asked, not one that expired meanwhile.
    asked: bool,
    hosts: [Seen; HOSTS as usize],
}

impl Registry {
    /// What it will do from here on: times as if now were 0, turns not by their number.
    fn hash_as_of(&self, now_us: u64, hasher: &mut DefaultHasher) {
        for entry in &self.entries {
            let barred_us = entry.barred_until_us.saturating_sub(now_us);
            let unsaid = entry.unsaid.map(|(step, epoch)| (step, self.epoch.0 - epoch.0));
            (entry.key, entry.role.0, entry.is_new, entry.failures, barred_us, unsaid).hash(hasher);
        }
        let mut turn = self.turn;
        if let Turn::Resuming { until_us, .. } | Turn::Draining { until_us, .. } = &mut turn {
            *until_us = until_us.saturating_sub(now_us);
        }
        (turn, self.previous).hash(hasher);
    }
}

impl World {
    fn new() -> Self {
        let now_us = 1000 * SECOND_US;
        let (registry, asking) = (Registry::new(), Asking::default());
        Self { now_us, registry, asking, wanted_until_us: None, asked: false, hosts: [Seen::default(); HOSTS as usize] }
    }

    fn host(&mut self, key: Key) -> &mut Seen {
        &mut self.hosts[key.0 as usize]
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.registry.hash_as_of(self.now_us, &mut hasher);
        self.asking.normalised(self.now_us, self.registry.epoch.0).hash(&mut hasher);
        (self.asked, self.wanted_until_us.map(|until_us| until_us - self.now_us)).hash(&mut hasher);
        for host in &self.hosts {
            let mut host = *host;
            let age = |at_us: u64| self.now_us - at_us;
            let turns = |epoch: Epoch| Epoch(self.registry.epoch.0 - epoch.0);
            host.told = host.told.map(|told| Told { epoch: turns(told.epoch), at_us: 0, ..told });
            (host.acts, host.stop_us) = (host.acts.map(turns), host.stop_us.map(age));
            host.begin_us = host.begin_us.map(age);
            host.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn events(&self) -> std::vec::Vec<Event> {
        let mut events = vec![Event::Deadline, Event::Second];
        if self.wanted_until_us.is_none() {
            events.push(Event::Want);
        }
        for key in (0..HOSTS).map(Key) {
            if !self.registry.entries.iter().any(|entry| entry.key == key) {
                events.extend([Event::Welcome(key, Role::CONTROLLER), Event::Welcome(key, Role::OBSERVER)]);
                continue;
            }
            events.extend([Event::End(key), Event::Bye(key), Event::AnswerDemand(key)]);
            if self.hosts[key.0 as usize].told.is_some() {
                events.extend([Event::Answer(key, true), Event::Answer(key, false)]);
            }
        }
        events
    }

    fn next_deadline_us(&self) -> Option<u64> {
        [self.registry.deadline_us(), self.asking.deadline_us(), self.wanted_until_us].into_iter().flatten().min()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Welcome(key, role) => {
                assert!(self.registry.welcomed(key, role, ControllerId([7; 16]), "host", self.now_us));
            }
            Event::End(key) => self.leave(key, false),
            Event::Bye(key) => self.leave(key, true),
            Event::Answer(key, accepted) => {
                let Some(told) = self.host(key).told.take() else { return };
                let awaited = self.registry.answered(key, told.step, told.epoch, accepted, self.now_us);
                match told.step {
                    // Late, too late, or just so: it acts only if that was still waited for.
                    Step::Resume => {
                        assert_eq!(awaited, self.host(key).acts == Some(told.epoch));
                        self.host(key).begin_us = None;
                        if !accepted {
                            self.host(key).acts = None;
                        }
                    }
                    Step::Suspend | Step::Withdraw if accepted => {
                        let host = self.host(key);
                        (host.acts, host.stop_us) = (None, None);
                    }
                    Step::Suspend | Step::Withdraw => {}
                }
            }
            Event::Deadline => {
                if let Some(deadline_us) = self.next_deadline_us() {
                    self.pass(deadline_us.max(self.now_us));
                }
            }
            Event::Second => self.pass(self.now_us + SECOND_US),
            Event::Want => {
                let until_us = self.now_us + DEMAND_EXPIRES_MS * 1000;
                self.wanted_until_us = self.wanted_until_us.or(Some(until_us));
            }
            Event::AnswerDemand(key) => {
                let current = self.registry.current();
                if self.asking.answered(key, &self.registry) {
                    if std::mem::take(&mut self.asked) {
                        assert!(self.wanted_until_us.take().is_some(), "what is answered was wanted");
                    }
                    let holds = self.registry.holder().is_some_and(|(holder, _)| holder == key);
                    assert!(holds, "by the one that decides, not {current:?}");
                }
            }
        }
        self.settle();
    }

    fn leave(&mut self, key: Key, says_bye: bool) {
        let acts = self.host(key).acts.is_some();
        let resumed = self.host(key).begin_us.is_none();
        if says_bye {
            assert_eq!(self.registry.bye(key, self.now_us), acts && resumed, "was current");
        } else {
            self.registry.ended(key, self.now_us);
        }
        *self.host(key) = Seen::default();
    }

    /// Time goes on. Who has not stopped in 5 s or begun in 2 s is fenced from then on.
    fn pass(&mut self, now_us: u64) {
        self.now_us = now_us;
        for host in &mut self.hosts {
            if host.stop_us.is_some_and(|at_us| now_us >= at_us + SUSPEND_DEADLINE_S * SECOND_US) {
                (host.acts, host.stop_us) = (None, None);
            }
            if host.begin_us.is_some_and(|at_us| now_us >= at_us + RESUME_DEADLINE_S * SECOND_US) {
                (host.acts, host.begin_us, host.must_be_withdrawn) = (None, None, true);
            }
        }
        self.registry.check(now_us);
    }

    /// What the agent does after each event: it says what is to be said, and asks its demand.
    fn settle(&mut self) {
        while let Some(Action { key, step, epoch }) = self.registry.next_action() {
            let now_us = self.now_us;
            if step == Step::Resume {
                let acting: std::vec::Vec<_> = self.hosts.iter().filter(|host| host.acts.is_some()).collect();
                assert!(acting.is_empty(), "{key:?} is resumed while another acts: {acting:?}");
            }
            let host = self.host(key);
            host.told = Some(Told { step, epoch, at_us: now_us });
            match step {
                Step::Resume => {
                    (host.acts, host.begin_us) = (Some(epoch), Some(now_us));
                    host.must_be_withdrawn = false;
                }
                Step::Suspend => {
                    assert_eq!(host.acts, Some(epoch), "suspended is who acts");
                    host.stop_us = Some(now_us);
                }
                Step::Withdraw => host.must_be_withdrawn = false,
            }
        }
        if self.wanted_until_us.is_some_and(|until_us| self.now_us >= until_us) {
            (self.wanted_until_us, self.asked) = (None, false);
        }
        if self.asking.check(&self.registry, self.now_us).is_some() {
            self.asked = false;
        }
        if self.wanted_until_us.is_some() && self.asking.may_ask(&self.registry).is_some() {
            self.asking.asked(&self.registry, self.now_us);
            self.asked = true;
        }
    }

    fn assert_sound(&self) {
        let acting = self.hosts.iter().filter(|host| host.acts.is_some()).count();
        assert!(acting <= 1, "two act: {self:?}");
        assert!(self.hosts.iter().all(|host| !host.must_be_withdrawn), "a silent one is told that it is over");
        let commands =
            (0..HOSTS).flat_map(|key| (0..=self.registry.epoch.0).map(move |epoch| (Key(key), Epoch(epoch))));
        let valid: std::vec::Vec<_> =
            commands.filter(|(key, epoch)| self.registry.may_command(*key, *epoch).is_ok()).collect();
        assert!(valid.len() <= 1, "one session and turn commands: {valid:?}");
        for (key, epoch) in valid {
            assert_eq!(self.hosts[key.0 as usize].acts, Some(epoch), "and it is the one that acts: {self:?}");
        }
        if let Some((key, epoch)) = self.registry.current() {
            assert_eq!(self.registry.holder(), Some((key, epoch)));
            let is_controller = |entry: &Entry| entry.key == key && entry.role == Role::CONTROLLER;
            assert!(self.registry.entries.iter().any(is_controller));
            assert!(
                self.wanted_until_us.is_none() || self.asking.deadline_us().is_some(),
                "a demand is lost: {self:?}"
            );
        }
        if self.asking.deadline_us().is_some() {
            assert!(self.registry.holder().is_some(), "asked of nobody: {self:?}");
        }
        let settled = self.registry.current().is_some() || self.registry.controllers().next().is_none();
        match self.registry.deadline_us() {
            None => assert!(settled, "a state without a way out: {self:?}"),
            Some(deadline_us) => {
                assert!(!settled && deadline_us > self.now_us && deadline_us <= self.now_us + LONGEST_PAUSE_US);
            }
        }
    }

    /// What nobody waits for changes nothing.
    fn assert_late_answers_have_no_effect(&self) {
        for key in (0..=HOSTS).map(Key) {
            for step in [Step::Suspend, Step::Resume, Step::Withdraw] {
                for epoch in (0..=self.registry.epoch.0 + 1).map(Epoch) {
                    let awaited = match self.registry.turn {
                        Turn::Resuming { key: asked, .. } => (asked, Step::Resume, self.registry.epoch),
                        Turn::Draining { key: asked, .. } => (asked, Step::Suspend, self.registry.epoch),
                        Turn::Vacant | Turn::Held { .. } => (Key(u32::MAX), Step::Withdraw, Epoch(u64::MAX)),
                    };
                    if (key, step, epoch) == awaited {
                        continue;
                    }
                    for accepted in [false, true] {
                        let mut registry = self.registry.clone();
                        assert!(!registry.answered(key, step, epoch, accepted, self.now_us));
                        assert_eq!(registry, self.registry);
                    }
                }
            }
        }
    }

    /// Once all hosts answer, one of them decides: nobody is stranded, whatever was before.
    fn assert_it_can_settle(mut self) {
        for _ in 0..8 {
            if self.registry.current().is_some() || self.registry.controllers().next().is_none() {
                return;
            }
            let asked = (0..HOSTS).map(Key).find(|key| match self.registry.turn {
                Turn::Resuming { key: asked, .. } | Turn::Draining { key: asked, .. } => {
                    asked == *key && self.hosts[key.0 as usize].told.is_some()
                }
                _ => false,
            });
            self.happen(asked.map_or(Event::Deadline, |key| Event::Answer(key, true)));
        }
        panic!("nobody decides: {self:?}");
    }
}

#[test]
fn three_controllers_in_every_order_to_depth_ten() {
    let mut visited = HashSet::new();
    let mut frontier = vec![World::new()];
    visited.insert(World::new().fingerprint());
    let mut transitions = 0_u64;
    for depth in 1..=DEPTH {
        let mut next = std::vec::Vec::new();
        for world in &frontier {
            for event in world.events() {
                let mut after = world.clone();
                after.happen(event);
                transitions += 1;
                if visited.insert(after.fingerprint()) {
                    after.assert_sound();
                    after.assert_late_answers_have_no_effect();
                    after.clone().assert_it_can_settle();
                    next.push(after);
                }
            }
        }
        frontier = next;
        println!("depth {depth}: {} states visited, {transitions} transitions", visited.len());
    }
    assert!(visited.len() > 10_000, "the hosts do something");
}

fn event() -> impl Strategy<Value = Event> {
    let key = || (0..HOSTS).prop_map(Key);
    prop_oneof![
        3 => key().prop_map(|key| Event::Welcome(key, Role::CONTROLLER)),
        1 => (key(), prop_oneof![Just(Role::OBSERVER), Just(Role(9))]).prop_map(|(key, role)| Event::Welcome(key, role)),
        2 => key().prop_map(Event::End),
        1 => key().prop_map(Event::Bye),
        8 => (key(), prop::bool::weighted(0.7)).prop_map(|(key, accepted)| Event::Answer(key, accepted)),
        4 => Just(Event::Deadline),
        2 => Just(Event::Second),
        2 => Just(Event::Want),
        2 => key().prop_map(Event::AnswerDemand),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn long_runs_at_random(events in prop::collection::vec(event(), 200..600)) {
        let mut world = World::new();
        for event in events {
            if let Event::Welcome(key, _) = event {
                world.leave(key, false);
            }
            world.happen(event);
            world.assert_sound();
        }
        world.assert_it_can_settle();
    }
}
