//! `cargo xtask setup`: makes present what the other commands need, and is quick when nothing is missing.
//!
//! System packages come from apt, the rest goes into the user's cache. Whatever is fetched is unpacked beside its place
//! and renamed, so that an interrupted setup leaves nothing half done.

mod apt;
mod rust;
mod unpacked;
mod vhost;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{lock, project};

pub use rust::{has_sources, has_target};
pub use unpacked::{Kernel, busybox, kernel, node_exporter};
pub use vhost::program as vhost_device_vsock;

/// Longer than the longest honest setup on a slow line.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Everything that building, booting and testing need.
pub fn all() -> Result<()> {
    let cache = project::cache()?;
    let _lock = lock::take(&cache.join("lock"), "setup", PATIENCE)?;
    rust::ensure()?;
    apt::ensure()?;
    unpacked::ensure(&cache)?;
    vhost::ensure(&cache)
}

/// What building the guest and the host takes, without the means to boot.
pub fn toolchain() -> Result<()> {
    let _lock = lock::take(&project::cache()?.join("lock"), "setup", PATIENCE)?;
    rust::ensure()
}

/// Fills a directory beside `place`, then renames it there.
fn fill(place: &Path, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = place.parent().context("a cache directory has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let partial = tempfile::Builder::new()
        .prefix(".partial-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let filled: PathBuf = partial.path().join("filled");
    fs::create_dir(&filled)?;
    work(&filled)?;
    fs::rename(&filled, place).with_context(|| format!("cannot move what was fetched to {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_fill_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("thing");
        let failed = fill(&place, |partial| {
            fs::write(partial.join("half"), "x")?;
            anyhow::bail!("interrupted")
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fill(&place, |partial| Ok(fs::write(partial.join("whole"), "x")?)).unwrap();
        assert!(place.join("whole").is_file());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
