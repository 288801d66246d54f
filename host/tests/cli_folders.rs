//! The reading commands without a daemon: what they print, where they complain, how they end. The real binary on
//! real folders; statuses are written with the library's own types.

mod cli;

use cli::{DEADLINE, command, run, signal, until, wait, watch};
use informant_host::lock;
use informant_host::publish::status::{Agent, Data, Guest, Link, SCHEMA, Stamp, Status, Summary, WatchLine};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// A status as a daemon wrote it so many seconds ago, to be replaced within a minute.
fn status(name: &str, written_s_ago: u64) -> Status {
    let written = now_ms() - written_s_ago * 1000;
    let mut status = Status {
        schema: SCHEMA,
        name: name.to_owned(),
        written: Stamp::from_ms(written),
        next_write_by: Stamp::from_ms(written + 60_000),
        guest: Some(Guest { version: "0.1.0".to_owned(), proven: true, ..Guest::default() }),
        summary: Some(Summary { cpu_percent: Some(12.34), ..Summary::default() }),
        ..Status::default()
    };
    status.link.state = Link::Up;
    status.agent.state = Agent::Ready;
    status.data.state = Data::Fresh;
    status.data.age_ms = Some(100);
    status
}

fn write(dir: &Path, status: &Status) {
    let folder = dir.join(&status.name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("instance.toml"), "unix = \"/nowhere\"\n").unwrap();
    fs::write(folder.join("new"), serde_json::to_vec(status).unwrap()).unwrap();
    fs::rename(folder.join("new"), folder.join("status.json")).unwrap();
}

fn folders(statuses: &[Status]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    statuses.iter().for_each(|status| write(dir.path(), status));
    dir
}

#[test]
fn ls_reads_the_folders_and_says_so_and_marks_what_is_stale() {
    let dir = folders(&[status("web-1", 1), status("web-2", 100)]);
    let socket = dir.path().join("informant.sock");
    // Whether a daemon is at work is told by the lock; whether it is late, by what it promised.
    for (held, first_state, why) in [(true, "ready", ", though one holds "), (false, "stale, was ready", "; ")] {
        let _lock = held.then(|| lock::acquire(dir.path()).unwrap());
        let (code, out, complaint) = run(dir.path(), &["ls"]);
        assert_eq!(code, Some(0));
        let lines: Vec<_> =
            out.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
        let [heading, first, second]: [Vec<&str>; 3] = lines.try_into().unwrap();
        assert_eq!(heading, ["NAME", "STATE", "AGENT", "CPU", "MEMORY", "PRESSURE", "AGE", "NOTE"]);
        assert_eq!(first[..4], ["web-1", first_state, "0.1.0", "12.3 %"]);
        assert_eq!(second[..4], ["web-2", "stale, was ready", "0.1.0", "12.3 %"]);
        assert!(second[7].starts_with("written ") && second[7].ends_with("no daemon since"), "{second:?}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        let expected = format!("informant-host: no daemon answers at {}{why}", socket.display());
        assert!(complaint.starts_with(&expected), "{complaint}");
        assert!(complaint.contains("; reading the folders, last written "), "{complaint}");
    }
}

#[test]
fn ls_json_is_one_array_of_status_documents() {
    let dir = folders(&[status("a", 1), status("b", 1)]);
    let (code, out, _) = run(dir.path(), &["ls", "--json", "b"]);
    assert_eq!(code, Some(0));
    let statuses: Vec<Status> = serde_json::from_str(&out).unwrap();
    assert_eq!(statuses.len(), 1);
    assert_eq!((statuses[0].name.as_str(), statuses[0].link.state), ("b", Link::Up));
}

#[test]
fn a_name_that_no_instance_has_is_an_error_with_a_suggestion() {
    let dir = folders(&[status("web-1", 1), status("db", 1)]);
    for command in [&["ls", "wbe-1"], &["show", "wbe-1"], &["watch", "wbe-1"]] {
        let (code, out, complaint) = run(dir.path(), command);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{command:?}");
        assert!(complaint.ends_with("informant-host: no instance wbe-1 (did you mean web-1?)\n"), "{complaint}");
    }
    let (_, _, complaint) = run(dir.path(), &["show", "\x1b[2J"]);
    assert!(complaint.contains(r"no instance \u{1b}[2J") && !complaint.contains('\x1b'), "{complaint}");
}

#[test]
fn a_folder_without_its_file_is_told_from_none() {
    let dir = folders(&[status("web-1", 1)]);
    fs::create_dir(dir.path().join("web-2")).unwrap();
    for command in [&["ls", "web-2"][..], &["show", "web-2"]] {
        let (code, _, complaint) = run(dir.path(), command);
        let expected = format!("no instance web-2: its folder {}/web-2 has no instance.toml\n", dir.path().display());
        assert!(code == Some(1) && complaint.ends_with(&expected), "{complaint}");
    }
}

#[test]
fn a_folder_whose_name_no_instance_can_have_is_shown_as_that() {
    let dir = folders(&[status("web-1", 1)]);
    fs::create_dir(dir.path().join("web 2")).unwrap();
    fs::write(dir.path().join("web 2/instance.toml"), "unix = '/x'").unwrap();
    let why = "the folder is left alone: an instance is a folder (no link) whose name is 1 to 64 of A-Z a-z 0-9 . _ -, no dot first";
    let (code, out, _) = run(dir.path(), &["ls", "web 2"]);
    assert!(code == Some(0) && out.contains("\nweb 2  config error  ") && out.contains(why), "{out}");
    let (code, _, complaint) = run(dir.path(), &["show", "web 2"]);
    assert!(code == Some(1) && complaint.ends_with(&format!("informant-host: web 2: {why}\n")), "{complaint}");
}

#[test]
fn a_wrong_directory_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["ls", "watch"] {
        let (code, _, complaint) = run(dir.path(), &[command]);
        assert_eq!(code, Some(1));
        let expected = format!("no daemon and no instances in {} (is this the right --dir?)\n", dir.path().display());
        assert!(complaint.ends_with(&expected), "{complaint}");
    }
    let missing = dir.path().join("missing");
    let (code, _, complaint) = run(&missing, &["ls"]);
    assert_eq!(code, Some(1));
    assert!(complaint.contains(&format!("cannot read {}: No such file", missing.display())), "{complaint}");
}

#[test]
fn a_wrong_command_line_ends_with_2_and_help_with_0() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["ls", "--jsn"]).0, Some(2));
    assert_eq!(run(dir.path(), &["show"]).0, Some(2));
    for command in ["ls", "show", "watch"] {
        let (code, help, _) = run(dir.path(), &[command, "--help"]);
        assert_eq!(code, Some(0));
        for part in ["Examples:\n  informant-host ", "Exit codes:\n", "--dir", "--json"] {
            assert!(help.contains(part), "{command}: {part}");
        }
    }
}

#[test]
fn show_prints_the_report_or_the_document_as_it_is() {
    let mut written = status("web-1", 1);
    written.guest.as_mut().unwrap().name = "evil\u{9b}2J".to_owned();
    let dir = folders(&[written.clone()]);
    let (code, out, complaint) = run(dir.path(), &["show", "web-1"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("web-1  stale, was ready") && out.contains(r#"calls itself "evil\u{9b}2J""#), "{out}");
    assert!(complaint.contains("reading the folders"), "{complaint}");
    let (_, out, _) = run(dir.path(), &["show", "web-1", "--json"]);
    assert!(!out.contains('\u{9b}'), "{out}");
    assert_eq!(serde_json::from_str::<Status>(&out).unwrap(), written);
}

#[test]
fn a_document_of_a_later_schema_is_refused() {
    let dir = folders(&[Status { schema: SCHEMA + 1, ..status("web-1", 1) }]);
    let (code, _, complaint) = run(dir.path(), &["show", "web-1"]);
    assert_eq!(code, Some(1));
    assert!(complaint.contains("use a newer informant-host"), "{complaint}");
}

#[test]
fn ten_thousand_instances_are_listed() {
    // In memory where that is possible: a disk takes a minute for so many folders.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(place).unwrap();
    let text = serde_json::to_vec(&status("", 1)).unwrap();
    for number in 0..10_000 {
        let folder = dir.path().join(format!("vm-{number:05}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("status.json"), &text).unwrap();
    }
    let (code, out, _) = run(dir.path(), &["ls"]);
    assert_eq!((code, out.lines().count()), (Some(0), 10_001));
    assert!(out.lines().last().unwrap().starts_with("vm-09999  "));
}

#[test]
fn watch_follows_the_folders_and_ends_on_an_interrupt() {
    let dir = folders(&[status("a", 1), status("b", 1)]);
    let (child, changes) = watch(dir.path());
    let next = || changes.recv_timeout(DEADLINE).expect("a change is told");
    let name = |line: WatchLine| match line {
        WatchLine::Status { status } => status.name,
        other => panic!("{other:?}"),
    };
    assert_eq!([name(next()), name(next())], ["a", "b"]);
    let newer = status("b", 0);
    write(dir.path(), &newer);
    assert_eq!(next(), WatchLine::Status { status: Box::new(newer) });
    fs::remove_dir_all(dir.path().join("a")).unwrap();
    assert_eq!(next(), WatchLine::Removed { name: "a".to_owned() });
    signal(&child, Signal::SIGINT);
    assert_eq!(wait(child).code(), Some(0));
    assert!(changes.recv().is_err(), "nothing more was told");
}

#[test]
fn watch_ends_when_nobody_reads_it_any_more() {
    let dir = folders(&[status("a", 1)]);
    let mut child = command(dir.path(), &["watch"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    write(dir.path(), &status("a", 0));
    assert_eq!(wait(child).code(), Some(0));
}

#[test]
fn watch_that_is_interrupted_while_nobody_reads_it_ends() {
    // More than a pipe holds.
    let statuses: Vec<_> = (0..200).map(|number| status(&format!("vm-{number}"), 1)).collect();
    let dir = folders(&statuses);
    let mut child = command(dir.path(), &["watch"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let mut out = BufReader::with_capacity(1, out);
    out.read_line(&mut String::new()).unwrap();
    signal(&child, Signal::SIGINT);
    assert_eq!(wait(child).code(), Some(0));
}

#[test]
fn watch_on_a_terminal_draws_the_table_and_gives_the_terminal_back() {
    let dir = folders(&[status("web-1", 1)]);
    let _lock = lock::acquire(dir.path()).unwrap();
    let terminal = openpty(None, None).unwrap();
    let child = command(dir.path(), &["watch"])
        .env("TERM", "xterm")
        .stdout(terminal.slave)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (sender, picture) = channel();
    let mut master = File::from(terminal.master);
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        // The terminal reports an error when its last writer has gone.
        while let Ok(length @ 1..) = master.read(&mut piece) {
            all.extend_from_slice(&piece[..length]);
            let _ = sender.send(String::from_utf8_lossy(&all).into_owned());
        }
        String::from_utf8(all).unwrap()
    });
    until("it draws", || picture.try_iter().find(|picture: &String| picture.contains("web-1")));
    signal(&child, Signal::SIGINT);
    assert_eq!(wait(child).code(), Some(0));
    let all = reader.join().unwrap();
    assert!(all.starts_with("\x1b[?1049h\x1b[?25l\x1b[H"), "{all:?}");
    assert!(all.contains("\x1b[1mNAME") && all.contains("\x1b[32mready\x1b[0m"), "{all:?}");
    assert!(all.ends_with("\x1b[?25h\x1b[?1049l"), "{all:?}");
}
