//! Executables that advise.

use crate::agent::Place;
use crate::guest::{Guest, size};
use crate::host::{Host, PATIENCE, Said};
use crate::inside::Inside;
use informant_guest::local::tally::{Verdict, line};
use informant_wire::event::{AdvisorFailed, EventKind};
use informant_wire::frame::decode;
use informant_wire::host_to_guest::Ack;
use informant_wire::scale::{AdvisorFault, DownscaleOutcome, DownscaleReason};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Waits until a process is gone, zombies included.
fn gone(pid: &str) {
    let deadline = Instant::now() + PATIENCE;
    while Path::new("/proc").join(pid.trim()).exists() {
        assert!(Instant::now() < deadline, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn exit_codes_and_lines_are_the_verdict() {
    let place = Place::new();
    let inside = Inside::start(&place, Duration::from_millis(100));
    let out = place.path("out");
    inside.program(
        "fine",
        &format!(
            "{{ echo \"$@\"; env | grep INFORMANT_ | sort; grep -h SigBlk /proc/self/status; cat /proc/$$/oom_score_adj; \
             ls /proc/self/fd | wc -l; cat; }} > {}.new; mv {}.new {}",
            out.display(),
            out.display(),
            out.display()
        ),
    );
    inside.ask(size(2, 2048), size(1, 1024));
    assert_eq!(inside.verdict(), Verdict::default());
    let seen = text(&out);
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!(
        lines[..6],
        [
            "downscale --present-cpu-milli 2000 --present-memory-bytes 2147483648 --wanted-cpu-milli 1000 \
             --wanted-memory-bytes 1073741824",
            "INFORMANT_PRESENT_CPU_MILLI=2000",
            "INFORMANT_PRESENT_MEMORY_BYTES=2147483648",
            "INFORMANT_WANTED_CPU_MILLI=1000",
            "INFORMANT_WANTED_MEMORY_BYTES=1073741824",
            "SigBlk:\t0000000000000000",
        ]
    );
    // What this process was started with is open, and nothing that the agent opened; standard input is empty.
    let plain = std::process::Command::new("sh").args(["-c", "ls /proc/self/fd | wc -l"]).output().unwrap();
    assert_eq!((lines[7].as_bytes(), lines.len()), (plain.stdout.trim_ascii(), 8), "{seen}");

    inside.program("no", "printf 'index\\033[31m build until noon\\nand more\\n'; exit 1");
    inside.ask(size(2, 2048), size(1, 1024));
    let against = Some((DownscaleReason::ADVISOR, line(b"index [31m build until noon")));
    assert_eq!(inside.verdict(), Verdict { against, ..Verdict::default() });
    inside.program("no", "exit 1");
    inside.ask(size(2, 2048), size(1, 1024));
    assert_eq!(inside.verdict().against, Some((DownscaleReason::ADVISOR, line(b"no"))), "its name stands for a line");
    let long = "x".repeat(500);
    inside.program("no", &format!("echo {long}; exit 1"));
    inside.ask(size(2, 2048), size(1, 1024));
    assert_eq!(inside.verdict().against, Some((DownscaleReason::ADVISOR, line(&[b'x'; 120]))));
}

#[test]
fn crashing_talking_and_untrusted_ones_are_counted_reported_and_no_voice() {
    let place = Place::new();
    let host = Host::new(&place);
    let inside = Inside::start(&place, Duration::from_millis(100));
    let mut peer = host.session(0);
    inside.program("code", "echo no; exit 3");
    inside.program("signal", "echo no; kill -9 $$");
    inside.program("talks", "yes no; exit 1");
    let world = inside.program("world", "echo no; exit 1");
    std::fs::set_permissions(&world, std::fs::Permissions::from_mode(0o757)).unwrap();
    let plain = inside.program("plain", "echo no; exit 1");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(inside.advisors.join("broken"), "no program").unwrap();
    std::fs::set_permissions(inside.advisors.join("broken"), std::fs::Permissions::from_mode(0o755)).unwrap();
    inside.ask(size(2, 2048), size(1, 1024));
    let verdict = inside.verdict();
    // `talks` goes on behind a closed pipe, with its own exit code: it says no.
    assert_eq!((verdict.silent, verdict.crashed), (0, 3), "{verdict:?}");
    assert_eq!(verdict.against, Some((DownscaleReason::ADVISOR, line(b"no"))));
    let mut seen = Vec::new();
    while seen.len() < 5 {
        match peer.next() {
            Some(Said::Sample { head, .. }) => assert!(peer.ack(head.sequence, 0)),
            Some(Said::Event(event)) if event.kind == EventKind::ADVISOR_FAILED => {
                let body: AdvisorFailed<'_> = decode(&event.body).unwrap();
                seen.push((body.name.to_owned(), body.what));
            }
            other => assert!(other.is_some()),
        }
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    let (crashed, refused) = (AdvisorFault::CRASHED, AdvisorFault::REFUSED);
    let expected =
        [("broken", crashed), ("code", crashed), ("plain", refused), ("signal", crashed), ("world", refused)];
    assert_eq!(seen, expected.map(|(name, what)| (name.to_owned(), what)));
}

/// Long, so that a busy test machine does not look like a loop that waits.
const INTERVAL: Duration = Duration::from_millis(500);

#[test]
fn while_one_hangs_samples_and_health_go_on_and_nothing_of_it_is_left() {
    let place = Place::new();
    let host = Host::new(&place);
    let inside = Inside::start(&place, INTERVAL);
    let mut peer = host.session(0);
    let (pid, grandchild) = (place.path("pid"), place.path("grandchild"));
    inside.program(
        "hangs",
        &format!(
            "trap '' TERM\nsleep 1000 & echo $! > {}\necho $$ > {}\nwhile :; do sleep 1000; done",
            grandchild.display(),
            pid.display()
        ),
    );
    inside.program("no", "echo busy; exit 1");
    let mut healthy = Guest::advisor(&inside.socket, "healthy");
    let (first, _) = peer.sample();
    let (mut last, mut samples) = (first, 0);
    inside.ask(size(2, 2048), size(1, 1024));
    let request = healthy.question().request;
    healthy.answer(request, DownscaleOutcome::APPROVED, "");
    let mut verdict = None;
    // Through the whole question, and some samples behind it.
    while verdict.is_none() || samples < 8 {
        let (head, _) = peer.sample();
        assert_eq!(head.sequence, last.sequence + 1, "no sample is left out");
        let apart_us = head.boot_time_us - last.boot_time_us;
        assert!(u128::from(apart_us) * 2 <= INTERVAL.as_micros() * 3, "{apart_us} us between two samples");
        (last, samples) = (head, samples + 1);
        peer.ack(head.sequence, 0);
        assert!(healthy.heartbeat());
        if let Some(crate::inside::Came::Verdict(came)) = inside.has_come() {
            assert!(samples >= 3, "it had its two seconds");
            verdict = Some(came);
        }
    }
    let against = Some((DownscaleReason::ADVISOR, line(b"busy")));
    assert_eq!(verdict, Some(Verdict { against, silent: 1, crashed: 0 }));
    assert!(
        healthy.until(|told| if let crate::guest::Told::Ack(ack) = told { Some(ack) } else { None }) == Ack::default()
    );
    gone(&text(&pid));
    gone(&text(&grandchild));
}

#[test]
fn nothing_runs_on_behind_an_agent_that_ends() {
    let place = Place::new();
    let inside = Inside::start(&place, Duration::from_millis(100));
    let pid = place.path("pid");
    inside.program("hangs", &format!("echo $$ > {}; exec sleep 1000", pid.display()));
    inside.ask(size(2, 2048), size(1, 1024));
    let deadline = Instant::now() + PATIENCE;
    while !text(&pid).ends_with('\n') {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(inside);
    gone(&text(&pid));
}
