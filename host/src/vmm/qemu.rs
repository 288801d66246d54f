//! QEMU over QMP: memory by virtio-mem (`requested-size`), or a balloon where there is none; CPUs by `device_add` and
//! `device_del`.
//!
//! The socket should be a monitor of our own (`-qmp unix:PATH,server=on,wait=off`): QEMU serves one client on each, and
//! each operation here is a connection. CPUs present at boot cannot be taken away. A CPU that was asked to leave counts
//! as there until QEMU's list says otherwise; a guest may ignore the request, and then it may be made anew later.
//!
//! Tried: QEMU 7.2 without KVM aborts (its heap is corrupted) when a CPU is plugged after another one left, whoever asks
//! and whichever the slot. Memory comes and goes as often as one likes.

use super::bounds::{Capabilities, CpuRange, MemoryRange};
use super::error::VmmError;
use super::pending::{PATIENCE, Pending};
use super::qmp::{Qmp, Refusal};
use super::{Reported, Vmm};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::time::Instant;

/// What a balloon takes and gives.
const PAGE: Bytes = Bytes(4096);
/// Where QEMU keeps what was given an id.
const PERIPHERAL: &str = "/machine/peripheral/";

/// See the module.
#[derive(Debug)]
pub struct Qemu {
    path: PathBuf,
    /// The ids of CPUs that were asked to leave, and since when.
    leaving: BTreeMap<String, Instant>,
    /// The balloon's size does not tell what it was asked to be.
    balloon: Pending<Bytes>,
}

#[derive(Deserialize)]
struct Status {
    running: bool,
}

#[derive(Deserialize)]
struct Summary {
    #[serde(rename = "base-memory")]
    base: u64,
}

#[derive(Deserialize)]
struct MemoryDevice {
    #[serde(rename = "type")]
    kind: String,
    data: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct VirtioMem {
    #[serde(default)]
    id: String,
    size: u64,
    requested_size: u64,
    max_size: u64,
    block_size: u64,
}

#[derive(Deserialize)]
struct Dimm {
    size: u64,
}

#[derive(Deserialize)]
struct BalloonSize {
    actual: u64,
}

/// A place for a CPU, or for several at once.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Slot {
    #[serde(rename = "type")]
    kind: String,
    props: Map<String, Value>,
    vcpus_count: u32,
    /// Set where a CPU is.
    #[serde(default)]
    qom_path: Option<String>,
}

impl Slot {
    /// Slots are filled in this order and emptied against it.
    fn place(&self) -> [u64; 6] {
        ["node-id", "socket-id", "die-id", "cluster-id", "core-id", "thread-id"]
            .map(|key| self.props.get(key).and_then(Value::as_u64).unwrap_or(0))
    }

    /// The id of a CPU that can be taken away.
    fn id(&self) -> Option<&str> {
        self.qom_path.as_deref()?.strip_prefix(PERIPHERAL).filter(|id| !id.is_empty())
    }
}

/// What QEMU says in one connection.
struct Seen {
    running: bool,
    /// Memory that nothing changes.
    fixed: Bytes,
    /// Those with an id: others cannot be named.
    devices: Vec<VirtioMem>,
    /// What a balloon leaves, where there is one and nothing better.
    balloon: Option<Bytes>,
    /// In the order of [`Slot::place`]; empty on a machine whose CPUs are fixed.
    slots: Vec<Slot>,
    /// CPUs that are there.
    cpus: u32,
}

impl Seen {
    async fn ask(qmp: &mut Qmp) -> Result<Self, VmmError> {
        let status: Status = qmp.get("query-status").await?;
        let summary: Summary = qmp.get("query-memory-size-summary").await?;
        let mut fixed = Bytes(summary.base);
        let mut devices = Vec::new();
        for MemoryDevice { kind, data } in qmp.get::<Vec<MemoryDevice>>("query-memory-devices").await? {
            let unexpected =
                |error: &dyn std::fmt::Display| qmp.broken(&format!("query-memory-devices: {kind}: {error}"));
            match kind.as_str() {
                "virtio-mem" => {
                    let device: VirtioMem = serde_json::from_value(data).map_err(|error| unexpected(&error))?;
                    if device.id.is_empty() {
                        fixed = fixed.saturating_add(Bytes(device.size));
                    } else {
                        devices.push(device);
                    }
                }
                "dimm" => {
                    let dimm: Dimm = serde_json::from_value(data).map_err(|error| unexpected(&error))?;
                    fixed = fixed.saturating_add(Bytes(dimm.size));
                }
                // Persistent memory and the like is nobody's RAM.
                _ => {}
            }
        }
        let mut balloon = None;
        if devices.is_empty() {
            balloon = match qmp.execute::<BalloonSize>("query-balloon", json!({})).await? {
                Ok(size) => Some(Bytes(size.actual)),
                // There is none, or it does not work on this host.
                Err(_) => None,
            };
        }
        let (slots, cpus) = Self::cpus(qmp).await?;
        Ok(Self { running: status.running, fixed, devices, balloon, slots, cpus })
    }

    async fn cpus(qmp: &mut Qmp) -> Result<(Vec<Slot>, u32), VmmError> {
        let Ok(mut slots) = qmp.execute::<Vec<Slot>>("query-hotpluggable-cpus", json!({})).await? else {
            // Not on this type of machine.
            let cpus: Vec<Value> = qmp.get("query-cpus-fast").await?;
            return Ok((Vec::new(), u32::try_from(cpus.len()).unwrap_or(u32::MAX)));
        };
        slots.sort_by_key(Slot::place);
        let cpus = sum(slots.iter().filter(|slot| slot.qom_path.is_some()));
        Ok((slots, cpus))
    }

    fn has(&self) -> Size {
        let plugged = self.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.size));
        let memory = self.balloon.unwrap_or(self.fixed).saturating_add(Bytes(plugged));
        Size { cpu: MilliCpu::from_cpus(self.cpus), memory }
    }

    fn can(&self) -> Capabilities {
        let stays = sum(self.slots.iter().filter(|slot| slot.qom_path.is_some() && slot.id().is_none()));
        let step = self.slots.iter().map(|slot| slot.vcpus_count).max().unwrap_or(1);
        let mut cpu = CpuRange::whole(stays.max(1), sum(&self.slots));
        cpu.step = MilliCpu::from_cpus(step);
        if self.slots.is_empty() {
            cpu = CpuRange::whole(self.cpus, self.cpus);
        }
        let room = self.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.max_size));
        let block = self.devices.iter().map(|device| device.block_size).max();
        let memory = match (block, self.balloon) {
            (Some(block), _) => {
                MemoryRange { min: self.fixed, max: self.fixed.saturating_add(Bytes(room)), block: Bytes(block) }
            }
            (None, Some(_)) => MemoryRange { min: PAGE, max: self.fixed, block: PAGE },
            (None, None) => MemoryRange::fixed(self.fixed),
        };
        Capabilities { cpu, memory, balloon: self.balloon.is_some() }
    }

    /// How much each device is to have, in order, so that all have `above` the fixed memory.
    fn shares(&self, above: Bytes) -> impl Iterator<Item = (&VirtioMem, u64)> {
        let mut left = above.0;
        self.devices.iter().map(move |device| {
            let block = device.block_size.max(1);
            let share = left.div_ceil(block).saturating_mul(block).min(device.max_size);
            left = left.saturating_sub(share);
            (device, share)
        })
    }
}

fn sum<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> u32 {
    slots.into_iter().fold(0, |sum, slot| sum.saturating_add(slot.vcpus_count))
}

impl Qemu {
    /// `path` is the socket of `-qmp`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), leaving: BTreeMap::new(), balloon: Pending::default() }
    }

    /// Forgets those that left, and those that were asked in vain.
    fn prune(&mut self, seen: &Seen) {
        self.leaving.retain(|id, since| {
            since.elapsed() < PATIENCE && seen.slots.iter().any(|slot| slot.id() == Some(id.as_str()))
        });
    }

    fn leaving_cpus(&self, seen: &Seen) -> u32 {
        sum(seen.slots.iter().filter(|slot| slot.id().is_some_and(|id| self.leaving.contains_key(id))))
    }

    async fn send_memory(&mut self, qmp: &mut Qmp, seen: &Seen, target: Bytes) -> Result<(), VmmError> {
        if seen.balloon.is_some() {
            set(qmp, "balloon", json!({ "value": target.0 })).await?;
            self.balloon.accepted(target);
            return Ok(());
        }
        for (device, share) in seen.shares(target.saturating_sub(seen.fixed)) {
            if share != device.requested_size {
                let path = format!("{PERIPHERAL}{}", device.id);
                set(qmp, "qom-set", json!({ "path": path, "property": "requested-size", "value": share })).await?;
            }
        }
        Ok(())
    }

    async fn send_cpus(&mut self, qmp: &mut Qmp, seen: &Seen, target: u32) -> Result<(), VmmError> {
        let mut wish = seen.cpus.saturating_sub(self.leaving_cpus(seen));
        // Nobody can tell a CPU to stay after all. If it goes, the next observation shows it and another one comes.
        for slot in &seen.slots {
            if wish >= target {
                break;
            }
            if slot.id().is_some_and(|id| self.leaving.remove(id).is_some()) {
                wish = wish.saturating_add(slot.vcpus_count);
            }
        }
        let mut number = 0_u32;
        for slot in seen.slots.iter().filter(|slot| slot.qom_path.is_none()) {
            if wish >= target {
                break;
            }
            let id = loop {
                number = number.saturating_add(1);
                let id = format!("informant-cpu-{number}");
                if !seen.slots.iter().any(|slot| slot.id() == Some(&id)) {
                    break id;
                }
            };
            let mut arguments = slot.props.clone();
            arguments.insert("driver".into(), slot.kind.clone().into());
            arguments.insert("id".into(), id.into());
            set(qmp, "device_add", Value::Object(arguments)).await?;
            wish = wish.saturating_add(slot.vcpus_count);
        }
        for slot in seen.slots.iter().rev() {
            let Some(id) = slot.id().filter(|id| !self.leaving.contains_key(*id)) else { continue };
            if wish.saturating_sub(slot.vcpus_count) < target {
                break;
            }
            match qmp.execute::<Value>("device_del", json!({ "id": id })).await? {
                Ok(_) => {}
                Err(Refusal { class, .. }) if class == "DeviceNotFound" => {}
                Err(refusal) => return Err(qmp.refused("device_del", &refusal)),
            }
            self.leaving.insert(id.to_owned(), Instant::now());
            wish = wish.saturating_sub(slot.vcpus_count);
        }
        Ok(())
    }
}

/// A command that answers nothing.
async fn set(qmp: &mut Qmp, command: &str, arguments: Value) -> Result<(), VmmError> {
    match qmp.execute::<Value>(command, arguments).await? {
        Ok(_) => Ok(()),
        Err(refusal) => Err(qmp.refused(command, &refusal)),
    }
}

impl Vmm for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let mut qmp = Qmp::connect(&self.path).await?;
        let seen = Seen::ask(&mut qmp).await?;
        self.prune(&seen);
        let has = seen.has();
        let memory = match seen.balloon {
            Some(actual) => self.balloon.wish(actual),
            None => {
                let asked = seen.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.requested_size));
                seen.fixed.saturating_add(Bytes(asked))
            }
        };
        let cpu = MilliCpu::from_cpus(seen.cpus.saturating_sub(self.leaving_cpus(&seen)));
        Ok(Reported { has, wish: Size { cpu, memory }, can: seen.can(), running: seen.running })
    }

    async fn send(&mut self, now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        let mut qmp = Qmp::connect(&self.path).await?;
        // The devices by name, and as they are at this moment.
        let seen = Seen::ask(&mut qmp).await?;
        self.prune(&seen);
        let mut done = Ok(());
        if target.memory != now.wish.memory {
            done = self.send_memory(&mut qmp, &seen, target.memory).await;
            if done.as_ref().is_err_and(VmmError::is_open) {
                return done.map(|()| None);
            }
        }
        // A no to the one does not hold up the other.
        if target.cpu != now.wish.cpu {
            self.send_cpus(&mut qmp, &seen, target.cpu.cpus()).await?;
        }
        done.map(|()| None)
    }
}
