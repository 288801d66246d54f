//! cloud-hypervisor: `GET vm.info`, `PUT vm.resize` on its API socket.
//!
//! It shows the CPUs it was asked for at once, whether or not the guest onlined any: only the guest knows. Memory it
//! shows as what the guest really took. Its balloon leaves no trace in `vm.info`, so it is not used.

use super::bounds::{Capabilities, CpuRange, MemoryRange};
use super::error::{VmmError, line};
use super::http::{Answer, Api};
use super::{Reported, Vmm};
use hyper::Method;
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::path::Path;

const INFO: &str = "/api/v1/vm.info";
const RESIZE: &str = "/api/v1/vm.resize";
/// What virtio-mem's sizes above the boot size are multiples of.
const BLOCK: Bytes = Bytes::mib(2);
/// The same of memory modules by ACPI.
const ACPI_BLOCK: Bytes = Bytes::mib(128);

/// See the module.
#[derive(Debug)]
pub struct CloudHypervisor {
    api: Api,
}

#[derive(Deserialize)]
struct Info {
    config: Config,
    state: String,
    #[serde(default)]
    memory_actual_size: u64,
}

#[derive(Deserialize)]
struct Config {
    cpus: Cpus,
    memory: Memory,
}

#[derive(Deserialize)]
struct Cpus {
    boot_vcpus: u32,
    max_vcpus: u32,
}

#[derive(Deserialize)]
struct Memory {
    size: u64,
    #[serde(default)]
    hotplug_method: Option<String>,
    #[serde(default)]
    hotplug_size: Option<u64>,
    #[serde(default)]
    hotplugged_size: Option<u64>,
    #[serde(default)]
    zones: Option<Vec<IgnoredAny>>,
}

impl Memory {
    /// `wish` is what it was asked to have.
    fn range(&self, wish: Bytes) -> MemoryRange {
        let max = Bytes(self.size.saturating_add(self.hotplug_size.unwrap_or(0)));
        if self.zones.as_ref().is_some_and(|zones| !zones.is_empty()) || self.hotplug_size.is_none_or(|size| size == 0)
        {
            // Zones are resized one by one, and which of them is for a person to say.
            MemoryRange::fixed(wish)
        } else if self.hotplug_method.as_deref() == Some("VirtioMem") {
            MemoryRange { min: Bytes(self.size), max, block: BLOCK }
        } else {
            // A module is taken out by a reboot alone.
            MemoryRange { min: wish, max, block: ACPI_BLOCK }
        }
    }
}

impl CloudHypervisor {
    /// `path` is the socket of `--api-socket`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { api: Api::new("cloud-hypervisor", path) }
    }

    fn failed(&self, answer: &Answer) -> VmmError {
        let text = text(&answer.body);
        let later = ["pending", "not booted", "not running", "not created"].iter().any(|word| text.contains(word));
        let said = self.api.says(&text);
        match answer.status {
            // No VM yet; a CPU is still leaving; starting.
            404 | 429 | 503 => VmmError::NotYet(said),
            400..600 if later => VmmError::NotYet(said),
            400..600 => VmmError::Refused(said),
            status => VmmError::Protocol(self.api.says(&format!("answers {status}"))),
        }
    }
}

/// A JSON array of strings, the outermost error first; a string may go on with a backtrace.
fn text(body: &[u8]) -> String {
    match serde_json::from_slice::<Vec<String>>(body) {
        Ok(errors) => line(&errors.iter().map(|error| line(error)).collect::<Vec<_>>().join(": ")),
        Err(_) => line(&String::from_utf8_lossy(body)),
    }
}

impl Vmm for CloudHypervisor {
    fn name(&self) -> &'static str {
        "cloud-hypervisor"
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let answer = self.api.get(INFO).await?;
        if !answer.is_success() {
            return Err(self.failed(&answer));
        }
        let Info { config: Config { cpus, memory }, state, memory_actual_size } = self.api.parse(INFO, &answer)?;
        let cpu = MilliCpu::from_cpus(cpus.boot_vcpus);
        let zoned = memory.size == 0;
        let asked = Bytes(memory.size.saturating_add(memory.hotplugged_size.unwrap_or(0)));
        let actual = Bytes(memory_actual_size);
        let (has, wish) = match state.as_str() {
            "Running" | "Paused" if zoned => (actual, actual),
            "Running" | "Paused" => (actual, asked),
            _ => (asked, asked),
        };
        Ok(Reported {
            has: Size { cpu, memory: has },
            wish: Size { cpu, memory: wish },
            can: Capabilities {
                cpu: CpuRange::whole(1, cpus.max_vcpus.max(1)),
                memory: memory.range(wish),
                balloon: false,
            },
            running: state == "Running",
        })
    }

    async fn send(&mut self, now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        let mut body = Map::new();
        if target.cpu != now.wish.cpu {
            body.insert("desired_vcpus".into(), target.cpu.cpus().into());
        }
        if target.memory != now.wish.memory {
            body.insert("desired_ram".into(), target.memory.0.into());
        }
        let answer = self.api.call(Method::PUT, RESIZE, Some(Value::Object(body))).await?;
        if answer.is_success() { Ok(None) } else { Err(self.failed(&answer)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_list_with_backtraces_and_one_line_remains() {
        let body = br#"["Error from API","The VM could not be resized\n   0: vmm::resize\n   1: main","Requested zero vCPUs"]"#;
        assert_eq!(text(body), "Error from API: The VM could not be resized: Requested zero vCPUs");
        assert_eq!(text(b"<html>"), "<html>");
        assert_eq!(text(b""), "no reason given");
    }

    #[test]
    fn what_memory_can_be_depends_on_how_it_is_plugged() {
        let of = |text: &str| serde_json::from_str::<Memory>(text).unwrap().range(Bytes::gib(1));
        assert_eq!(of(r#"{"size":536870912}"#), MemoryRange::fixed(Bytes::gib(1)));
        assert_eq!(of(r#"{"size":536870912,"hotplug_size":0}"#), MemoryRange::fixed(Bytes::gib(1)));
        let virtio = of(r#"{"size":536870912,"hotplug_method":"VirtioMem","hotplug_size":2147483648}"#);
        assert_eq!((virtio.min, virtio.max, virtio.block), (Bytes::mib(512), Bytes::mib(2560), Bytes::mib(2)));
        let acpi = of(r#"{"size":536870912,"hotplug_method":"Acpi","hotplug_size":2147483648}"#);
        assert_eq!((acpi.min, acpi.max, acpi.block), (Bytes::gib(1), Bytes::mib(2560), Bytes::mib(128)));
        assert_eq!(of(r#"{"size":0,"hotplug_size":1,"zones":[{"id":"a"}]}"#), MemoryRange::fixed(Bytes::gib(1)));
    }
}
