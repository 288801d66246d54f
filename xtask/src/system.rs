//! A whole system on this machine for tests: one daemon, agents, each behind a [`FakeVmm`], in a folder of their own.
//!
//! Real programs, real sockets; only the VM is played. Everything that is waited for has a deadline, and all is gone
//! when the [`System`] is dropped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::child::{self, Child};
use crate::fake_vmm::FakeVmm;
use crate::project;
use crate::vm::{self, Vm};

/// How long a test waits for what must come; the slowest of them are a dead peer (15 s) and a redial (2 s) on a
/// machine with other work.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The interval of test agents.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// A folder with a daemon and VMs.
#[derive(Debug)]
pub struct System {
    dir: TempDir,
    daemon: Option<Child>,
}

/// An agent behind its VMM. The agent is first to go.
#[derive(Debug)]
pub struct TestVm {
    /// The instance's name.
    pub name: String,
    agent: Option<Child>,
    /// Its VMM.
    pub vmm: FakeVmm,
    dir: PathBuf,
}

impl System {
    /// An empty folder; nothing runs.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("informant-test-").tempdir()?;
        fs::create_dir(dir.path().join("host"))?;
        Ok(Self { dir, daemon: None })
    }

    /// With a running daemon and one VM with a running agent that reports.
    pub fn with_one_vm() -> Result<(Self, TestVm)> {
        let mut system = Self::new()?;
        system.start_daemon()?;
        let mut vm = system.add_vm("vm", "")?;
        vm.start_agent(&[])?;
        system.wait_ready("vm")?;
        Ok((system, vm))
    }

    /// The daemon's DIR.
    pub fn host_dir(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    /// Starts the daemon; its log is kept in `host.log` beside DIR.
    pub fn start_daemon(&mut self) -> Result<()> {
        let mut command = child::command(project::host()?);
        command.arg("serve").arg("--dir").arg(self.host_dir());
        child::log_to(&mut command, &self.dir.path().join("host.log"))?;
        self.daemon = Some(Child::spawn("informant-host", command)?);
        Ok(())
    }

    /// The running daemon.
    pub fn daemon(&mut self) -> Result<&mut Child> {
        self.daemon.as_mut().context("no daemon runs")
    }

    /// SIGKILL.
    pub fn kill_daemon(&mut self) -> Result<()> {
        self.daemon.take().context("no daemon runs")?.kill()
    }

    /// What the daemon has logged since it was last started.
    pub fn daemon_log(&self) -> String {
        fs::read_to_string(self.dir.path().join("host.log")).unwrap_or_default()
    }

    /// A VM and its instance folder; `toml` is added to its `instance.toml`. No agent yet.
    pub fn add_vm(&self, name: &str, toml: &str) -> Result<TestVm> {
        let dir = self.vm_dir(name)?;
        let vmm = FakeVmm::start(&dir, name)?;
        self.add_instance(name, &format!("uds = {:?}\n{toml}\n", vmm.uds()))?;
        Ok(TestVm { name: name.to_owned(), agent: None, vmm, dir })
    }

    /// A folder for a VM's sockets, to be named in its instance's `uds`.
    pub fn vm_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.path().join(format!("{name}.vm"));
        fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// An instance folder with this `instance.toml`, whole at once, since the daemon watches.
    pub fn add_instance(&self, name: &str, toml: &str) -> Result<()> {
        let instance = self.host_dir().join(name);
        fs::create_dir(&instance)?;
        fs::write(instance.join("instance.toml.new"), toml)?;
        Ok(fs::rename(instance.join("instance.toml.new"), instance.join("instance.toml"))?)
    }

    /// A daemon and a real VM whose agent reports to it. The daemon listens before the VM starts.
    pub fn with_real_vm(change: impl FnOnce(vm::Builder) -> vm::Builder) -> Result<(Self, Vm)> {
        let mut system = Self::new()?;
        system.start_daemon()?;
        let dir = system.vm_dir("vm")?;
        let socket = dir.join("v.sock");
        system.add_instance("vm", &format!("uds = {socket:?}\n"))?;
        let port = dir.join("v.sock_5252");
        wait_for("the daemon's socket", || port.exists().then_some(()))?;
        let vm = change(Vm::builder().dir(&dir)).boot()?;
        Ok((system, vm))
    }

    /// The instance's status file as it is now; `None` while there is none.
    pub fn status(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.host_dir().join(name).join("status.json")).ok()?).ok()
    }

    /// Waits until the status file satisfies `wanted`, and gives it.
    pub fn wait_status(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(name);
            match status {
                Some(status) if wanted(&status) => return Ok(status),
                status if Instant::now() >= deadline => {
                    let log = self.daemon_log();
                    bail!("{name}: not `{what}` within {PATIENCE:?}; status: {status:#?}\ndaemon's log:\n{log}")
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Waits for an agent that reports.
    pub fn wait_ready(&self, name: &str) -> Result<Value> {
        self.wait_status(name, "link up, agent ready, data fresh", |status| {
            status["link"]["state"] == "up" && status["agent"]["state"] == "ready" && status["data"]["state"] == "fresh"
        })
    }

    /// Waits for a session that began after `before`, and reports.
    pub fn wait_ready_again(&self, name: &str, before: &Value) -> Result<Value> {
        let session = before["guest"]["session"].clone();
        self.wait_status(name, "another session, ready", |status| {
            status["guest"]["session"] != session
                && status["link"]["state"] == "up"
                && status["agent"]["state"] == "ready"
                && status["data"]["state"] == "fresh"
        })
    }

    /// The lines of the instance's events.log, the rotated one first.
    pub fn events(&self, name: &str) -> Result<Vec<Value>> {
        let dir = self.host_dir().join(name);
        let mut events = Vec::new();
        for file in ["events.log.1", "events.log"] {
            let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
            for line in text.lines() {
                events.push(serde_json::from_str(line).with_context(|| format!("{file}: torn line: {line}"))?);
            }
        }
        Ok(events)
    }

    /// Runs a reading command of the host and gives its standard output.
    pub fn host(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(project::host()?).args(args).arg("--dir").arg(self.host_dir()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("`informant-host {}` failed: {}{text}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }
}

impl TestVm {
    /// Starts the agent; `args` are added to its command line.
    pub fn start_agent(&mut self, args: &[&str]) -> Result<()> {
        let mut command = child::command(project::guest()?);
        command
            .arg("run")
            .arg(format!("--connect=unix:{}", self.vmm.guest_socket().display()))
            .arg(format!("--control=unix:{}", self.vmm.control_socket().display()))
            .arg(format!("--state={}", self.dir.join("state").display()))
            .arg(format!("--interval={}ms", INTERVAL.as_millis()))
            .args(args);
        child::log_to(&mut command, &self.dir.join("agent.log"))?;
        self.agent = Some(Child::spawn("informant-guest", command)?);
        Ok(())
    }

    /// The running agent.
    pub fn agent(&mut self) -> Result<&mut Child> {
        self.agent.as_mut().context("no agent runs")
    }

    /// SIGKILL.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.kill()
    }

    /// What the agent has logged since it was last started.
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    /// The folder of its sockets and state.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A value of a status document: of the series with this name and all of these labels.
pub fn value(status: &Value, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let groups = status["metrics"].as_array()?;
    groups.iter().find_map(|group| {
        group["values"].as_array()?.iter().find_map(|value| {
            let has = |(key, wanted): &(&str, &str)| {
                [&value["labels"][*key], &group["labels"][*key]].iter().any(|label| *label == *wanted)
            };
            (value["name"] == name && labels.iter().all(has)).then(|| value["value"].as_f64())?
        })
    })
}

/// The names of all series of a status document.
pub fn names(status: &Value) -> BTreeSet<String> {
    let groups = status["metrics"].as_array().into_iter().flatten();
    let values = groups.flat_map(|group| group["values"].as_array().into_iter().flatten());
    values.filter_map(|value| Some(value["name"].as_str()?.to_owned())).collect()
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Resident memory of a process, bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    Ok(kib.context("no VmRSS")?.trim().parse::<u64>()? * 1024)
}

/// CPU time of a process, user and system, in ticks of 10 ms.
pub fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("no process name")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |i: usize| -> Result<u64> { Ok(fields.get(i).context("short stat line")?.parse()?) };
    Ok(field(11)? + field(12)?)
}

/// Waits until `wanted` gives something.
pub fn wait_for<T>(what: &str, wanted: impl FnMut() -> Option<T>) -> Result<T> {
    wait_at_most(PATIENCE, what, wanted)
}

/// Waits until `wanted` gives something, at most this long.
pub fn wait_at_most<T>(patience: Duration, what: &str, mut wanted: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = wanted() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("not within {patience:?}: {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// How often a test repeats its fault: few in CI, many in `cargo xtask soak`.
pub fn repeats(ci: u32, soak: u32) -> u32 {
    let count = if std::env::var("INFORMANT_COUNTS").as_deref() == Ok("soak") { soak } else { ci };
    println!("{count} times");
    count
}
