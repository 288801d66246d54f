//! Command line, environment and kernel command line: one table for all three, and every value checked here.
//!
//! For an option `name` the first of these counts: `--name VALUE`, the environment variable `INFORMANT_NAME`,
//! `informant.name=VALUE` on the kernel command line (only when the root is the running system's), the default.
//! Nothing here opens a socket or starts anything.

mod amount;
mod table;

use crate::link::Address;
use informant_wire::limits::{MAX_NAME, MAX_PEER_NAME};
use informant_wire::size::{Bytes, MilliCpu};
use informant_wire::{CONTROL_PORT, HOST_PORT};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{COMMANDS, OPTIONS, Spec, command_help, help, nearest};

/// The shortest interval between samples.
pub const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest interval between samples.
pub const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Report to the host until told to end.
    Run(Run),
    /// Print samples.
    Sample(Sample),
    /// Ask the host for more.
    Demand(Demand),
    /// Say what this image lacks.
    Doctor {
        /// The tree to look at.
        root: PathBuf,
    },
    /// Print a help text.
    Help(String),
    /// Print name and version.
    Version,
}

/// Options of `run`.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// How the agent and its host find each other.
    pub host: HostLink,
    /// Where further host sessions are accepted; `None` for nowhere.
    pub control: Option<Address>,
    /// The tree that is read; `/` for the running system.
    pub root: PathBuf,
    /// From one sample to the next.
    pub interval: Duration,
    /// The watched cgroup, relative to the cgroup2 mount.
    pub cgroup: Option<PathBuf>,
    /// Set `memory.high` of the watched cgroup to be told early.
    pub tripwire: bool,
    /// Lift a `memory.high` that the watched cgroup is found with.
    pub clear_memory_high: bool,
    /// Thaw the watched cgroup when it is found frozen.
    pub thaw: bool,
    /// The name told to the host; `None` for the host name.
    pub name: Option<String>,
    /// Where the event outbox lives.
    pub state: PathBuf,
    /// Where processes of this VM are heard; `None` for nowhere.
    pub local: Option<PathBuf>,
    /// The directory of advisors.
    pub advisors: PathBuf,
    /// The least important log lines that are written.
    pub log: tracing::level_filters::LevelFilter,
}

/// Who dials whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostLink {
    /// The agent dials.
    Connect(Address),
    /// The host dials.
    Listen(Address),
}

/// Options of `sample`.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample {
    /// The tree that is read.
    pub root: PathBuf,
    /// How many lines; at least one.
    pub count: u32,
    /// From one line to the next.
    pub interval: Duration,
    /// The watched cgroup.
    pub cgroup: Option<PathBuf>,
}

/// Options of `demand`. One of the amounts is there at least.
#[derive(Debug, PartialEq, Eq)]
pub struct Demand {
    /// CPU of the VM in all.
    pub cpu: Option<MilliCpu>,
    /// Memory of the VM in all.
    pub memory: Option<Bytes>,
    /// A mount point, at most 255 bytes, and the size of its file system.
    pub disk: Option<(Vec<u8>, Bytes)>,
    /// 0 to 100.
    pub urgency: u8,
    /// How long to wait until it is there; `None`: for the first answer.
    pub wait: Option<Duration>,
    /// Where the agent hears.
    pub socket: PathBuf,
}

/// A command line that can not be carried out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// No command was named.
    #[error("no command; one of run, sample, demand, doctor is needed (--help lists them)")]
    NoCommand,
    /// A command that does not exist.
    #[error("unknown command '{name}'{}", suggestion("", .near))]
    Command {
        /// As given.
        name: String,
        /// The command probably meant.
        near: Option<&'static str>,
    },
    /// An option that the command does not have.
    #[error("{command}: unknown option '{name}'{}", suggestion("--", .near))]
    Option {
        /// The command.
        command: &'static str,
        /// As given.
        name: String,
        /// The option probably meant.
        near: Option<&'static str>,
    },
    /// A word where none is expected.
    #[error("{command}: unexpected argument '{word}'")]
    Word {
        /// The command.
        command: &'static str,
        /// As given.
        word: String,
    },
    /// An option without its value.
    #[error("--{name}: a value is missing (--{name} {value})")]
    Missing {
        /// The option.
        name: &'static str,
        /// What kind of value.
        value: &'static str,
    },
    /// A value that does not fit.
    #[error("{place}: '{value}' {why}")]
    Value {
        /// Where it was given, in the form it has there.
        place: String,
        /// As given.
        value: String,
        /// What is wrong with it and what would be right.
        why: String,
    },
    /// `--tripwire` without a cgroup.
    #[error("--tripwire: there is no watched cgroup to set it in; name one with --cgroup")]
    NoCgroup,
    /// `--connect` and `--listen` at the same place.
    #[error("--connect and --listen exclude each other: either the agent dials or the host does")]
    BothWays,
    /// `demand` without an amount.
    #[error("demand: nothing is asked for; give --memory, --cpu or --disk")]
    NothingWanted,
}

fn suggestion(dashes: &str, near: &Option<&'static str>) -> String {
    near.map(|near| format!("; did you mean '{dashes}{near}'?")).unwrap_or_default()
}

/// What the process was started with.
pub struct Surroundings<'a> {
    /// Arguments without the program's name.
    pub arguments: Vec<OsString>,
    /// Looks up an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Reads `/proc/cmdline`; called only for the running system's root.
    pub kernel_command_line: &'a dyn Fn() -> Vec<u8>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// Where a value came from, most important first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Argument,
    Environment,
    Kernel,
}

struct Given {
    spec: &'static Spec,
    source: Source,
    value: OsString,
}

impl Given {
    /// What is read of the value, or `why` not.
    fn wants<T>(&self, read: impl FnOnce(&str) -> Option<T>, why: &'static str) -> Result<T, ArgsError> {
        read(self.text()?).ok_or_else(|| self.error(why))
    }

    #[inline(never)]
    fn error(&self, why: &str) -> ArgsError {
        let name = self.spec.name;
        let place = match self.source {
            Source::Argument => format!("--{name}"),
            Source::Environment => format!("environment variable {}", variable(name)),
            Source::Kernel => format!("kernel command line, informant.{name}"),
        };
        ArgsError::Value { place, value: self.value.to_string_lossy().into_owned(), why: why.into() }
    }

    fn text(&self) -> Result<&str, ArgsError> {
        self.value.to_str().ok_or_else(|| self.error("is not UTF-8"))
    }

    fn path(&self) -> Result<PathBuf, ArgsError> {
        if self.value.is_empty() { Err(self.error("is no path: it is empty")) } else { Ok(PathBuf::from(&self.value)) }
    }

    fn address(&self, parse: fn(&OsStr) -> Result<Address, &'static str>) -> Result<Address, ArgsError> {
        parse(&self.value).map_err(|why| self.error(why))
    }
}

fn variable(name: &str) -> String {
    format!("INFORMANT_{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// Reads what the process was started with.
pub fn parse(surroundings: &Surroundings<'_>) -> Result<Command, ArgsError> {
    let mut parser = lexopt::Parser::from_args(surroundings.arguments.iter().cloned());
    let (command, commands) = match parser.next() {
        Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => return Ok(Command::Help(help())),
        Ok(Some(lexopt::Arg::Long("version") | lexopt::Arg::Short('V'))) => return Ok(Command::Version),
        Ok(Some(lexopt::Arg::Value(word))) => {
            let name = word.to_string_lossy().into_owned();
            match COMMANDS.iter().find(|(known, ..)| *known == name) {
                Some((known, bit, _)) => (*known, *bit),
                None if name == "help" => return Ok(Command::Help(help())),
                None => {
                    let near = nearest(&name, COMMANDS.iter().map(|(known, ..)| *known));
                    return Err(ArgsError::Command { name, near });
                }
            }
        }
        Ok(Some(option)) => return Err(unknown("informant-guest", &option, ["help", "version"].into_iter())),
        Ok(None) | Err(_) => return Err(ArgsError::NoCommand),
    };
    let mut given = Vec::new();
    loop {
        match parser.next() {
            Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => {
                return Ok(Command::Help(command_help(command, commands)));
            }
            Ok(Some(lexopt::Arg::Long(name))) => {
                let Some(spec) = OPTIONS.iter().find(|spec| spec.of & commands != 0 && spec.name == name) else {
                    let known = OPTIONS.iter().filter(|spec| spec.of & commands != 0).map(|spec| spec.name);
                    return Err(unknown(command, &lexopt::Arg::Long(name), known.chain(["help"])));
                };
                let missing = ArgsError::Missing { name: spec.name, value: spec.value };
                let value = match spec.alone {
                    Some(alone) => parser.optional_value().unwrap_or_else(|| alone.into()),
                    None => parser.value().map_err(|_| missing)?,
                };
                given.retain(|earlier: &Given| earlier.spec.name != spec.name);
                given.push(Given { spec, source: Source::Argument, value });
            }
            Ok(Some(lexopt::Arg::Value(word))) => {
                return Err(ArgsError::Word { command, word: word.to_string_lossy().into_owned() });
            }
            Ok(Some(option)) => return Err(unknown(command, &option, std::iter::empty())),
            Ok(None) => break,
            Err(error) => return Err(ArgsError::Word { command, word: error.to_string() }),
        }
    }
    complete(&mut given, commands, surroundings);
    build(command, &given)
}

fn unknown(command: &'static str, option: &lexopt::Arg<'_>, known: impl Iterator<Item = &'static str>) -> ArgsError {
    let (name, near) = match option {
        lexopt::Arg::Long(name) => (format!("--{name}"), nearest(name, known)),
        lexopt::Arg::Short(letter) => (format!("-{letter}"), None),
        lexopt::Arg::Value(word) => (word.to_string_lossy().into_owned(), None),
    };
    ArgsError::Option { command, name, near }
}

/// Adds what environment and kernel command line say of options that were not given as arguments.
fn complete(given: &mut Vec<Given>, commands: u8, surroundings: &Surroundings<'_>) {
    let wanted = || OPTIONS.iter().filter(|spec| spec.anywhere && spec.of & commands != 0);
    for spec in wanted() {
        if !given.iter().any(|given| given.spec.name == spec.name)
            && let Some(value) = (surroundings.variable)(&variable(spec.name))
        {
            given.push(Given { spec, source: Source::Environment, value });
        }
    }
    let root = given.iter().find(|given| given.spec.name == "root");
    if root.is_some_and(|root| Path::new(&root.value) != Path::new("/")) {
        return;
    }
    let line = (surroundings.kernel_command_line)();
    for spec in wanted().filter(|spec| spec.name != "root") {
        if !given.iter().any(|given| given.spec.name == spec.name)
            && let Some(value) = kernel_parameter(&line, spec.name)
        {
            given.push(Given { spec, source: Source::Kernel, value: OsString::from_vec(value) });
        }
    }
}

/// The last `informant.NAME=VALUE` of a kernel command line; blanks may stand inside double quotes, around the value
/// or around the whole parameter, as the kernel takes them (Documentation/admin-guide/kernel-parameters.rst).
/// Behind `--` the words are init's and are not looked at.
fn kernel_parameter(line: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut quoted = false;
    let mut found = None;
    let words = line.split(|byte| {
        quoted ^= *byte == b'"';
        !quoted && byte.is_ascii_whitespace()
    });
    for word in words.take_while(|word| *word != b"--") {
        let word: Vec<u8> = word.iter().copied().filter(|byte| *byte != b'"').collect();
        let value = word.strip_prefix(b"informant.").and_then(|rest| rest.strip_prefix(name.as_bytes()));
        if let Some([b'=', value @ ..]) = value {
            found = Some(value.to_vec());
        }
    }
    found
}

fn build(command: &str, given: &[Given]) -> Result<Command, ArgsError> {
    let find = |name: &str| given.iter().find(|given| given.spec.name == name);
    let root = find("root").map_or_else(|| Ok(PathBuf::from("/")), Given::path)?;
    let interval = || find("interval").map_or(Ok(Duration::from_secs(1)), interval);
    let cgroup = || find("cgroup").map(Given::path).transpose();
    Ok(match command {
        "run" => {
            let host = host_link(find("connect"), find("listen"))?;
            let over_vsock =
                matches!(&host, HostLink::Connect(Address::Vsock { .. }) | HostLink::Listen(Address::Vsock { .. }));
            let control = match find("control") {
                Some(control) if control.value == "off" => None,
                Some(control) => Some(control.address(Address::parse_listen)?),
                None => over_vsock.then_some(Address::Vsock { cid: None, port: CONTROL_PORT }),
            };
            let state = find("state").map_or_else(|| Ok(PathBuf::from("/run/informant")), Given::path)?;
            let local = match find("local") {
                Some(local) if local.value == "off" => None,
                Some(local) => Some(local.path()?),
                None => Some(state.join("agent.sock")),
            };
            let advisors =
                find("advisors").map_or_else(|| Ok(PathBuf::from("/etc/informant/advisors.d")), Given::path)?;
            let cgroup = cgroup()?;
            let tripwire = switch(find("tripwire"))?;
            if tripwire && cgroup.is_none() {
                return Err(ArgsError::NoCgroup);
            }
            Command::Run(Run {
                host,
                control,
                root,
                interval: interval()?,
                cgroup,
                tripwire,
                clear_memory_high: switch(find("clear-memory-high"))?,
                thaw: switch(find("thaw"))?,
                name: find("name").map(name).transpose()?,
                state,
                local,
                advisors,
                log: find("log").map_or(Ok(tracing::level_filters::LevelFilter::INFO), log_level)?,
            })
        }
        "sample" => {
            let count = find("count").map_or(Ok(1), |given| match given.text()?.parse() {
                Ok(0) | Err(_) => Err(given.error("is no number of samples; at least 1")),
                Ok(count) => Ok(count),
            })?;
            Command::Sample(Sample { root, count, interval: interval()?, cgroup: cgroup()? })
        }
        "demand" => Command::Demand(demand(&find)?),
        _ => Command::Doctor { root },
    })
}

fn demand<'a>(find: &dyn Fn(&str) -> Option<&'a Given>) -> Result<Demand, ArgsError> {
    let cpu = |given: &Given| given.wants(amount::cpu, "is no CPU; write 2, 1.5 or 500m");
    let memory = |given: &Given| given.wants(amount::bytes, NO_SIZE);
    let seconds = |given: &Given| {
        let read = |text: &str| amount::number(text).filter(|seconds| (1..=86_400).contains(seconds));
        given.wants(read, "is no number of seconds; 1 to 86400").map(Duration::from_secs)
    };
    let urgency = |given: &Given| {
        let read = |text: &str| amount::number(text).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= 100);
        given.wants(read, "is no urgency; 0 to 100")
    };
    let demand = Demand {
        cpu: find("cpu").map(cpu).transpose()?,
        memory: find("memory").map(memory).transpose()?,
        disk: find("disk").map(disk).transpose()?,
        urgency: find("urgency").map_or(Ok(50), urgency)?,
        wait: find("wait").map(seconds).transpose()?,
        socket: find("socket").map_or_else(|| Ok(PathBuf::from("/run/informant/agent.sock")), Given::path)?,
    };
    let wants = demand.cpu.is_some() || demand.memory.is_some() || demand.disk.is_some();
    if wants { Ok(demand) } else { Err(ArgsError::NothingWanted) }
}

const NO_SIZE: &str = "is no size; write 2GiB, 1536MiB or plain bytes";

fn disk(given: &Given) -> Result<(Vec<u8>, Bytes), ArgsError> {
    let (mount, size) = given.text()?.rsplit_once('=').ok_or_else(|| given.error("is not MOUNT=SIZE"))?;
    if !mount.starts_with('/') || mount.len() > MAX_NAME {
        return Err(given.error("names no mount point; an absolute path of at most 255 bytes"));
    }
    Ok((mount.into(), amount::bytes(size).ok_or_else(|| given.error(NO_SIZE))?))
}

fn host_link(connect: Option<&Given>, listen: Option<&Given>) -> Result<HostLink, ArgsError> {
    match (connect, listen) {
        (Some(connect), Some(listen)) if connect.source == listen.source => Err(ArgsError::BothWays),
        (Some(connect), Some(listen)) if connect.source > listen.source => {
            Ok(HostLink::Listen(listen.address(Address::parse_listen)?))
        }
        (Some(connect), _) => Ok(HostLink::Connect(connect.address(Address::parse_connect)?)),
        (None, Some(listen)) => Ok(HostLink::Listen(listen.address(Address::parse_listen)?)),
        (None, None) => Ok(HostLink::Connect(Address::Vsock { cid: Some(vsock::VMADDR_CID_HOST), port: HOST_PORT })),
    }
}

fn switch(given: Option<&Given>) -> Result<bool, ArgsError> {
    let Some(given) = given else { return Ok(false) };
    match given.text()? {
        "on" | "1" | "yes" | "true" => Ok(true),
        "off" | "0" | "no" | "false" => Ok(false),
        _ => Err(given.error("is no switch; on or off")),
    }
}

fn interval(given: &Given) -> Result<Duration, ArgsError> {
    let text = given.text()?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let ms = number.parse::<u64>().ok().zip(unit_ms).and_then(|(number, unit)| number.checked_mul(unit));
    let time = ms.map(Duration::from_millis).ok_or_else(|| given.error("is no time; write 500ms, 1s or 2m"))?;
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&time) {
        Ok(time)
    } else {
        Err(given.error("is out of range; 100ms to 1h"))
    }
}

fn name(given: &Given) -> Result<String, ArgsError> {
    let text = given.text()?;
    if (1..=MAX_PEER_NAME).contains(&text.len()) && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(given.error("is no name; 1 to 64 bytes without control characters"))
    }
}

fn log_level(given: &Given) -> Result<tracing::level_filters::LevelFilter, ArgsError> {
    use tracing::level_filters::LevelFilter;
    Ok(match given.text()? {
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return Err(given.error("is no level; error, warn, info, debug or trace")),
    })
}
