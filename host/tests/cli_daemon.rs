//! The reading commands beside a real daemon with a scripted guest on a unix socket: what a person sees from the
//! first connection to the daemon's end and return.

mod cli;

use cli::{DEADLINE, command, run, signal, until, wait, watch};
use informant_host::publish::status::{Link, Status, WatchLine};
use informant_wire::event::{AgentStarted, Event, EventKind};
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind};
use informant_wire::id::{BootId, Nonce, StreamId};
use informant_wire::metric::{SubjectKind, id};
use informant_wire::sample::{self, Base, Row, SampleHead};
use informant_wire::schema::{MetricRange, SchemaWriter, Subject};
use informant_wire::{MAX_VERSION, MIN_VERSION};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A daemon with one instance `vm`, ended with the test.
struct Daemon {
    dir: TempDir,
    child: Option<Child>,
}

impl Daemon {
    fn start() -> Self {
        let mut daemon = Self { dir: tempfile::tempdir().unwrap(), child: None };
        daemon.instance("vm", &format!("unix = \"{}\"\ntrust = \"any\"\n", daemon.socket().display()));
        daemon.serve();
        daemon
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where the guest finds the daemon.
    fn socket(&self) -> std::path::PathBuf {
        self.path().join("guest.sock")
    }

    fn instance(&self, name: &str, toml: &str) {
        fs::create_dir(self.path().join(name)).unwrap();
        fs::write(self.path().join(name).join("instance.toml"), toml).unwrap();
    }

    fn serve(&mut self) {
        self.child =
            Some(command(self.path(), &["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the daemon answers", || run(self.path(), &["ls", "vm"]).2.is_empty().then_some(()));
    }

    fn stop(&mut self) {
        let child = self.child.take().unwrap();
        signal(&child, Signal::SIGTERM);
        assert_eq!(wait(child).code(), Some(0));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An agent of four series of the VM and one of a cgroup whose name is an attack.
struct Guest {
    stream: UnixStream,
    sequence: u64,
}

const CGROUP: &[u8] = b"/a\x1b[2J\xe2\x80\xaeb";
const SERIES: usize = 4;

impl Guest {
    /// Connects, greets, and tells one event and its schema.
    fn connect(socket: &Path) -> Self {
        let stream = until("the daemon listens", || UnixStream::connect(socket).ok());
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut guest = Self { stream, sequence: 0 };
        let hello = Hello {
            magic: MAGIC,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            kind: PeerKind::AGENT,
            name: "scripted",
            boot_id: BootId([1; 16]),
            nonce: Nonce([2; 16]),
            stream: StreamId(3),
            next_event: 1,
            ticks_per_second: 100,
            capabilities: Capabilities::SAMPLES,
            version: "9.8.7",
        };
        guest.send(|out| hello.encode(out).unwrap());
        // The answer's first bytes: from here the session is open.
        guest.stream.read_exact(&mut [0; 3]).unwrap();
        let body = postcard::to_allocvec(&AgentStarted { pid: 7, continued: false, version: "9.8.7" }).unwrap();
        let event = Event { sequence: 1, boot_time_us: 5, kind: EventKind::AGENT_STARTED, body: &body };
        guest.send(|out| event.encode(out).unwrap());
        guest.schema();
        guest
    }

    fn schema(&mut self) {
        let range = |first| MetricRange { first, count: 1 };
        let subject = |kind, name, metrics: &[MetricRange]| Subject {
            kind,
            name,
            labels: std::iter::empty().collect(),
            incarnation: 0,
            metrics: metrics.iter().copied().collect(),
        };
        let vm = [range(id::LOAD1), range(id::MEM_TOTAL), range(id::MEM_AVAILABLE)];
        let subjects =
            [subject(SubjectKind::VM, b"", &vm), subject(SubjectKind::CGROUP, CGROUP, &[range(id::CGROUP_MEMORY_MAX)])];
        let mut writer = SchemaWriter::new(1);
        self.send(|out| writer.part(out, subjects.into_iter()).unwrap().0);
        self.send(|out| writer.end(out).unwrap());
    }

    /// 2 GiB, half of it available, load 0.42, no limit on the cgroup.
    fn sample(&mut self) {
        self.sequence += 1;
        let head = SampleHead { generation: 1, sequence: self.sequence, boot_time_us: self.sequence * 1_000_000 };
        let row = Row { values: &[42, 2 << 20, 1 << 20, u64::MAX], present: &[0b1111] };
        let mut base = Base { values: &mut [0; SERIES], present: &mut [0] };
        self.send(|out| sample::encode(out, head, true, row, &mut base).unwrap());
    }

    fn send(&mut self, encode: impl FnOnce(&mut [u8]) -> usize) {
        let mut out = [0; 1024];
        let length = encode(&mut out);
        self.stream.write_all(&out[..length]).unwrap();
    }
}

/// The line of `vm` in `ls`, once it holds all of these.
fn ls_with(daemon: &Daemon, parts: &[&str]) -> String {
    until(&format!("ls shows {parts:?}"), || {
        let (_, out, _) = run(daemon.path(), &["ls", "vm"]);
        let line = out.lines().nth(1)?.to_owned();
        parts.iter().all(|part| line.contains(part)).then_some(line)
    })
}

#[test]
fn a_guest_is_seen_from_its_first_sample_to_the_daemons_end_and_return() {
    let mut daemon = Daemon::start();
    ls_with(&daemon, &["vm  ", "listening"]);
    let (watcher, changes) = watch(daemon.path());
    let next = |what: &str, wanted: &dyn Fn(&WatchLine) -> bool| loop {
        let line = changes.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("watch tells {what}"));
        if wanted(&line) {
            return line;
        }
    };
    let link =
        |state| move |line: &WatchLine| matches!(line, WatchLine::Status { status } if status.link.state == state);
    next("that it listens", &link(Link::Listening));

    let mut guest = Guest::connect(&daemon.socket());
    guest.sample();
    next("the event", &|line| matches!(line, WatchLine::Event { event, .. } if event.kind == "agent_started"));
    next("the data", &|line| matches!(line, WatchLine::Status { status } if status.summary.is_some()));
    ls_with(&daemon, &["ready", "9.8.7", "1.0 GiB / 2.0 GiB"]);

    let (code, report, complaint) = run(daemon.path(), &["show", "vm"]);
    assert_eq!((code, complaint.as_str()), (Some(0), ""));
    let lines: Vec<_> = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for part in ["vm ready", "memory 1.0 GiB / 2.0 GiB used, 1.0 GiB available", "node_load1 0.42"] {
        assert!(lines.iter().any(|line| line == part), "{part}: {report}");
    }
    assert!(report.contains(r#"cgroup id="/a\u{1b}[2J\u{202e}b""#), "{report}");
    assert!(lines.iter().any(|line| line == "container_spec_memory_limit_bytes max"), "{report}");
    let (_, document, _) = run(daemon.path(), &["show", "vm", "--json"]);
    let status: Status = serde_json::from_str(&document).unwrap();
    assert_eq!((status.name.as_str(), status.metrics.len()), ("vm", 2));

    daemon.stop();
    next("that the daemon ends", &|line| matches!(line, WatchLine::Stopping));
    let (code, out, complaint) = run(daemon.path(), &["ls"]);
    assert_eq!((code, out.lines().count()), (Some(0), 2));
    assert!(complaint.contains("no daemon answers at") && complaint.contains("reading the folders"), "{complaint}");

    daemon.serve();
    next("that the daemon is back", &link(Link::Listening));
    signal(&watcher, Signal::SIGTERM);
    assert_eq!(wait(watcher).code(), Some(0));
}

#[test]
fn a_watched_instance_that_went_while_the_daemon_was_away_is_an_error() {
    let mut daemon = Daemon::start();
    let mut watcher = command(daemon.path(), &["watch", "vm", "--seconds", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has begun to tell.
    assert_eq!(watcher.stdout.as_mut().unwrap().read(&mut [0; 1]).unwrap(), 1);
    daemon.stop();
    fs::remove_dir_all(daemon.path().join("vm")).unwrap();
    daemon.instance("other", "uid = 3\n");
    daemon.child =
        Some(command(daemon.path(), &["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let output = watcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.ends_with("informant-host: gone since the daemon was away: vm\n"), "{complaint}");
}

#[test]
fn serve_makes_a_directory_and_says_so_but_not_the_ones_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo/dir");
    let expected = format!(
        "informant-host: cannot make {}: there is no {}; is --dir right?\n",
        typo.display(),
        typo.parent().unwrap().display()
    );
    assert_eq!(run(&typo, &["serve"]), (Some(1), String::new(), expected));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let expected = format!(
        "informant-host: cannot use {}: not a directory; make the directory, or name another one with --dir\n",
        file.display()
    );
    assert_eq!(run(&file, &["serve"]), (Some(1), String::new(), expected));
    let new = dir.path().join("new");
    let mut child = command(&new, &["serve"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.ends_with(&format!("INFO made {}: there are no instances yet", new.display())), "{first}");
    let second = lines.next().unwrap().unwrap();
    assert!(second.contains("INFO serves "), "{second}");
    signal(&child, Signal::SIGTERM);
    assert_eq!(wait(child).code(), Some(0));
}

#[test]
fn serve_takes_no_port_that_cannot_be_listened_at() {
    let dir = tempfile::tempdir().unwrap();
    for port in ["0", "4294967295", "4294967296", "-1", "http"] {
        let (code, out, complaint) = run(dir.path(), &["serve", &format!("--port={port}")]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{port}");
        assert!(complaint.starts_with(&format!("error: invalid value '{port}' for '--port <PORT>': ")), "{complaint}");
    }
}

#[test]
fn a_guest_from_which_nothing_arrives_is_silent_since_then() {
    let daemon = Daemon::start();
    let mut guest = Guest::connect(&daemon.socket());
    guest.sample();
    let line = ls_with(&daemon, &["silent since ", "9.8.7"]);
    let since = line.split("silent since ").nth(1).unwrap();
    let (clock, rest) = since.split_once(" (").unwrap();
    assert_eq!(clock.split(':').count(), 3, "{line}");
    let seconds: u64 = rest.split_once("s)").unwrap().0.parse().unwrap();
    assert!(seconds >= 15, "{line}");
}

#[test]
fn a_broken_toml_is_one_line_and_harms_no_other_instance() {
    let daemon = Daemon::start();
    daemon.instance("bad", "uid = 3\n");
    let line = until("ls shows the error", || {
        let (_, out, _) = run(daemon.path(), &["ls"]);
        out.lines().find(|line| line.starts_with("bad ") && line.contains("config error")).map(str::to_owned)
    });
    assert!(line.contains("uid"), "{line}");
    ls_with(&daemon, &["listening"]);
}

#[test]
fn a_daemon_that_is_alive_and_unreachable_is_told_from_none() {
    let daemon = Daemon::start();
    fs::remove_file(daemon.path().join("informant.sock")).unwrap();
    let (code, _, complaint) = run(daemon.path(), &["ls"]);
    assert_eq!(code, Some(0));
    assert!(complaint.contains(".lock (is it starting or stopping?)"), "{complaint}");
}

#[test]
fn a_name_that_the_daemon_does_not_know_is_an_error_with_a_suggestion() {
    let daemon = Daemon::start();
    daemon.instance("vmx-1", "uid = 3\n");
    until("it is known", || run(daemon.path(), &["ls", "vmx-1"]).0.filter(|code| *code == 0));
    for command in ["ls", "show", "watch"] {
        let (code, out, complaint) = run(daemon.path(), &[command, "vmx-2"]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{command}");
        assert_eq!(complaint, "informant-host: no instance vmx-2 (did you mean vmx-1?)\n", "{command}");
    }
}
