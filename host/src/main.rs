//! Entry point: reads the arguments and calls the command. Says no more than what the command returns.

use clap::{Parser, Subcommand};
use informant_host::{cli, daemon};
use std::path::PathBuf;
use std::process::ExitCode;

/// Live metrics and events of virtual machines, from inside them, over vsock
///
/// Every VM is a folder DIR/NAME with an `instance.toml`. `serve` is the daemon that the agents in the VMs report to;
/// the other commands read what it knows, and resize VMs.
#[derive(Debug, Parser)]
#[command(name = "informant-host", version, arg_required_else_help = true)]
struct Arguments {
    /// The directory with a folder for each VM
    #[arg(long, global = true, value_name = "DIR", default_value = daemon::DEFAULT_DIR)]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon: listen to the agents, write status.json and events.log, serve the API
    Serve(daemon::Arguments),
    #[command(flatten)]
    Cli(cli::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Command::Serve(serve) => daemon::main(&arguments.dir, &serve),
        Command::Cli(command) => cli::run(&arguments.dir, command),
    }
}
