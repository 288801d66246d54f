//! How long a VMM may take (the waits of others that proved themselves, reference: 10 s for a resize in all).

use super::error::VmmError;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// For a connection: the peer is on this machine.
pub(super) const CONNECT: Duration = Duration::from_secs(2);
/// For the answer to one question.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// For an observation or a resize in all, with every question in it.
pub(super) const WHOLE: Duration = Duration::from_secs(10);
/// Bytes of an answer: descriptions of VMs take a few KiB.
pub(super) const MAX_ANSWER: usize = 1 << 20;

/// What `work` gives, or that it took longer than `limit`. `what` is told as `WHAT does not answer within N s`.
pub(super) async fn within<T>(
    limit: Duration,
    what: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, VmmError>>,
) -> Result<T, VmmError> {
    match timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(VmmError::Timeout(format!("{} does not answer within {} s", what(), limit.as_secs()))),
    }
}
