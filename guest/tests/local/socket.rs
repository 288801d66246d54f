//! Who is heard at the socket, and what ends a connection. The agent is a process.

use crate::agent::Place;
use crate::guest::{Guest, Told, encoded, hello};
use crate::host::{Host, PATIENCE, Said};
use informant_wire::event::{AdvisorFailed, EventKind};
use informant_wire::frame::{self, kind};
use informant_wire::hello::{PeerKind, RefusedCode};
use informant_wire::host_to_guest::{Ack, Bye, ByeReason};
use informant_wire::scale::{AdvisorFault, DemandOutcome};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

fn refused(guest: &mut Guest) -> (RefusedCode, bool, String) {
    let Some(Told::Refused { code, permanent, text }) = guest.next() else { panic!("not refused") };
    assert_eq!(guest.next(), None, "the connection closes");
    (code, permanent, text)
}

#[test]
fn kinds_and_forms_of_hello() {
    let place = Place::new();
    let agent = place.agent(&["--name", "box"]);
    let path = place.path("state/agent.sock");
    for kind in [PeerKind::REPORTER, PeerKind::ADVISOR] {
        let mut guest = Guest::connect(&path);
        guest.say(&hello(kind, "a\x1b[31m"));
        assert_eq!(guest.next(), Some(Told::Welcome { name: "box".to_owned() }));
        assert!(guest.heartbeat());
        assert_eq!(guest.next(), Some(Told::Ack(Ack { sample: 0, event: 0 })));
        guest.say(&encoded(|room| Bye { reason: ByeReason::STOPPING }.encode(room)));
        assert_eq!(guest.next(), None);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o755);
    for (bytes, code) in [
        (hello(PeerKind::AGENT, "x"), RefusedCode::KIND),
        (hello(PeerKind(77), "x"), RefusedCode::KIND),
        ([hello(PeerKind::ADVISOR, "x"), vec![1, 0, kind::NOT_MINE]].concat(), RefusedCode::MALFORMED),
        (encoded(|room| Bye { reason: ByeReason::STOPPING }.encode(room)), RefusedCode::MALFORMED),
        (vec![0, 0], RefusedCode::MALFORMED),
        (vec![0xff, 0xff, 1], RefusedCode::MALFORMED),
        (encoded(|room| frame::encode(room, kind::HELLO, &"garbage")), RefusedCode::MALFORMED),
    ] {
        let mut guest = Guest::connect(&path);
        guest.say(&bytes);
        let (seen, permanent, text) = refused(&mut guest);
        assert!(seen == code && permanent && !text.is_empty(), "{bytes:?}: {seen:?} {text}");
    }
    drop(agent);
}

#[test]
fn a_killed_agents_socket_is_taken_over_and_a_live_ones_is_not() {
    let place = Place::new();
    let path = place.path("state/agent.sock");
    let first = place.agent(&[]);
    Guest::advisor(&path, "a");
    first.kill();
    assert!(path.exists());
    let second = place.agent(&[]);
    Guest::advisor(&path, "b");
    let (listen, other) = (format!("unix:{}", place.path("x.sock").display()), place.path("other"));
    let third =
        place.start(&["--listen", &listen, "--local", path.to_str().unwrap(), "--state", other.to_str().unwrap()]);
    let deadline = Instant::now() + PATIENCE;
    while !third.log().contains("are not heard") {
        assert!(Instant::now() < deadline, "{}", third.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(third);
    Guest::advisor(&path, "c");
    drop(second);
}

#[test]
fn eight_connections_and_four_that_greet() {
    let place = Place::new();
    let _agent = place.agent(&[]);
    let path = place.path("state/agent.sock");
    let mut greeting: Vec<_> = (0..4).map(|_| Guest::connect(&path)).collect();
    assert_eq!(refused(&mut Guest::connect(&path)).0, RefusedCode::TOO_MANY);
    for guest in &mut greeting {
        guest.say(&hello(PeerKind::REPORTER, "r"));
        assert!(matches!(guest.next(), Some(Told::Welcome { .. })));
    }
    let mut more: Vec<_> = (0..4).map(|_| Guest::advisor(&path, "a")).collect();
    let (code, permanent, _) = refused(&mut Guest::connect(&path));
    assert_eq!((code, permanent), (RefusedCode::TOO_MANY, false));
    more.pop();
    greeting.pop();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut guest = Guest::connect(&path);
        guest.say(&hello(PeerKind::REPORTER, "r"));
        match guest.next() {
            Some(Told::Welcome { .. }) => break,
            _ => assert!(Instant::now() < deadline, "a place that is left is taken again"),
        }
    }
}

#[test]
fn who_says_nothing_goes_and_an_advisor_is_reported() {
    let place = Place::new();
    let host = Host::new(&place);
    let _agent = place.agent(&[]);
    let path = place.path("state/agent.sock");
    let mut half = Guest::connect(&path);
    half.say(&hello(PeerKind::ADVISOR, "half")[..20]);
    let mut quiet = Guest::advisor(&path, "quiet");
    let mut lively = Guest::advisor(&path, "lively");
    // Half a frame is no sign of life.
    let mut stuck = Guest::advisor(&path, "stuck");
    stuck.say(&[40, 0, kind::DEMAND, 1]);
    let mut peer = host.session(0);
    assert_eq!(half.next(), None, "no hello in 4 s");
    let mut silent = Vec::new();
    let mut beaten = Instant::now();
    while silent.len() < 2 {
        if beaten.elapsed().as_secs() >= 2 {
            assert!(lively.heartbeat());
            beaten = Instant::now();
        }
        match peer.next() {
            Some(Said::Sample { head, .. }) => assert!(peer.ack(head.sequence, 0)),
            Some(Said::Event(event)) if event.kind == EventKind::ADVISOR_FAILED => {
                let body: AdvisorFailed<'_> = frame::decode(&event.body).unwrap();
                assert_eq!(body.what, AdvisorFault::SILENT);
                silent.push(body.name.to_owned());
            }
            other => assert!(other.is_some()),
        }
    }
    silent.sort();
    assert_eq!(silent, ["quiet", "stuck"]);
    assert_eq!((quiet.next(), stuck.next()), (None, None));
    assert!(matches!(lively.next(), Some(Told::Ack(_))));
}

#[test]
fn a_flood_and_frames_that_do_not_decode_end_their_own_connection_only() {
    let place = Place::new();
    let _agent = place.agent(&[]);
    let path = place.path("state/agent.sock");
    let mut good = Guest::advisor(&path, "good");
    let mut flood = Guest::advisor(&path, "flood");
    flood.say(&[1, 0, 0x5f].repeat(50));
    while flood.next().is_some() {}
    let mut broken = Guest::advisor(&path, "broken");
    broken.say(&[2, 0, kind::DEMAND, 1].repeat(10));
    while broken.next().is_some() {}
    let mut long = Guest::advisor(&path, "long");
    long.say(&[0xff, 0xff, kind::EVENT]);
    while long.next().is_some() {}
    assert_eq!(good.demand(1, 512).outcome, DemandOutcome::PENDING);
}

/// `informant-guest demand` as another user.
fn demand_as(place: &Place, uid: u32, gid: u32) -> Output {
    let mut command = Command::new(place.path("informant-guest"));
    command.args(["demand", "--memory", "512TiB", "--socket"]).arg(place.path("state/agent.sock"));
    command.uid(uid).gid(gid).output().unwrap()
}

#[test]
fn only_root_and_the_group_of_the_socket_may_demand() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: only root can become somebody else");
        return;
    }
    let place = Place::new();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(place.path("x").parent().unwrap(), 0o755);
    std::fs::copy(env!("CARGO_BIN_EXE_informant-guest"), place.path("informant-guest")).unwrap();
    let _agent = place.agent(&[]);
    let socket = place.path("state/agent.sock");
    Guest::advisor(&socket, "root");
    let said = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let output = demand_as(&place, 65534, 65534);
    assert!(output.status.code() == Some(3) && said(&output).contains("Permission denied"), "{output:?}");
    // Even where the file lets everyone in.
    mode(&socket, 0o666);
    let output = demand_as(&place, 65534, 65534);
    assert!(output.status.code() == Some(3) && said(&output).contains("only root and the group"), "{output:?}");
    chown(&socket, None, Some(4321)).unwrap();
    mode(&socket, 0o660);
    let output = demand_as(&place, 65534, 4321);
    assert!(output.status.code() == Some(3) && said(&output).is_empty(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "pending: no answer of the host in time\n");
}
