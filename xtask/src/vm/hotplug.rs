//! What comes and goes in a running VM: memory by virtio-mem, CPUs by hot-plug; both as the VMM has them.
//!
//! The guest's part is not done for it: the image leaves new memory blocks and CPUs offline, as Debian does.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::qmp::Qmp;

/// The id of the virtio-mem device.
pub const MEMORY_DEVICE: &str = "vmem0";
/// The socket of a VM's directory where QEMU serves whoever resizes it; the rig has another.
pub const ACTUATOR_SOCKET: &str = "actuator.sock";

/// What a VM can get beyond what it boots with, see [`super::Builder::hotplug`].
///
/// The place for it lies above 4 GiB, so the kernel keeps 64 MiB for bounce buffers: of 512 MiB, 404 MiB are MemTotal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hotplug {
    /// The size of the virtio-mem device, all of it unplugged at boot; a multiple of `block_mib`.
    pub memory_mib: u32,
    /// The device's block size, a power of two of 2 MiB at least.
    pub block_mib: u32,
    /// As many sockets of one CPU each.
    pub max_cpus: u32,
}

impl Default for Hotplug {
    /// 1.5 GiB in blocks of 2 MiB, and two CPUs.
    fn default() -> Self {
        Self { memory_mib: 1536, block_mib: 2, max_cpus: 2 }
    }
}

impl Hotplug {
    /// The largest size that a VM with this much memory at boot can be told to have, in MiB.
    pub fn max_memory_mib(self, boot_mib: u32) -> u32 {
        boot_mib.saturating_add(self.memory_mib)
    }
}

/// The virtio-mem device, sizes in bytes: `requested` is the wish, `size` what the guest took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluggedMemory {
    pub requested: u64,
    pub size: u64,
    pub max: u64,
}

/// A place for a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSlot {
    /// The device type and the properties that plug one here.
    pub kind: String,
    pub properties: Value,
    /// Where the CPU hangs that is in it: `/machine/peripheral/ID` for one that was plugged.
    pub path: Option<String>,
}

impl Qmp {
    /// What the virtio-mem device has and is to have.
    pub fn plugged_memory(&mut self) -> Result<PluggedMemory> {
        let answer = self.execute("query-memory-devices", json!({}))?;
        let devices = answer.as_array().into_iter().flatten();
        let mut found = devices.map(|device| &device["data"]).filter(|data| data["id"] == MEMORY_DEVICE);
        let data = found.next().with_context(|| format!("no device {MEMORY_DEVICE} in {answer}"))?;
        let field = |name: &str| data[name].as_u64().with_context(|| format!("no `{name}` in {data}"));
        Ok(PluggedMemory { requested: field("requested-size")?, size: field("size")?, max: field("max-size")? })
    }

    /// Asks the guest to have this much of the virtio-mem device; it takes its time.
    pub fn request_memory(&mut self, bytes: u64) -> Result<()> {
        let path = format!("/machine/peripheral/{MEMORY_DEVICE}");
        self.execute("qom-set", json!({"path": path, "property": "requested-size", "value": bytes})).map(drop)
    }

    /// All places for CPUs.
    pub fn cpu_slots(&mut self) -> Result<Vec<CpuSlot>> {
        let answer = self.execute("query-hotpluggable-cpus", json!({}))?;
        let slots = answer.as_array().with_context(|| format!("no list of CPUs: {answer}"))?;
        slots
            .iter()
            .map(|slot| {
                let kind = slot["type"].as_str().with_context(|| format!("a place for a CPU without type: {slot}"))?;
                let path = slot["qom-path"].as_str().map(str::to_owned);
                Ok(CpuSlot { kind: kind.to_owned(), properties: slot["props"].clone(), path })
            })
            .collect()
    }

    /// CPUs that the VM has, whether or not the guest uses them.
    pub fn cpus(&mut self) -> Result<usize> {
        Ok(self.cpu_slots()?.iter().filter(|slot| slot.path.is_some()).count())
    }

    /// Plugs a CPU under this id into the free place with the lowest socket.
    pub fn plug_cpu(&mut self, id: &str) -> Result<()> {
        let slots = self.cpu_slots()?;
        let free = slots.into_iter().filter(|slot| slot.path.is_none());
        let slot = free.min_by_key(|slot| slot.properties["socket-id"].as_u64()).context("every place has its CPU")?;
        let mut arguments = slot.properties;
        ensure!(arguments.is_object(), "the properties of a place for a CPU are {arguments}");
        arguments["driver"] = slot.kind.into();
        arguments["id"] = id.into();
        self.execute("device_add", arguments).map(drop)
    }

    /// Asks the guest to give this CPU back; it takes its time, and may never do so.
    pub fn unplug_cpu(&mut self, id: &str) -> Result<()> {
        self.execute("device_del", json!({"id": id})).map(drop)
    }
}
