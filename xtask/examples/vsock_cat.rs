//! `vsock-cat`: raw vsock inside a test VM, where busybox has none.
//!
//!   vsock-cat connect CID PORT [--source PORT]   standard input to the peer, the peer to standard output
//!   vsock-cat echo PORT                          sends everybody back what they send
//!
//! `connect` ends when the peer closes, or after ten seconds of silence. It never closes only its own half: no part of
//! informant does. It refuses to run outside our VMs, because a development machine's CID 2 is somebody else's host.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::{Long, Value, ValueExt};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, socket};
use vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

const SILENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vsock-cat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    ensure!(command_line.contains("initramfs."), "this is not one of our test VMs");

    let mut words = Vec::new();
    let mut source: Option<u32> = None;
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("source") => source = Some(args.value()?.parse()?),
            Value(word) => words.push(word.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["connect", cid, port] => talk(dial(cid.parse()?, port.parse()?, source)?),
        ["echo", port] => echo(port.parse()?),
        _ => bail!("usage: vsock-cat connect CID PORT [--source PORT] | echo PORT"),
    }
}

fn dial(cid: u32, port: u32, source: Option<u32>) -> Result<VsockStream> {
    let fd: OwnedFd = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(source) = source {
        bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &VsockAddr::new(VMADDR_CID_ANY, source))
            .with_context(|| format!("cannot bind source port {source}"))?;
    }
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &VsockAddr::new(cid, port))
        .with_context(|| format!("cannot connect to {cid}:{port}"))?;
    Ok(VsockStream::from(fd))
}

fn talk(mut stream: VsockStream) -> Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut out = stream.try_clone()?;
    thread::spawn(move || io::copy(&mut io::stdin(), &mut out));
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                io::stdout().write_all(&buffer[..count])?;
                io::stdout().flush()?;
            }
        }
    }
}

fn echo(port: u32) -> Result<()> {
    let listener = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port)?;
    loop {
        let (stream, _) = listener.accept()?;
        let mut reader = stream.try_clone()?;
        let mut writer = stream;
        thread::spawn(move || io::copy(&mut reader, &mut writer));
    }
}
