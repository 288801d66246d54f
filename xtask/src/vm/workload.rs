//! A program that needs memory or CPUs, run inside a VM: the other side of xtask/examples/workload.rs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Vm;

const SOON: Duration = Duration::from_secs(20);

/// How long what was taken is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until [`Workload::release`].
    Released,
    Seconds(u32),
}

/// A workload in a VM; it ends with the VM at the latest.
#[derive(Debug)]
pub struct Workload<'a> {
    vm: &'a Vm,
    name: String,
}

impl Vm {
    /// Starts `workload WORDS` in the guest (see xtask/examples/workload.rs for the words) in a cgroup of this name.
    /// Its output is kept in the guest: the console has other uses.
    pub fn workload(&self, name: &str, words: &str, hold: Hold) -> Result<Workload<'_>> {
        let hold = match hold {
            Hold::Released => format!("--until /run/{name}.release"),
            Hold::Seconds(seconds) => format!("--seconds {seconds}"),
        };
        let script = format!(
            "rm -f /run/{name}.release
             workload {words} --cgroup {name} {hold} </dev/null >/run/{name}.log 2>&1 & echo $! >/run/{name}.pid"
        );
        self.sh(&script, SOON).context("cannot start the workload")?;
        Ok(Workload { vm: self, name: name.to_owned() })
    }
}

impl Workload<'_> {
    /// Its cgroup, as a path below the hierarchy's root.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.name)
    }

    /// What it has said so far.
    pub fn said(&self) -> Result<String> {
        self.vm.sh(&format!("cat /run/{}.log", self.name), SOON)
    }

    /// What it has taken so far, in MiB.
    pub fn taken_mib(&self) -> Result<u32> {
        Ok(taken_mib(&self.said()?))
    }

    /// Whether it came to its end by itself.
    pub fn has_finished(&self) -> Result<bool> {
        Ok(self.said()?.lines().any(|line| line == "finished"))
    }

    pub fn is_running(&self) -> Result<bool> {
        Ok(self.vm.run(&format!("kill -0 $(cat /run/{}.pid)", self.name), SOON)?.code == 0)
    }

    /// Waits until it has taken so much; an error as soon as it is dead.
    pub fn wait_taken(&self, mib: u32, timeout: Duration) -> Result<()> {
        self.wait(&format!("{mib} MiB taken"), timeout, |said| taken_mib(said) >= mib)
    }

    /// Waits until it has taken all, and holds it.
    pub fn wait_holding(&self, timeout: Duration) -> Result<()> {
        self.wait("all taken", timeout, |said| said.lines().any(|line| line == "holding"))
    }

    /// Lets go what it holds.
    pub fn release(&self) -> Result<()> {
        self.vm.sh(&format!("touch /run/{}.release", self.name), SOON).map(drop)
    }

    /// Waits for its end, an error when it is killed.
    pub fn wait_finished(&self, timeout: Duration) -> Result<()> {
        self.wait("its end", timeout, |said| said.lines().any(|line| line == "finished"))
    }

    /// Waits until it is gone, whatever ended it.
    pub fn wait_gone(&self, timeout: Duration) -> Result<()> {
        super::wait_until(&format!("the end of {}", self.name), timeout, || Ok(!self.is_running()?))
    }

    /// SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.vm.sh(&format!("kill -9 $(cat /run/{}.pid)", self.name), SOON).map(drop)
    }

    fn wait(&self, what: &str, timeout: Duration, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            // In this order: what it says last is seen.
            let runs = self.is_running()?;
            let said = self.said()?;
            if wanted(&said) {
                return Ok(());
            }
            let last = said.lines().last().unwrap_or("nothing");
            if !runs {
                bail!("the workload {} is dead while waiting for {what}; it said last: {last}", self.name);
            }
            if Instant::now() >= deadline {
                bail!("the workload {}: not within {timeout:?}: {what}; it said last: {last}", self.name);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn taken_mib(said: &str) -> u32 {
    let mut taken = said.lines().rev().filter_map(|line| line.strip_prefix("taken ")?.strip_suffix(" MiB"));
    taken.next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_number_counts() {
        assert_eq!(taken_mib(""), 0);
        assert_eq!(taken_mib("taken 8 MiB\ntaken 16 MiB\nholding\n"), 16);
        assert_eq!(taken_mib("taken 8 MiB\ntaken 1"), 8);
    }
}
