//! Where things are: the workspace, what xtask leaves in `target/`, and the cache shared by all checkouts.
//!
//! Tests take the programs they drive from here. `cargo xtask test` names them in the environment; without it the
//! places where `cargo xtask guest`, `host` and `initramfs` leave them are used.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The directory of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let xtask = if manifest.ends_with("xtask") { manifest } else { PathBuf::from(env!("CARGO_MANIFEST_DIR")) };
    xtask.parent().map_or_else(|| xtask.clone(), Path::to_path_buf)
}

/// The ordinary `target/`, whatever `CARGO_TARGET_DIR` says: other people's scripts look there.
pub fn target() -> PathBuf {
    root().join("target")
}

/// What is fetched or built once for all checkouts: kernel, busybox, the vsock device.
pub fn cache() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            let home = env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set: no place for the cache")?;
            PathBuf::from(home).join(".cache")
        }
    };
    Ok(base.join("informant"))
}

/// A path as people want to read it: relative to the workspace where it lies inside.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "x86_64" | "amd64" => Ok(Self::X86_64),
            "aarch64" | "arm64" => Ok(Self::Aarch64),
            _ => bail!("unknown architecture `{name}`: expected x86_64 or aarch64"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    pub fn musl(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-musl",
            Self::Aarch64 => "aarch64-unknown-linux-musl",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where `cargo xtask guest` leaves the agent.
pub fn guest_path(arch: Arch) -> PathBuf {
    target().join("guest").join(arch.name()).join("informant-guest")
}

/// Where `cargo xtask host` leaves the daemon.
pub fn host_path() -> PathBuf {
    target().join("release/informant-host")
}

/// Where `cargo xtask host --static` leaves the daemon that runs inside a VM.
pub fn host_static_path() -> PathBuf {
    target().join("host-static/informant-host")
}

/// Where `cargo xtask initramfs` leaves the image.
pub fn initramfs_path() -> PathBuf {
    target().join("initramfs/x86_64.cpio.gz")
}

/// Where `cargo xtask test` leaves the program that speaks raw vsock inside a VM.
pub fn vsock_cat_path() -> PathBuf {
    target().join("test-tools/vsock-cat")
}

/// Where `cargo xtask test` leaves the program that takes memory and CPUs inside a VM.
pub fn workload_path() -> PathBuf {
    target().join("test-tools/workload")
}

/// The static agent that tests drive.
pub fn guest() -> Result<PathBuf> {
    existing("INFORMANT_GUEST", guest_path(Arch::X86_64), "cargo xtask guest")
}

/// The host binary that tests drive.
pub fn host() -> Result<PathBuf> {
    existing("INFORMANT_HOST", host_path(), "cargo xtask host")
}

/// The host binary for use inside a VM.
pub fn host_static() -> Result<PathBuf> {
    existing("INFORMANT_HOST_STATIC", host_static_path(), "cargo xtask host --static")
}

/// The image that VMs boot.
pub fn initramfs() -> Result<PathBuf> {
    existing("INFORMANT_INITRAMFS", initramfs_path(), "cargo xtask initramfs")
}

/// The raw vsock client and server for use inside a VM.
pub fn vsock_cat() -> Result<PathBuf> {
    existing("INFORMANT_VSOCK_CAT", vsock_cat_path(), "cargo xtask test --build")
}

/// The program that takes memory and CPUs, for use inside a VM.
pub fn workload() -> Result<PathBuf> {
    existing("INFORMANT_WORKLOAD", workload_path(), "cargo xtask test --build")
}

fn existing(variable: &str, default: PathBuf, made_by: &str) -> Result<PathBuf> {
    let path = env::var_os(variable).map_or(default, PathBuf::from);
    if !path.is_file() {
        bail!("{} does not exist: make it with `{made_by}`, or name another in {variable}", shown(&path));
    }
    Ok(path)
}
