//! The scaling conversation with a real daemon: a scripted agent on one side, a real actuator (a program that keeps the
//! VM's size in a file) on the other.

use crate::support::{AGENT, Daemon, Guest, Said, Who, wait_for};
use informant_wire::frame::EncodeError;
use informant_wire::hello::{Capabilities, Role};
use informant_wire::id::ControllerId;
use informant_wire::scale::{
    Applied, AppliedCause, AppliedOutcome, Controller, Controllers, Demand, DemandAnswer, DemandId, DemandOutcome,
    DemandReason, DownscaleAnswer, DownscaleOutcome, DownscaleReason, Epoch, RequestId, Resized, Resume, RoleAnswer,
    Seen, Suspend,
};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// A VMM in a file: it gives what it is asked for, between 1 and 4 CPUs and 512 MiB and 4 GiB, and writes down each size.
const VMM: &str = r#"#!/bin/sh
set -eu
here=$(dirname "$0")
test -e "$here/size" || echo '"cpu_milli":1000,"memory_bytes":1073741824' > "$here/size"
if [ "$1" = resize ]; then
    test ! -e "$here/slow" || { touch "$here/told"; exec sleep 60; }
    test ! -e "$here/broken" || { echo "the disk is on fire" >&2; exit 1; }
    echo "$3 $5" >> "$here/sent"
    echo "\"cpu_milli\":$3,\"memory_bytes\":$5" > "$here/size.new"
    mv "$here/size.new" "$here/size"
fi
echo "{$(cat "$here/size"),\"min_cpu_milli\":1000,\"max_cpu_milli\":4000,\"min_memory_bytes\":536870912,\
\"max_memory_bytes\":4294967296,\"block_bytes\":134217728}"
"#;

const SCALING: Who = Who { capabilities: Capabilities(Capabilities::SAMPLES.0 | Capabilities::SCALING.0), ..AGENT };

/// A daemon with one instance and its VMM.
pub(crate) fn start(scaling: &str) -> Daemon {
    let daemon = Daemon::start(&[]);
    let vmm = daemon.run().join("vmm");
    std::fs::write(&vmm, VMM).unwrap();
    std::fs::set_permissions(&vmm, std::fs::Permissions::from_mode(0o755)).unwrap();
    daemon.write("vm", &format!("unix = '@/vm.sock'\ntrust = 'any'\nactuator.command = ['@/vmm']\n{scaling}"));
    daemon.wait_status("vm", "the VMM's size", |status| status["scaling"]["vmm_has"]["cpu_milli"] == 1000);
    daemon
}

fn sent(daemon: &Daemon) -> Vec<String> {
    let text = std::fs::read_to_string(daemon.run().join("sent")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn say(guest: &mut Guest, encode: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>) {
    let mut out = [0; 512];
    let length = encode(&mut out).unwrap();
    guest.send(&out[..length]);
}

/// An agent that has made the daemon current, and told it that it has what it was told.
fn agent(daemon: &Daemon) -> Guest {
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), SCALING);
    resume(&mut guest, 1, 1);
    let told = hear_resized(&mut guest);
    applied(&mut guest, told);
    daemon.wait_status("vm", "idle", |status| status["scaling"]["state"] == "idle");
    guest
}

fn resume(guest: &mut Guest, request: u32, epoch: u64) {
    say(guest, |out| Resume { request: RequestId(request), epoch: Epoch(epoch) }.encode(out));
    let accepted = RoleAnswer { request: RequestId(request), accepted: true };
    assert_eq!(guest.hear_other(), Said::RoleAnswer(accepted));
}

fn hear_resized(guest: &mut Guest) -> Resized {
    match guest.hear_other() {
        Said::Resized(told) => told,
        other => panic!("{other:?}"),
    }
}

fn applied(guest: &mut Guest, told: Resized) {
    let seen = Seen {
        cpus: told.now.cpu.cpus(),
        memory_total: told.now.memory.saturating_sub(Bytes::mib(64)),
        memory_online: Some(told.now.memory),
    };
    let applied = |outcome, cause| Applied { request: told.request, outcome, cause, seen };
    say(guest, |out| applied(AppliedOutcome::NOT_YET, AppliedCause::MEMORY_OFFLINE).encode(out));
    say(guest, |out| applied(AppliedOutcome::APPLIED, AppliedCause::NONE).encode(out));
}

fn demand(guest: &mut Guest, request: u32, memory: Bytes) {
    let demand = Demand {
        request: RequestId(request),
        id: DemandId(99),
        cpu: None,
        memory: Some(memory),
        disk: None,
        urgency: 80,
        reason: DemandReason::GROWTH,
        expires_ms: 10_000,
    };
    say(guest, |out| demand.encode(out));
}

#[test]
fn a_demand_goes_through_the_vmm_and_back() {
    let daemon = start("scaling.max.memory = '2GiB'");
    let mut guest = agent(&daemon);
    demand(&mut guest, 3, Bytes::mib(1500));
    let granted = Size { cpu: MilliCpu(1000), memory: Bytes::mib(1536) };
    match guest.hear_other() {
        Said::DemandAnswer(answer) => {
            assert_eq!((answer.request, answer.outcome), (RequestId(3), DemandOutcome::GRANTED));
            assert!(answer.granted.covers(granted), "{answer:?}");
        }
        other => panic!("{other:?}"),
    }
    let told = hear_resized(&mut guest);
    assert!(told.now.covers(granted) && told.was.memory == Bytes::gib(1), "{told:?}");
    applied(&mut guest, told);
    let status =
        daemon.wait_status("vm", "applied", |status| status["scaling"]["counters"]["applied"]["memory_up"] == 1);
    let scaling = &status["scaling"];
    assert_eq!((&scaling["state"], &scaling["demand"]["answer"]), (&json!("idle"), &json!("granted")));
    assert_eq!(scaling["counters"]["messages"]["demand"]["granted"], 1);
    assert_eq!(scaling["counters"]["messages"]["resized"]["not_yet"], 2);
    assert_eq!(scaling["counters"]["messages"]["resized"]["partial"], Value::Null, "only known results are counted");
    assert_eq!(sent(&daemon).len(), 1);

    demand(&mut guest, 5, Bytes::gib(64));
    let mut answers = Vec::new();
    while answers.len() < 2 {
        match guest.hear_other() {
            Said::DemandAnswer(DemandAnswer { outcome, .. }) => {
                answers.push(outcome);
                demand(&mut guest, 7, Bytes::gib(64));
            }
            Said::Resized(told) => applied(&mut guest, told),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers.last(), Some(&DemandOutcome::AT_MAXIMUM), "{answers:?}");
}

#[test]
fn resize_asks_the_guest_and_prints_each_step() {
    let daemon = start("");
    let mut guest = agent(&daemon);
    let answer = |guest: &mut Guest, outcome, text| match guest.hear_other() {
        Said::Downscale(question) => {
            let answer = DownscaleAnswer {
                request: question.request,
                outcome,
                reason: DownscaleReason::ADVISOR,
                usage: Bytes(0),
                headroom: Bytes(0),
                limit: Bytes(0),
                retry_after_ms: 1000,
                text,
            };
            say(guest, |out| answer.encode(out));
        }
        other => panic!("{other:?}"),
    };
    let (code, mut steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":536870912}"#);
    assert_eq!(code, 200);
    answer(&mut guest, DownscaleOutcome::DENIED, "a build \u{1b}[31mruns");
    let last: Value = serde_json::from_str(&steps.by_ref().map(Result::unwrap).last().unwrap()).unwrap();
    assert_eq!(last["done"], false);
    assert_eq!(last["step"], "the guest refuses: an advisor: a build \\u{1b}[31mruns");
    assert!(sent(&daemon).is_empty());

    let (_, mut steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":536870912,"cpu_milli":2000}"#);
    let told = hear_resized(&mut guest);
    assert_eq!(told.now, Size { cpu: MilliCpu(2000), memory: Bytes::gib(1) }, "first to more");
    applied(&mut guest, told);
    answer(&mut guest, DownscaleOutcome::APPROVED, "");
    let told = hear_resized(&mut guest);
    assert_eq!(told.now, Size { cpu: MilliCpu(2000), memory: Bytes::mib(512) });
    applied(&mut guest, told);
    let last: Value = serde_json::from_str(&steps.by_ref().map(Result::unwrap).last().unwrap()).unwrap();
    assert_eq!((&last["done"], &last["step"]), (&json!(true), &json!("it has 2 CPUs, 512 MiB")));
    assert_eq!(sent(&daemon), ["2000 1073741824", "2000 536870912"]);
}

#[test]
fn what_cannot_be_resized_says_why() {
    let daemon = start("scaling.policy = 'none'\nscaling.max = { cpu = 2, memory = '2GiB' }");
    daemon.write("plain", "unix = '@/plain.sock'");
    daemon.wait_status("plain", "an instance", |status| status["scaling"]["state"] == "off");
    for (name, body, code, text) in [
        ("plain", r#"{"cpu_milli":1000}"#, 409, "has no [actuator]"),
        ("vm", "{}", 409, "neither a number of CPUs nor an amount of memory"),
        ("vm", r#"{"cpu_milli":3000}"#, 409, "beyond the bounds"),
        ("vm", r#"{"cpu_milli":9000,"force":true}"#, 409, "cannot go above 4 CPUs"),
        ("vm", r#"{"cpus":1}"#, 422, "unknown field `cpus`"),
        ("vm", "{", 400, ""),
        ("none", "{}", 404, "no instance `none`"),
    ] {
        let (got, lines) = daemon.post(&format!("/v1/instances/{name}/resize"), body);
        let answer: String = lines.map(Result::unwrap).collect();
        assert!(got == code && answer.contains(text), "{name} {body}: {got} {answer}");
    }
    let (_, steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":536870912}"#);
    let last: Value = serde_json::from_str(&steps.map(Result::unwrap).last().unwrap()).unwrap();
    assert_eq!(last["step"], "no agent that could agree is connected; --force does without");
    std::fs::write(daemon.run().join("broken"), "").unwrap();
    let (_, steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":536870912,"force":true}"#);
    let last: Value = serde_json::from_str(&steps.map(Result::unwrap).last().unwrap()).unwrap();
    assert!(last["step"].as_str().unwrap().contains("the disk is on fire"), "{last}");
    daemon.wait_status("vm", "a count", |status| status["scaling"]["counters"]["stuck"]["vmm_refused"] == 1);
}

#[test]
fn the_agents_list_of_controllers_reaches_the_api() {
    let daemon = start("");
    let (code, answer) = daemon.get("/v1/instances/vm/controllers");
    assert_eq!((code, &answer["error"]), (409, &json!("no agent that takes part in scaling has a session")));
    let mut guest = agent(&daemon);
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| daemon.get("/v1/instances/vm/controllers"));
        let Said::ListControllers(question) = guest.hear_other() else { panic!("no question") };
        let list = [Controller {
            id: ControllerId([0x11; 16]),
            name: "node-3\u{1b}",
            role: Role::CONTROLLER,
            current: true,
            epoch: Epoch(4),
            heard_ms: 30,
        }];
        let controllers = Controllers { request: question.request, list: list.into_iter().collect() };
        say(&mut guest, |out| controllers.encode(out));
        asked.join().unwrap()
    });
    let controller = json!({"id": "11".repeat(16), "role": "controller", "name": "node-3\u{1b}", "current": true,
        "epoch": 4, "heard_ms": 30});
    assert_eq!(answer, (200, json!({"schema": 1, "controllers": [controller]})));
}

#[test]
fn a_daemon_that_is_killed_at_any_step_finds_the_guest_and_the_vmm_where_they_are() {
    let mut daemon = start("scaling.max.memory = '2GiB'");
    let mut guest = agent(&daemon);
    demand(&mut guest, 3, Bytes::mib(1500));
    assert!(matches!(guest.hear_other(), Said::DemandAnswer(_)));
    let told = hear_resized(&mut guest);
    daemon.kill();
    daemon.spawn();
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), SCALING);
    resume(&mut guest, 1, 2);
    demand(&mut guest, 3, Bytes::mib(1500));
    let mut answered = false;
    let again = wait_for("the size again", || match guest.hear_other() {
        Said::Resized(told) => Some(told),
        Said::DemandAnswer(_) => {
            answered = true;
            None
        }
        other => panic!("{other:?}"),
    });
    assert_eq!((again.now, again.epoch), (told.now, Epoch(2)));
    applied(&mut guest, again);
    daemon.wait_status("vm", "idle", |status| status["scaling"]["state"] == "idle");
    assert_eq!(sent(&daemon).len(), 1, "no size twice");
    say(&mut guest, |out| Suspend { request: RequestId(7), epoch: Epoch(2) }.encode(out));
    let drained = wait_for("the end of the turn", || match guest.hear_other() {
        Said::RoleAnswer(answer) => Some(answer.request),
        _ => None,
    });
    assert_eq!(drained, RequestId(7));
    daemon.wait_status("vm", "not current", |status| status["scaling"]["current"] == false);
}

#[test]
fn a_wrong_table_is_one_line_on_the_instance() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'\nactuator.qmu = '/x'")]);
    let status = daemon.wait_status("vm", "the error", |status| status["config_error"].is_string());
    assert_eq!(status["config_error"], "unknown key `actuator.qmu`: did you mean `qemu`?");
    daemon.write("vm", "unix = '@/vm.sock'\nscaling.policy = 'none'");
    let status = daemon.wait_status("vm", "the other", |status| {
        status["config_error"].as_str().is_some_and(|error| error.contains("without"))
    });
    assert_eq!(status["config_error"], "`scaling` without `actuator`: nothing could resize the VM");
}
