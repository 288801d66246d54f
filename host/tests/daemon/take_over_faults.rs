//! A take-over in which somebody dies, hangs or changes its mind: somebody serves, always.

use crate::scaling;
use crate::support::{AGENT, Daemon, Guest, Said, Who, wait_for};
use informant_wire::event::EventKind;
use informant_wire::host_to_guest::ByeReason;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// An owner notices at once that a newcomer is gone; that one hangs it would after 30 s.
const AT_ONCE: Duration = Duration::from_secs(15);

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// A newcomer that fails: what it says last.
fn last_words(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

fn newcomer(daemon: &Daemon) -> Child {
    daemon.command().arg("--take-over").stderr(Stdio::piped()).spawn().unwrap()
}

/// Puts a socket in the place of another, as a newcomer does.
fn bind_over(path: &Path) -> UnixListener {
    let beside = path.with_extension("beside");
    let listener = UnixListener::bind(&beside).unwrap();
    std::fs::rename(&beside, path).unwrap();
    listener
}

/// `boot`: of the VM behind it.
fn is_served(path: &Path, boot: u8) -> bool {
    let Ok(stream) = UnixStream::connect(path) else { return false };
    let mut guest = Guest::over(stream);
    guest.stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    guest.hello(Who { boot, ..AGENT });
    matches!(guest.try_hear(), Some(Said::Welcome { .. }))
}

/// An owner that is played here: its lock and its API.
struct Owner {
    lock: Flock<File>,
    api: UnixListener,
}

impl Owner {
    fn of(daemon: &mut Daemon) -> Self {
        daemon.kill();
        let lock = File::options().read(true).write(true).open(daemon.dir().join(".lock")).unwrap();
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).unwrap();
        let path = daemon.dir().join("informant.sock");
        std::fs::remove_file(&path).unwrap();
        Self { lock, api: UnixListener::bind(path).unwrap() }
    }

    /// What it is asked.
    fn asked(&self) -> (UnixStream, String) {
        let (stream, _) = self.api.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        let _rest_of_the_head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        (stream, first)
    }

    fn is_ready(&self) -> UnixStream {
        let (mut stream, asked) = self.asked();
        assert_eq!(asked, "POST /v1/take-over/ready HTTP/1.1");
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        stream
    }
}

/// The child, once it serves as owner.
fn until_it_serves(daemon: &Daemon, mut child: Child) {
    wait_for("the newcomer to serve", || {
        assert_eq!(child.try_wait().unwrap().map(|status| status.to_string()), None, "it ended");
        UnixStream::connect(daemon.dir().join("informant.sock")).ok()
    });
    let (_, facts) = daemon.get("/v1/daemon");
    assert_eq!(facts["pid"], child.id());
    assert!(matches!(Guest::greet(&daemon.run().join("vm.sock"), AGENT).1, Said::Welcome { .. }));
    signal(child.id(), Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn whenever_the_owner_dies_the_newcomer_serves() {
    for dies in ["before it answers", "after it was ready", "when it is to go"] {
        println!("{dies}");
        let mut daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
        let owner = Owner::of(&mut daemon);
        let child = newcomer(&daemon);
        match dies {
            "before it answers" => drop(owner.asked()),
            "after it was ready" => drop(owner.is_ready()),
            _ => {
                let _ready = owner.is_ready();
                let (_stream, asked) = owner.asked();
                assert_eq!(asked, "POST /v1/take-over/go HTTP/1.1");
            }
        }
        // A process that dies loses its sockets first.
        let Owner { lock, api } = owner;
        drop(api);
        std::thread::sleep(Duration::from_millis(50));
        drop(lock);
        until_it_serves(&daemon, child);
    }
}

#[test]
fn an_owner_that_thinks_better_of_it_keeps_the_directory() {
    let mut daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let owner = Owner::of(&mut daemon);
    let child = newcomer(&daemon);
    let _ready = owner.is_ready();
    let (mut stream, _) = owner.asked();
    let body = r#"{"error":"not today"}"#;
    write!(stream, "HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let last = last_words(child);
    assert!(last.contains("does not give it up") && last.contains("not today"), "{last}");
}

#[test]
fn a_daemon_that_hangs_is_left_as_it_is() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    signal(daemon.pid(), Signal::SIGSTOP);
    let last = last_words(newcomer(&daemon));
    // Whoever starts it may lose patience.
    let mut impatient = newcomer(&daemon);
    let mut log = BufReader::new(impatient.stderr.take().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    signal(impatient.id(), Signal::SIGTERM);
    assert!(impatient.wait().unwrap().success(), "told to stop, it stops");
    signal(daemon.pid(), Signal::SIGCONT);
    assert!(last.contains("does not answer within 10 s"), "{last}");
    assert!(is_served(&daemon.run().join("vm.sock"), AGENT.boot), "it serves as before");
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    wait_for("the directory's owner at work again", || {
        let (code, lease) = daemon.post("/v1/take-over/ready", "");
        drop(lease);
        (code == 200).then_some(())
    });
    assert_eq!(daemon.get("/v1/daemon").1["pid"], daemon.pid(), "what was asked while it stood still is void");
}

#[test]
fn a_newcomer_that_dies_leaves_its_paths_to_the_owner_at_once() {
    for leaves in ["with its sockets", "before its sockets"] {
        println!("{leaves}");
        let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'"), ("idle", "unix = '@/idle.sock'")]);
        let paths = [daemon.run().join("vm.sock"), daemon.run().join("idle.sock")];
        let (code, lease) = daemon.post("/v1/take-over/ready", "");
        assert_eq!(code, 200);
        assert_eq!(daemon.post("/v1/take-over/ready", "").0, 409, "one at a time");
        let mut bound: Vec<_> = paths.iter().map(|path| bind_over(path)).collect();
        let began = Instant::now();
        if leaves == "with its sockets" {
            bound.clear();
        }
        drop(lease);
        for (path, boot) in paths.iter().zip(1..) {
            wait_for("the owner's socket", || is_served(path, boot).then_some(()));
        }
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        let log = daemon.log();
        assert!(log.contains("nobody took over: goes on") && !log.contains("another process listens"), "{log}");
    }
}

#[test]
fn a_newcomer_that_hangs_is_waited_for_half_a_minute() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let path = daemon.run().join("vm.sock");
    let mut guest = Guest::open(&path, AGENT);
    let (_, lease) = daemon.post("/v1/take-over/ready", "");
    let _hung = bind_over(&path);
    guest.schema();
    guest.sample(100, &[Some(150), Some(1000), Some(400), Some(500), Some(900), Some(7000), None, Some(1)]);
    daemon.wait_status("vm", "a sample meanwhile", |status| status["counters"]["samples"] == 1);
    assert_eq!(lease.count(), 0, "it ends, and says nothing");
    wait_for("the owner's socket", || is_served(&path, AGENT.boot).then_some(()));
}

#[test]
fn whoever_asks_and_does_not_come_leaves_the_daemon_at_work() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'"), ("calm", "unix = '@/calm.sock'")]);
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    let mut calm = Guest::open(&daemon.run().join("calm.sock"), Who { boot: 77, ..AGENT });
    assert_eq!(daemon.post("/v1/take-over/go", "").0, 409, "not before it is ready");
    let (code, lease) = daemon.post("/v1/take-over/ready", "");
    assert_eq!(code, 200);
    guest.event(1, EventKind::AGENT_STOPPING, &[]);
    guest.heartbeat();
    wait_for("the event to be left alone", || {
        (daemon.get("/v1/instances/vm").1["counters"]["frames"].as_u64()? >= 3).then_some(())
    });
    drop(lease);
    assert_eq!(guest.hear_other(), Said::Bye(ByeReason::MOVED), "what was left alone comes again");
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    guest.event(1, EventKind::AGENT_STOPPING, &[]);
    guest.wait_ack(|ack| ack.event == 1);
    for guest in [&mut guest, &mut calm] {
        let mut rest = Vec::new();
        guest.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let error = guest.stream.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "the session stays");
    }
    assert_eq!(daemon.get("/v1/instances/vm").1["counters"]["events"], json!(1));
}

#[test]
fn a_vmm_that_does_not_answer_holds_up_no_take_over() {
    let mut daemon = scaling::start("scaling.policy = 'none'");
    std::fs::write(daemon.run().join("slow"), "").unwrap();
    let (code, steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":2147483648}"#);
    assert_eq!(code, 200);
    wait_for("the VMM to be told", || daemon.run().join("told").exists().then_some(()));
    let mut old = daemon.take_over();
    assert!(old.wait().unwrap().success());
    let last: Value = serde_json::from_str(&steps.map(Result::unwrap).last().unwrap()).unwrap();
    assert_eq!(
        (&last["done"], &last["step"]),
        (&json!(false), &json!("another daemon takes over: see there what came of it"))
    );
    std::fs::remove_file(daemon.run().join("slow")).unwrap();
    let steps = wait_for("the one that follows to have asked the VMM", || {
        let (code, steps) = daemon.post("/v1/instances/vm/resize", r#"{"memory_bytes":2147483648}"#);
        (code == 200).then_some(steps)
    });
    let last: Value = serde_json::from_str(&steps.map(Result::unwrap).last().unwrap()).unwrap();
    assert_eq!(last["done"], true, "{last}");
}
