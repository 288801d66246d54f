//! The command line of `cargo xtask simulate`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::{Arg, Parser, ValueExt};

/// For `cargo xtask simulate --help`.
pub const HELP: &str = "\
  --instances N           how many instances to play
  --dir DIR               the daemon's directory: folders simNNNNN are made in it, and stay
  --sockets DIR           where the sockets are (default: DIR/.sim)
  --first N               the number of the first: several simulators may share DIR (default: 0)
  --dialled N             the first N wait for the daemon to dial; the others dial it (default: 0)
  --cgroups N             cgroups in every instance, 79 series each (default: 0)
  --interval TIME         from one sample to the next, such as 500ms or 1s (default: 1s)
  --port N                the daemon's vsock port (default: 5252)
  --seconds N             end after N seconds
";

/// What to play.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many instances.
    pub instances: u32,
    /// The number of the first.
    pub first: u32,
    /// So many, the first ones, are dialled by the daemon; the others dial it.
    pub dialled: u32,
    /// The daemon's directory.
    pub dir: PathBuf,
    /// Where the sockets are.
    pub sockets: PathBuf,
    /// The daemon's vsock port.
    pub port: u32,
    /// Time from one sample to the next.
    pub interval: Duration,
    /// When to end; without it, never.
    pub time: Option<Duration>,
    /// Cgroups in every instance.
    pub cgroups: u32,
}

impl Options {
    /// From the words behind `simulate`.
    pub fn parse(mut args: Parser) -> Result<Self> {
        let (mut dir, mut sockets, mut instances, mut time) = (None::<PathBuf>, None, None, None);
        let (mut first, mut dialled, mut cgroups, mut port) = (0, 0, 0, informant_wire::HOST_PORT);
        let mut interval = Duration::from_secs(1);
        while let Some(arg) = args.next()? {
            match arg {
                Arg::Long("instances") => instances = Some(args.value()?.parse()?),
                Arg::Long("dir") => dir = Some(args.value()?.into()),
                Arg::Long("sockets") => sockets = Some(PathBuf::from(args.value()?)),
                Arg::Long("first") => first = args.value()?.parse()?,
                Arg::Long("dialled") => dialled = args.value()?.parse()?,
                Arg::Long("cgroups") => cgroups = args.value()?.parse()?,
                Arg::Long("port") => port = args.value()?.parse()?,
                Arg::Long("interval") => interval = duration(&args.value()?.to_string_lossy())?,
                Arg::Long("seconds") => time = Some(Duration::from_secs(args.value()?.parse()?)),
                _ => return Err(arg.unexpected().into()),
            }
        }
        let dir = dir.context("--dir DIR is missing: the daemon's directory")?;
        let sockets = sockets.unwrap_or_else(|| dir.join(".sim"));
        let instances = instances.context("--instances N is missing")?;
        Ok(Self { instances, first, dialled, dir, sockets, port, interval, time, cgroups })
    }
}

fn duration(text: &str) -> Result<Duration> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let number: u64 = number.parse().with_context(|| format!("`{text}` is not a time such as 500ms or 1s"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => bail!("`{text}` is not a time such as 500ms or 1s"),
    }
}
