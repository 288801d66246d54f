//! One instance in the daemon: the pure model, and what ties it to its sessions, its folder and its event log.
//! Every change goes through [`Slot::with`], which delivers what follows from it before anybody else sees the change.

use super::pace::Pace;
use super::shared::{Change, Shared, lock};
use super::writer::LogJob;
use crate::config::{Address, Config, Trust};
use crate::model::budget::{Bucket, Budget};
use crate::model::cursors::Rank;
use crate::model::instance::{Facts, Instance, Note, Order, Standing};
use crate::model::{Now, SECOND_US};
use crate::publish::event;
use crate::publish::log::{Batch, Log};
use crate::publish::snapshot::Snapshot;
use crate::publish::status::{Agent, Guest, SCHEMA, Stamp, State, Status, Transport};
use crate::scale::desk::{Desk, Said};
use informant_wire::event::Event;
use informant_wire::hello::PeerKind;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{Challenge, SessionId};
use informant_wire::limits::MAX_SESSIONS;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};

/// Bytes of event lines that may wait for the writer; beyond, no event is taken and reading from the instance is
/// paused. An outbox full of the worst events has 100 KiB of lines.
const MAX_WAITING_LINES: usize = 256 * 1024;
/// Connections of an instance that may stand without a Hello.
const MAX_GREETING: usize = MAX_SESSIONS;
/// Notes of the daemon itself that may wait for the log.
const MAX_WAITING_NOTES: usize = 16;
/// Notes of the daemon itself that are taken at once; then one a second. Whoever may connect could roll the log.
const NOTES: u64 = 60;

/// Orders for a session's task.
#[derive(Debug, Default)]
pub(super) struct Wake {
    orders: Mutex<Vec<Order>>,
    pub(super) notify: Notify,
}

impl Wake {
    pub(super) fn order(&self, order: Order) {
        lock(&self.orders).push(order);
        self.notify.notify_one();
    }

    pub(super) fn take(&self) -> Vec<Order> {
        std::mem::take(&mut lock(&self.orders))
    }
}

#[derive(Debug)]
struct Live {
    wake: Arc<Wake>,
    challenge: Challenge,
    /// Events of it were left alone: none that follows is taken before them.
    unheard: bool,
}

/// What [`Slot::with`] gives access to.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Option<Config>,
    pub(super) config_error: Option<String>,
    pub(super) instance: Instance,
    /// Its size.
    pub(super) desk: Desk,
    /// A task drives its VMM.
    pub(super) driving: bool,
    pub(super) budget: Budget,
    /// Connections that have not said Hello, the oldest first.
    pub(super) greeting: VecDeque<(SessionId, Arc<Wake>)>,
    /// A connection whose session ended in silence is still open.
    pub(super) parked: bool,
    /// Goes up with every change that a reader may see.
    pub(super) revision: u64,
    /// When its status file is written.
    pub(super) pace: Pace,
    /// The folder is gone: nothing is written into it any more.
    pub(super) removed: bool,
    /// A proof task runs.
    pub(super) proving: bool,
    /// Proofs in a row for which it was waited long.
    pub(super) slow_proofs: u32,
    live: HashMap<SessionId, Live>,
    log_budget: Bucket,
    suppressed: u64,
    batch: Batch,
    failures: u64,
    /// Bytes of event lines that the writer has.
    writing: usize,
    notes: Vec<(Now, Note)>,
    note_budget: Bucket,
    notes_left_out: u64,
    /// `None` until the log was read back: the highest id given.
    last_id: Option<u64>,
    loading: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    pub(super) folder: PathBuf,
    core: Mutex<Core>,
    /// The writer's alone.
    pub(super) log: Mutex<Log>,
    loaded: watch::Sender<bool>,
    /// The desk may have something to do for who drives the VMM.
    pub(super) scale: Notify,
}

impl Slot {
    pub(super) fn new(name: &str, folder: PathBuf, now: Now) -> Self {
        Self {
            name: name.into(),
            log: Mutex::new(Log::new(&folder)),
            folder,
            loaded: watch::Sender::new(false),
            scale: Notify::new(),
            core: Mutex::new(Core {
                config: None,
                config_error: None,
                instance: Instance::default(),
                desk: Desk::default(),
                driving: false,
                budget: Budget::new(now),
                greeting: VecDeque::new(),
                parked: false,
                revision: 0,
                pace: Pace::new(now),
                removed: false,
                proving: false,
                slow_proofs: 0,
                live: HashMap::new(),
                log_budget: Bucket::new(1, 10, now),
                suppressed: 0,
                batch: Batch::default(),
                failures: 0,
                writing: 0,
                notes: Vec::new(),
                note_budget: Bucket::new(1, NOTES, now),
                notes_left_out: 0,
                last_id: None,
                loading: false,
            }),
        }
    }

    /// Changes something, and delivers what follows: orders to sessions, notes and events to the log, states to
    /// readers.
    pub(super) fn with<R>(self: &Arc<Self>, shared: &Shared, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = lock(&self.core);
        let result = change(&mut core);
        let (orders, notes, changed) = core.instance.take_effects();
        let (says, resized) = core.desk.take_effects();
        if resized || !says.is_empty() {
            self.scale.notify_one();
        }
        let changed = changed || resized;
        let says = says.into_iter().map(|(session, message)| (session, Order::Say(message)));
        for (session, order) in orders.into_iter().chain(says) {
            if let Some(live) = core.live.get(&session) {
                live.wake.order(order);
            }
        }
        if !notes.is_empty() {
            core.note(notes, shared.now());
        }
        self.settle_log(shared, &mut core);
        if changed {
            core.revision += 1;
            let is_news = core.pace.change();
            drop(core);
            shared.publish_soon(self, is_news);
        }
        result
    }

    /// Says on the instance what is wrong with its configuration, or that nothing is; its sessions go on.
    pub(super) fn report(self: &Arc<Self>, shared: &Shared, error: Option<String>) {
        self.with(shared, |core| {
            let link = core.instance.link.clone();
            core.instance.reconfigured(link.state, link.detail, shared.now());
            core.config_error = error;
        });
    }

    /// Looks, and changes nothing.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Core) -> R) -> R {
        look(&lock(&self.core))
    }

    fn settle_log(self: &Arc<Self>, shared: &Shared, core: &mut Core) {
        if shared.hand.yields() || (core.notes.is_empty() && core.batch.lines.is_empty()) {
            return;
        }
        let Some(mut last_id) = core.last_id else {
            self.load(shared, core);
            return;
        };
        if core.writing > MAX_WAITING_LINES {
            return;
        }
        for (at, note) in std::mem::take(&mut core.notes) {
            last_id += 1;
            let line = event::from_host(last_id, at.wall_ms, note.kind, note.detail.as_deref());
            core.batch.push(&line);
            if shared.changes.receiver_count() > 0 {
                let _nobody_watches = shared.changes.send(Change::Event(Arc::clone(&self.name), Arc::new(line)));
            }
        }
        core.last_id = Some(last_id);
        if let Ok(place) = shared.writers.logs.try_reserve() {
            core.writing += core.batch.lines.len();
            place.send(LogJob::Append(Arc::clone(self), std::mem::take(&mut core.batch), core.failures));
        }
    }

    fn load(self: &Arc<Self>, shared: &Shared, core: &mut Core) {
        if !core.loading {
            core.loading = shared.writers.logs.try_send(LogJob::Load(Arc::clone(self))).is_ok();
        }
    }

    /// Returns once the log was read back: only then is it known which events are stored.
    pub(super) async fn wait_loaded(self: &Arc<Self>, shared: &Shared) {
        let mut loaded = self.loaded.subscribe();
        while !*loaded.borrow_and_update() {
            self.with(shared, |core| {
                if core.last_id.is_none() {
                    self.load(shared, core);
                }
            });
            // The queue may be full, and reading may fail for a while: ask again.
            let again = std::time::Duration::from_millis(100);
            let _changed_or_again = tokio::time::timeout(again, loaded.changed()).await;
        }
    }

    /// The log was read back.
    pub(super) fn set_loaded(self: &Arc<Self>, shared: &Shared, restored: crate::publish::log::Restored) {
        self.with(shared, |core| {
            core.loading = false;
            core.instance.cursors = restored.cursors;
            core.last_id = Some(restored.last_id);
        });
        self.loaded.send_replace(true);
    }

    /// The log could not be read back now: whoever waits for it asks again.
    pub(super) fn not_loaded(&self) {
        lock(&self.core).loading = false;
    }

    /// One log line at most a second; guests' words must come escaped.
    pub(super) fn say(&self, shared: &Shared, level: tracing::Level, what: fmt::Arguments<'_>) {
        let mut core = lock(&self.core);
        if !core.log_budget.try_spend(shared.now()) {
            core.suppressed += 1;
            shared.log_suppressed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return;
        }
        let suppressed = std::mem::take(&mut core.suppressed);
        drop(core);
        let more = if suppressed > 0 { format!(" ({suppressed} lines suppressed)") } else { String::new() };
        if level == tracing::Level::WARN {
            tracing::warn!("{}: {what}{more}", self.name);
        } else {
            tracing::info!("{}: {what}{more}", self.name);
        }
    }

    /// The instance at this moment.
    pub(super) fn snapshot(&self, shared: &Shared, now: Now) -> Snapshot {
        let core = lock(&self.core);
        core.snapshot(&self.name, shared.port, now, core.pace.promise_ms(shared.fleet(), now))
    }

    /// The same of a daemon that writes no more.
    pub(super) fn last_snapshot(&self, shared: &Shared, now: Now) -> Snapshot {
        lock(&self.core).snapshot(&self.name, shared.port, now, now.wall_ms)
    }

    /// The instance at this moment, without values.
    pub(super) fn overview(&self, shared: &Shared, now: Now) -> Status {
        let core = lock(&self.core);
        let promise_ms = core.pace.promise_ms(shared.fleet(), now);
        core.head(&self.name, shared.port, now, promise_ms).with_metrics(Vec::new())
    }
}

impl Core {
    /// A connection came. Honest ones say Hello at once: the oldest that has not makes way when there are too many.
    pub(super) fn greet(&mut self, session: SessionId, wake: Arc<Wake>) {
        if self.greeting.len() >= MAX_GREETING
            && let Some((_, oldest)) = self.greeting.pop_front()
        {
            oldest.order(Order::End(ByeReason::PROTOCOL));
        }
        self.greeting.push_back((session, wake));
    }

    /// It said Hello, or is over.
    pub(super) fn greeted(&mut self, session: SessionId) {
        self.greeting.retain(|(other, _)| *other != session);
    }

    /// A place is needed elsewhere: ends the oldest connection that has not said Hello, else the oldest reporter, an
    /// unproven one if there is one. `false`: there is none.
    pub(super) fn make_way(&mut self) -> bool {
        let reporters = self.instance.reporters();
        let wake = match self.greeting.pop_front() {
            Some((_, wake)) => Some(wake),
            // One that was told before is not there any more.
            None => reporters.iter().find_map(|session| self.live.remove(session)).map(|live| live.wake),
        };
        wake.map(|wake| wake.order(Order::End(ByeReason::TOO_MANY))).is_some()
    }

    /// A session begins.
    pub(super) fn enter(&mut self, session: SessionId, wake: Arc<Wake>, challenge: Challenge) {
        self.live.insert(session, Live { wake, challenge, unheard: false });
    }

    /// Ends the sessions whose events were left alone: they come again on new ones.
    pub(super) fn end_unheard(&self, reason: ByeReason) {
        for live in self.live.values().filter(|live| live.unheard) {
            live.wake.order(Order::End(reason));
        }
    }

    /// A session is over.
    pub(super) fn leave(&mut self, session: SessionId) {
        self.live.remove(&session);
    }

    /// The challenge that a session was given.
    pub(super) fn challenge(&self, session: SessionId) -> Option<Challenge> {
        self.live.get(&session).map(|live| live.challenge)
    }

    /// What the transport says of a newcomer's privileges. `port`: of the peer where it is one.
    pub(super) fn standing(&self, facts: &Facts, peer_port: Option<u32>) -> Standing {
        const PRIVILEGED: u32 = 1024;
        let Some(config) = &self.config else { return Standing::Unproven };
        let listens = facts.capabilities.has(informant_wire::hello::Capabilities::CONTROL);
        let dialled_privileged = config.dial.is_some_and(|port| port < PRIVILEGED);
        match (&config.address, config.trust) {
            (_, Trust::Any) => Standing::Proven,
            (Address::Uds(_) | Address::Cid(_), _) if dialled_privileged => Standing::Proven,
            (Address::Cid(_), _) if peer_port.is_some_and(|port| port < PRIVILEGED) => Standing::Proven,
            (Address::Uds(_), _) if listens && facts.kind == PeerKind::AGENT => Standing::Pending,
            _ => Standing::Unproven,
        }
    }

    /// An event came: takes it to the log unless it is there.
    pub(super) fn event(&mut self, shared: &Shared, slot: &Slot, session: SessionId, event: &Event<'_>, now: Now) {
        // They stay with the guest, for the daemon that follows.
        if let Some(live) = self.live.get_mut(&session) {
            live.unheard |= shared.hand.yields();
            if live.unheard {
                return;
            }
        }
        let Some(last_id) = self.last_id else { return };
        let room = self.has_room();
        let Some((facts, rank)) = self.instance.event(session, event, &mut self.budget, room, now) else { return };
        let id = last_id + 1;
        let line = event::from_guest(id, now.wall_ms, facts, rank == Rank::Proven, event);
        self.last_id = Some(id);
        self.batch.push_event(&line, facts.boot, facts.stream, rank, event.sequence);
        if shared.changes.receiver_count() > 0 {
            let _nobody_watches = shared.changes.send(Change::Event(Arc::clone(&slot.name), Arc::new(line)));
        }
    }

    /// A guest said something about its size.
    pub(super) fn scaling(&mut self, session: SessionId, said: &Said<'_>, now: Now) {
        // One that is being ended has no say any more.
        if self.instance.is_current(session) {
            self.desk.heard(session, self.instance.has_trusted(), said, now);
        }
    }

    /// Takes what the daemon saw, within limits.
    fn note(&mut self, notes: Vec<Note>, now: Now) {
        for mut note in notes {
            if self.notes.len() >= MAX_WAITING_NOTES || !self.note_budget.try_spend(now) {
                self.notes_left_out += 1;
                continue;
            }
            if let left_out @ 1.. = std::mem::take(&mut self.notes_left_out) {
                let before = note.detail.map(|detail| detail + "; ").unwrap_or_default();
                note.detail = Some(format!("{before}{left_out} connections and ends of them before this are left out"));
            }
            self.notes.push((now, note));
        }
    }

    /// Whether one more event line can wait for the writer.
    fn has_room(&self) -> bool {
        self.batch.lines.len() + self.writing <= MAX_WAITING_LINES
    }

    /// The writer is done with so many bytes of lines, however that came out.
    pub(super) fn written(&mut self, bytes: usize) {
        self.writing = self.writing.saturating_sub(bytes);
    }

    /// A batch could not be written: what waits behind it would leave a gap.
    pub(super) fn lose_batch(&mut self) {
        self.batch = Batch::default();
        self.failures += 1;
    }

    /// How many writes of the log have failed: a batch made before the last failure must not be written any more.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// Microseconds for which reading from the instance should pause.
    pub(super) fn pause_us(&self) -> u64 {
        let writer = if self.has_room() { 0 } else { SECOND_US / 10 };
        self.budget.pause_us().max(writer)
    }

    /// `next_write_ms`: when the daemon writes again at the latest.
    fn snapshot(&self, name: &str, port: u32, now: Now, next_write_ms: u64) -> Snapshot {
        let head = self.head(name, port, now, next_write_ms);
        let data_age_ms = head.data.age_ms.unwrap_or(0);
        Snapshot { head, series: self.instance.series.clone(), data_age_ms }
    }

    fn head(&self, name: &str, port: u32, now: Now, next_write_ms: u64) -> Status<()> {
        let instance = &self.instance;
        let age = |since: Option<Now>| since.map(|since| now.since_us(since) / 1000);
        let (data, data_since) = instance.data(now);
        let mut agent = instance.agent.clone();
        if self.config_error.is_some() && instance.speaker.is_none() {
            agent.state = Agent::Unknown;
        }
        let link = instance.link.clone();
        Status {
            schema: SCHEMA,
            name: name.into(),
            written: Stamp::from_ms(now.wall_ms),
            next_write_by: Stamp::from_ms(next_write_ms),
            transport: self.config.as_ref().map(|config| transport(config, port)),
            labels: self.config.as_ref().map(|config| config.labels.clone()).unwrap_or_default(),
            config_error: self.config_error.clone(),
            link: state(link.state, link.since, age(instance.heard), link.detail),
            agent: state(agent.state, agent.since, age(instance.heard), agent.detail),
            workload: State::default(),
            data: state(data, data_since, age(instance.sampled), None),
            guest: self.guest(),
            summary: instance.series.has_sample().then(|| crate::model::summary::summary(&instance.series)),
            scaling: self.desk.status(now),
            counters: instance.counters.clone(),
            metrics: (),
        }
    }

    fn guest(&self) -> Option<Guest> {
        let instance = &self.instance;
        let speaker = instance.speaker.as_ref()?;
        let (sessions, unproven) = instance.sessions();
        let heartbeat = speaker.heartbeat;
        let skew = heartbeat.map(|(heartbeat, at)| {
            let guest_ms = i64::try_from(heartbeat.wall_time_us / 1000).unwrap_or(i64::MAX);
            guest_ms.saturating_sub(i64::try_from(at.wall_ms).unwrap_or(i64::MAX))
        });
        let heard_us = heartbeat.map_or(0, |(heartbeat, _)| heartbeat.boot_time_us);
        Some(Guest {
            name: speaker.facts.name.as_ref().into(),
            version: speaker.facts.version.as_ref().into(),
            boot_id: speaker.facts.boot.to_string(),
            protocol: speaker.facts.protocol,
            proven: speaker.standing == Standing::Proven,
            clone: instance.is_clone(),
            session: format!("{:016x}", speaker.session.0),
            connected: Stamp::from_ms(speaker.connected.wall_ms),
            sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
            sessions_unproven: u32::try_from(unproven).unwrap_or(u32::MAX),
            boot_time_us: instance.series.boot_time_us().max(heard_us),
            clock_skew_ms: skew,
            loop_lag_us: heartbeat.map(|(heartbeat, _)| heartbeat.loop_lag_us),
            sample_cost_us: heartbeat.map(|(heartbeat, _)| heartbeat.sample_cost_us),
            interval_ms: instance.series.interval_us().map(|us| us / 1000),
        })
    }
}

fn state<S>(state: S, since: Now, age_ms: Option<u64>, detail: Option<String>) -> State<S> {
    let since = (since != Now::default()).then(|| Stamp::from_ms(since.wall_ms));
    State { state, since, age_ms, detail }
}

/// How an instance is reached, for readers.
pub(super) fn transport(config: &Config, port: u32) -> Transport {
    Transport {
        kind: config.address.kind().into(),
        address: config.address.to_string(),
        port: config.dial.unwrap_or(port),
        dial: config.dial.is_some(),
        trust: match config.trust {
            Trust::Root => "root",
            Trust::Any => "any",
        }
        .into(),
    }
}
