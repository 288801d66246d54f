//! Debian packages: what must be installed, and fetching one without installing it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use crate::run;

/// Package, and the program that shows it is there. `setpriv`, `apt-get` and `dpkg-deb` are in every Debian.
const PACKAGES: &[(&str, &str)] =
    &[("qemu-system-x86", "qemu-system-x86_64"), ("util-linux", "setpriv"), ("gcc", "cc"), ("libc6-dev", "")];

pub(super) fn ensure() -> Result<()> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(package, program)| !present(package, program)).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get update && apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !run::on_path("apt-get") {
        bail!("missing: {}; without apt-get they must be installed by other means", missing.join(", "));
    }
    if !Uid::effective().is_root() {
        bail!("missing system packages; as root: {by_hand}");
    }
    let step = run::Step::new(format!("installing {}", missing.join(", ")));
    update();
    let removed = would_remove(&missing);
    if !removed.is_empty() {
        eprintln!("== apt removes {}: it does not go together with what is installed now", removed.join(", "));
    }
    let install = run::check(
        apt_get().args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing).stdout(std::io::stderr()),
    );
    install.with_context(|| format!("cannot install what is missing; try: {by_hand}"))?;
    step.done("installed");
    Ok(())
}

/// What apt would take away to install `packages`: a package of another release may be in the way.
fn would_remove(packages: &[&str]) -> Vec<String> {
    let simulate = run::read(apt_get().args(["install", "-s", "-q", "--no-install-recommends"]).args(packages));
    parse_removals(&simulate.unwrap_or_default())
}

/// Fetches a package and unpacks it into `dest`, installed or not.
pub(super) fn unpack(package: &str, dest: &Path) -> Result<()> {
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    download(package, dir.path())?;
    let deb = deb_in(dir.path())?.with_context(|| format!("apt-get download {package} left no file"))?;
    run::check(Command::new("dpkg-deb").arg("-x").arg(deb).arg(dest))
}

/// The real package behind a metapackage: its only dependency that begins with `prefix`.
pub(super) fn dependency(metapackage: &str, prefix: &str) -> Result<String> {
    let find = || -> Result<Option<String>> {
        let text = run::read(Command::new("apt-cache").args(["depends", metapackage]).env("LC_ALL", "C"))?;
        Ok(parse_depends(&text, prefix))
    };
    if let Ok(Some(found)) = find() {
        return Ok(found);
    }
    update();
    find()?.with_context(|| {
        format!("apt knows no package `{metapackage}` that depends on `{prefix}*`: is `main` among its sources?")
    })
}

fn download(package: &str, dir: &Path) -> Result<()> {
    let fetch = || {
        // The sandbox user could not write into our directory, and would warn.
        run::read(apt_get().args(["download", "-q", "-o", "APT::Sandbox::User=root", package]).current_dir(dir))
    };
    if fetch().is_ok() {
        return Ok(());
    }
    update();
    fetch()
        .map(drop)
        .with_context(|| format!("cannot fetch the package `{package}`; as root: apt-get update; then run this again"))
}

/// Package lists may be missing or old; once a run is enough.
fn update() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        if Uid::effective().is_root()
            && let Err(error) = run::read(apt_get().args(["update", "-q"]))
        {
            eprintln!("== {error:#}; going on with the package lists that are there");
        }
    });
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(std::process::Stdio::null());
    command
}

fn present(package: &str, program: &str) -> bool {
    if program.is_empty() {
        package != "libc6-dev" || Path::new("/usr/include/stdlib.h").exists()
    } else {
        run::on_path(program)
    }
}

fn deb_in(dir: &Path) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn parse_depends(text: &str, prefix: &str) -> Option<String> {
    let names = text.lines().filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with(prefix)).map(str::to_owned)
}

fn parse_removals(simulated: &str) -> Vec<String> {
    let names = simulated.lines().filter_map(|line| line.strip_prefix("Remv "));
    names.filter_map(|rest| rest.split_whitespace().next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_package_is_read_from_apt_cache() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n  Recommends: other\n";
        assert_eq!(parse_depends(text, "linux-image-").as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        assert_eq!(parse_depends("x\n |Depends: linux-image-a\n", "linux-image-").as_deref(), Some("linux-image-a"));
        assert_eq!(parse_depends("x\n", "linux-image-"), None);
    }

    #[test]
    fn what_is_removed_is_read_from_a_simulation() {
        let text =
            "Reading package lists...\nRemv qemu-utils [1:10.0.2+ds-2]\nInst qemu-system-x86 (1:7.2)\nRemv a []\n";
        assert_eq!(parse_removals(text), ["qemu-utils", "a"]);
    }
}
