//! The host dials the guest: `CONNECT <port>`, `OK <number>`, and then a connection like the others.

use super::{OkLine, POLL, Shared, join};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// The longest command line taken, and the time for it.
const LINE: usize = 32;
const DEADLINE: Duration = Duration::from_secs(2);

/// A host has connected to `<uds>`.
pub(super) fn serve_host(shared: &Arc<Shared>, host: UnixStream) {
    if read_command(shared, &host) != Some(1022) {
        return;
    }
    shared.seen.connects.fetch_add(1, Ordering::Relaxed);
    let ok = shared.faults().ok.clone();
    if ok == OkLine::Closed {
        return;
    }
    let Ok(guest) = UnixStream::connect(&shared.control) else { return };
    if answer(shared, &ok, &host, &guest).is_some() {
        join(shared, guest, host, None, None);
    }
}

/// `None` when the connection ends with this answer.
fn answer(shared: &Shared, ok: &OkLine, mut host: &UnixStream, mut guest: &UnixStream) -> Option<()> {
    const OK: &[u8] = b"OK 1073741824\n";
    match ok {
        OkLine::Whole => host.write_all(OK).ok(),
        OkLine::Split => OK.iter().try_for_each(|byte| {
            thread::sleep(Duration::from_millis(5));
            host.write_all(&[*byte]).ok()
        }),
        OkLine::Glued => {
            let mut payload = [0; 4096];
            guest.set_read_timeout(Some(DEADLINE)).ok()?;
            let got = guest.read(&mut payload).ok()?;
            let mut both = OK.to_vec();
            both.extend_from_slice(payload.get(..got)?);
            host.write_all(&both).ok()
        }
        OkLine::Late(time) => {
            let since = Instant::now();
            while since.elapsed() < *time && !shared.stopped() {
                thread::sleep(POLL);
            }
            host.write_all(OK).ok()
        }
        OkLine::Endless => {
            let _ = host.write_all(&[b'O'; 10_000]);
            // Open until the other side gives up.
            let _ = host.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = host.read(&mut [0; 1]);
            None
        }
        OkLine::Cut => {
            let _ = host.write_all(b"OK 10737");
            None
        }
        OkLine::Closed => None,
    }
}

/// The port of `CONNECT <port>\n`; strict, as Firecracker is.
fn read_command(shared: &Shared, mut host: &UnixStream) -> Option<u32> {
    host.set_read_timeout(Some(POLL)).ok()?;
    let since = Instant::now();
    let mut line = Vec::with_capacity(LINE);
    while line.last() != Some(&b'\n') {
        if line.len() >= LINE || since.elapsed() > DEADLINE || shared.stopped() {
            return None;
        }
        let mut byte = [0];
        match host.read(&mut byte) {
            Ok(0) => return None,
            Ok(_) => line.push(byte[0]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
    }
    std::str::from_utf8(&line).ok()?.strip_prefix("CONNECT ")?.strip_suffix('\n')?.parse().ok()
}
