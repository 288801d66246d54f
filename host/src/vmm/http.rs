//! A VMM's API: HTTP/1.1 with JSON over a unix socket, each call a connection of its own. Knows no VMM.

use super::deadline::{ANSWER, CONNECT, MAX_ANSWER, within};
use super::error::VmmError;
use crate::unix_http;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// Where one VMM's API is.
#[derive(Debug)]
pub(super) struct Api {
    name: &'static str,
    path: PathBuf,
}

/// What it answers, whatever that means.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Api {
    /// `name` is for messages.
    pub(super) fn new(name: &'static str, path: &Path) -> Self {
        Self { name, path: path.to_path_buf() }
    }

    /// `cloud-hypervisor at /run/x.sock: TEXT`.
    pub(super) fn says(&self, text: &str) -> String {
        format!("{} at {}: {text}", self.name, self.path.display())
    }

    pub(super) async fn get(&self, target: &str) -> Result<Answer, VmmError> {
        self.call(Method::GET, target, None).await
    }

    pub(super) async fn call(&self, method: Method, target: &str, body: Option<Value>) -> Result<Answer, VmmError> {
        let connect = async {
            UnixStream::connect(&self.path).await.map_err(|error| VmmError::Unreachable(self.says(&error.to_string())))
        };
        let stream = within(CONNECT, || self.says("its socket"), connect).await?;
        let what = format!("{method} {target}");
        within(ANSWER, || self.says(&what), self.ask(stream, method, target, body)).await
    }

    async fn ask(
        &self,
        stream: UnixStream,
        method: Method,
        target: &str,
        body: Option<Value>,
    ) -> Result<Answer, VmmError> {
        let broken = |what: &str| VmmError::Protocol(self.says(&format!("{target}: {what}")));
        let mut request = Request::builder().method(method).uri(target).header(HOST, "localhost");
        request = request.header(ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| broken(&error.to_string()))?;
        let (response, _connection) =
            unix_http::ask(stream, request).await.map_err(|error| broken(&unix_http::shown(&error)))?;
        let status = response.status().as_u16();
        match Limited::new(response.into_body(), MAX_ANSWER).collect().await {
            Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => Err(broken("an answer of more than 1 MiB")),
            Err(error) => Err(broken(&unix_http::shown(&*error))),
        }
    }

    /// The body of an answer that is a success.
    pub(super) fn parse<T: DeserializeOwned>(&self, target: &str, answer: &Answer) -> Result<T, VmmError> {
        serde_json::from_slice(&answer.body)
            .map_err(|error| VmmError::Protocol(self.says(&format!("{target}: not the answer expected: {error}"))))
    }
}
