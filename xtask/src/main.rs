//! `cargo xtask`: the list of commands.

use std::process::ExitCode;

use anyhow::{Result, bail};
use lexopt::Parser;
use xtask::project::{self, Arch};
use xtask::{guest, host, initramfs, setup};

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
];

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

fn run_guest(mut args: Parser) -> Result<()> {
    let mut arch = Arch::X86_64;
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("arch") => arch = Arch::parse(&args.value()?.to_string_lossy())?,
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
            lexopt::Arg::Long(long) if long == name => given = true,
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
