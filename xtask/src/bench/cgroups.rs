//! Cgroups on this machine for the agent to look at; gone when dropped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "informant-bench-";

/// Empty cgroups below one of our own.
#[derive(Debug)]
pub(super) struct Cgroups {
    parent: PathBuf,
}

impl Cgroups {
    /// Where cgroup v2 is mounted and we may make them. With a hybrid hierarchy it has no controllers, so that cgroups
    /// there have few files.
    pub(super) fn make(count: u32) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let mount = mount.context("cgroup v2 is not mounted")?;
        remove_left_over(&mount);
        let made = Self { parent: mount.join(format!("{PREFIX}{}", std::process::id())) };
        let make = |path: PathBuf| fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()));
        make(made.parent.clone())?;
        for controller in ["memory", "cpu", "io", "pids"] {
            // Where the machine does not hand it down, cgroups are without it.
            fs::write(made.parent.join("cgroup.subtree_control"), format!("+{controller}")).ok();
        }
        // The parent counts: it is one of them.
        (1..count).try_for_each(|n| make(made.child(n)))?;
        Ok(made)
    }

    /// What they measure.
    pub(super) fn controllers(&self) -> String {
        let text = fs::read_to_string(self.parent.join("cgroup.subtree_control")).unwrap_or_default();
        if text.trim().is_empty() { "none here".to_owned() } else { text.trim().to_owned() }
    }

    fn child(&self, number: u32) -> PathBuf {
        self.parent.join(format!("unit-{number}.service"))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        remove(&self.parent);
    }
}

/// Those of runs that were interrupted: they would be measured, too.
fn remove_left_over(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}

fn remove(parent: &Path) {
    for child in fs::read_dir(parent).into_iter().flatten().flatten() {
        // Files can not be removed, and go with their directory.
        fs::remove_dir(child.path()).ok();
    }
    fs::remove_dir(parent).ok();
}
