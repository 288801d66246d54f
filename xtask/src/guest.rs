//! `cargo xtask guest`: the static agent, in a cargo call and a target directory of its own.
//!
//! Alone, because one call for the whole workspace would unify features and fatten it; with std built for size where its
//! sources are to be had.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::project::{self, Arch};
use crate::{elf, run, setup};

/// What a VM image gives away for us, whichever std is used. `DESIGN` §8.
pub const LIMIT: u64 = 512 * 1024;

#[derive(Debug)]
pub struct Built {
    pub size: u64,
    pub summary: String,
}

pub fn build(arch: Arch) -> Result<Built> {
    let std_used = if setup::has_sources() { "std built for size" } else { "prebuilt std" };
    let step = run::Step::new(format!("building informant-guest for {arch} with {std_used}"));
    let built = compile(arch, &["--bin", "informant-guest"])?;
    let place = project::guest_path(arch);
    install(&built.join("informant-guest"), &place)?;
    let built = describe(&place, std_used)?;
    step.done(&built.summary);
    if built.size > LIMIT {
        bail!(
            "informant-guest for {arch} is {} bytes, over the limit of {LIMIT}: see what grew with `cargo bloat`",
            built.size
        );
    }
    Ok(built)
}

/// An example of the guest, built as the agent is: it measures what ships.
pub fn build_example(name: &str) -> Result<PathBuf> {
    let step = run::Step::new(format!("building the example {name} of informant-guest"));
    let place = compile(Arch::X86_64, &["--example", name])?.join("examples").join(name);
    step.done(&project::shown(&place));
    Ok(place)
}

/// Gives the directory in which cargo leaves what it built.
fn compile(arch: Arch, what: &[&str]) -> Result<PathBuf> {
    setup::toolchain()?;
    if !setup::has_target(arch) {
        bail!("the Rust target {} is not installed: rustup target add {}", arch.musl(), arch.musl());
    }
    let target = project::target().join("guest-build");
    // A panic aborts, so nothing ever unwinds: without the tables the agent is 60 KiB smaller.
    // Fat LTO inlines what is called from one place only, and more; at a lower threshold it is 12 KiB smaller.
    // What stands in many places is outlined: 8 KiB, for one or two hundredths of what a sample costs.
    let mut flags: Vec<String> = [
        "-C relocation-model=static",
        "-C force-unwind-tables=no",
        "-C llvm-args=--inline-threshold=5",
        "-C llvm-args=-enable-machine-outliner=always",
    ]
    .map(str::to_owned)
    .into();
    if arch == Arch::Aarch64 {
        flags.push("-C linker=rust-lld".to_owned());
    }
    if setup::has_sources() {
        // Nothing in the agent panics by design, and what would say so is a tenth of it: a defect ends it at once, and
        // init starts it again.
        flags.extend(["-Z unstable-options", "-C panic=immediate-abort"].map(str::to_owned));
    }
    flags.extend(remapped_paths());
    let mut cargo = run::cargo();
    cargo.args([
        "build",
        "--package",
        "informant-guest",
        "--profile",
        "guest",
        "--target",
        arch.musl(),
        "--target-dir",
    ]);
    cargo.arg(&target).args(what).env("CARGO_ENCODED_RUSTFLAGS", encoded(&flags));
    if setup::has_sources() {
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.args(["-Z", "build-std=std,panic_abort", "-Z", "build-std-features=optimize_for_size"]);
    }
    run::check(cargo.stdout(std::io::stderr()))?;
    Ok(target.join(arch.musl()).join("guest"))
}

/// Copies beside the place and renames: a running old file is not written to.
pub fn install(built: &Path, place: &Path) -> Result<()> {
    let dir = place.parent().context("an artifact has a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let partial = place.with_extension("partial");
    fs::copy(built, &partial).with_context(|| format!("cannot copy {} to {}", built.display(), partial.display()))?;
    fs::rename(&partial, place).with_context(|| format!("cannot move the new file to {}", place.display()))
}

fn describe(path: &Path, std_used: &str) -> Result<Built> {
    let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let size = u64::try_from(file.len())?;
    if !elf::is_static(&file)? {
        bail!("{} is not static: it names a loader", project::shown(path));
    }
    let summary = format!("{}, {size} bytes ({} KiB), static, {std_used}", project::shown(path), size.div_ceil(1024));
    Ok(Built { size, summary })
}

/// Panic messages name source files: without this they would carry the builder's directories into every image.
fn remapped_paths() -> Vec<String> {
    let mut from = vec![(project::root(), "informant")];
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let or_home = |name: &str, dir: &str| {
        std::env::var_os(name).map(Into::into).or_else(|| home.as_ref().map(|home| home.join(dir)))
    };
    from.extend(or_home("CARGO_HOME", ".cargo").map(|dir| (dir, "cargo")));
    from.extend(or_home("RUSTUP_HOME", ".rustup").map(|dir| (dir, "rustup")));
    from.into_iter().map(|(dir, to)| format!("--remap-path-prefix={}=/{to}", dir.display())).collect()
}

/// Cargo's own separator: unlike a blank it does not break paths with blanks.
fn encoded(flags: &[String]) -> String {
    let words = flags.iter().flat_map(|flag| match flag.split_once(' ') {
        Some((letter @ ("-C" | "-Z"), option)) => vec![letter, option],
        _ => vec![flag.as_str()],
    });
    words.collect::<Vec<_>>().join("\x1f")
}
