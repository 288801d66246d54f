//! The way to the daemon: HTTP/1.1 over DIR/informant.sock. Every wait has a deadline and every answer a limit, so
//! that a daemon that hangs costs a person seconds and no memory. Knows paths and bytes, not what they mean.

use crate::lock;
use crate::publish::status::ApiError;
use crate::unix_http::{self, Connection};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout, timeout_at};

/// The daemon's socket within its directory.
pub(super) const SOCKET: &str = "informant.sock";

/// For the connection and the head of the answer: the daemon answers from memory.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// For a whole answer: the list of 10,000 instances takes a fraction of it.
const BODY_DEADLINE: Duration = Duration::from_secs(20);
/// Bytes of an answer: 10,000 summaries take about 10 MB, one status with 6,000 series about 2 MB.
const MAX_BODY: usize = 256 << 20;
/// Bytes of an error's answer that are read.
const MAX_ERROR_BODY: usize = 4096;
/// Columns of its text that are shown.
const MAX_ERROR_COLUMNS: usize = 300;
/// Bytes of a line of a stream: a status of 6,000 series fits.
const MAX_LINE: usize = 16 << 20;

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// No socket, or nobody behind it: no daemon serves this directory.
    #[error("no daemon answers at {}", path.display())]
    Down {
        /// The socket.
        path: PathBuf,
    },
    /// The same, and yet a daemon holds the directory's lock.
    #[error("no daemon answers at {}, though one holds {} (is it starting or stopping?)", path.display(), lock.display())]
    Locked {
        /// The socket.
        path: PathBuf,
        /// The lock.
        lock: PathBuf,
    },
    /// There is a daemon, but not for this user.
    #[error("no permission for {} (it is for root and its group: try sudo)", path.display())]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// A daemon accepts and does not answer.
    #[error("the daemon at {} does not answer within {} s", path.display(), after.as_secs())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long it was given.
        after: Duration,
    },
    /// The connection failed.
    #[error("cannot talk to the daemon at {}: {cause}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What failed.
        cause: String,
    },
    /// The daemon answered with an error.
    #[error("the daemon at {} answers {status}: {text}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The answer's status.
        status: StatusCode,
        /// What it said, escaped for a terminal.
        text: String,
    },
}

/// `name` as a part of a path or a query.
#[must_use]
pub(super) fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

impl ClientError {
    /// Looks at the lock, which alone tells whether a daemon lives, when nobody answers. Not for loops: for a moment
    /// the look holds what a starting daemon wants.
    #[must_use]
    pub(super) fn with_lock(self, dir: &Path) -> Self {
        match self {
            Self::Down { path } if lock::is_held(dir) => Self::Locked { path, lock: lock::path(dir) },
            other => other,
        }
    }
}

/// Asks the daemon of one directory. Each question is a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct Client {
    path: PathBuf,
}

impl Client {
    /// For the daemon that serves `dir`.
    #[must_use]
    pub(super) fn new(dir: &Path) -> Self {
        Self { path: dir.join(SOCKET) }
    }

    /// The whole answer to `GET target`; `None` where there is no such thing.
    pub(super) async fn get(&self, target: &str) -> Result<Option<Bytes>, ClientError> {
        let (response, _connection) = self.ask(target, None).await?;
        self.whole(response).await
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Option<Bytes>, ClientError> {
        let deadline = Instant::now() + BODY_DEADLINE;
        let status = response.status();
        let limit = if status.is_success() { MAX_BODY } else { MAX_ERROR_BODY };
        let body = timeout_at(deadline, Limited::new(response.into_body(), limit).collect())
            .await
            .map_err(|_| ClientError::Silent { path: self.path.clone(), after: BODY_DEADLINE })?;
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() && !status.is_success() => Bytes::new(),
            Err(error) => return Err(self.broken(&*error)),
        };
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            _ if status.is_success() => Ok(Some(body)),
            _ => Err(self.refused(status, &body)),
        }
    }

    /// The lines of the endless answer to `GET target`; `None` where there is no such thing.
    pub(super) async fn lines(&self, target: &str) -> Result<Option<Lines>, ClientError> {
        self.lines_of(self.ask(target, None).await?).await
    }

    /// The lines of the answer to `POST target` with this JSON; `None` where there is no such thing.
    pub(super) async fn post(&self, target: &str, json: String) -> Result<Option<Lines>, ClientError> {
        self.lines_of(self.ask(target, Some(json)).await?).await
    }

    async fn lines_of(
        &self,
        (response, connection): (Response<Incoming>, Connection),
    ) -> Result<Option<Lines>, ClientError> {
        if response.status().is_success() {
            let (client, body) = (self.clone(), response.into_body());
            return Ok(Some(Lines { client, body, buffer: Vec::new(), searched: 0, _connection: connection }));
        }
        // Not a stream then, but an error with its text.
        self.whole(response).await.map(|_| None)
    }

    /// That the daemon ended a stream.
    #[must_use]
    pub(super) fn ended(&self) -> ClientError {
        ClientError::Down { path: self.path.clone() }
    }

    /// `json`: the body of a POST; else it is a GET.
    async fn ask(&self, target: &str, json: Option<String>) -> Result<(Response<Incoming>, Connection), ClientError> {
        timeout(HEAD_DEADLINE, self.ask_unbounded(target, json))
            .await
            .map_err(|_| ClientError::Silent { path: self.path.clone(), after: HEAD_DEADLINE })?
    }

    async fn ask_unbounded(
        &self,
        target: &str,
        json: Option<String>,
    ) -> Result<(Response<Incoming>, Connection), ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| self.unreachable(&error))?;
        let request = match &json {
            None => Request::get(target),
            Some(_) => Request::post(target).header(hyper::header::CONTENT_TYPE, "application/json"),
        };
        let request = request
            .header(hyper::header::HOST, "informant")
            .body(Full::new(Bytes::from(json.unwrap_or_default())))
            .map_err(|error| self.broken(&error))?;
        unix_http::ask(stream, request).await.map_err(|error| self.broken(&error))
    }

    fn unreachable(&self, error: &io::Error) -> ClientError {
        let path = self.path.clone();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::Down { path },
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { path },
            _ => self.broken(error),
        }
    }

    fn broken(&self, error: &dyn std::error::Error) -> ClientError {
        ClientError::Broken { path: self.path.clone(), cause: unix_http::shown(error) }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        let text = match serde_json::from_slice::<ApiError>(body) {
            Ok(answer) => answer.error,
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        };
        let text = super::escape::escape(&text, MAX_ERROR_COLUMNS);
        ClientError::Refused { path: self.path.clone(), status, text }
    }
}

/// An endless answer, line by line.
#[derive(Debug)]
pub(super) struct Lines {
    client: Client,
    body: Incoming,
    buffer: Vec<u8>,
    /// How much of `buffer` is known to hold no newline.
    searched: usize,
    _connection: Connection,
}

impl Lines {
    /// The next line without its newline; `None` when the daemon ended the answer. Cancel-safe. Without a deadline:
    /// where nothing changes nothing comes, so whoever waits long asks by [`Client::get`] whether the daemon lives.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            let new = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = new.iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(self.client.broken(&io::Error::other("a line without end")));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.broken(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    /// A directory whose socket answers one connection with these bytes, a piece at a time, and then closes or hangs.
    fn daemon(pieces: Vec<Vec<u8>>, hang: bool) -> (tempfile::TempDir, Client) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let client = Client::new(dir.path());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            for piece in pieces {
                if stream.write_all(&piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            if hang {
                std::future::pending::<()>().await;
            }
        });
        (dir, client)
    }

    fn answer(status: &str, body: &str) -> Vec<Vec<u8>> {
        vec![format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()]
    }

    #[tokio::test]
    async fn answers_are_whole_missing_or_errors_with_their_text() {
        let (_dir, client) = daemon(answer("200 OK", "{}"), false);
        assert_eq!(client.get("/v1/instances").await.unwrap().unwrap(), "{}");
        let (_dir, client) = daemon(answer("404 Not Found", "{}"), false);
        assert!(client.get("/v1/instances/x").await.unwrap().is_none());
        let (_dir, client) = daemon(answer("503 Busy", r#"{"error":"too many\u001b[31m readers"}"#), false);
        let error = client.get("/").await.unwrap_err().to_string();
        assert!(error.ends_with(r"answers 503 Service Unavailable: too many\u{1b}[31m readers"), "{error}");
    }

    #[tokio::test]
    async fn an_error_text_without_end_is_not_read() {
        let mut pieces = vec![b"HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()];
        pieces.extend((0..1000).map(|_| [b"1000\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat()));
        let (_dir, client) = daemon(pieces, true);
        assert!(matches!(client.get("/").await, Err(ClientError::Refused { .. })));
    }

    #[tokio::test]
    async fn no_socket_a_deaf_one_and_a_torn_answer_are_told_apart() {
        let (dir, client) = daemon(answer("200 OK", "{}"), false);
        std::fs::remove_file(dir.path().join(SOCKET)).unwrap();
        assert!(matches!(client.get("/").await, Err(ClientError::Down { .. })));
        drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).unwrap());
        assert!(matches!(client.get("/").await, Err(ClientError::Down { .. })));
        let torn = vec![b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()];
        let (_dir, client) = daemon(torn, false);
        assert!(matches!(client.get("/").await, Err(ClientError::Broken { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_never_answers_costs_a_bounded_wait() {
        let (_dir, client) = daemon(Vec::new(), true);
        assert!(matches!(client.get("/").await, Err(ClientError::Silent { .. })));
        let half = vec![b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()];
        let (_dir, client) = daemon(half, true);
        assert!(matches!(client.get("/").await, Err(ClientError::Silent { .. })));
    }

    #[tokio::test]
    async fn lines_come_whole_however_the_bytes_are_cut() {
        let text = "{\"a\":1}\n\n{\"b\":\"漢\"}\nrest";
        let mut pieces = vec![b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()];
        pieces.extend(text.bytes().map(|byte| vec![b'1', b'\r', b'\n', byte, b'\r', b'\n']));
        pieces.push(b"0\r\n\r\n".to_vec());
        let (_dir, client) = daemon(pieces, false);
        let mut lines = client.lines("/v1/watch").await.unwrap().unwrap();
        let mut got = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            got.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(got, ["{\"a\":1}", "", "{\"b\":\"漢\"}"]);
    }

    #[test]
    fn names_are_encoded_for_a_path() {
        assert_eq!(encode("web-1.a_b~"), "web-1.a_b~");
        assert_eq!(encode("../a b?&/ä"), "..%2Fa%20b%3F%26%2F%C3%A4");
    }
}
