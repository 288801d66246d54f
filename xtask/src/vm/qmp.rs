//! QEMU's own control socket: one command at a time, events kept until somebody waits for them.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const EVENTS_KEPT: usize = 256;

/// A client of one of QEMU's control sockets. Each socket serves one client at a time.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    unread: Vec<u8>,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Waits for the socket, reads the greeting, leaves negotiation mode.
    pub fn connect(path: &Path) -> Result<Self> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("QEMU did not open {}", path.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut qmp = Self { stream, unread: Vec::new(), events: VecDeque::new() };
        let greeting = qmp.message(deadline)?;
        if greeting.get("QMP").is_none() {
            bail!("{} does not speak QMP: {greeting}", path.display());
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// One command and its `return`; a refusal is an error.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut text = json!({"execute": command, "arguments": arguments}).to_string();
        text.push('\n');
        self.stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        self.stream.write_all(text.as_bytes()).with_context(|| format!("QEMU does not take the command {command}"))?;
        loop {
            let mut message = self.message(deadline).with_context(|| format!("no answer to {command}"))?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                bail!(
                    "QEMU refused {command}: {}",
                    error.get("desc").and_then(Value::as_str).unwrap_or("no reason given")
                );
            }
            self.keep(message);
        }
    }

    /// The next event of this name, also one that came before.
    pub fn wait_event(&mut self, name: &str, timeout: Duration) -> Result<Value> {
        let deadline = Instant::now() + timeout;
        loop {
            let found = self.events.iter().position(|event| event.get("event").and_then(Value::as_str) == Some(name));
            if let Some(event) = found.and_then(|at| self.events.remove(at)) {
                return Ok(event);
            }
            let message = self.message(deadline).with_context(|| format!("no {name} event"))?;
            self.keep(message);
        }
    }

    fn keep(&mut self, event: Value) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn message(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).context("QEMU sent what is not JSON");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("QEMU said nothing in time");
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("QEMU closed its control socket"),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("cannot read QEMU's control socket"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn pretend_qemu(listener: &UnixListener) {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"QMP\": {}}\r\n").unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        for line in reader.lines().map_while(Result::ok) {
            let answer = if line.contains("qmp_capabilities") {
                "{\"return\": {}}\r\n"
            } else if line.contains("system_reset") {
                "{\"event\": \"RESET\", \"data\": {\"guest\": false}}\r\n{\"return\": {\"a\": 1}}\r\n"
            } else {
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}}\r\n"
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }

    #[test]
    fn answers_errors_and_events_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = thread::spawn(move || pretend_qemu(&listener));
        let mut qmp = Qmp::connect(&path).unwrap();
        assert_eq!(qmp.execute("system_reset", json!({})).unwrap(), json!({"a": 1}));
        assert_eq!(qmp.wait_event("RESET", Duration::from_secs(1)).unwrap()["data"]["guest"], json!(false));
        assert!(qmp.wait_event("RESET", Duration::from_millis(30)).is_err());
        let error = qmp.execute("other", json!({})).unwrap_err().to_string();
        assert_eq!(error, "QEMU refused other: no such thing");
        drop(qmp);
        qemu.join().unwrap();
    }
}
