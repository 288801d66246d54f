//! Debian's node_exporter, which stands beside our agent: started here, asked over 127.0.0.1.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::process;
use crate::child::{self, Child};
use crate::setup;

const SCRAPES: u32 = 30;

/// What it costs, by its own defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exporter {
    /// Bytes of the program's file.
    pub(super) program_bytes: u64,
    /// Resident memory after [`SCRAPES`] scrapes.
    pub(super) resident_bytes: u64,
    /// CPU time of a scrape, milliseconds.
    pub(super) scrape_ms: f64,
    /// Bytes of a page, not compressed.
    pub(super) page_bytes: usize,
    /// The same as Prometheus asks for it, with gzip.
    pub(super) gzip_bytes: usize,
}

/// Runs it and asks it a number of times, a second apart as far as that is bearable.
pub(super) fn measure(dir: &Path) -> Result<Exporter> {
    let program = setup::node_exporter()?;
    // The port is free now; should somebody take it before the exporter does, the first scrape fails and says so.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
    let mut command = child::command(&program);
    command.arg(format!("--web.listen-address={address}"));
    child::log_to(&mut command, &dir.join("node_exporter.log"))?;
    let mut exporter = Child::spawn("node_exporter", command)?;

    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = scrape(address, false) {
        if Instant::now() > deadline || exporter.ended()?.is_some() {
            return Err(error).context("node_exporter does not answer");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let gzip_bytes = scrape(address, true)?;
    let before = process::cpu_time(exporter.pid())?;
    let mut page_bytes = 0;
    for _ in 0..SCRAPES {
        page_bytes = scrape(address, false)?;
        thread::sleep(Duration::from_millis(200));
    }
    let cpu = process::cpu_time(exporter.pid())? - before;
    let resident_bytes = process::memory(exporter.pid(), "VmRSS")?;
    exporter.stop(Duration::from_secs(5)).ok();
    Ok(Exporter {
        program_bytes: program.metadata()?.len(),
        resident_bytes,
        scrape_ms: cpu.as_secs_f64() * 1000.0 / f64::from(SCRAPES),
        page_bytes,
        gzip_bytes,
    })
}

/// Bytes of the page's body.
fn scrape(address: SocketAddr, gzip: bool) -> Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let accept = if gzip { "gzip" } else { "identity" };
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept-Encoding: {accept}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a head")?;
    if !answer.starts_with(b"HTTP/1.") || !answer[..head].windows(4).any(|four| four == b" 200") {
        bail!("node_exporter answered {}", String::from_utf8_lossy(&answer[..head.min(80)]));
    }
    Ok(answer.len() - head - 4)
}
