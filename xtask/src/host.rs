//! `cargo xtask host`: the daemon and command line for this machine, or static for use inside a VM.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::project::{self, Arch};
use crate::{guest, run, setup};

/// For programs that only tests run: without optimisation over all crates they are there in half the time.
pub const LIGHTER: [&str; 2] = ["--config", "profile.release.lto=\"off\""];

/// Leaves `target/release/informant-host`.
pub fn build() -> Result<()> {
    build_release("informant-host", &project::host_path())
}

/// This program, as fast as it gets: what plays thousands of agents must not take the machine from what serves them.
pub fn build_simulator() -> Result<PathBuf> {
    let place = project::target().join("release/xtask");
    build_release("xtask", &place)?;
    Ok(place)
}

fn build_release(package: &str, place: &Path) -> Result<()> {
    let step = run::Step::new(format!("building {package}"));
    let mut cargo = run::cargo();
    cargo.args(["build", "--package", package, "--release", "--target-dir"]).arg(project::target());
    run::check(cargo.stdout(std::io::stderr()))?;
    step.done(&project::shown(place));
    Ok(())
}

/// An example of the host, built as the daemon is.
pub fn build_example(name: &str) -> Result<PathBuf> {
    let step = run::Step::new(format!("building the example {name} of informant-host"));
    let mut cargo = run::cargo();
    cargo.args(["build", "--package", "informant-host", "--release", "--example", name, "--target-dir"]);
    run::check(cargo.arg(project::target()).stdout(std::io::stderr()))?;
    let place = project::target().join("release/examples").join(name);
    step.done(&project::shown(&place));
    Ok(place)
}

/// Leaves `target/host-static/informant-host`, which needs no library.
pub fn build_static() -> Result<()> {
    setup::toolchain()?;
    let musl = Arch::X86_64.musl();
    if !setup::has_target(Arch::X86_64) {
        bail!("the Rust target {musl} is not installed: rustup target add {musl}");
    }
    let step = run::Step::new("building informant-host, static");
    let mut cargo = run::cargo();
    cargo.args(["build", "--package", "informant-host", "--release", "--target", musl, "--target-dir"]);
    cargo.arg(project::target()).args(LIGHTER);
    run::check(cargo.stdout(std::io::stderr()))?;
    let place = project::host_static_path();
    guest::install(&project::target().join(musl).join("release/informant-host"), &place)?;
    step.done(&project::shown(&place));
    Ok(())
}
