//! A stream that fails when its peer does not read for a while, so that nobody holds a place that way. Knows no protocol.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a peer may leave what it asked for unread.
const UNREAD: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Patience<S> {
    stream: S,
    /// Runs while a write waits.
    unread: Option<Pin<Box<Sleep>>>,
}

impl<S> Patience<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, unread: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patience<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patience<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        ready!(self.unread.get_or_insert_with(|| Box::pin(sleep(UNREAD))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_waited_for_and_one_that_does_not_read_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Patience::new(ours);
        let writes = async { ours.write_all(&[7; 64]).await };
        let reads = async {
            for _ in 0..7 {
                sleep(UNREAD / 2).await;
                theirs.read_exact(&mut [0; 8]).await.unwrap();
            }
            sleep(UNREAD * 2).await;
        };
        let (written, ()) = tokio::join!(writes, reads);
        written.unwrap();
        assert_eq!(ours.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
