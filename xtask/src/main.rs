//! `cargo xtask`: the list of commands.

use std::process::ExitCode;

use anyhow::{Result, bail};
use lexopt::{Arg, Parser, ValueExt};
use xtask::project::{self, Arch};
use xtask::test::{Counts, Options};
use xtask::{bench, demo, guest, host, initramfs, load, setup, simulate, test, tidy};

struct Command {
    name: &'static str,
    summary: &'static str,
    options: &'static str,
    run: fn(Parser) -> Result<()>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "setup",
        summary: "install and fetch what is missing (the others call it)",
        options: "",
        run: |args| no_arguments(args).and_then(|()| setup::all()),
    },
    Command {
        name: "guest",
        summary: "build the static agent: target/guest/ARCH/informant-guest",
        options: "  --arch x86_64|aarch64   for which machine (default: x86_64)\n",
        run: run_guest,
    },
    Command {
        name: "host",
        summary: "build the daemon and command line: target/release/informant-host",
        options: "  --static                for use inside a VM: target/host-static/informant-host\n",
        run: run_host,
    },
    Command {
        name: "initramfs",
        summary: "make the image that VMs boot: target/initramfs/x86_64.cpio.gz",
        options: "  --with-host             with the static daemon in it\n",
        run: run_initramfs,
    },
    Command {
        name: "demo",
        summary: "boot a VM and show live what it reports, until Ctrl-C",
        options: "  --seconds N             end after N seconds\n",
        run: |args| demo::run(seconds(args)?),
    },
    Command {
        name: "load",
        summary: "run the named busy load on this machine, until Ctrl-C",
        options: "  --seconds N             end after N seconds\n",
        run: |args| load::run(seconds(args)?),
    },
    Command {
        name: "bench",
        summary: "measure everything that DESIGN promises, and write BENCHMARKS.md",
        options: bench::HELP,
        run: bench::run,
    },
    Command {
        name: "simulate",
        summary: "play the agents of thousands of VMs against a daemon",
        options: simulate::HELP,
        run: |args| simulate::run(&simulate::Options::parse(args)?),
    },
    Command {
        name: "tidy",
        summary: "check what no compiler checks: layout, dependencies, licences, protocol document",
        options: "  --bless                 write down the hash of wire/src in wire/PROTOCOL.md\n",
        run: |args| tidy::check(flag(args, "bless")?),
    },
    Command {
        name: "test",
        summary: "build and check everything, then run all tests",
        options: TEST_OPTIONS,
        run: |args| run_test(args, Counts::Ci),
    },
    Command {
        name: "soak",
        summary: "the same as test, with the large counts: hours",
        options: TEST_OPTIONS,
        run: |args| run_test(args, Counts::Soak),
    },
];

const TEST_OPTIONS: &str = "\
  --build                 build what tests need, and run none: then plain `cargo test` works too
  NAME...                 only these test programs, such as vm_smoke or informant_wire, and no checks
  -- ARGS...              given to the test programs, such as the name of a test
";

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = words.first().filter(|name| !matches!(name.as_str(), "--help" | "-h" | "help")) else {
        print!("{}", overview());
        return Ok(());
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        bail!("no command `{name}`; `cargo xtask --help` lists them");
    };
    if words.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h") {
        print!("{}", help(command));
        return Ok(());
    }
    (command.run)(Parser::from_args(words.into_iter().skip(1)))
}

fn overview() -> String {
    let mut text =
        String::from("Builds, boots, shows, tests and measures informant.\n\nUsage: cargo xtask COMMAND [OPTIONS]\n\n");
    for Command { name, summary, .. } in COMMANDS {
        text.push_str(&format!("  {name:<10} {summary}\n"));
    }
    text.push_str("\n`cargo xtask COMMAND --help` shows a command's options.\n");
    text
}

fn help(command: &Command) -> String {
    let Command { name, summary, options, .. } = command;
    let usage = if options.is_empty() { "" } else { " [OPTIONS]" };
    let mut text = format!("cargo xtask {name}: {summary}\n\nUsage: cargo xtask {name}{usage}\n");
    if !options.is_empty() {
        text.push_str(&format!("\n{options}"));
    }
    text
}

fn no_arguments(mut args: Parser) -> Result<()> {
    match args.next()? {
        Some(arg) => Err(arg.unexpected().into()),
        None => Ok(()),
    }
}

fn seconds(mut args: Parser) -> Result<Option<u64>> {
    let mut seconds = None;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("seconds") => seconds = Some(args.value()?.parse()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    Ok(seconds)
}

fn run_test(mut args: Parser, counts: Counts) -> Result<()> {
    let mut options = Options { counts, build_only: false, programs: Vec::new(), pass_on: Vec::new() };
    // What follows `--` is not ours to read.
    let mut words: Vec<String> = args.raw_args()?.map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(at) = words.iter().position(|word| word == "--") {
        options.pass_on = words.split_off(at).into_iter().skip(1).collect();
    }
    let mut args = Parser::from_args(words);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("build") => options.build_only = true,
            Arg::Value(name) => options.programs.push(name.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    test::run(&options)
}

fn run_guest(mut args: Parser) -> Result<()> {
    let mut arch = Arch::X86_64;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("arch") => arch = Arch::parse(&args.value()?.to_string_lossy())?,
            _ => return Err(arg.unexpected().into()),
        }
    }
    guest::build(arch).map(drop)
}

/// Whether the only known flag is given.
fn flag(mut args: Parser, name: &str) -> Result<bool> {
    let mut given = false;
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long(long) if long == name => given = true,
            _ => return Err(arg.unexpected().into()),
        }
    }
    Ok(given)
}

fn run_host(args: Parser) -> Result<()> {
    if flag(args, "static")? { host::build_static() } else { host::build() }
}

fn run_initramfs(args: Parser) -> Result<()> {
    let with_host = flag(args, "with-host")?;
    if !project::guest_path(Arch::X86_64).is_file() {
        guest::build(Arch::X86_64)?;
    }
    if with_host && !project::host_static_path().is_file() {
        host::build_static()?;
    }
    initramfs::build(with_host).map(drop)
}
