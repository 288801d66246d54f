//! How old the data of all instances is, as the daemon's API tells.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Ages at one moment, ascending.
#[derive(Debug)]
pub(super) struct Ages {
    ms: Vec<u64>,
    without: usize,
}

impl Ages {
    pub(super) fn ask(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).with_context(|| format!("cannot ask {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        // HTTP/1.0: the answer ends with the connection, in one piece.
        stream.write_all(b"GET /v1/instances HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a head")?;
        if !answer.windows(4).take(16).any(|four| four == b" 200") {
            bail!("the daemon answered {}", String::from_utf8_lossy(&answer[..head.min(80)]));
        }
        Self::read(&serde_json::from_slice(&answer[head + 4..])?)
    }

    fn read(answer: &Value) -> Result<Self> {
        let instances = answer["instances"].as_array().context("an answer without instances")?;
        let mut ms: Vec<u64> = instances.iter().filter_map(|one| one["data"]["age_ms"].as_u64()).collect();
        ms.sort_unstable();
        Ok(Self { without: instances.len() - ms.len(), ms })
    }

    pub(super) fn count(&self) -> usize {
        self.ms.len()
    }

    /// Instances without data.
    pub(super) fn without(&self) -> usize {
        self.without
    }

    /// 100: the oldest. 0 where there are none.
    pub(super) fn percentile(&self, percent: usize) -> u64 {
        let last = self.ms.len().saturating_sub(1);
        self.ms.get((self.ms.len() * percent).div_ceil(100).saturating_sub(1).min(last)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_instances_that_have_data() {
        let mut answer = serde_json::json!({"instances": [{"name": "new", "data": {"age_ms": null}}]});
        let instances = answer["instances"].as_array_mut().unwrap();
        instances.extend((1..=100).rev().map(|age| serde_json::json!({"data": {"age_ms": age}})));
        let ages = Ages::read(&answer).unwrap();
        assert_eq!((ages.count(), ages.without()), (100, 1));
        assert_eq!((ages.percentile(50), ages.percentile(99), ages.percentile(100)), (50, 99, 100));
        assert!(Ages::read(&serde_json::json!({})).is_err());
    }
}
