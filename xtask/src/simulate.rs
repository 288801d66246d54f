//! `cargo xtask simulate`: plays the agents of thousands of VMs against a running daemon, over the unix sockets that a
//! hybrid-vsock VMM would give them.
//!
//! A process of its own, so that what the daemon costs can be told from what its peers cost. One thread, one epoll.
//! An instance listens at its `uds` like its VMM would (for the daemon's proof of root, or to be dialled) and dials
//! `<uds>_PORT`. Samples of all instances are spread evenly over the interval.

mod agent;
mod endpoint;
mod options;
mod series;
mod tally;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use informant_wire::limits::{MAX_HANDSHAKE_FRAME, MAX_SERIES, max_sample_body};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::time::TimeSpec;

use agent::{Agent, Ready, Redial};
use endpoint::{Heard, Incoming};
use series::Layout;
use tally::Tally;

pub use options::{HELP, Options};
pub use tally::{Acked, Counts, Line, unix_ms};

/// Longest path of a unix socket address, the final NUL apart.
const MAX_SOCKET_PATH: usize = 107;
/// More than any machine's descriptors would allow.
const MAX_INSTANCES: u32 = 100_000;
/// Descriptors besides those of instances.
pub(crate) const SPARE_DESCRIPTORS: u64 = 64;

/// The name of an instance.
pub fn name(number: u32) -> String {
    format!("sim{number:05}")
}

/// Makes the folders and plays until the time is over.
pub fn run(options: &Options) -> Result<()> {
    check(options)?;
    raise_descriptors(u64::from(options.instances) * 2)?;
    prepare(options)?;
    let mut world = World::new(options)?;
    world.run()
}

fn check(options: &Options) -> Result<()> {
    if options.instances == 0 || options.instances > MAX_INSTANCES || options.first > MAX_INSTANCES {
        bail!("--instances must be 1 to {MAX_INSTANCES}, --first at most {MAX_INSTANCES}");
    }
    if options.interval < Duration::from_millis(10) || options.interval > Duration::from_secs(3600) {
        bail!("--interval must be 10ms to 1h");
    }
    let series = Layout::new(options.cgroups.min(u32::from(u16::MAX))).len();
    if series > MAX_SERIES {
        bail!("--cgroups {} makes {series} series; a session has at most {MAX_SERIES}", options.cgroups);
    }
    let longest = socket(options, options.first + options.instances, true);
    if longest.as_os_str().len() > MAX_SOCKET_PATH {
        bail!("{} is too long for a unix socket ({MAX_SOCKET_PATH} bytes): use a shorter --sockets", longest.display());
    }
    Ok(())
}

/// An instance's `uds`, or the daemon's socket beside it.
fn socket(options: &Options, number: u32, of_daemon: bool) -> PathBuf {
    let port = if of_daemon { format!("_{}", options.port) } else { String::new() };
    options.sockets.join(format!("{}{port}", name(number)))
}

/// So many and a few for everything else.
pub(crate) fn raise_descriptors(wanted: u64) -> Result<()> {
    let wanted = wanted + SPARE_DESCRIPTORS;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
        .with_context(|| format!("this takes {wanted} descriptors and the hard limit is {hard} (ulimit -Hn)"))
}

fn prepare(options: &Options) -> Result<()> {
    let make = |dir: &Path| fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()));
    make(&options.sockets)?;
    for number in options.first..options.first + options.instances {
        let folder = options.dir.join(name(number));
        make(&folder)?;
        let file = folder.join("instance.toml");
        let mut text = format!("uds = {:?}\n", socket(options, number, false));
        if number - options.first < options.dialled {
            text.push_str(&format!("dial = {}\n", options.port));
        }
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            continue;
        }
        // Whole at once: a running daemon looks as soon as something happens.
        let partial = folder.join(".instance.toml.partial");
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, &file))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Second,
    Sample(u32),
    Redial(u32),
}

/// What an epoll token stands for: the kind in the upper half, the number in the lower.
mod token {
    pub(super) const LISTENER: u64 = 0;
    pub(super) const SESSION: u64 = 1;
    pub(super) const INCOMING: u64 = 2;

    pub(super) fn new(kind: u64, number: u32) -> u64 {
        kind << 32 | u64::from(number)
    }
}

struct Instance {
    agent: Agent,
    listener: UnixListener,
    /// Where the daemon listens for it; `None` when the daemon dials.
    daemon: Option<PathBuf>,
}

struct World {
    layout: Layout,
    tally: Tally,
    instances: Vec<Instance>,
    /// Connections that the daemon opened, and whose they are.
    incoming: HashMap<u32, (u32, Incoming)>,
    next_incoming: u32,
    timers: BinaryHeap<Reverse<(u64, Timer)>>,
    epoll: Epoll,
    began: Instant,
    interval_us: u64,
    end_us: u64,
    scratch: Vec<u8>,
}

impl World {
    fn new(options: &Options) -> Result<Self> {
        let layout = Layout::new(options.cgroups);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let interval_us = u64::try_from(options.interval.as_micros())?;
        let mut instances = Vec::new();
        let mut timers = BinaryHeap::from([Reverse((1_000_000, Timer::Second))]);
        for number in 0..options.instances {
            let id = options.first + number;
            let listener = endpoint::listen(&socket(options, id, false))?;
            epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token::new(token::LISTENER, number)))?;
            let at = interval_us * u64::from(number) / u64::from(options.instances);
            let daemon = (number >= options.dialled).then(|| socket(options, id, true));
            timers.push(Reverse((interval_us + at, Timer::Sample(number))));
            if daemon.is_some() {
                timers.push(Reverse((at, Timer::Redial(number))));
            }
            instances.push(Instance { agent: Agent::new(u64::from(id), name(id), &layout), listener, daemon });
        }
        Ok(Self {
            tally: Tally::new(u64::from(options.instances), layout.len()),
            scratch: vec![0; 3 + max_sample_body(layout.len())],
            layout,
            instances,
            incoming: HashMap::new(),
            next_incoming: 0,
            timers,
            epoll,
            began: Instant::now(),
            interval_us,
            end_us: options.time.map_or(Ok(u64::MAX), |time| u64::try_from(time.as_micros()))?,
        })
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn run(&mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let now_us = self.now_us();
            if now_us >= self.end_us {
                return Ok(());
            }
            while let Some(Reverse((due, timer))) = self.timers.peek().copied() {
                if due > now_us {
                    break;
                }
                self.timers.pop();
                self.fire(timer, due, now_us)?;
            }
            let next = self.timers.peek().map_or(now_us + 1_000_000, |Reverse((due, _))| *due);
            let pause = Duration::from_micros(next.saturating_sub(self.now_us()));
            // Timers finer than epoll's milliseconds: bunched samples would spare the daemon wake-ups.
            let mut ready = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut ready, Some(TimeSpec::from_duration(pause)), None) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno).context("cannot wait for sockets"),
            }
            let count = self.epoll.wait(&mut events, EpollTimeout::ZERO)?;
            for event in &events[..count] {
                self.socket(event.data())?;
            }
        }
    }

    fn fire(&mut self, timer: Timer, due: u64, now_us: u64) -> Result<()> {
        match timer {
            Timer::Second => {
                self.tally.second()?;
                self.timers.push(Reverse((due + 1_000_000, timer)));
            }
            Timer::Sample(number) => {
                self.timers.push(Reverse((due + self.interval_us, timer)));
                let Some(instance) = self.instances.get_mut(number as usize) else { return Ok(()) };
                let ready = instance.agent.tick(&self.layout, &mut self.tally, now_us, &mut self.scratch)?;
                self.after(number, ready, now_us);
            }
            Timer::Redial(number) => self.dial(number, now_us)?,
        }
        Ok(())
    }

    fn dial(&mut self, number: u32, now_us: u64) -> Result<()> {
        let Some(instance) = self.instances.get_mut(number as usize) else { return Ok(()) };
        let Some(path) = instance.daemon.as_deref().filter(|_| instance.agent.session.is_none()) else { return Ok(()) };
        self.tally.dialled();
        let opened = endpoint::dial(path).is_ok_and(|stream| instance.agent.open(stream, now_us).is_ok());
        if !opened {
            self.after(number, Ready::Over(Redial::BackOff), now_us);
            return Ok(());
        }
        self.watch(number)
    }

    fn watch(&self, number: u32) -> Result<()> {
        let instance = self.instances.get(number as usize);
        let Some(session) = instance.and_then(|instance| instance.agent.session.as_ref()) else { return Ok(()) };
        // Not for room to write: the daemon would pay for waking us at each of its reads, which a VMM does not make it
        // do. What does not fit a socket leaves with the next sample.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll.add(session.stream(), EpollEvent::new(flags, token::new(token::SESSION, number)))?;
        Ok(())
    }

    /// Closes what is over, and dials again later where that is ours to do.
    fn after(&mut self, number: u32, ready: Ready, now_us: u64) {
        let (Ready::Over(redial), Some(instance)) = (ready, self.instances.get_mut(number as usize)) else { return };
        instance.agent.close(&mut self.tally);
        if instance.daemon.is_some() {
            let pause = instance.agent.pause_us(redial);
            self.timers.push(Reverse((now_us + pause, Timer::Redial(number))));
        }
    }

    fn socket(&mut self, data: u64) -> Result<()> {
        let (kind, number) = (data >> 32, u32::try_from(data & u64::from(u32::MAX))?);
        let now_us = self.now_us();
        match kind {
            token::LISTENER => self.accept(number),
            token::SESSION => {
                let Some(instance) = self.instances.get_mut(number as usize) else { return Ok(()) };
                let ready = instance.agent.ready(&self.layout, &mut self.tally, now_us)?;
                self.after(number, ready, now_us);
                Ok(())
            }
            _ => self.hear(number, now_us),
        }
    }

    fn accept(&mut self, number: u32) -> Result<()> {
        let Some(instance) = self.instances.get(number as usize) else { return Ok(()) };
        let Ok((stream, _)) = instance.listener.accept() else { return Ok(()) };
        stream.set_nonblocking(true)?;
        let key = self.next_incoming;
        self.next_incoming = self.next_incoming.wrapping_add(1);
        self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token::new(token::INCOMING, key)))?;
        self.incoming.insert(key, (number, Incoming::new(stream)));
        Ok(())
    }

    fn hear(&mut self, key: u32, now_us: u64) -> Result<()> {
        let Some((number, incoming)) = self.incoming.get_mut(&key) else { return Ok(()) };
        let number = *number;
        let Some(instance) = self.instances.get_mut(number as usize) else { return Ok(()) };
        let mut hello = [0; MAX_HANDSHAKE_FRAME];
        let length = instance.agent.hello(&name(number)).encode(&mut hello)?;
        let heard = incoming.ready(&hello[..length]);
        if matches!(heard, Heard::Nothing) {
            return Ok(());
        }
        let Some((_, mut incoming)) = self.incoming.remove(&key) else { return Ok(()) };
        self.epoll.delete(&incoming.stream)?;
        match heard {
            Heard::Agent if instance.daemon.is_none() => {
                instance.agent.close(&mut self.tally);
                self.tally.dialled();
                if instance.agent.open(incoming.stream, now_us).is_ok() {
                    self.watch(number)?;
                }
            }
            Heard::Prove(prove) => {
                self.tally.counts.proofs += 1;
                let mut out = [0; MAX_HANDSHAKE_FRAME];
                let length = instance.agent.prove(prove.session, &mut out)?;
                endpoint::answer(&mut incoming.stream, &out[..length]);
            }
            Heard::Agent | Heard::Closed | Heard::Nothing => {}
        }
        Ok(())
    }
}
