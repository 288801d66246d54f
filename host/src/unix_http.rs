//! One HTTP/1.1 question over a unix socket that is connected already. Deadlines and limits are the caller's.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

/// The head of the answer. The connection lives as long as the second: keep it until the body is read.
pub(crate) async fn ask(
    stream: UnixStream,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Connection), hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // A failure of the connection reaches us through the answer.
    let connection = Connection(tokio::spawn(async move { drop(connection.await) }).abort_handle());
    let response = sender.send_request(request).await?;
    Ok((response, connection))
}

/// An error with its cause: hyper tells that only in the source.
pub(crate) fn shown(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The task that moves a connection's bytes; it ends with the answer's reader.
#[derive(Debug)]
pub(crate) struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}
