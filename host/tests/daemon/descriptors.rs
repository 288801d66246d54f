//! A daemon with few file descriptors: each instance has its own, whatever another one's guest does; what does not fit
//! is told, and loses nothing.

use crate::support::{AGENT, Daemon, Guest, Said, Who};
use informant_wire::event::EventKind;
use informant_wire::hello::PeerKind;
use informant_wire::host_to_guest::ByeReason;
use std::process::Command;

/// The least with which a daemon starts.
const LIMIT: u32 = 256;
/// Instances that fit.
const FIT: u8 = 88;
/// Connections beyond the first one of each.
const SHARED: u8 = 8;

fn name(number: u8) -> String {
    format!("vm{number:02}")
}

fn who(number: u8) -> Who {
    Who { boot: number + 1, nonce: number + 1, stream: u64::from(number) + 1, ..AGENT }
}

#[test]
fn one_guest_that_takes_all_it_can_get_keeps_no_other_from_its_own() {
    let names: Vec<String> = (0..FIT).map(name).collect();
    let tomls: Vec<String> = names.iter().map(|name| format!("unix = '@/{name}.sock'")).collect();
    let instances: Vec<_> = names.iter().map(String::as_str).zip(tomls.iter().map(String::as_str)).collect();
    let daemon = Daemon::start_with(&instances, Some(LIMIT));
    let path = |number| daemon.run().join(format!("{}.sock", name(number)));
    for name in &names {
        daemon.wait_status(name, "listening", |status| status["link"]["state"] == "listening");
    }
    // The first one's guest takes its own place and all that are shared; beyond, it takes from itself.
    let reporter = Who { kind: PeerKind::REPORTER, ..who(0) };
    let mut reporters: Vec<_> = (0..=SHARED + 1).map(|_| Guest::open(&path(0), reporter)).collect();
    assert_eq!(reporters[0].hear_other(), Said::Bye(ByeReason::TOO_MANY));
    let silent: Vec<_> = (0..40).map(|_| Guest::connect(&path(0))).collect();

    // The others have their own, and come again while their old connection is still there.
    let mut guests: Vec<_> = (1..FIT).map(|number| Guest::open(&path(number), who(number))).collect();
    for (number, guest) in (1..FIT).zip(&mut guests) {
        let again = Guest::open(&path(number), Who { nonce: 200, ..who(number) });
        assert_eq!(guest.hear_other(), Said::Bye(ByeReason::REPLACED));
        *guest = again;
    }
    // The reserve takes events, and a reader is answered.
    for guest in &mut guests {
        guest.event(1, EventKind(200), b"x");
    }
    for (number, guest) in (1..FIT).zip(&mut guests) {
        guest.wait_ack(|ack| ack.event == 1);
        assert_eq!(daemon.events(&name(number)).iter().filter(|event| event["sequence"] == 1).count(), 1);
    }
    assert_eq!(daemon.get("/v1/instances").0, 200);
    assert!(
        daemon.log().contains("makes way for others: no file descriptor is left of 256: raise the limit (ulimit -n")
    );

    // One instance more has no place, and says so, until another one goes.
    daemon.write("late", "unix = '@/late.sock'");
    let status = daemon.wait_status("late", "the error", |status| status["config_error"].is_string());
    assert!(status["config_error"].as_str().unwrap().starts_with("no file descriptor is left of 256"), "{status}");
    assert_eq!(status["link"]["state"], "off");
    std::fs::remove_file(daemon.dir().join("vm01/instance.toml")).unwrap();
    drop(Guest::open(&daemon.run().join("late.sock"), who(FIT)));
    daemon.wait_status("late", "mended", |status| status["config_error"].is_null());
    drop((reporters, silent));
}

#[test]
fn a_limit_that_is_too_low_is_told_at_the_start() {
    let daemon = Daemon::start(&[]);
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 255 && exec timeout 30 \"$0\" --dir \"$1\" serve",
        env!("CARGO_BIN_EXE_informant-host"),
    ]);
    let output = command.arg(daemon.run()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "informant-host: cannot start: the limit of open files is 255: at least 256 are needed; raise it (ulimit -n, LimitNOFILE=)\n"
    );
}
