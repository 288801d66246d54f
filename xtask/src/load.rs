//! `cargo xtask load`: the named busy load (images/initramfs/load) on this machine, as benchmarks run it.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::child::{self, Child};
use crate::{project, setup};

/// Runs until `seconds` are over, or until it is ended.
pub fn run(seconds: Option<u64>) -> Result<()> {
    let mut load = start()?;
    let forever = Duration::from_secs(365 * 24 * 60 * 60);
    let Some(seconds) = seconds else {
        let status = load.wait(forever)?;
        bail!("the load ended by itself with {}", child::shown(status));
    };
    match load.wait(Duration::from_secs(seconds)) {
        Ok(status) => bail!("the load ended by itself with {}", child::shown(status)),
        Err(_) => load.stop(Duration::from_secs(10)).map(drop),
    }
}

/// Starts it beside us.
pub fn start() -> Result<Child> {
    setup::all()?;
    let mut command = child::command(setup::busybox()?);
    command.arg("sh").arg(project::root().join("images/initramfs/load"));
    Child::spawn("the busy load", command)
}
