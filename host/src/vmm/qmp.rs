//! QEMU's monitor protocol: greeting, `qmp_capabilities`, one command at a time, its answer found by its id among the
//! events. Lenient: what a newer QEMU adds is skipped. Only our side of one connection; a monitor serves one client at
//! a time, so a connection is for one operation.

use super::deadline::{ANSWER, CONNECT, MAX_ANSWER, within};
use super::error::{VmmError, line};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// One connection, ready for commands.
#[derive(Debug)]
pub(super) struct Qmp {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    last_id: u64,
}

/// QEMU's no to one command.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Refusal {
    /// Such as `GenericError`, `DeviceNotFound`, `DeviceNotActive`, `CommandNotFound`.
    #[serde(default)]
    pub(super) class: String,
    #[serde(default)]
    pub(super) desc: String,
}

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    id: Option<Value>,
    #[serde(rename = "return", default, deserialize_with = "present")]
    answer: Option<Value>,
    error: Option<Refusal>,
}

/// An answer of `null` is one too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// `qemu at /run/x.sock: TEXT`.
pub(super) fn says(path: &Path, text: &str) -> String {
    format!("qemu at {}: {text}", path.display())
}

impl Qmp {
    pub(super) async fn connect(path: &Path) -> Result<Self, VmmError> {
        let connect = async {
            UnixStream::connect(path).await.map_err(|error| VmmError::Unreachable(says(path, &error.to_string())))
        };
        let stream = within(CONNECT, || says(path, "its socket"), connect).await?;
        let mut qmp = Self { path: path.to_path_buf(), stream: BufReader::new(stream), last_id: 0 };
        // The monitor of a QEMU that has another client accepts, and greets only when that one is gone.
        let what = || says(path, "no greeting (does another client hold this monitor?), it");
        let greeting = within(ANSWER, what, qmp.message()).await?;
        if greeting.greeting.is_none() {
            return Err(VmmError::Protocol(says(path, "not the greeting of a QMP socket")));
        }
        let _nothing: Value = qmp.get("qmp_capabilities").await?;
        Ok(qmp)
    }

    /// A command without arguments that every QEMU knows.
    pub(super) async fn get<T: DeserializeOwned>(&mut self, command: &str) -> Result<T, VmmError> {
        let answer = self.execute(command, json!({})).await?;
        answer.map_err(|refusal| self.refused(command, &refusal))
    }

    /// What QEMU says to a command: an answer or a no.
    pub(super) async fn execute<T: DeserializeOwned>(
        &mut self,
        command: &str,
        arguments: Value,
    ) -> Result<Result<T, Refusal>, VmmError> {
        let path = self.path.clone();
        within(ANSWER, || says(&path, command), self.execute_unbounded(command, arguments)).await
    }

    /// A no as an error.
    pub(super) fn refused(&self, command: &str, refusal: &Refusal) -> VmmError {
        let text = says(&self.path, &format!("{command}: {}", line(&refusal.desc)));
        // A guest whose ACPI did not take over yet is said not to support it.
        let later = ["not activated", "migrat", "in the process of unplug", "not supported device type"];
        if refusal.class == "DeviceNotActive" || later.iter().any(|words| refusal.desc.contains(words)) {
            VmmError::NotYet(text)
        } else {
            VmmError::Refused(text)
        }
    }

    async fn execute_unbounded<T: DeserializeOwned>(
        &mut self,
        command: &str,
        arguments: Value,
    ) -> Result<Result<T, Refusal>, VmmError> {
        self.last_id += 1;
        let id = Value::from(self.last_id);
        let mut text = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        text.push('\n');
        let sent = self.stream.write_all(text.as_bytes()).await;
        sent.map_err(|error| self.broken(&format!("{command}: {error}")))?;
        loop {
            let message = self.message().await?;
            match (message.id, message.answer, message.error) {
                (Some(of), Some(answer), None) if of == id => {
                    let unexpected = |error| self.broken(&format!("{command}: not the answer expected: {error}"));
                    return serde_json::from_value(answer).map(Ok).map_err(unexpected);
                }
                (Some(of), None, Some(refusal)) if of == id => return Ok(Err(refusal)),
                // It did not understand a line, and nobody else speaks here.
                (None, None, Some(refusal)) => return Err(self.broken(&format!("{command}: {}", line(&refusal.desc)))),
                // An event, or what a newer one says besides.
                _ => {}
            }
        }
    }

    /// An answer that is none.
    pub(super) fn broken(&self, text: &str) -> VmmError {
        VmmError::Protocol(says(&self.path, text))
    }

    async fn message(&mut self) -> Result<Message, VmmError> {
        let mut whole = Vec::new();
        loop {
            let read = self.stream.fill_buf().await;
            let buffer = match read {
                Ok([]) => return Err(self.broken("closed the connection")),
                Ok(buffer) => buffer,
                Err(error) => return Err(self.broken(&error.to_string())),
            };
            let (line, ends) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(at) => (buffer.get(..=at).unwrap_or(buffer), true),
                None => (buffer, false),
            };
            whole.extend_from_slice(line);
            let taken = line.len();
            self.stream.consume(taken);
            if whole.len() > MAX_ANSWER {
                return Err(self.broken("a line of more than 1 MiB"));
            }
            if ends {
                return serde_json::from_slice(&whole).map_err(|error| self.broken(&format!("not QMP: {error}")));
            }
        }
    }
}
