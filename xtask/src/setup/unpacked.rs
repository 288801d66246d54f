//! Debian packages that are used without being installed: the stock cloud kernel, a static busybox, and node_exporter, which
//! is what our metrics are compared with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{apt, fill};
use crate::{project, run};

const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";
const NODE_EXPORTER: &str = "prometheus-node-exporter";

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bzImage.
    pub image: PathBuf,
    /// `lib/modules/RELEASE`.
    pub modules: PathBuf,
    /// As `uname -r` says it.
    pub release: String,
}

pub(super) fn ensure(cache: &Path) -> Result<()> {
    let place = cache.join("kernel-x86_64");
    if !place.is_dir() {
        let package = apt::dependency(KERNEL, "linux-image-")?;
        let step = run::Step::new(format!("fetching the kernel {package}"));
        fill(&place, |dir| {
            apt::unpack(&package, dir)?;
            find_kernel(dir).map(drop)
        })?;
        step.done("unpacked into the cache");
    }
    fetch(cache, BUSYBOX, find_busybox)?;
    fetch(cache, NODE_EXPORTER, find_node_exporter)
}

fn fetch(cache: &Path, package: &str, find: fn(&Path) -> Result<PathBuf>) -> Result<()> {
    let place = cache.join(package);
    if !place.is_dir() {
        let step = run::Step::new(format!("fetching {package}"));
        fill(&place, |dir| {
            apt::unpack(package, dir)?;
            find(dir).map(drop)
        })?;
        step.done("unpacked into the cache");
    }
    Ok(())
}

/// The kernel that VMs boot.
pub fn kernel() -> Result<Kernel> {
    find_kernel(&project::cache()?.join("kernel-x86_64")).context("the kernel is not there: cargo xtask setup")
}

/// The static busybox of the image; it runs here too.
pub fn busybox() -> Result<PathBuf> {
    find_busybox(&project::cache()?.join(BUSYBOX)).context("busybox is not there: cargo xtask setup")
}

/// node_exporter, linked with this machine's C library.
pub fn node_exporter() -> Result<PathBuf> {
    find_node_exporter(&project::cache()?.join(NODE_EXPORTER)).context("node_exporter is not there: cargo xtask setup")
}

fn find_kernel(dir: &Path) -> Result<Kernel> {
    let boot = dir.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("cannot read {}", boot.display()))? {
        let path = entry?.path();
        let Some(release) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("vmlinuz-"))
        else {
            continue;
        };
        let modules = ["lib/modules", "usr/lib/modules"].map(|base| dir.join(base).join(release));
        let Some(modules) = modules.into_iter().find(|dir| dir.is_dir()) else {
            bail!("{} has no modules beside its kernel {release}", dir.display());
        };
        return Ok(Kernel { modules, release: release.to_owned(), image: path });
    }
    bail!("no vmlinuz-* in {}", boot.display())
}

fn find_busybox(dir: &Path) -> Result<PathBuf> {
    let found = ["bin/busybox", "usr/bin/busybox"].map(|path| dir.join(path)).into_iter().find(|path| path.is_file());
    found.with_context(|| format!("no busybox in {}", dir.display()))
}

fn find_node_exporter(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("usr/bin/prometheus-node-exporter");
    if path.is_file() { Ok(path) } else { bail!("no node_exporter in {}", dir.display()) }
}
