//! All of it together on a tree of files, with a clock that only the test moves.

use super::*;
use crate::collect::{Config, OwnFigures};
use informant_wire::scale::{
    AppliedCause, AppliedOutcome, DemandId, DemandReason, DownscaleOutcome, DownscaleReason, Epoch, RequestId,
};
use std::fs;
use std::task::Waker;
use std::time::{Duration, Instant};

const MIB: u64 = Bytes::MIB;
const S: u64 = 1_000_000;

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn get(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap().trim().to_owned()
}

/// A VM of 512 MiB and one CPU, its agent, and a clock.
struct Vm {
    root: tempfile::TempDir,
    options: Options,
    scaling: Scaling,
    sensors: Sensors,
    now_us: u64,
}

impl Vm {
    fn with(change: impl Fn(&mut Options)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        put(at, "proc/loadavg", "0.10 0.20 0.30 2/90 1\n");
        put(at, "sys/devices/system/cpu/online", "0\n");
        put(at, "sys/devices/system/cpu/present", "0\n");
        put(at, "sys/devices/system/memory/block_size_bytes", "8000000\n");
        for block in 0..4 {
            put(at, &format!("sys/devices/system/memory/memory{block}/state"), "online\n");
        }
        put(at, "sys/fs/cgroup/cgroup.controllers", "memory\n");
        let mut options = Options {
            state: at.join("state"),
            boot: BootId([1; 16]),
            seed: 100,
            tripwire: false,
            clear_memory_high: false,
            thaw: false,
        };
        change(&mut options);
        fs::create_dir(&options.state).unwrap();
        let scaling = Scaling::new(&options, at, S);
        let sensors = Sensors::new(&Config { root: at.to_owned(), cgroup: Some("app".into()), all_fresh: true });
        let mut vm = Self { root, options, scaling, sensors, now_us: S };
        vm.memory(472, 100);
        vm
    }

    fn new() -> Self {
        Self::with(|_| {})
    }

    /// MemTotal, and how much of it is in use, MiB.
    fn memory(&mut self, total: u64, used: u64) {
        let (total, available) = (total * 1024, (total - used) * 1024);
        put(self.root.path(), "proc/meminfo", &format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n"));
    }

    fn group(&self, file: &str, content: &str) {
        put(self.root.path(), &format!("sys/fs/cgroup/app/{file}"), content);
    }

    /// So many milliseconds go by, with a sample at their end.
    fn pass(&mut self, ms: u64) {
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..ms / 100 {
            self.now_us += 100_000;
            self.scaling.poll(cx, self.now_us);
            assert!(self.scaling.deadline_us() <= self.now_us + 100_000);
        }
        self.sensors.sample(&OwnFigures::default());
        self.scaling.observe(&self.sensors);
    }

    fn restart(&mut self) {
        self.scaling = Scaling::new(&self.options, self.root.path(), self.now_us);
    }

    fn ask(&mut self, present: u64, wanted: u64, forced: bool) {
        let question = Downscale {
            request: RequestId(2),
            epoch: Epoch(1),
            present: size(present),
            wanted: size(wanted),
            forced,
            within_ms: 4000,
        };
        self.scaling.downscale(&question, self.now_us);
    }

    fn answer(&mut self) -> Option<(DownscaleOutcome, DownscaleReason)> {
        self.scaling.downscale_answer(self.now_us).map(|answer| (answer.outcome, answer.reason))
    }

    fn told(&mut self, was: u64, now: u64) {
        let told = Resized { request: RequestId(4), epoch: Epoch(1), was: size(was), now: size(now), within_ms: 5000 };
        self.scaling.resized(&told, self.now_us);
    }
}

fn size(mib: u64) -> Size {
    Size { cpu: MilliCpu(1000), memory: Bytes::mib(mib) }
}

fn demand_answer(outcome: DemandOutcome, granted: Size) -> DemandAnswer {
    DemandAnswer { request: RequestId(1), outcome, granted, retry_after_ms: 0 }
}

/// as#593, as#23: from pressure to applied, with what was plugged brought online on the way.
#[test]
fn a_vm_that_runs_full_grows() {
    let mut vm = Vm::new();
    vm.pass(1000);
    assert_eq!(vm.scaling.demand_due_us(), u64::MAX);
    vm.memory(472, 440);
    vm.pass(600);
    let wanted = vm.scaling.demand(vm.now_us).unwrap();
    assert_eq!((wanted.memory, wanted.cpu), (Some(Bytes::mib(1280)), None));
    vm.scaling.demand_answered(&demand_answer(DemandOutcome::PARTIAL, size(640)), vm.now_us);
    put(vm.root.path(), "sys/devices/system/memory/memory9/state", "offline\n");
    vm.told(512, 640);
    vm.pass(100);
    // The clock stands still for the thread.
    let end = Instant::now() + Duration::from_secs(20);
    while get(vm.root.path(), "sys/devices/system/memory/memory9/state") != "online_movable" {
        assert!(Instant::now() < end, "the block stays offline");
        std::thread::yield_now();
    }
    put(vm.root.path(), "sys/devices/system/memory/memory9/state", "online\n");
    vm.memory(600, 440);
    vm.pass(100);
    let applied = vm.scaling.applied(vm.now_us).unwrap();
    assert_eq!((applied.request, applied.outcome), (RequestId(4), AppliedOutcome::APPLIED));
    assert_eq!((applied.seen.cpus, applied.seen.memory_total), (1, Bytes::mib(600)));
    assert_eq!(vm.scaling.applied(vm.now_us), None, "once");
    // What grew at once looks like growth for a while.
    vm.pass(7000);
    assert!(vm.scaling.demand(vm.now_us).unwrap().is_withdrawal());
}

#[test]
fn what_never_arrives_is_not_yet_each_second_and_then_failed() {
    let mut vm = Vm::new();
    vm.pass(1000);
    vm.told(512, 1024);
    let mut said = Vec::new();
    for _ in 0..60 {
        vm.pass(100);
        said.extend(vm.scaling.applied(vm.now_us).map(|applied| (applied.outcome, applied.cause)));
    }
    let (last, before) = said.split_last().unwrap();
    assert_eq!(*last, (AppliedOutcome::FAILED, AppliedCause::NOT_PLUGGED));
    assert!(before.len() >= 4 && before.iter().all(|(outcome, _)| *outcome == AppliedOutcome::NOT_YET), "{said:?}");
}

/// neon#5606: not ready, and ready by itself a moment later. An approval survives the agent.
#[test]
fn an_approval_survives_a_restart_and_is_over_when_the_memory_is_gone() {
    let mut vm = Vm::new();
    vm.memory(4000, 500);
    vm.ask(4096, 2048, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::NOT_READY, DownscaleReason::TOO_FEW_SAMPLES)));
    assert_eq!(vm.answer(), None, "once");
    vm.pass(1000);
    vm.ask(4096, 2048, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::APPROVED, DownscaleReason::ROOM)));
    vm.restart();
    vm.pass(1000);
    // MemTotal is what it was, and 2 GiB of it are promised: 512 MiB more are not to be had.
    vm.ask(2048, 512, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::DENIED, DownscaleReason::MEMORY_IN_USE)));
    assert!(vm.options.state.join("approved").exists());
    vm.memory(1952, 500);
    vm.pass(200);
    assert!(!vm.options.state.join("approved").exists());
    assert_eq!(vm.scaling.usable(), 1952 * MIB);
}

#[test]
fn a_promise_is_void_when_the_vm_is_given_more() {
    let mut vm = Vm::new();
    vm.memory(4000, 500);
    vm.pass(1000);
    vm.ask(4096, 2048, false);
    vm.answer().unwrap();
    assert_eq!(vm.scaling.usable(), 1952 * MIB);
    vm.told(4096, 4096);
    assert_eq!(vm.scaling.usable(), 4000 * MIB);
    vm.ask(4096, 2048, true);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::APPROVED, DownscaleReason::FORCED)));
    vm.pass(700_000);
    assert_eq!(vm.scaling.usable(), 4000 * MIB, "nor does it last for ever");
}

/// A hung workload stalls nothing; as#90: resize hooks with a deadline.
#[test]
fn advisors_are_asked_when_the_numbers_allow_it_and_a_silent_one_is_named() {
    let mut vm = Vm::new();
    vm.memory(4000, 500);
    vm.pass(1000);
    vm.scaling.set_advisors(true);
    vm.ask(4096, 512, false);
    assert_eq!(vm.scaling.next_question(vm.now_us), None, "the numbers forbid it");
    assert_eq!(vm.answer(), Some((DownscaleOutcome::DENIED, DownscaleReason::MEMORY_IN_USE)));
    vm.ask(4096, 2048, false);
    assert_eq!(vm.answer(), None);
    assert_eq!(vm.scaling.next_question(vm.now_us), Some((size(4096), size(2048))));
    assert_eq!(vm.scaling.next_question(vm.now_us), None, "once");
    let text = "an index is being built".try_into().unwrap();
    vm.scaling.advised(Some((DownscaleReason::ADVISOR, text)));
    let answer = vm.scaling.downscale_answer(vm.now_us).unwrap();
    assert_eq!((answer.outcome, answer.reason), (DownscaleOutcome::DENIED, DownscaleReason::ADVISOR));
    assert_eq!(answer.text, "an index is being built");
    vm.ask(4096, 2048, false);
    vm.scaling.next_question(vm.now_us).unwrap();
    vm.pass(2200);
    assert_eq!(vm.answer(), None);
    vm.pass(200);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::DENIED, DownscaleReason::ADVISOR_SILENT)));
    vm.scaling.advised(None);
    assert_eq!(vm.answer(), None, "too late");
    vm.ask(4096, 2048, false);
    vm.scaling.next_question(vm.now_us).unwrap();
    vm.scaling.advised(None);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::APPROVED, DownscaleReason::ROOM)));
}

/// Nobody is answered who is not there, and the demand goes on.
#[test]
fn when_the_controller_goes_the_demand_stays_and_its_question_does_not() {
    let mut vm = Vm::new();
    vm.pass(1000);
    vm.memory(472, 440);
    vm.pass(600);
    let first = vm.scaling.demand(vm.now_us).unwrap();
    vm.ask(512, 256, false);
    vm.scaling.current_gone(vm.now_us);
    assert_eq!(vm.answer(), None);
    vm.pass(1000);
    assert_eq!(vm.scaling.demand(vm.now_us).unwrap().id, first.id);
}

/// Pages of a shared memfd are not counted by others.
#[test]
fn the_watched_cgroup_counts_with_its_shared_memory() {
    let mut vm = Vm::new();
    vm.memory(1000, 200);
    vm.group("memory.stat", &format!("anon {}\nshmem {}\nslab_unreclaimable {}\n", 300 * MIB, 500 * MIB, 60 * MIB));
    vm.group("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\nnew_in_7_0 3\n");
    vm.pass(1000);
    vm.pass(600);
    assert_eq!(vm.scaling.history.usage(vm.now_us), Usage::Known(860 * MIB));
    assert!(vm.scaling.asking.wanted().is_some());
    fs::remove_dir_all(vm.root.path().join("sys/fs/cgroup/app")).unwrap();
    vm.pass(600);
    assert_eq!(vm.scaling.history.usage(vm.now_us), Usage::Known(200 * MIB), "gone is a state");
}

/// pitfalls J: a count at the start is history, and `oom` is not the only sign.
#[test]
fn events_of_the_cgroup_make_a_demand_and_old_ones_do_not() {
    let mut vm = Vm::new();
    vm.memory(472, 300);
    vm.group("memory.stat", "anon 1\n");
    vm.group("memory.events", "high 55050\nmax 7\noom 3\noom_kill 2\n");
    vm.pass(1000);
    vm.pass(1000);
    assert_eq!(vm.scaling.asking.wanted(), None);
    vm.group("memory.events", "high 55050\nmax 8\noom 3\noom_kill 2\n");
    vm.pass(100);
    assert_eq!(vm.scaling.asking.wanted().unwrap().reason, DemandReason::CGROUP_EVENT);
    vm.group("memory.events", "high 55050\nmax 8\noom 4\noom_kill 3\n");
    vm.pass(100);
    assert_eq!(vm.scaling.asking.wanted().unwrap().urgency, 100);
}

fn until(vm: &mut Vm, what: &str, done: impl Fn(&Vm) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done(vm) {
        assert!(Instant::now() < end, "{what}");
        vm.pass(100);
        std::thread::yield_now();
    }
}

const HIGH: &str = "sys/fs/cgroup/app/memory.high";

/// neon#5348: first of all what throttles is lifted.
#[test]
fn the_tripwire_is_set_lifted_at_its_first_event_and_lifted_at_the_end() {
    let mut vm = Vm::with(|options| options.tripwire = true);
    vm.group("memory.stat", "anon 1\n");
    vm.group("memory.events", "high 5\n");
    vm.group("memory.current", "1000\n");
    vm.group("memory.max", "max\n");
    vm.group("memory.high", "4096\n");
    vm.pass(100);
    assert_eq!(get(vm.root.path(), HIGH), "max", "left by one that was killed");
    let level = (472 * MIB / 100 * 95).to_string();
    until(&mut vm, "it is set", |vm| get(vm.root.path(), HIGH) == level);
    until(&mut vm, "the writer told", |vm| vm.scaling.wire.must_lift());
    vm.memory(472, 300);
    vm.pass(600);
    vm.group("memory.events", "high 6\n");
    vm.pass(100);
    assert_eq!(get(vm.root.path(), HIGH), "max");
    assert_eq!(vm.scaling.asking.wanted().unwrap().reason, DemandReason::CGROUP_EVENT);
    until(&mut vm, "it is set again", |vm| get(vm.root.path(), HIGH) == level);
    let Vm { root, scaling, .. } = vm;
    drop(scaling);
    assert_eq!(get(root.path(), HIGH), "max");
}

#[test]
fn a_cgroup_that_is_found_throttled_or_frozen_is_touched_on_request_only() {
    let found = |ask: bool| {
        let mut vm = Vm::with(|options| (options.clear_memory_high, options.thaw) = (ask, ask));
        vm.group("memory.stat", "anon 1\n");
        vm.group("memory.events", "high 5\n");
        vm.group("memory.high", "4096\n");
        vm.group("cgroup.events", "populated 1\nfrozen 1\n");
        vm.group("cgroup.freeze", "1\n");
        vm.pass(1000);
        vm
    };
    let mut vm = found(true);
    assert_eq!(get(vm.root.path(), HIGH), "max");
    until(&mut vm, "it is thawed", |vm| get(vm.root.path(), "sys/fs/cgroup/app/cgroup.freeze") == "0");
    let mut vm = found(false);
    vm.pass(1000);
    vm.scaling.actor.close();
    assert_eq!(get(vm.root.path(), HIGH), "4096");
    assert_eq!(get(vm.root.path(), "sys/fs/cgroup/app/cgroup.freeze"), "1");
}

#[test]
fn what_a_person_wants_is_asked_for_kept_and_over_in_time() {
    let mut vm = Vm::new();
    vm.pass(1000);
    let person = Source(7);
    let wanted = Wanted {
        id: DemandId(0),
        cpu: None,
        memory: Some(Bytes::mib(1024)),
        disk: None,
        urgency: 70,
        reason: DemandReason::PERSON,
        expires_ms: 20_000,
    };
    vm.scaling.demand_of(person, wanted.clone(), vm.now_us).unwrap();
    assert_eq!(vm.scaling.outcome_of(person, vm.now_us).unwrap().0, DemandOutcome::PENDING);
    let asked = vm.scaling.demand(vm.now_us).unwrap();
    assert_eq!((asked.memory, asked.reason), (Some(Bytes::mib(1024)), DemandReason::PERSON));
    vm.scaling.demand_answered(&demand_answer(DemandOutcome::AT_MAXIMUM, size(512)), vm.now_us);
    assert_eq!(vm.scaling.outcome_of(person, vm.now_us).unwrap().0, DemandOutcome::AT_MAXIMUM);
    vm.memory(984, 100);
    vm.pass(1100);
    assert_eq!(vm.scaling.outcome_of(person, vm.now_us).unwrap().0, DemandOutcome::APPLIED);
    assert!(vm.scaling.demand(vm.now_us).unwrap().is_withdrawal());
    vm.ask(1024, 512, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::DENIED, DownscaleReason::DEMAND_OPEN)), "it is still wanted");
    vm.pass(20_000);
    assert_eq!(vm.scaling.outcome_of(person, vm.now_us), None);
    vm.ask(1024, 512, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::APPROVED, DownscaleReason::ROOM)));
    for source in 0..16 {
        vm.scaling.demand_of(Source(source), wanted.clone(), vm.now_us).unwrap();
    }
    assert!(vm.scaling.demand_of(Source(99), wanted, vm.now_us).is_err());
    vm.scaling.withdraw(Source(0), vm.now_us);
}

/// A sensor that is gone is no reason to guess: as#572.
#[test]
fn dead_sensors_fail_a_question_about_memory() {
    let mut vm = Vm::new();
    vm.pass(1000);
    fs::remove_file(vm.root.path().join("proc/meminfo")).unwrap();
    vm.pass(6000);
    vm.ask(512, 256, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::FAILED, DownscaleReason::NO_SAMPLES)));
    vm.ask(512, 512, false);
    assert_eq!(vm.answer(), Some((DownscaleOutcome::APPROVED, DownscaleReason::NO_MEMORY_TAKEN)));
}
