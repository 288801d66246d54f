//! `vhost-device-vsock`: the virtio-vsock device of our VMs, built once from the Rust registry.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::fill;
use crate::{project, run};

const VERSION: &str = "0.3.0";

pub(super) fn ensure(cache: &Path) -> Result<()> {
    let place = place(cache);
    if place.is_dir() {
        return Ok(());
    }
    let step = run::Step::new(format!("building vhost-device-vsock {VERSION} (one to three minutes)"));
    fill(&place, |dir| {
        let build = tempfile::Builder::new().prefix(".build-").tempdir_in(cache)?;
        let mut cargo = run::cargo_anywhere();
        cargo.current_dir(cache).env("CARGO_TARGET_DIR", build.path());
        cargo
            .args(["install", "--locked", "--quiet", "--version", VERSION, "--root"])
            .arg(dir)
            .arg("vhost-device-vsock");
        run::check(cargo.stdout(std::io::stderr()))?;
        // Cargo's own records name the directory it was built in.
        for record in [".crates.toml", ".crates2.json"] {
            fs::remove_file(dir.join(record)).ok();
        }
        Ok(())
    })?;
    step.done("built");
    Ok(())
}

/// The device program.
pub fn program() -> Result<PathBuf> {
    let path = place(&project::cache()?).join("bin/vhost-device-vsock");
    if !path.is_file() {
        bail!("vhost-device-vsock is not there: cargo xtask setup");
    }
    path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()))
}

fn place(cache: &Path) -> PathBuf {
    cache.join(format!("vhost-device-vsock-{VERSION}"))
}
