//! A daemon as a child, scripted guests, a fake hybrid VMM. Waits have deadlines and are for a state, never for a time.

use informant_wire::bits;
use informant_wire::event::{Event, EventKind};
use informant_wire::frame::{Split, split};
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind, RefusedCode};
use informant_wire::host_to_guest::{Ack, Bye, ByeReason, HostToGuest};
use informant_wire::id::{BootId, Challenge, Nonce, SessionId, StreamId};
use informant_wire::metric::{MetricId, SubjectKind, id};
use informant_wire::sample::{Base, Row, SampleHead, encode};
use informant_wire::scale::{DemandAnswer, Downscale, ListControllers, Resized, RoleAnswer};
use informant_wire::schema::{MetricRange, SchemaWriter, Subject};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon's directory and the daemon that serves it.
pub(crate) struct Daemon {
    root: tempfile::TempDir,
    child: Option<Child>,
    /// Its limit of open files.
    descriptors: Option<u32>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Daemon {
    /// A directory with instances (name, instance.toml) and a daemon. `@` in a toml stands for the sockets' directory.
    pub(crate) fn start(instances: &[(&str, &str)]) -> Self {
        Self::start_with(instances, None)
    }

    /// The same under a limit of open files.
    pub(crate) fn start_with(instances: &[(&str, &str)], descriptors: Option<u32>) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dir")).unwrap();
        std::fs::create_dir(root.path().join("run")).unwrap();
        let mut daemon = Self { root, child: None, descriptors };
        for (name, toml) in instances {
            daemon.write(name, toml);
        }
        daemon.spawn();
        daemon
    }

    pub(crate) fn spawn(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.root.path().join("log")).unwrap();
        let child = self.command().stderr(log).stdout(Stdio::null()).spawn().unwrap();
        self.child = Some(child);
        wait_for("the API socket", || UnixStream::connect(self.dir().join("informant.sock")).ok());
    }

    /// Another daemon for the same directory takes over; this is the one from then on. The old one's process.
    pub(crate) fn take_over(&mut self) -> Child {
        let log = std::fs::File::options().append(true).open(self.root.path().join("log")).unwrap();
        let child = self.command().arg("--take-over").stderr(log).stdout(Stdio::null()).spawn().unwrap();
        self.child.replace(child).unwrap()
    }

    pub(crate) fn command(&self) -> Command {
        const DAEMON: &str = env!("CARGO_BIN_EXE_informant-host");
        let mut command = match self.descriptors {
            Some(limit) => {
                let mut command = Command::new("sh");
                command.args(["-c", "ulimit -n $0 && exec \"$@\"", &limit.to_string(), DAEMON]);
                command
            }
            None => Command::new(DAEMON),
        };
        command.arg("--dir").arg(self.dir()).arg("serve");
        command
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        child.wait().unwrap()
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("dir")
    }

    /// The directory of the sockets.
    pub(crate) fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, toml: &str) {
        let folder = self.dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let toml = toml.replace('@', self.run().to_str().unwrap());
        std::fs::write(folder.join("instance.toml"), toml).unwrap();
    }

    pub(crate) fn status(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(&std::fs::read(self.dir().join(name).join("status.json")).ok()?).ok()
    }

    /// Waits until the status file says something.
    pub(crate) fn wait_status(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || self.status(name).filter(|status| is(status)))
    }

    /// The lines of events.log that came from guests or the daemon, rotated ones first.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let mut lines = Vec::new();
        for file in ["events.log.1", "events.log"] {
            let text = std::fs::read_to_string(self.dir().join(name).join(file)).unwrap_or_default();
            // The daemon may be in the middle of the last one.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            lines.extend(whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        }
        lines.retain(|line| line["kind"] != "checkpoint");
        lines
    }

    /// Posts JSON: the status code and the lines of the answer, as they come.
    pub(crate) fn post(&self, path: &str, json: &str) -> (u16, std::io::Lines<BufReader<UnixStream>>) {
        let mut stream = UnixStream::connect(self.dir().join("informant.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = json.len();
        // HTTP/1.0: the body of the answer is not chunked.
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
        )
        .unwrap();
        let mut lines = BufReader::new(stream).lines();
        let code = lines.next().unwrap().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        for line in lines.by_ref() {
            if line.unwrap().is_empty() {
                break;
            }
        }
        (code, lines)
    }

    /// The status code and the body of a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.dir().join("informant.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str(body).unwrap())
    }
}

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Welcome { session: SessionId, challenge: Challenge, last_event: u64 },
    Refused { code: RefusedCode, permanent: bool, text: String },
    Ack(Ack),
    Bye(ByeReason),
    Renonce,
    Prove(SessionId),
    RoleAnswer(RoleAnswer),
    DemandAnswer(DemandAnswer),
    Resized(Resized),
    Downscale(Downscale),
    ListControllers(ListControllers),
    Closed,
}

/// Who a scripted guest claims to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) kind: PeerKind,
    pub(crate) boot: u8,
    pub(crate) nonce: u8,
    pub(crate) stream: u64,
    pub(crate) versions: (u16, u16),
    pub(crate) capabilities: Capabilities,
    pub(crate) name: &'static str,
}

pub(crate) const AGENT: Who = Who {
    kind: PeerKind::AGENT,
    boot: 1,
    nonce: 1,
    stream: 7,
    versions: (1, 1),
    capabilities: Capabilities::SAMPLES,
    name: "vm",
};

/// A guest that says what it is told.
pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    received: Vec<u8>,
    base: (Vec<u64>, Vec<u8>),
    generation: u32,
    sequence: u64,
    key: bool,
}

impl Guest {
    pub(crate) fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let base = (Vec::new(), Vec::new());
        Self { stream, received: Vec::new(), base, generation: 0, sequence: 0, key: true }
    }

    pub(crate) fn connect(path: &Path) -> Self {
        Self::over(wait_for("a listener", || UnixStream::connect(path).ok()))
    }

    /// Connects and says Hello.
    pub(crate) fn greet(path: &Path, who: Who) -> (Self, Said) {
        let mut guest = Self::connect(path);
        guest.hello(who);
        let said = guest.hear();
        (guest, said)
    }

    pub(crate) fn open(path: &Path, who: Who) -> Self {
        let (guest, said) = Self::greet(path, who);
        assert!(matches!(said, Said::Welcome { .. }), "{said:?}");
        guest
    }

    pub(crate) fn hello(&mut self, who: Who) {
        self.send(&hello(who));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next thing the host says.
    pub(crate) fn hear(&mut self) -> Said {
        self.try_hear().expect("nothing from the host")
    }

    /// The next thing the host says; `None` if nothing comes before the stream's read timeout.
    pub(crate) fn try_hear(&mut self) -> Option<Said> {
        loop {
            if let Split::Frame(frame, used) = split(&self.received, 1024).unwrap() {
                let said = match HostToGuest::decode(frame).unwrap() {
                    HostToGuest::Welcome(welcome) => Said::Welcome {
                        session: welcome.session,
                        challenge: welcome.challenge,
                        last_event: welcome.last_event,
                    },
                    HostToGuest::Refused(refused) => {
                        Said::Refused { code: refused.code, permanent: refused.permanent, text: refused.text.into() }
                    }
                    HostToGuest::Ack(ack) => Said::Ack(ack),
                    HostToGuest::Bye(bye) => Said::Bye(bye.reason),
                    HostToGuest::Renonce => Said::Renonce,
                    HostToGuest::Prove(prove) => Said::Prove(prove.session),
                    HostToGuest::RoleAnswer(answer) => Said::RoleAnswer(answer),
                    HostToGuest::DemandAnswer(answer) => Said::DemandAnswer(answer),
                    HostToGuest::Resized(resized) => Said::Resized(resized),
                    HostToGuest::Downscale(downscale) => Said::Downscale(downscale),
                    HostToGuest::ListControllers(list) => Said::ListControllers(list),
                    HostToGuest::Unknown(kind) => panic!("the host sent type {kind}"),
                };
                self.received.drain(..used);
                return Some(said);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Some(Said::Closed),
                Ok(read) => self.received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Some(Said::Closed),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Err(error) => panic!("nothing from the host: {error}"),
            }
        }
    }

    /// The next thing that is no Ack.
    pub(crate) fn hear_other(&mut self) -> Said {
        loop {
            match self.hear() {
                Said::Ack(_) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn wait_ack(&mut self, is: impl Fn(Ack) -> bool) {
        loop {
            match self.hear() {
                Said::Ack(ack) if is(ack) => return,
                Said::Ack(_) => {}
                other => panic!("waiting for an ack: {other:?}"),
            }
        }
    }

    /// The VM with memory and load, one CPU and one interface.
    pub(crate) fn schema(&mut self) {
        self.schema_of(&[
            (SubjectKind::VM, b"", &[id::LOAD1, id::MEM_TOTAL, id::MEM_AVAILABLE]),
            (SubjectKind::CPU, b"0", &[id::CPU_USER, id::CPU_IDLE]),
            (SubjectKind::NETWORK, b"eth0\x1b[2J\xff", &[id::NET_RX_BYTES]),
            (SubjectKind::CGROUP, b"/batch", &[id::CGROUP_MEMORY_MAX, MetricId(60_000)]),
        ]);
    }

    pub(crate) fn schema_of(&mut self, subjects: &[(SubjectKind, &[u8], &[MetricId])]) {
        let bytes = self.schema_bytes(subjects);
        self.send(&bytes);
    }

    /// The frames of a new schema.
    pub(crate) fn schema_bytes(&mut self, subjects: &[(SubjectKind, &[u8], &[MetricId])]) -> Vec<u8> {
        self.generation += 1;
        self.key = true;
        let series: usize = subjects.iter().map(|(_, _, ids)| ids.len()).sum();
        self.base = (vec![0; series], vec![0; bits::bytes_for(series)]);
        let mut writer = SchemaWriter::new(self.generation);
        let (mut bytes, mut frame) = (Vec::new(), vec![0; 65_000]);
        let mut taken = 0;
        while taken < subjects.len() {
            let list = subjects[taken..].iter().map(|(kind, name, ids)| Subject {
                kind: *kind,
                name,
                labels: Default::default(),
                incarnation: 1,
                metrics: ids.iter().map(|first| MetricRange { first: *first, count: 1 }).collect(),
            });
            let (length, more) = writer.part(&mut frame, list).unwrap();
            bytes.extend_from_slice(&frame[..length]);
            taken += more;
        }
        let length = writer.end(&mut frame).unwrap();
        bytes.extend_from_slice(&frame[..length]);
        bytes
    }

    pub(crate) fn sample(&mut self, boot_s: u64, values: &[Option<u64>]) {
        let bytes = self.sample_bytes(boot_s, values);
        self.send(&bytes);
    }

    pub(crate) fn sample_bytes(&mut self, boot_s: u64, values: &[Option<u64>]) -> Vec<u8> {
        self.sequence += 1;
        let raw: Vec<u64> = values.iter().map(|value| value.unwrap_or(0)).collect();
        let mut present = vec![0; bits::bytes_for(values.len())];
        for (i, value) in values.iter().enumerate() {
            bits::put(&mut present, i, value.is_some());
        }
        let (generation, sequence) = (self.generation, self.sequence);
        let head = SampleHead { generation, sequence, boot_time_us: boot_s * 1_000_000 };
        let mut out = vec![0; 65_000];
        let mut base = Base { values: &mut self.base.0, present: &mut self.base.1 };
        let row = Row { values: &raw, present: &present };
        let length = encode(&mut out, head, self.key, row, &mut base).unwrap();
        self.key = false;
        out.truncate(length);
        out
    }

    pub(crate) fn event(&mut self, sequence: u64, kind: EventKind, body: &[u8]) {
        self.send(&event(sequence, kind, body));
    }

    pub(crate) fn heartbeat(&mut self) {
        let heartbeat = Heartbeat { boot_time_us: 1, wall_time_us: 1, loop_lag_us: 3, sample_cost_us: 4 };
        let mut out = [0; 64];
        let length = heartbeat.encode(&mut out).unwrap();
        self.send(&out[..length]);
    }

    pub(crate) fn bye(&mut self, reason: ByeReason) {
        let mut out = [0; 16];
        let length = Bye { reason }.encode(&mut out).unwrap();
        self.send(&out[..length]);
    }
}

pub(crate) fn hello(who: Who) -> Vec<u8> {
    let hello = Hello {
        magic: MAGIC,
        min_version: who.versions.0,
        max_version: who.versions.1,
        kind: who.kind,
        name: who.name,
        boot_id: BootId([who.boot; 16]),
        nonce: Nonce([who.nonce; 16]),
        stream: StreamId(who.stream),
        next_event: 1,
        ticks_per_second: 100,
        capabilities: who.capabilities,
        version: "0.0.0-test",
    };
    let mut out = vec![0; 1024];
    let length = hello.encode(&mut out).unwrap();
    out.truncate(length);
    out
}

pub(crate) fn event(sequence: u64, kind: EventKind, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 600];
    let length = Event { sequence, boot_time_us: 5, kind, body }.encode(&mut out).unwrap();
    out.truncate(length);
    out
}

/// The guest's side of a hybrid socket: takes `CONNECT port` and gives the port and the guest's end.
pub(crate) struct HybridVmm(UnixListener);

impl HybridVmm {
    pub(crate) fn bind(uds: &Path) -> Self {
        Self(UnixListener::bind(uds).unwrap())
    }

    /// The next dial; nothing is answered yet.
    pub(crate) fn next(&self) -> (u32, UnixStream) {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let port = line.strip_prefix("CONNECT ").and_then(|port| port.trim_end().parse().ok());
        (port.unwrap_or_else(|| panic!("no CONNECT line: {line:?}")), stream)
    }
}
