//! `workload`: takes memory or CPUs inside a test VM, steadily, in a cgroup of its own, and says how far it is.
//!
//!   workload memory --mib N                anonymous memory, every page touched
//!   workload files --mib N --dir DIR       files, such as on a tmpfs; removed at the end
//!   workload cpu --threads N               threads that do nothing but run
//!
//!   --rate MIB       so much a second (default 8; 0: as fast as it goes)
//!   --first MIB      so much at once before that
//!   --cgroup NAME    enters /sys/fs/cgroup/NAME first, and makes it if need be
//!   --seconds N      keeps what it has for so long
//!   --until FILE     keeps it until the file is there
//!
//! Prints `taken N MiB` every 8 MiB, `holding`, and at its end `finished`. It refuses to run outside our VMs.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::{Long, Value, ValueExt};

const MIB: usize = 1 << 20;
/// MiB between two lines, and in one file.
const STEP: u32 = 8;
/// Longer than any test: nothing is held for ever.
const LONGEST_HOLD: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
struct Options {
    mib: u32,
    rate: u32,
    first: u32,
    threads: u32,
    dir: Option<PathBuf>,
    cgroup: Option<String>,
    seconds: Option<u64>,
    until: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    ensure!(command_line.contains("initramfs."), "this is not one of our test VMs");

    let mut options =
        Options { mib: 0, rate: 8, first: 0, threads: 0, dir: None, cgroup: None, seconds: None, until: None };
    let mut what = None;
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("mib") => options.mib = args.value()?.parse()?,
            Long("rate") => options.rate = args.value()?.parse()?,
            Long("first") => options.first = args.value()?.parse()?,
            Long("threads") => options.threads = args.value()?.parse()?,
            Long("dir") => options.dir = Some(args.value()?.into()),
            Long("cgroup") => options.cgroup = Some(args.value()?.string()?),
            Long("seconds") => options.seconds = Some(args.value()?.parse()?),
            Long("until") => options.until = Some(args.value()?.into()),
            Value(word) if what.is_none() => what = Some(word.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if let Some(name) = &options.cgroup {
        enter(&Path::new("/sys/fs/cgroup").join(name))?;
    }
    match what.as_deref() {
        Some("memory") => memory(&options)?,
        Some("files") => files(&options)?,
        Some("cpu") => cpu(&options)?,
        _ => bail!("usage: workload memory | files | cpu, with the options that its source lists"),
    }
    say("finished")
}

fn enter(cgroup: &Path) -> Result<()> {
    match fs::create_dir(cgroup) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", cgroup.display()));
        }
        _ => {}
    }
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| format!("cannot enter {}", cgroup.display()))
}

fn memory(options: &Options) -> Result<()> {
    ensure!(options.mib > 0, "--mib says how much");
    let mut taken: Vec<Vec<u8>> = Vec::new();
    steadily(options, |_| {
        // Not zero: such pages would be had without being written.
        taken.push(black_box(vec![0xa5; MIB]));
        Ok(())
    })?;
    hold(options)?;
    drop(black_box(taken));
    Ok(())
}

fn files(options: &Options) -> Result<()> {
    ensure!(options.mib > 0, "--mib says how much");
    let dir = options.dir.as_deref().context("--dir says where to")?;
    let path = |number: u32| dir.join(format!("workload-{number}"));
    let block = vec![0xa5; MIB];
    let mut file: Option<(u32, File)> = None;
    steadily(options, |done| {
        let number = done / STEP;
        let mut open = match file.take() {
            Some((of, open)) if of == number => open,
            _ => File::create(path(number)).with_context(|| format!("cannot make {}", path(number).display()))?,
        };
        open.write_all(&block).with_context(|| format!("cannot write {}", path(number).display()))?;
        file = Some((number, open));
        Ok(())
    })?;
    hold(options)?;
    drop(file);
    for number in 0..options.mib.div_ceil(STEP) {
        fs::remove_file(path(number)).with_context(|| format!("cannot remove {}", path(number).display()))?;
    }
    Ok(())
}

fn cpu(options: &Options) -> Result<()> {
    ensure!(options.threads > 0, "--threads says how many");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    count = black_box(count.wrapping_add(1));
                }
            });
        }
        let held = hold(options);
        stop.store(true, Ordering::Relaxed);
        held
    })
}

/// One MiB after the other; `take` is told how many there are already.
fn steadily(options: &Options, mut take: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut start = Instant::now();
    for done in 0..options.mib {
        take(done)?;
        let now = done + 1;
        if now == options.first {
            start = Instant::now();
        }
        if now % STEP == 0 || now == options.mib {
            say(&format!("taken {now} MiB"))?;
        }
        if options.rate > 0 && now > options.first {
            let due = start + Duration::from_secs(1) * (now - options.first) / options.rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(())
}

fn hold(options: &Options) -> Result<()> {
    say("holding")?;
    let start = Instant::now();
    let for_long = options.seconds.map_or(LONGEST_HOLD, Duration::from_secs).min(LONGEST_HOLD);
    if options.seconds.is_none() && options.until.is_none() {
        return Ok(());
    }
    while start.elapsed() < for_long && !options.until.as_ref().is_some_and(|file| file.exists()) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A line at once: standard output is a file here, and whoever waits reads it.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
}
