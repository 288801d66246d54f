//! What a sample costs beside the bare reads that it can not do without: collect, parse and encode against the same
//! `pread` calls, of the same files and with the same buffer sizes, whose bytes nobody looks at.
//!
//! A child of this program takes samples while its `pread` calls are recorded; then this process takes samples and
//! repeats the record in turn. Only for benchmarks (`cargo xtask bench`); prints one JSON line. x86_64 only.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use informant_guest::collect::{Config, OwnFigures, Sensors};
use informant_wire::limits::max_sample_body;
use informant_wire::sample::{Base, Row, SampleHead, encode};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::uio::pread;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getppid};

type Error = Box<dyn std::error::Error>;

/// Slow files are read every 5th sample: what is compared is always whole cycles.
const CYCLE: u32 = 5;
/// Before anything counts: files are open, places are given, buffers have grown.
const WARM_UP: u32 = 4 * CYCLE;
/// Cycles of samples, then of bare reads, and so on, in turn: both see the same machine.
const CYCLES_A_ROUND: u32 = 10;
const ROUNDS: usize = 60;
/// On a slow (emulated) machine fewer rounds must do, but never fewer than this.
const ROUNDS_AT_LEAST: usize = 6;
/// CPU time after which it is slow.
const ENOUGH_NS: u64 = 20_000_000_000;

fn main() -> ExitCode {
    let result = if std::env::args().nth(1).as_deref() == Some("--recorded") { recorded() } else { measure() };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sensors with a connection's state, but no connection.
struct Subject {
    sensors: Sensors,
    own: OwnFigures,
    base_values: Vec<u64>,
    base_present: Vec<u8>,
    out: Vec<u8>,
    sequence: u64,
    encoded: usize,
}

impl Subject {
    fn new() -> Result<Self, Error> {
        let config = Config { root: PathBuf::from("/"), cgroup: None, all_fresh: false };
        let mut subject = Self {
            sensors: Sensors::new(&config),
            own: OwnFigures { cpu_us: Some(1), resident_bytes: Some(1 << 20), ..OwnFigures::default() },
            base_values: Vec::new(),
            base_present: Vec::new(),
            out: Vec::new(),
            sequence: 0,
            encoded: 0,
        };
        for _ in 0..2 {
            subject.sensors.sample(&subject.own);
            subject.sensors.reschema();
        }
        let series = subject.sensors.series();
        subject.base_values = vec![0; series];
        subject.base_present = vec![0; series.div_ceil(8)];
        subject.out = vec![0; 3 + max_sample_body(series)];
        for _ in 0..WARM_UP {
            subject.sample()?;
        }
        Ok(subject)
    }

    fn sample(&mut self) -> Result<(), Error> {
        self.sequence += 1;
        self.sensors.sample(&self.own);
        let head = SampleHead { generation: 1, sequence: self.sequence, boot_time_us: self.sequence * 1_000_000 };
        let Row { values, present } = self.sensors.row();
        let mut base = Base { values: &mut self.base_values, present: &mut self.base_present };
        self.encoded += encode(&mut self.out, head, false, Row { values, present }, &mut base)?;
        Ok(())
    }

    /// Threads that ask about file systems answer late in the warm-up; then there are newcomers.
    fn settle(&mut self) -> Result<(), Error> {
        std::thread::sleep(std::time::Duration::from_millis(300));
        self.sensors.sample(&self.own);
        self.sensors.reschema();
        let series = self.sensors.series();
        self.base_values.resize(series, 0);
        self.base_present.resize(series.div_ceil(8), 0);
        self.out.resize(3 + max_sample_body(series), 0);
        for _ in 0..WARM_UP {
            self.sample()?;
        }
        Ok(())
    }
}

/// The child whose reads are recorded: one cycle of samples between two calls of getppid.
fn recorded() -> Result<(), Error> {
    let mut subject = Subject::new()?;
    subject.settle()?;
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let _ = getppid();
    for _ in 0..CYCLE {
        subject.sample()?;
    }
    let _ = getppid();
    Ok(())
}

struct BareRead {
    file: usize,
    length: usize,
    offset: i64,
}

#[derive(Default)]
struct Record {
    paths: HashMap<PathBuf, usize>,
    reads: Vec<BareRead>,
    opens: usize,
    others: usize,
}

fn measure() -> Result<(), Error> {
    // Bare reads take a descriptor a file; the agent opens most of its cgroups' files anew.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let record = record()?;
    let mut paths: Vec<_> = record.paths.iter().map(|(path, number)| (*number, path)).collect();
    paths.sort_unstable();
    let open = |path: &PathBuf| File::open(path).map_err(|error| format!("{}: {error}", path.display()));
    let files = paths.into_iter().map(|(_, path)| open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut buffer = vec![0; record.reads.iter().map(|read| read.length).max().unwrap_or_default()];
    let mut subject = Subject::new()?;
    subject.settle()?;

    let mut rounds = Vec::with_capacity(ROUNDS);
    subject.encoded = 0;
    let began = thread_ns()?;
    for round in 0..ROUNDS {
        let start = thread_ns()?;
        if round >= ROUNDS_AT_LEAST && start - began > ENOUGH_NS {
            break;
        }
        for _ in 0..CYCLES_A_ROUND * CYCLE {
            subject.sample()?;
        }
        let middle = thread_ns()?;
        for _ in 0..CYCLES_A_ROUND {
            for read in &record.reads {
                // A file that is gone since reads as nothing; its descriptor is still asked.
                let _ = pread(files[read.file].as_fd(), &mut buffer[..read.length], read.offset);
            }
        }
        rounds.push((middle - start, thread_ns()? - middle));
    }
    let samples = f64::from(CYCLES_A_ROUND * CYCLE);
    let us = |ns: u64| ns as f64 / samples / 1000.0;
    println!(
        "{{\"sample_us\":{:.2},\"bare_us\":{:.2},\"ratio\":{:.4},\"sample_least_us\":{:.2},\"bare_least_us\":{:.2},\"preads\":{:.1},\"opens\":{:.1},\"other_calls\":{:.1},\
         \"files\":{},\"series\":{},\"encoded_bytes\":{:.1}}}",
        us(median(rounds.iter().map(|(sample, _)| *sample))),
        us(median(rounds.iter().map(|(_, bare)| *bare))),
        // Each round's own ratio: what disturbs a round disturbs both its halves.
        median(rounds.iter().map(|(sample, bare)| sample * 10_000 / bare.max(&1))) as f64 / 10_000.0,
        // The least disturbed round of each.
        us(rounds.iter().map(|(sample, _)| *sample).min().unwrap_or_default()),
        us(rounds.iter().map(|(_, bare)| *bare).min().unwrap_or_default()),
        record.reads.len() as f64 / f64::from(CYCLE),
        record.opens as f64 / f64::from(CYCLE),
        record.others as f64 / f64::from(CYCLE),
        record.paths.len(),
        subject.sensors.series(),
        subject.encoded as f64 / samples / rounds.len() as f64,
    );
    Ok(())
}

/// Follows the child's calls from one getppid to the next.
fn record() -> Result<Record, Error> {
    let mut child =
        Command::new("/proc/self/exe").arg("--recorded").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let result = follow(&mut child);
    if result.is_err() {
        let _ = child.kill();
    }
    child.wait()?;
    result
}

fn follow(child: &mut Child) -> Result<Record, Error> {
    child.stdout.as_mut().ok_or("no output")?.read_exact(&mut [0; 6])?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    child.stdin.as_mut().ok_or("no input")?.write_all(b"\n")?;

    let (mut record, mut markers, mut entering) = (Record::default(), 0, true);
    loop {
        ptrace::syscall(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err("the recorded child ended early".into()),
            _ => continue,
        }
        // The stop of the interrupt may fall inside a call: getppid tells which stops are entries.
        let call = Call::of(pid)?;
        if call.number == libc::SYS_getppid {
            entering = !call.returned;
            markers += usize::from(entering);
        }
        if markers > 0 && entering && call.number != libc::SYS_getppid {
            record.note(pid, &call)?;
        }
        if markers == 2 && !entering {
            ptrace::detach(pid, None)?;
            return Ok(record);
        }
        entering = !entering;
    }
}

impl Record {
    fn note(&mut self, pid: Pid, call: &Call) -> Result<(), Error> {
        match call.number {
            libc::SYS_pread64 => {
                let path = fs::read_link(format!("/proc/{pid}/fd/{}", call.descriptor))?;
                // Files of its own process are not to be had when it is gone; ours are of the same kind. Those of its
                // network are called deleted, which they are not.
                let own = path.strip_prefix(format!("/proc/{pid}")).map(|rest| Path::new("/proc/self").join(rest));
                let path = own.unwrap_or(path).to_string_lossy().trim_end_matches(" (deleted)").into();
                let next = self.paths.len();
                let file = *self.paths.entry(path).or_insert(next);
                self.reads.push(BareRead { file, length: call.length, offset: call.offset });
            }
            libc::SYS_openat | libc::SYS_open => self.opens += 1,
            _ => self.others += 1,
        }
        Ok(())
    }
}

/// A system call's number and the arguments of `pread64`.
struct Call {
    number: i64,
    descriptor: u64,
    length: usize,
    offset: i64,
    returned: bool,
}

impl Call {
    #[cfg(target_arch = "x86_64")]
    fn of(pid: Pid) -> Result<Self, Error> {
        let registers = ptrace::getregs(pid)?;
        Ok(Self {
            number: i64::try_from(registers.orig_rax)?,
            descriptor: registers.rdi,
            length: usize::try_from(registers.rdx)?,
            offset: registers.r10.cast_signed(),
            // At an entry the kernel has put "no such call" where the result will be.
            returned: registers.rax.cast_signed() != -i64::from(libc::ENOSYS),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(_: Pid) -> Result<Self, Error> {
        Err("this benchmark knows the registers of x86_64 only".into())
    }
}

fn thread_ns() -> Result<u64, Error> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
