//! What the tests of scaling in a real VM share: the rig, what the guest says, what the host shows.

pub(crate) mod guest;
pub(crate) mod kills;
pub(crate) mod peer;
pub(crate) mod scenarios;
pub(crate) mod shown;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xtask::lock::Lock;
use xtask::project;
use xtask::system::{System, wait_for};
use xtask::vm::{self, Hotplug, PluggedMemory, Qmp, Tap, Vm};

pub(crate) const MIB: u64 = 1 << 20;
/// What the VM boots with.
pub(crate) const BOOT_MIB: u32 = 512;
/// Within which all sides must be of one mind, whatever was killed.
pub(crate) const SETTLED: Duration = Duration::from_secs(30);
/// MemTotal moves by what is plugged, to the byte where tried; the kernel may keep a little of each block.
const SLACK: u64 = 4 * MIB;

/// A VM that can grow, a daemon, and the tap between it and QEMU. The VM goes first, the daemon last.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) vm: Vm,
    pub(crate) tap: Tap,
    pub(crate) system: System,
    /// `MemTotal` with nothing plugged.
    boot_total: u64,
    _turn: Lock,
}

/// What all sides have at one moment.
#[derive(Debug)]
pub(crate) struct Sides {
    pub(crate) plugged: PluggedMemory,
    pub(crate) vmm_cpus: u64,
    pub(crate) guest_total: u64,
    pub(crate) guest_cpus: u64,
}

/// The tables of an `instance.toml` that let the daemon resize through the tap, up to so much.
pub(crate) fn scaling_toml(tap: &str, max_cpus: u32, max_memory_mib: u32) -> String {
    // Units tie both together: where CPUs do not change, load should not ask for memory.
    let unit_cpu = if max_cpus == 1 { "1" } else { "250m" };
    format!(
        "[actuator]\nqemu = {tap:?}\n\
         [scaling]\npolicy = \"compute-unit\"\n\
         min = {{ cpu = 1, memory = \"{BOOT_MIB}MiB\" }}\n\
         max = {{ cpu = {max_cpus}, memory = \"{max_memory_mib}MiB\" }}\n\
         compute-unit.goal.unit_memory = \"128MiB\"\n\
         compute-unit.goal.unit_cpu = \"{unit_cpu}\"\n"
    )
}

impl Rig {
    /// Boots; `toml` gets the tap's path and is added to the instance's file.
    pub(crate) fn boot(toml: impl FnOnce(&str) -> String) -> Result<Self> {
        let turn = vm::turn()?;
        let mut system = System::new()?;
        let dir = system.vm_dir("vm")?;
        let tap = Tap::start(&dir.join("tap.sock"), &dir.join(vm::ACTUATOR_SOCKET))?;
        system.start_daemon()?;
        let more = toml(tap.path().to_str().context("the tap's path is UTF-8")?);
        system.add_instance("vm", &format!("uds = {:?}\n{more}", dir.join("v.sock")))?;
        let port = dir.join("v.sock_5252");
        wait_for("the daemon's socket", || port.exists().then_some(()))
            .with_context(|| format!("the daemon says: {}", system.daemon_log()))?;
        let builder = Vm::builder().dir(&dir).memory_mib(BOOT_MIB).hotplug(Hotplug::default());
        let vm = builder.program("bin/workload", project::workload()?).boot()?;
        let mut rig = Self { vm, tap, system, boot_total: 0, _turn: turn };
        rig.system.wait_ready("vm")?;
        let sides = rig.sides()?;
        ensure!(sides.plugged.size == 0 && sides.plugged.requested == 0, "grown before anything happened: {sides:?}");
        rig.boot_total = sides.guest_total;
        Ok(rig)
    }

    /// What the VMM and the guest's kernel have, asked of themselves.
    pub(crate) fn sides(&self) -> Result<Sides> {
        Ok(Sides {
            plugged: self.vm.with_qmp(Qmp::plugged_memory)?,
            vmm_cpus: u64::try_from(self.vm.with_qmp(Qmp::cpus)?)?,
            guest_total: guest::mem_total(&self.vm)?,
            guest_cpus: u64::from(guest::online_cpus(&self.vm)?),
        })
    }

    /// Waits until what the host wants is what the VMM has and the guest sees, with nothing left to be done; then no
    /// size must have been asked for twice in a row.
    pub(crate) fn wait_settled(&self, what: &str, timeout: Duration) -> Result<Sides> {
        let deadline = Instant::now() + timeout;
        loop {
            let (sides, status) = (self.sides()?, self.system.status("vm").unwrap_or_default());
            match self.unsettled(&sides, &status) {
                None => {
                    self.tap.check_no_repeats().with_context(|| what.to_owned())?;
                    return Ok(sides);
                }
                Some(why) if Instant::now() >= deadline => {
                    bail!("{what}: not settled within {timeout:?}: {why}; {sides:?}; scaling: {:#}", status["scaling"])
                }
                Some(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn unsettled(&self, sides: &Sides, status: &serde_json::Value) -> Option<String> {
        let Some(wanted) = shown::wanted(status) else { return Some("the host shows no wanted size".to_owned()) };
        let Some(vmm) = shown::vmm(status) else { return Some("the host shows no size of the VMM".to_owned()) };
        // Looking at the VM through its console is work, too: at its maximum it may want yet another CPU.
        let is_at_maximum = shown::last_demand_outcome(status) == Some("at_maximum");
        let memory = u64::from(BOOT_MIB) * MIB + sides.plugged.size;
        let expected_total = self.boot_total + sides.plugged.size;
        let rules = [
            (wanted == vmm, "the host wants another size than it says the VMM has"),
            (wanted.memory == memory, "the VMM has other memory than the host wants"),
            (sides.plugged.requested == sides.plugged.size, "the guest has not taken what the VMM was asked for"),
            (wanted.cpus() == sides.vmm_cpus, "the VMM has other CPUs than the host wants"),
            (sides.guest_cpus == sides.vmm_cpus, "the guest uses other CPUs than the VMM has"),
            (sides.guest_total.abs_diff(expected_total) <= SLACK, "the guest uses other memory than the VMM has"),
            (is_at_maximum || shown::open_demands(status) == Some(0), "a demand is open"),
        ];
        rules.iter().find(|(holds, _)| !holds).map(|(_, why)| (*why).to_owned())
    }

    /// Waits until nothing is plugged any more and all agree.
    pub(crate) fn wait_small(&self, timeout: Duration) -> Result<()> {
        vm::wait_until("the VM as small as it may be", timeout, || {
            let sides = self.sides()?;
            Ok(sides.plugged.size == 0 && sides.vmm_cpus == 1)
        })
        .with_context(|| format!("{:?}", self.sides()))?;
        self.wait_settled("after it has shrunk", SETTLED).map(drop)
    }
}
