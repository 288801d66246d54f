//! A peer that answers as cloud-hypervisor 54.0.0 did, and what is particular about it.

use crate::http::{Asked, Handler, Reply, serve};
use crate::suite::{Mode, Peer, REFUSAL, contract, size};
use informant_host::vmm::{Actuator, Config, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

const BOOT: u64 = 512 << 20;
const ZONE: u64 = 2 << 30;

struct Vm {
    mode: Mode,
    applies: bool,
    state: &'static str,
    vcpus: u64,
    ram: u64,
    actual: u64,
    balloon: Option<u64>,
    sent: Vec<String>,
}

impl Vm {
    fn info(&self) -> Value {
        let mut memory = json!({
            "size": BOOT, "hotplug_method": "VirtioMem", "hotplug_size": ZONE, "shared": true, "mergeable": false, "zones": null,
        });
        if self.ram > BOOT {
            memory["hotplugged_size"] = (self.ram - BOOT).into();
        }
        let mut info = json!({
            "config": {
                "cpus": { "boot_vcpus": self.vcpus, "max_vcpus": 4, "topology": null },
                "memory": memory,
                "vsock": { "cid": 4, "socket": "/run/v.sock" },
            },
            "state": self.state,
            "memory_actual_size": self.actual,
            "device_tree": {},
        });
        if self.state == "Created" {
            info["memory_actual_size"] = 0.into();
        }
        info
    }

    fn resize(&mut self, body: &str) -> Reply {
        let Ok(body) = serde_json::from_str::<Value>(body) else {
            return errors(400, &["Failed to deserialize JSON", "expected value at line 1 column 1"]);
        };
        let wrong = |words: &[&str]| {
            errors(
                500,
                &[&["Error from API", "The VM could not be resized\n   0: vmm::api\n   1: main"], words].concat(),
            )
        };
        match body["desired_vcpus"].as_u64() {
            Some(0) => return wrong(&["Error from CPU manager", "Requested zero vCPUs"]),
            Some(5..) => return wrong(&["Error from CPU manager", "Requested vCPUs exceed maximum"]),
            Some(vcpus) => self.vcpus = vcpus,
            None => {}
        }
        match body["desired_ram"].as_u64() {
            Some(ram) if ram < BOOT => {
                let text = format!("Invalid resize request: desired_size = {ram} below boot size = {BOOT}");
                return wrong(&["Error from memory manager", &text]);
            }
            Some(ram) if ram - BOOT > ZONE => return wrong(&["resize size is bigger than region_size 0x80000000"]),
            Some(ram) if !(ram - BOOT).is_multiple_of(2 << 20) => {
                return wrong(&["resize size is not aligned on block_size 0x200000"]);
            }
            Some(ram) => self.ram = ram,
            None => {}
        }
        self.balloon = body["desired_balloon"].as_u64().or(self.balloon);
        if self.applies {
            self.actual = self.ram;
        }
        (204, String::new())
    }
}

fn errors(status: u16, texts: &[&str]) -> Reply {
    (status, json!(texts).to_string())
}

impl Handler for Vm {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn answer(&mut self, asked: &Asked) -> Reply {
        let missing = || errors(404, &["Error from API", "The VM info is not available", "VM is not created"]);
        match (asked.method.as_str(), asked.target.as_str()) {
            _ if self.mode == Mode::NotYet => missing(),
            ("GET", "/api/v1/vm.info") => (200, self.info().to_string()),
            ("PUT", "/api/v1/vm.resize") => {
                self.sent.push(asked.body.clone());
                match self.mode {
                    Mode::Refuse => errors(500, &["Error from API", "No\n   0: trace\n\n   1: of it", REFUSAL]),
                    _ => self.resize(&asked.body),
                }
            }
            _ => errors(404, &["no such thing"]),
        }
    }
}

struct CloudHypervisor {
    dir: tempfile::TempDir,
    vm: Arc<Mutex<Vm>>,
}

impl CloudHypervisor {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vm = Vm {
            mode: Mode::Normal,
            applies: true,
            state: "Running",
            vcpus: 1,
            ram: BOOT,
            actual: BOOT,
            balloon: None,
            sent: Vec::new(),
        };
        let vm = Arc::new(Mutex::new(vm));
        serve(&dir.path().join("api.sock"), Arc::clone(&vm));
        Self { dir, vm }
    }

    fn vm(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }
}

impl Peer for CloudHypervisor {
    fn actuator(&self) -> Actuator {
        Actuator::new(&Config::CloudHypervisor(self.path()))
    }

    fn set(&self, mode: Mode) {
        self.vm().mode = mode;
    }

    fn applies(&self, applies: bool) {
        self.vm().applies = applies;
    }

    fn apply(&self) {
        let mut vm = self.vm();
        vm.actual = vm.ram;
    }

    fn sent(&self) -> Vec<String> {
        self.vm().sent.clone()
    }

    fn stop(&self) {
        std::fs::remove_file(self.path()).unwrap();
    }
}

contract!(CloudHypervisor::start());

#[tokio::test]
async fn one_request_with_what_differs() {
    let peer = CloudHypervisor::start();
    let mut vmm = peer.actuator();
    vmm.resize(size(2, 1024)).await.unwrap();
    vmm.resize(size(2, 1026)).await.unwrap();
    vmm.resize(size(4, 1026)).await.unwrap();
    let sent =
        [r#"{"desired_ram":1073741824,"desired_vcpus":2}"#, r#"{"desired_ram":1075838976}"#, r#"{"desired_vcpus":4}"#];
    assert_eq!(peer.sent(), sent);
    assert_eq!(peer.vm().balloon, None, "it would leave no trace");
}

/// What the bounds that it shows would not let through: its own words must come through all the same.
#[tokio::test]
async fn its_own_refusals() {
    let peer = CloudHypervisor::start();
    let mut vmm = peer.actuator();
    let now = vmm.observe().await.unwrap();
    for (target, text) in [
        (size(8, 512), "Error from CPU manager: Requested vCPUs exceed maximum"),
        (size(0, 512), "Requested zero vCPUs"),
        (Size { cpu: MilliCpu(1000), memory: Bytes(BOOT + 4096) }, "is not aligned on block_size 0x200000"),
        (size(1, 4096), "bigger than region_size"),
        (size(1, 100), "desired_size = 104857600 below boot size = 536870912"),
    ] {
        let error = vmm.send(&now, target).await.unwrap_err();
        assert!(matches!(error, VmmError::Refused(_)) && error.to_string().contains(text), "{error:?}");
        assert_eq!(vmm.observe().await.unwrap(), now, "nothing changes");
    }
}

#[tokio::test]
async fn states() {
    let peer = CloudHypervisor::start();
    let mut vmm = peer.actuator();
    for (state, running) in [("Paused", false), ("Created", false), ("Shutdown", false), ("Running", true)] {
        peer.vm().state = state;
        let seen = vmm.observe().await.unwrap();
        assert_eq!((seen.running, seen.has, seen.wish), (running, size(1, 512), size(1, 512)), "{state}");
    }
    peer.vm().state = "Paused";
    assert_eq!(vmm.resize(size(2, 1024)).await.unwrap().wish, size(2, 1024), "accepted while paused");
}
