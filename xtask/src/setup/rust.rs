//! The Rust side: the musl targets, the sources of std (a smaller guest), formatter and linter.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Result, bail};

use crate::project::Arch;
use crate::run;

/// Printed when rustup cannot help; tried on Debian 12.
const WITHOUT_RUSTUP: &str = "\
the static guest needs Rust's musl target, and rustup could not fetch it. Either
  - make rustup work, then: rustup target add x86_64-unknown-linux-musl aarch64-unknown-linux-musl && rustup component add rust-src
  - or take Debian's compiler, as root: apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src musl-tools
    and build as images/README.md says under \"Without rustup\"";

pub(super) fn ensure() -> Result<()> {
    let targets: Vec<&str> = Arch::ALL.into_iter().filter(|arch| !has_target(*arch)).map(Arch::musl).collect();
    let mut components = Vec::new();
    if !has_sources() {
        components.push("rust-src");
    }
    components.extend(["rustfmt", "clippy"].into_iter().filter(|name| !has_tool(name)));
    if targets.is_empty() && components.is_empty() {
        return Ok(());
    }
    if !run::on_path("rustup") {
        if !has_target(Arch::X86_64) {
            bail!("rustup is not installed: {WITHOUT_RUSTUP}");
        }
        eprintln!("== rustup is not installed: going on without {}", [targets, components].concat().join(", "));
        return Ok(());
    }
    let step = run::Step::new(format!("rustup: adding {}", [targets.clone(), components.clone()].concat().join(", ")));
    let mut failed = Vec::new();
    // One at a time: a toolchain for which one of them cannot be had still gets the others.
    for (kind, names) in [("target", targets), ("component", components)] {
        for name in names {
            if let Err(error) = run::read(Command::new("rustup").args([kind, "add", name])) {
                eprintln!("== {error:#}");
                failed.push(name);
            }
        }
    }
    if failed.contains(&Arch::X86_64.musl()) {
        bail!("{WITHOUT_RUSTUP}");
    }
    step.done(&if failed.is_empty() { "added".to_owned() } else { format!("going on without {}", failed.join(", ")) });
    Ok(())
}

/// Whether the prebuilt std of the musl target is there; building std ourselves needs its start files too.
pub fn has_target(arch: Arch) -> bool {
    sysroot().is_some_and(|sysroot| sysroot.join("lib/rustlib").join(arch.musl()).join("lib").is_dir())
}

/// Whether std can be built from its sources.
pub fn has_sources() -> bool {
    sysroot().is_some_and(|sysroot| sysroot.join("lib/rustlib/src/rust/library/std/src/lib.rs").is_file())
}

fn has_tool(component: &str) -> bool {
    let program = if component == "clippy" { "cargo-clippy" } else { component };
    sysroot().is_some_and(|sysroot| sysroot.join("bin").join(program).is_file())
}

fn sysroot() -> Option<&'static Path> {
    static SYSROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = SYSROOT.get_or_init(|| {
        let text = run::read(Command::new("rustc").args(["--print", "sysroot"])).ok()?;
        Some(PathBuf::from(text.trim()))
    });
    found.as_deref()
}
