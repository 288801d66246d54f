//! Commands over the serial line, answered by images/initramfs/console-commands.
//!
//! The line is shared with the kernel, so output comes in base64 of gzip between two marks: a message in between breaks
//! it visibly, and it is asked for again. Scripts go in pieces because a terminal's line holds 4,095 bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;

use super::base64;

/// Bytes of script a line.
const PIECE: usize = 600;
/// What the line itself may take beyond the command: 256 KiB of output come in about a second.
const SLACK: Duration = Duration::from_secs(10);
const READY: &[u8] = b"@ready";

/// What a command in the guest printed, both outputs in one, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub code: i32,
    pub bytes: Vec<u8>,
}

impl Output {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Called while waiting: an error ends the wait.
type Alive<'a> = &'a dyn Fn() -> Result<()>;

#[derive(Debug)]
pub(super) struct Console {
    received: Arc<Received>,
    /// Held for a whole command: they do not mix.
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    stream: UnixStream,
    last_id: u32,
}

#[derive(Debug, Default)]
struct Received {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Not yet consumed by a command.
    bytes: Vec<u8>,
    /// For people, when something fails.
    tail: Vec<u8>,
    ready: bool,
    closed: bool,
}

impl Console {
    pub(super) fn attach(stream: UnixStream, log: File) -> Result<Self> {
        let reader = stream.try_clone().context("cannot duplicate the console's socket")?;
        let received = Arc::new(Received::default());
        let shared = Arc::clone(&received);
        thread::Builder::new().name("vm-console".to_owned()).spawn(move || shared.read_all(reader, log))?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { received, writer: Mutex::new(Writer { stream, last_id: 0 }) })
    }

    pub(super) fn wait_ready(&self, timeout: Duration, alive: Alive<'_>) -> Result<()> {
        let what = "the console of the image";
        self.received.wait(what, timeout, alive, |state| state.ready.then_some(()))
    }

    /// Before a reset: what was ready is no more.
    pub(super) fn forget_ready(&self) {
        let mut state = self.received.lock();
        state.ready = false;
        state.bytes.clear();
    }

    pub(super) fn run(&self, script: &str, timeout: Duration, alive: Alive<'_>) -> Result<Output> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait_ready(timeout, alive)?;
        writer.last_id += 1;
        let id = writer.last_id;
        self.received.lock().bytes.clear();

        let mut lines = String::from("\n");
        for piece in script.as_bytes().chunks(PIECE) {
            lines.push_str(&format!("+{}\n", base64::encode(piece)));
        }
        let seconds = timeout.as_secs().max(1);
        lines.push_str(&format!("={id} {seconds}\n"));
        writer.stream.write_all(lines.as_bytes()).context("the console takes no input")?;

        let mut wait = Duration::from_secs(seconds) + SLACK;
        for _ in 0..3 {
            let answer =
                self.received.wait("the end of the command", wait, alive, |state| take_answer(&mut state.bytes, id))?;
            match parse_answer(&answer, id) {
                Ok(output) => return Ok(output),
                Err(_) => {
                    writer.stream.write_all(format!("\n?{id}\n").as_bytes()).context("the console takes no input")?;
                }
            }
            wait = SLACK;
        }
        bail!("the console's answer came damaged three times: does something write to the console?")
    }

    pub(super) fn tail(&self, lines: usize) -> String {
        let state = self.received.lock();
        let text = String::from_utf8_lossy(&state.tail).into_owned();
        drop(state);
        super::tail(&without_answers(&text), lines)
    }
}

impl Received {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_all(&self, mut stream: UnixStream, mut log: File) {
        let mut buffer = [0; 16 * 1024];
        loop {
            let count = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let new = &buffer[..count];
            let _ = log.write_all(new);
            let mut state = self.lock();
            state.bytes.extend_from_slice(new);
            state.tail.extend_from_slice(new);
            let surplus = state.tail.len().saturating_sub(16 * 1024);
            state.tail.drain(..surplus);
            if !state.ready && has_line(&state.bytes, READY) {
                state.ready = true;
            }
            drop(state);
            self.changed.notify_all();
        }
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn wait<T>(
        &self,
        what: &str,
        timeout: Duration,
        alive: Alive<'_>,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if state.closed {
                drop(state);
                // The end of QEMU, which says more, is seen a moment after its socket's.
                thread::sleep(Duration::from_millis(300));
                alive()?;
                bail!("the serial line was closed while waiting for {what}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{what} did not come within {:.0} s", timeout.as_secs_f64());
            }
            // Short, so that the end of QEMU is seen without a byte from it.
            let pause = left.min(Duration::from_millis(250));
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            alive()?;
        }
    }
}

/// What the kernel and init said, without the coded output of commands.
fn without_answers(text: &str) -> String {
    let mut inside = false;
    let mut kept = Vec::new();
    for line in text.lines().map(str::trim_end) {
        if line.starts_with("@begin ") {
            inside = true;
        } else if line.starts_with("@end ") {
            if !inside {
                // The text began within this answer.
                kept.clear();
            }
            inside = false;
        } else if !inside && !line.is_empty() {
            kept.push(line);
        }
    }
    kept.join("\n")
}

fn has_line(bytes: &[u8], wanted: &[u8]) -> bool {
    lines(bytes).any(|line| line == wanted)
}

/// Whole lines only, without their ends.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")).map(<[u8]>::trim_ascii_end)
}

/// Cuts what came up to and including the end mark.
fn take_answer(bytes: &mut Vec<u8>, id: u32) -> Option<Vec<u8>> {
    let mark = format!("@end {id}");
    let mut end = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        // A kernel message may stand before the mark on its line; the mark is the line's end all the same.
        if line.ends_with(b"\n") && line.trim_ascii_end().ends_with(mark.as_bytes()) {
            let rest = bytes.split_off(end);
            return Some(std::mem::replace(bytes, rest));
        }
    }
    None
}

fn parse_answer(answer: &[u8], id: u32) -> Result<Output> {
    let begin = format!("@begin {id} ");
    let end = format!("@end {id}");
    let mut code = None;
    let mut coded = Vec::new();
    for line in lines(answer) {
        if let Some(rest) = line.strip_prefix(begin.as_bytes()) {
            code = Some(std::str::from_utf8(rest)?.parse().context("bad exit code")?);
            coded.clear();
        } else if line == end.as_bytes() {
            break;
        } else if code.is_some() {
            coded.extend_from_slice(line);
        }
    }
    let code = code.context("no begin mark")?;
    let mut bytes = Vec::new();
    GzDecoder::new(base64::decode(&coded)?.as_slice()).read_to_end(&mut bytes).context("damaged on the line")?;
    Ok(Output { code, bytes })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn answer(id: u32, code: i32, bytes: &[u8]) -> String {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(bytes).unwrap();
        let coded = base64::encode(&gzip.finish().unwrap());
        let lines: Vec<&str> = coded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("\r\n@begin {id} {code}\r\n{}\r\n@end {id}\r\n", lines.join("\r\n"))
    }

    fn large() -> Vec<u8> {
        (0..300_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
    }

    #[test]
    fn an_answer_is_taken_once_it_is_whole() {
        let text = answer(7, 3, b"hello\n");
        let mut bytes = b"noise\r\n".to_vec();
        for byte in text.bytes() {
            assert_eq!(take_answer(&mut bytes, 7), None);
            bytes.push(byte);
        }
        bytes.extend_from_slice(b"later");
        let taken = take_answer(&mut bytes, 7).unwrap();
        assert_eq!(bytes, b"later");
        assert_eq!(parse_answer(&taken, 7).unwrap(), Output { code: 3, bytes: b"hello\n".to_vec() });
    }

    #[test]
    fn any_bytes_come_through() {
        let text = answer(1, 0, &large());
        assert_eq!(parse_answer(text.as_bytes(), 1).unwrap().bytes, large());
        assert_eq!(parse_answer(answer(2, 0, b"").as_bytes(), 2).unwrap().bytes, b"");
    }

    #[test]
    fn a_kernel_message_in_between_is_noticed() {
        let whole = answer(1, 0, &large());
        for at in [3, 10, 40, 2_000, whole.len() - 12] {
            let mut text = whole.clone();
            text.insert_str(at, "[   12.345] Out of memory\r\n");
            assert!(parse_answer(text.as_bytes(), 1).is_err(), "at {at}");
        }
    }

    #[test]
    fn people_see_the_console_without_coded_answers() {
        let text = format!("AbCd==\r\n@end 1\r\n[1.0] one\r\n{}[2.0] two\r\n", answer(2, 0, b"x"));
        assert_eq!(without_answers(&text), "[1.0] one\n[2.0] two");
    }

    #[test]
    fn the_answer_to_another_command_is_not_taken() {
        let mut bytes = answer(1, 0, b"x").into_bytes();
        assert_eq!(take_answer(&mut bytes, 11), None);
        assert!(parse_answer(&bytes, 11).is_err());
    }

    /// The guest's side, with one damaged answer.
    fn pretend_guest(stream: UnixStream) {
        use std::io::BufRead;
        let mut out = stream.try_clone().unwrap();
        out.write_all(b"[0.1] booting\r\n\r\n@ready\r\n").unwrap();
        let mut script = Vec::new();
        let mut asked = 0;
        for line in std::io::BufReader::new(stream).lines().map_while(Result::ok) {
            match line.split_at_checked(1) {
                Some(("+", piece)) => script.extend(base64::decode(piece.as_bytes()).unwrap()),
                Some(("=" | "?", id)) => {
                    asked += 1;
                    let id: u32 = id.split(' ').next().unwrap().parse().unwrap();
                    let text = answer(id, 0, &script);
                    let text = if asked == 1 { text.replace("\r\n@end", "[1.0] oops\r\n@end") } else { text };
                    out.write_all(text.as_bytes()).unwrap();
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_damaged_answer_is_asked_for_again_and_long_scripts_arrive_whole() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let guest = thread::spawn(move || pretend_guest(theirs));
        let console = Console::attach(ours, tempfile::tempfile().unwrap()).unwrap();
        let script = "echo ä\n".repeat(500);
        let output = console.run(&script, Duration::from_secs(5), &|| Ok(())).unwrap();
        assert_eq!(output.text(), script);
        console.writer.lock().unwrap().stream.shutdown(std::net::Shutdown::Both).unwrap();
        guest.join().unwrap();
    }

    #[test]
    fn a_dead_vm_ends_the_wait() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let console = Console::attach(ours, tempfile::tempfile().unwrap()).unwrap();
        let error = console.wait_ready(Duration::from_secs(30), &|| bail!("QEMU ended")).unwrap_err();
        assert_eq!(error.to_string(), "QEMU ended");
        let error = console.wait_ready(Duration::from_millis(20), &|| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "the console of the image did not come within 0 s");
    }
}
