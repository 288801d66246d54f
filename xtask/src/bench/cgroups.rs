//! Cgroups on this machine for the agent to look at; gone when dropped.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Empty cgroups below one of our own.
#[derive(Debug)]
pub(super) struct Cgroups {
    parent: PathBuf,
    count: u32,
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
        let made = Self { parent: mount.join(format!("informant-bench-{}", std::process::id())), count };
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
        for number in 1..self.count {
            fs::remove_dir(self.child(number)).ok();
        }
        fs::remove_dir(&self.parent).ok();
    }
}
