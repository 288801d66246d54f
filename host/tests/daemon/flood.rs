//! What one hostile instance at full rate costs the daemon and the others: processor time, memory, the age of their
//! data, lines in the log. Every way to flood is a row of a table and is judged from its first byte.

use crate::support::{AGENT, Daemon, Guest, HybridVmm, Said, Who, event, hello, wait_for};
use informant_wire::event::EventKind;
use informant_wire::hello::{Capabilities, PeerKind};
use informant_wire::limits::{MAX_BODY, MAX_SESSIONS};
use informant_wire::metric::{MetricId, SubjectKind, id};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long each flood lasts.
const FLOOD: Duration = Duration::from_secs(3);
/// Of a core, for all threads of the daemon together.
const MOST_CPU_PERCENT: f64 = 20.0;
/// What the daemon may take more than before.
const MOST_KIB: u64 = 1024;
/// The oldest that data of another instance may be.
const MOST_AGE: Duration = Duration::from_secs(2);
/// Lines of the log that an instance has at once; then one a second.
const LOG_BURST: u64 = 10;
/// How often the other instance sends.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often the daemon is asked for the other instance's data.
const POLL: Duration = Duration::from_millis(100);

const PLAIN: &str = "unix = '@/bad.sock'";
const TRUSTED: &str = "unix = '@/bad.sock'\ntrust = 'any'";
const HYBRID: &str = "uds = '@/bad.sock'";
/// An agent whose proof the daemon asks for.
const PROVABLE: Who = Who { capabilities: Capabilities(3), ..AGENT };

/// A reporter: many of them have sessions at a time.
const REPORTER: Who = Who { kind: PeerKind::REPORTER, ..AGENT };
/// A heartbeat that does not decode.
const BAD: [u8; 4] = [2, 0, 0x08, 0xff];

/// Floods a socket until a time.
type Flood = fn(&Path, Instant);

/// Its name, the instance.toml of the one that floods, what the daemon must have counted, and how.
type Row = (&'static str, &'static str, &'static str, Flood);

#[test]
fn what_one_session_floods_with_costs_little_and_delays_nobody() {
    let rows: [Row; 12] = [
        ("small samples", PLAIN, "samples", |path, until| samples(path, until, &names(1, 8), 8, usize::MAX)),
        ("the largest samples", PLAIN, "samples", |path, until| {
            samples(path, until, &names(600, 255), 10, usize::MAX);
        }),
        ("frames of an unknown type of the largest size", PLAIN, "frames_unknown", |path, until| {
            on_sessions(path, until, AGENT, |guest| repeat(guest, until, &unknown_frame(MAX_BODY)));
        }),
        ("frames of an unknown type, empty", PLAIN, "frames_unknown", |path, until| {
            on_sessions(path, until, AGENT, |guest| repeat(guest, until, &unknown_frame(0).repeat(20_000)));
        }),
        ("nine frames that do not decode, and a good one", PLAIN, "frames_bad", |path, until| {
            let ten = [BAD.repeat(9), event(1, EventKind(999), b"")].concat();
            on_sessions(path, until, AGENT, |guest| repeat(guest, until, &ten.repeat(1000)));
        }),
        ("ten frames that do not decode, and again", PLAIN, "protocol_errors", |path, until| {
            on_sessions(path, until, AGENT, |guest| repeat(guest, until, &BAD.repeat(10)));
        }),
        ("the largest schema and a sample, again and again", PLAIN, "schemas", |path, until| {
            samples(path, until, &names(2000, 80), 3, 1);
        }),
        ("schemas of 10,000 subjects", PLAIN, "protocol_errors", schemas_too_large),
        ("large events of an unproven session", PLAIN, "events", |path, until| {
            on_sessions(path, until, AGENT, |guest| events(guest, until, 512));
        }),
        ("large events of a proven session", TRUSTED, "events", |path, until| {
            on_sessions(path, until, AGENT, |guest| events(guest, until, 512));
        }),
        ("small events of a proven session", TRUSTED, "events", |path, until| {
            on_sessions(path, until, AGENT, |guest| events(guest, until, 0));
        }),
        ("one event of a proven session again and again", TRUSTED, "events_repeated", |path, until| {
            let events = event(1, EventKind(999), b"").repeat(10_000);
            on_sessions(path, until, AGENT, |guest| repeat(guest, until, &events));
        }),
    ];
    let wrong: Vec<_> = rows.into_iter().filter_map(judge).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_many_connections_flood_with_costs_little_and_delays_nobody() {
    let rows: [Row; 10] = [
        ("connections without a hello", PLAIN, "connections", |path, until| {
            while Instant::now() < until {
                drop(UnixStream::connect(path));
            }
        }),
        ("hellos in single bytes that never end", PLAIN, "connections", unfinished_hellos),
        ("sessions that stay open", PLAIN, "sessions", |path, until| sessions(path, until, AGENT)),
        ("trusted sessions that stay open", TRUSTED, "sessions", |path, until| sessions(path, until, AGENT)),
        ("sessions whose proof nobody answers", HYBRID, "sessions", |path, until| {
            let vmm = HybridVmm::bind(path);
            sessions(&path.with_file_name("bad.sock_5252"), until, PROVABLE);
            assert_eq!(vmm.next().0, 1022);
        }),
        ("many sessions, empty frames of an unknown type", PLAIN, "frames_unknown", |path, until| {
            on_many_sessions(path, until, REPORTER, |guest| repeat(guest, until, &unknown_frame(0).repeat(20_000)));
        }),
        ("many sessions, small events", TRUSTED, "events", |path, until| {
            on_many_sessions(path, until, REPORTER, |guest| events(guest, until, 0));
        }),
        ("many sessions, large events", TRUSTED, "events", |path, until| {
            on_many_sessions(path, until, REPORTER, |guest| events(guest, until, 512));
        }),
        ("many short sessions, small events", TRUSTED, "events", |path, until| {
            on_many_sessions(path, until, REPORTER, |guest| {
                let _went = pour(&mut guest.stream, &block(1, 0).repeat(10), until);
            });
        }),
        ("many sessions, events, a disk that hangs", TRUSTED, "frames", |path, until| {
            // A pipe that nobody reads takes 64 KiB.
            let log = path.with_file_name("../dir/bad/events.log");
            fs::remove_file(&log).unwrap_or_default();
            mkfifo(&log, Mode::S_IRWXU).unwrap();
            on_many_sessions(path, until, REPORTER, |guest| events(guest, until, 512));
        }),
    ];
    let wrong: Vec<_> = rows.into_iter().filter_map(judge).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Floods a daemon of its own; what was wrong with what that cost.
fn judge((name, toml, counter, flood): Row) -> Option<String> {
    let daemon = Daemon::start(&[("bad", toml), ("good", "unix = '@/good.sock'")]);
    let pid = daemon.pid();
    let mut good = Guest::open(&daemon.run().join("good.sock"), AGENT);
    good.schema();
    // The buffer of all connections is in use before.
    good.send(&unknown_frame(MAX_BODY));
    let (cpu, lasted, more_kib, age) = thread::scope(|scope| {
        let (sent, sends) = channel();
        let (_stop, stopped) = channel::<()>();
        scope.spawn(move || {
            for second in 1.. {
                good.sample(second, &[Some(second); 8]);
                if sent.send(Instant::now()).is_err()
                    || stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout)
                {
                    return;
                }
            }
        });
        wait_for("both instances", || {
            let listens = daemon.get("/v1/instances/bad").1["link"]["state"] == "listening";
            (listens && daemon.get("/v1/instances/good").1["counters"]["samples"].as_u64() > Some(0)).then_some(())
        });
        // Somebody looks on, as far as the daemon lets them.
        let mut watcher = UnixStream::connect(daemon.dir().join("informant.sock")).unwrap();
        watcher.write_all(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let watched = watcher.try_clone().unwrap();
        scope.spawn(move || std::io::copy(&mut watcher, &mut std::io::sink()));
        let (cpu, kib, began) = (cpu_time(pid), anonymous_kib(pid), Instant::now());
        let until = began + FLOOD;
        let socket = daemon.run().join("bad.sock");
        let flooder = scope.spawn(move || flood(&socket, until));
        let (age, most_kib) = watch(&daemon, &sends, until);
        let (cpu, lasted) = (cpu_time(pid) - cpu, began.elapsed());
        flooder.join().unwrap();
        watched.shutdown(Shutdown::Both).unwrap();
        (cpu, lasted, most_kib.saturating_sub(kib), age)
    });
    let counters = daemon.get("/v1/instances/bad").1["counters"].take();
    let percent = 100.0 * cpu.as_secs_f64() / lasted.as_secs_f64();
    let lines = daemon.log().lines().filter(|line| line.contains(" WARN bad: ")).count() as u64;
    println!("{name}: {percent:.1} % of a core, {more_kib} KiB, others' data {age:?} old, {lines} lines; {counters}");
    let wrongs = [
        (counters["throttled"] == 0, "it is no flood: nothing was throttled".into()),
        (counters[counter] == 0, format!("it is no flood: no {counter}")),
        (percent > MOST_CPU_PERCENT, format!("{percent:.1} % of a core")),
        (more_kib > MOST_KIB, format!("{more_kib} KiB more")),
        (age > MOST_AGE, format!("others' data {age:?} old")),
        (lines > LOG_BURST + lasted.as_secs() + 1, format!("{lines} lines in the log")),
    ];
    let wrong: Vec<_> = wrongs.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
    (!wrong.is_empty()).then(|| format!("{name}: {}", wrong.join(", ")))
}

/// Asks for the other instance's data until then: how old it was at the most, and the most memory that the daemon had.
fn watch(daemon: &Daemon, sends: &Receiver<Instant>, until: Instant) -> (Duration, u64) {
    let (mut oldest, mut most_kib) = (Duration::ZERO, 0);
    let (mut sent, mut late) = (Instant::now(), Duration::ZERO);
    while Instant::now() < until {
        let (code, status) = daemon.get("/v1/instances/good");
        assert_eq!(code, 200, "{status}");
        let age = Duration::from_millis(status["data"]["age_ms"].as_u64().unwrap());
        // A busy machine may keep the sender from sending, which is not the daemon's fault.
        for at in sends.try_iter() {
            late = at.duration_since(sent).saturating_sub(INTERVAL);
            sent = at;
        }
        oldest = oldest.max(age.saturating_sub(late.max(sent.elapsed().saturating_sub(INTERVAL))));
        most_kib = most_kib.max(anonymous_kib(daemon.pid()));
        thread::sleep(POLL);
    }
    (oldest, most_kib)
}

/// Time on processors of all threads of a process.
fn cpu_time(pid: u32) -> Duration {
    let of_thread = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    Duration::from_nanos(tasks.filter_map(|task| of_thread(task.unwrap())).sum())
}

/// Memory of a process that is not of files: pages of the program itself come with the code that runs first.
fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes until all is written, the time is over, or the host hangs up: whether all was written.
fn pour(stream: &mut UnixStream, mut bytes: &[u8], until: Instant) -> bool {
    stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    while !bytes.is_empty() && Instant::now() < until {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return false,
        }
    }
    bytes.is_empty()
}

/// Who comes next: another process of another boot each time.
fn next(who: &mut Who) -> Who {
    who.nonce = who.nonce.wrapping_add(1);
    who.boot = who.boot.wrapping_add(u8::from(who.nonce == 0));
    who.stream += 1;
    *who
}

/// Opens one session behind the other and lets each send until it ends.
fn on_sessions(path: &Path, until: Instant, who: Who, mut send: impl FnMut(&mut Guest)) {
    static THREADS: AtomicU8 = AtomicU8::new(0);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let mut who = Who { boot: thread, stream: u64::from(thread) << 32, ..who };
    while Instant::now() < until {
        let mut guest = Guest::over(UnixStream::connect(path).unwrap());
        if guest.stream.write_all(&hello(next(&mut who))).is_ok() && matches!(guest.hear(), Said::Welcome { .. }) {
            send(&mut guest);
        }
    }
}

/// The same from many threads.
fn on_many_sessions(path: &Path, until: Instant, who: Who, send: impl Fn(&mut Guest) + Sync) {
    thread::scope(|scope| {
        for _ in 0..MAX_SESSIONS {
            scope.spawn(|| on_sessions(path, until, who, &send));
        }
    });
}

/// Sends the same without end.
fn repeat(guest: &mut Guest, until: Instant, bytes: &[u8]) {
    while pour(&mut guest.stream, bytes, until) {}
}

fn unknown_frame(body_bytes: usize) -> Vec<u8> {
    let mut frame = u16::try_from(1 + body_bytes).unwrap().to_le_bytes().to_vec();
    frame.push(0x5f);
    frame.resize(3 + body_bytes, 7);
    frame
}

/// The names of subjects.
fn names(count: u64, bytes: usize) -> Vec<Vec<u8>> {
    let name = |at: u64| [at.to_le_bytes().as_slice(), &vec![0x1b; bytes - 8]].concat();
    (0..count).map(name).collect()
}

/// Sends a schema of such subjects, with so many series each, and so many blocks of samples, again and again.
fn samples(path: &Path, until: Instant, names: &[Vec<u8>], series: u16, blocks: usize) {
    let ids: Vec<MetricId> = (0..series).map(|at| MetricId(id::DISK_READS.0 + at)).collect();
    let subjects: Vec<_> = names.iter().map(|name| (SubjectKind::DISK, &name[..], &ids[..])).collect();
    let series = names.len() * ids.len();
    on_sessions(path, until, AGENT, |guest| {
        let mut second = 0;
        for block in 0.. {
            let mut bytes = if block % blocks == 0 { guest.schema_bytes(&subjects) } else { Vec::new() };
            let end = bytes.len() + 50_000;
            while bytes.len() < end {
                second += 1;
                // Every value changes, and by as much as it can.
                let value = if second % 2 == 0 { u64::MAX / 4 } else { u64::MAX / 4 * 3 };
                bytes.extend(guest.sample_bytes(second, &vec![Some(value); series]));
            }
            if !pour(&mut guest.stream, &bytes, until) {
                return;
            }
        }
    });
}

fn schemas_too_large(path: &Path, until: Instant) {
    let names = names(10_000, 8);
    let subjects: Vec<_> = names.iter().map(|name| (SubjectKind::DISK, &name[..], &[id::DISK_READS][..])).collect();
    on_sessions(path, until, AGENT, |guest| {
        let schema = guest.schema_bytes(&subjects);
        repeat(guest, until, &schema);
    });
}

/// Sends events without end.
fn events(guest: &mut Guest, until: Instant, bytes: usize) {
    for first in (1..).step_by(100) {
        if !pour(&mut guest.stream, &block(first, bytes), until) {
            return;
        }
    }
}

/// A hundred events.
fn block(first: u64, bytes: usize) -> Vec<u8> {
    let body = vec![0x1b; bytes];
    (first..first + 100).flat_map(|at| event(at, EventKind(999), &body)).collect()
}

/// Opens sessions as fast as they are taken; the newest thousand stay open.
fn sessions(path: &Path, until: Instant, who: Who) {
    let mut open = VecDeque::new();
    let mut who = who;
    while Instant::now() < until {
        let Ok(mut stream) = UnixStream::connect(path) else { continue };
        let _refused = stream.write_all(&hello(next(&mut who)));
        open.push_back(stream);
        if open.len() > 1000 {
            open.pop_front();
        }
    }
}

fn unfinished_hellos(path: &Path, until: Instant) {
    let bytes = hello(AGENT);
    let mut open: VecDeque<(UnixStream, usize)> = VecDeque::new();
    while Instant::now() < until {
        if open.len() < 1000
            && let Ok(stream) = UnixStream::connect(path)
        {
            open.push_back((stream, 0));
        }
        // One byte each, in turn, and never the last.
        if let Some((mut stream, at)) = open.pop_front() {
            if at + 1 == bytes.len() {
                open.push_back((stream, at));
            } else if stream.write_all(&bytes[at..=at]).is_ok() {
                open.push_back((stream, at + 1));
            }
        }
    }
}
