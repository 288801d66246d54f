//! A proxy before QEMU's control socket, which writes down every line with its time, and can hold one back.
//!
//! Lines end with a newline in both directions. As with QEMU itself, a second client waits until the first is gone.

mod line;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

pub use line::{Line, Resize, Way};

/// More than any test has; beyond it nothing could be said of the whole.
const LINES_KEPT: usize = 65_536;

/// A running proxy; dropping ends its connections and its threads.
#[derive(Debug)]
pub struct Tap {
    path: PathBuf,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Line>,
    lost: usize,
    hold: Option<(Way, String)>,
    held: bool,
    stopping: bool,
    connections: Vec<[UnixStream; 2]>,
}

impl Tap {
    /// Listens at `path`. QEMU's socket is connected to for each client, and need not be there yet.
    pub fn start(path: &Path, qemu: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::default());
        let (accepting, qemu) = (Arc::clone(&shared), qemu.to_owned());
        let acceptor =
            thread::Builder::new().name("qmp-tap".to_owned()).spawn(move || accepting.accept_all(&listener, &qemu))?;
        Ok(Self { path: path.to_owned(), shared, acceptor: Some(acceptor) })
    }

    /// Where clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All lines so far, both ways.
    pub fn lines(&self) -> Result<Vec<Line>> {
        let state = self.shared.lock();
        ensure!(state.lost == 0, "the tap kept {LINES_KEPT} lines and lost {}", state.lost);
        Ok(state.lines.clone())
    }

    /// How many lines there are: where to go on with [`Tap::wait`].
    pub fn mark(&self) -> usize {
        self.shared.lock().lines.len()
    }

    /// The first line from `mark` on that is `wanted`, waited for.
    pub fn wait(&self, what: &str, mark: usize, timeout: Duration, wanted: impl Fn(&Line) -> bool) -> Result<Line> {
        let found = self.shared.wait(timeout, |state| {
            let from = mark.min(state.lines.len());
            state.lines[from..].iter().find(|line| wanted(line)).cloned()
        });
        found.with_context(|| format!("{what} did not pass the tap within {timeout:?}"))
    }

    /// Every command that changes the VM's size, in order.
    pub fn resizes(&self) -> Result<Vec<(Line, Resize)>> {
        Ok(self.lines()?.into_iter().filter_map(|line| line.resize().map(|resize| (line, resize))).collect())
    }

    /// An error when the same was asked for twice in a row, memory, balloon and CPUs apart.
    pub fn check_no_repeats(&self) -> Result<()> {
        let all = self.resizes()?;
        for kind in [Resize::is_memory, Resize::is_balloon, Resize::is_cpu] {
            let of_kind: Vec<_> = all.iter().filter(|(_, resize)| kind(resize)).collect();
            for pair in of_kind.windows(2) {
                let [(first, one), (second, other)] = pair else { continue };
                if one == other {
                    let apart = second.at.duration_since(first.at);
                    bail!(
                        "{other:?} was asked for twice in a row, {apart:?} apart, in connections {} and {}: {} and {}",
                        first.connection,
                        second.connection,
                        first.json,
                        second.json
                    );
                }
            }
        }
        Ok(())
    }

    /// Holds back the next command of this name, or its answer, until [`Tap::release`]; it is written down when it comes.
    pub fn hold(&self, way: Way, command: &str) {
        let mut state = self.shared.lock();
        state.hold = Some((way, command.to_owned()));
        state.held = false;
    }

    /// Waits until something is held back.
    pub fn wait_held(&self, timeout: Duration) -> Result<()> {
        let held = self.shared.wait(timeout, |state| state.held.then_some(()));
        held.with_context(|| format!("nothing came within {timeout:?} that the tap is to hold back"))
    }

    /// Lets go what is held back: it goes on its way even when its sender is dead, as it would from a socket's buffer.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        state.hold = None;
        state.held = false;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Ends all connections; clients may come again.
    pub fn cut(&self) {
        close(&mut self.shared.lock());
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        // In this order: what is held back goes nowhere any more.
        self.cut();
        self.release();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Commands of one connection whose answers have not come, the oldest first.
#[derive(Debug, Default)]
struct Asked {
    commands: Mutex<VecDeque<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(state: &mut State) {
    for stream in state.connections.drain(..).flatten() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<T>(&self, timeout: Duration, mut look: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&state) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn accept_all(self: &Arc<Self>, listener: &UnixListener, qemu: &Path) {
        let mut pumps: Vec<JoinHandle<()>> = Vec::new();
        let mut number = 0;
        while !self.lock().stopping {
            match listener.accept() {
                Ok((client, _)) => {
                    number += 1;
                    pumps.retain(|pump| !pump.is_finished());
                    // Without QEMU the client sees a connection that closes at once.
                    pumps.extend(self.connect(&client, qemu, number).into_iter().flatten());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(_) => break,
            }
        }
        close(&mut self.lock());
        pumps.into_iter().for_each(|pump| drop(pump.join()));
    }

    fn connect(self: &Arc<Self>, client: &UnixStream, qemu: &Path, number: u32) -> Result<[JoinHandle<()>; 2]> {
        client.set_nonblocking(false)?;
        let qemu = UnixStream::connect(qemu)?;
        self.lock().connections.push([client.try_clone()?, qemu.try_clone()?]);
        let asked = Arc::new(Asked::default());
        let pump = |way: Way, from: UnixStream, to: UnixStream| {
            let (shared, asked) = (Arc::clone(self), Arc::clone(&asked));
            thread::Builder::new().name("qmp-tap".to_owned()).spawn(move || {
                shared.pump(way, number, &from, &to, &asked);
                if way == Way::ToQemu {
                    shared.wait_answered(&asked);
                }
                // One side's end is the other's.
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            })
        };
        let there = pump(Way::ToQemu, client.try_clone()?, qemu.try_clone()?)?;
        let back = pump(Way::FromQemu, qemu, client.try_clone()?)?;
        Ok([there, back])
    }

    fn pump(&self, way: Way, connection: u32, from: &UnixStream, mut to: &UnixStream, asked: &Asked) {
        let mut reader = BufReader::new(from);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            match reader.read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let json: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let line = Line { at: Instant::now(), time: SystemTime::now(), connection, way, json };
            let is_answer = line.json.get("return").is_some() || line.json.get("error").is_some();
            let about = match line.command() {
                Some(command) => {
                    lock(&asked.commands).push_back(command.to_owned());
                    Some(command.to_owned())
                }
                None if way == Way::FromQemu && is_answer => lock(&asked.commands).pop_front(),
                None => None,
            };
            self.pass(line, about.as_deref());
            // A dead client does not end QEMU's side: what the client had said is still on its way there.
            if to.write_all(&bytes).is_err() && way == Way::ToQemu {
                return;
            }
        }
    }

    /// QEMU may leave unread what a peer said that has hung up: it is given the time to answer.
    fn wait_answered(&self, asked: &Asked) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while !lock(&asked.commands).is_empty() && Instant::now() < deadline && !self.lock().stopping {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Writes the line down, and comes back when it may go on.
    fn pass(&self, line: Line, about: Option<&str>) {
        let mut state = self.lock();
        let wanted = |hold: &Option<(Way, String)>| {
            hold.as_ref().is_some_and(|(way, command)| *way == line.way && about == Some(command.as_str()))
        };
        let held = !state.held && !state.stopping && wanted(&state.hold);
        if state.lines.len() < LINES_KEPT {
            state.lines.push(line);
        } else {
            state.lost += 1;
        }
        state.held |= held;
        self.changed.notify_all();
        while held && state.held {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vm::Qmp;

    const SOON: Duration = Duration::from_secs(10);

    /// Serves one client after the other, as QEMU does.
    fn pretend_qemu(path: &Path) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            let mut taken = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                (&stream).write_all(b"{\"QMP\": {}}\r\n").unwrap();
                for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                    let command: Value = serde_json::from_str(&line).unwrap();
                    let name = command["execute"].as_str().unwrap().to_owned();
                    let is_last = name == "quit";
                    taken.push(name);
                    let _ = (&stream).write_all(b"{\"event\": \"E\"}\r\n{\"return\": {}}\r\n");
                    if is_last {
                        return taken;
                    }
                }
            }
            taken
        })
    }

    fn set(qmp: &mut Qmp, bytes: u64) -> Result<()> {
        qmp.request_memory(bytes)
    }

    #[test]
    fn every_line_is_written_down_and_a_size_twice_in_a_row_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = pretend_qemu(&dir.path().join("qemu"));
        let tap = Tap::start(&dir.path().join("tap"), &dir.path().join("qemu")).unwrap();
        let mut one = Qmp::connect(tap.path()).unwrap();
        set(&mut one, 8).unwrap();
        one.execute("device_add", json!({"id": "c", "driver": "cpu"})).unwrap();
        set(&mut one, 16).unwrap();
        one.execute("qom-set", json!({"property": "other", "value": 16})).unwrap();
        tap.check_no_repeats().unwrap();
        drop(one);
        let mut two = Qmp::connect(tap.path()).unwrap();
        set(&mut two, 16).unwrap();
        let error = tap.check_no_repeats().unwrap_err().to_string();
        assert!(error.starts_with("Memory(16) was asked for twice in a row") && error.contains("1 and 2"), "{error}");
        let resizes: Vec<_> = tap.resizes().unwrap().into_iter().map(|(_, resize)| resize).collect();
        let plug = Resize::PlugCpu("c".to_owned());
        assert_eq!(resizes, [Resize::Memory(8), plug, Resize::Memory(16), Resize::Memory(16)]);
        let mark = tap.mark();
        two.execute("quit", json!({})).unwrap();
        let event = tap.wait("an event", mark, SOON, |line| line.event() == Some("E")).unwrap();
        assert_eq!((event.connection, event.way), (2, Way::FromQemu));
        assert!(tap.wait("nothing", tap.mark(), Duration::from_millis(20), |_| true).is_err());
        drop(tap);
        let taken = qemu.join().unwrap();
        assert_eq!(taken.iter().filter(|name| *name == "qom-set").count(), 4);
    }

    #[test]
    fn a_command_held_back_reaches_qemu_after_its_sender_died() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = pretend_qemu(&dir.path().join("qemu"));
        let tap = Tap::start(&dir.path().join("tap"), &dir.path().join("qemu")).unwrap();
        for way in [Way::ToQemu, Way::FromQemu] {
            tap.hold(way, "qom-set");
            let client = UnixStream::connect(tap.path()).unwrap();
            (&client).write_all(b"{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"qom-set\"}\n").unwrap();
            tap.wait_held(SOON).unwrap();
            drop(client);
            tap.release();
        }
        let mut next = Qmp::connect(tap.path()).unwrap();
        next.execute("quit", json!({})).unwrap();
        let taken = qemu.join().unwrap();
        assert_eq!(taken, ["qmp_capabilities", "qom-set", "qmp_capabilities", "qom-set", "qmp_capabilities", "quit"]);
    }

    #[test]
    fn dropping_ends_held_lines_and_connections() {
        let dir = tempfile::tempdir().unwrap();
        let _qemu = pretend_qemu(&dir.path().join("qemu"));
        let tap = Tap::start(&dir.path().join("tap"), &dir.path().join("qemu")).unwrap();
        tap.hold(Way::ToQemu, "query-status");
        let path = tap.path().to_owned();
        let client = thread::spawn(move || Qmp::connect(&path).unwrap().execute("query-status", json!({})));
        tap.wait_held(SOON).unwrap();
        drop(tap);
        assert!(client.join().unwrap().is_err());
    }
}
