//! Firecracker: its vCPUs are fixed; memory goes by `/hotplug/memory` where the VM has that, else by its balloon.
//!
//! Every error is a 400, and only its text tells what it means. Requests are read strictly: no field too many.

use super::bounds::{Capabilities, CpuRange, MemoryRange};
use super::error::{VmmError, line};
use super::http::{Answer, Api};
use super::{Reported, Vmm};
use hyper::Method;
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::Path;

const HOTPLUG: &str = "/hotplug/memory";
const BALLOON: &str = "/balloon";
const STATISTICS: &str = "/balloon/statistics";
/// How its texts say that the same request may succeed later.
const LATER: [&str; 3] = ["not activated yet", "is not active", "before starting the microVM"];

/// See the module.
#[derive(Debug)]
pub struct Firecracker {
    api: Api,
}

#[derive(Deserialize)]
struct Instance {
    state: String,
}

#[derive(Deserialize)]
struct Machine {
    vcpu_count: u32,
    mem_size_mib: u64,
}

#[derive(Deserialize)]
struct Hotplug {
    block_size_mib: u64,
    total_size_mib: u64,
    plugged_size_mib: u64,
    requested_size_mib: u64,
}

#[derive(Deserialize)]
struct Balloon {
    amount_mib: u64,
}

#[derive(Deserialize)]
struct Statistics {
    actual_mib: u64,
}

#[derive(Deserialize)]
struct Fault {
    fault_message: String,
}

impl Firecracker {
    /// `path` is the socket of `--api-sock`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { api: Api::new("firecracker", path) }
    }

    fn failed(&self, answer: &Answer) -> VmmError {
        let text = match serde_json::from_slice::<Fault>(&answer.body) {
            Ok(fault) => line(&fault.fault_message),
            Err(_) => line(&String::from_utf8_lossy(&answer.body)),
        };
        let said = self.api.says(&text);
        match answer.status {
            400..500 if LATER.iter().any(|later| text.contains(later)) => VmmError::NotYet(said),
            400..500 => VmmError::Refused(said),
            503 => VmmError::NotYet(said),
            status => VmmError::Protocol(self.api.says(&format!("answers {status}: {text}"))),
        }
    }

    async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, VmmError> {
        let answer = self.api.get(target).await?;
        if answer.is_success() { self.api.parse(target, &answer) } else { Err(self.failed(&answer)) }
    }

    /// What the VM may not have: a 400 then, as for everything.
    async fn get_optional<T: DeserializeOwned>(&self, target: &str) -> Result<Option<T>, VmmError> {
        match self.get(target).await {
            Ok(found) => Ok(Some(found)),
            Err(VmmError::Refused(_) | VmmError::NotYet(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the memory is, shall be and can be, and whether by a balloon.
    async fn memory(&self, boot: Bytes) -> Result<(Bytes, Bytes, MemoryRange, bool), VmmError> {
        if let Some(hotplug) = self.get_optional::<Hotplug>(HOTPLUG).await? {
            let above = |mib| boot.saturating_add(Bytes::mib(mib));
            let block = Bytes::mib(hotplug.block_size_mib);
            let range = MemoryRange { min: boot, max: above(hotplug.total_size_mib), block };
            return Ok((above(hotplug.plugged_size_mib), above(hotplug.requested_size_mib), range, false));
        }
        let Some(balloon) = self.get_optional::<Balloon>(BALLOON).await? else {
            return Ok((boot, boot, MemoryRange::fixed(boot), false));
        };
        // Without statistics the wish is all there is to know.
        let actual = self.get_optional::<Statistics>(STATISTICS).await?;
        let actual = actual.map_or(balloon.amount_mib, |statistics| statistics.actual_mib);
        let without = |mib| boot.saturating_sub(Bytes::mib(mib));
        let range = MemoryRange { min: Bytes::mib(1), max: boot, block: Bytes::mib(1) };
        Ok((without(actual), without(balloon.amount_mib), range, true))
    }

    async fn patch(&self, target: &str, body: Value) -> Result<(), VmmError> {
        let answer = self.api.call(Method::PATCH, target, Some(body)).await?;
        if answer.is_success() { Ok(()) } else { Err(self.failed(&answer)) }
    }
}

impl Vmm for Firecracker {
    fn name(&self) -> &'static str {
        "firecracker"
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let instance: Instance = self.get("/").await?;
        let machine: Machine = self.get("/machine-config").await?;
        let cpu = MilliCpu::from_cpus(machine.vcpu_count);
        let (has, wish, memory, balloon) = self.memory(Bytes::mib(machine.mem_size_mib)).await?;
        Ok(Reported {
            has: Size { cpu, memory: has },
            wish: Size { cpu, memory: wish },
            can: Capabilities { cpu: CpuRange::whole(machine.vcpu_count, machine.vcpu_count), memory, balloon },
            running: instance.state == "Running",
        })
    }

    async fn send(&mut self, now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        let MemoryRange { min, max, .. } = now.can.memory;
        if now.can.balloon {
            let amount = max.saturating_sub(target.memory).0 / Bytes::MIB;
            self.patch(BALLOON, json!({ "amount_mib": amount })).await?;
        } else {
            let requested = target.memory.saturating_sub(min).0 / Bytes::MIB;
            self.patch(HOTPLUG, json!({ "requested_size_mib": requested })).await?;
        }
        Ok(None)
    }
}
