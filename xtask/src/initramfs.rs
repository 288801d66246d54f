//! `cargo xtask initramfs`: the image that demo, tests and benchmarks boot. What is in it stands in images/initramfs/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::image::cpio::Archive;
use crate::image::modules;
use crate::project::{self, Arch};
use crate::{run, setup};

/// Mount points, and directories that programs expect.
const DIRECTORIES: &[&str] = &["dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "var"];
/// Files of images/initramfs, where they go, and whether they are programs.
const FILES: &[(&str, &str)] = &[("init", "init"), ("console-commands", "bin/console-commands"), ("load", "bin/load")];

/// Leaves the image at its usual place.
pub fn build(with_host: bool) -> Result<PathBuf> {
    setup::all()?;
    let step = run::Step::new("making the initramfs");
    let image = contents(with_host)?.to_gzip()?;
    let place = project::initramfs_path();
    write(&place, &image)?;
    step.done(&format!("{}, {} KiB", project::shown(&place), image.len().div_ceil(1024)));
    Ok(place)
}

fn contents(with_host: bool) -> Result<Archive> {
    let mut archive = Archive::new();
    for path in DIRECTORIES {
        archive.directory(path)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("etc/passwd", b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n".to_vec(), 0o644)?;
    archive.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n".to_vec(), 0o644)?;

    let recipe = project::root().join("images/initramfs");
    for (from, to) in FILES {
        archive.program(to, read(&recipe.join(from))?)?;
    }
    add_busybox(&mut archive)?;
    add_modules(&mut archive, &recipe)?;
    archive.program("bin/informant-guest", read(&project::guest()?)?)?;
    if with_host {
        archive.program("bin/informant-host", read(&project::host_static()?)?)?;
    }
    Ok(archive)
}

fn add_busybox(archive: &mut Archive) -> Result<()> {
    let busybox = setup::busybox()?;
    archive.program("bin/busybox", read(&busybox)?)?;
    let applets = run::read(Command::new(&busybox).arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        archive.link(&format!("bin/{applet}"), "busybox")?;
    }
    Ok(())
}

fn add_modules(archive: &mut Archive, recipe: &Path) -> Result<()> {
    let kernel = setup::kernel()?;
    let wanted = String::from_utf8(read(&recipe.join("modules"))?).context("images/initramfs/modules is not UTF-8")?;
    let wanted = modules::parse_wanted(&wanted).context("images/initramfs/modules")?;
    let dir = format!("lib/modules/{}", kernel.release);
    let mut order = String::new();
    for module in modules::in_order(&kernel.modules, &wanted)? {
        order.push_str(&format!("{} {}\n", module.kind, module.name));
        archive.file(&format!("{dir}/{}.ko", module.name), read(&module.file)?, 0o644)?;
    }
    archive.file(&format!("{dir}/order"), order.into_bytes(), 0o644)
}

fn write(place: &Path, bytes: &[u8]) -> Result<()> {
    let dir = place.parent().context("the image has a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let partial = place.with_extension("partial");
    fs::write(&partial, bytes).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, place).with_context(|| format!("cannot move the image to {}", place.display()))?;
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Everything that a VM boots with, built in order.
pub fn with_everything() -> Result<()> {
    crate::guest::build(Arch::X86_64)?;
    build(false).map(drop)
}
