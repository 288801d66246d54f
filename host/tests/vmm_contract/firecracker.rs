//! A peer that answers as Firecracker 1.17 did, and what is particular about it.

use crate::http::{Asked, Handler, Reply, serve};
use crate::suite::{Mode, Peer, REFUSAL, contract, size};
use informant_host::vmm::{Actuator, Config, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

const BOOT_MIB: u64 = 512;
const ROOM_MIB: u64 = 2048;

struct Vm {
    mode: Mode,
    applies: bool,
    state: &'static str,
    /// The driver in the guest is up.
    active: bool,
    hotplug: bool,
    requested: u64,
    plugged: u64,
    balloon: bool,
    statistics: bool,
    amount: u64,
    actual: u64,
    sent: Vec<String>,
}

fn fault(text: &str) -> Reply {
    (400, json!({ "fault_message": text }).to_string())
}

impl Vm {
    /// The only field that such a request may have.
    fn only(body: &str, field: &str) -> Result<u64, Reply> {
        let start = "An error occurred when deserializing the json body of a request";
        let body: Value = serde_json::from_str(body).map_err(|error| fault(&format!("{start}: {error}")))?;
        let table = body.as_object().ok_or_else(|| fault(start))?;
        if let Some(other) = table.keys().find(|key| *key != field) {
            return Err(fault(&format!("{start}: unknown field `{other}`, expected `{field}` at line 1 column 9.")));
        }
        table.get(field).and_then(Value::as_u64).ok_or_else(|| fault(&format!("{start}: missing field `{field}`")))
    }

    fn patch_hotplug(&mut self, body: &str) -> Reply {
        let requested = match Self::only(body, "requested_size_mib") {
            Ok(requested) => requested,
            Err(fault) => return fault,
        };
        let wrong = |text: &str| fault(&format!("Memory hotplug update error: {text}"));
        if !self.active || self.mode == Mode::NotYet {
            return wrong("Failed to create memory hotplug device: Device is not active");
        }
        if self.mode == Mode::Refuse {
            return wrong(REFUSAL);
        }
        if requested > ROOM_MIB || !requested.is_multiple_of(2) {
            return wrong("Invalid requested size");
        }
        self.requested = requested;
        if self.applies {
            self.plugged = requested;
        }
        (204, String::new())
    }

    fn patch_balloon(&mut self, body: &str) -> Reply {
        let amount = match Self::only(body, "amount_mib") {
            Ok(amount) => amount,
            Err(fault) => return fault,
        };
        if !self.active {
            return fault("Balloon update error: Balloon: Device not activated yet.");
        }
        self.amount = amount;
        if self.applies {
            self.actual = amount;
        }
        (204, String::new())
    }
}

impl Handler for Vm {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn answer(&mut self, asked: &Asked) -> Reply {
        if asked.changes() {
            self.sent.push(format!("{} {}", asked.target, asked.body));
            if self.state == "Not started" {
                return fault("The requested operation is not supported before starting the microVM.");
            }
        }
        match (asked.method.as_str(), asked.target.as_str()) {
            ("GET", "/") => {
                let info =
                    json!({ "id": "vm", "state": self.state, "vmm_version": "1.17.0-dev", "app_name": "Firecracker" });
                (200, info.to_string())
            }
            ("GET", "/machine-config") => {
                let machine =
                    json!({ "vcpu_count": 1, "mem_size_mib": BOOT_MIB, "smt": false, "track_dirty_pages": false });
                (200, machine.to_string())
            }
            ("GET", "/hotplug/memory") if self.hotplug => {
                let hotplug = json!({
                    "block_size_mib": 2, "total_size_mib": ROOM_MIB, "slot_size_mib": 128,
                    "plugged_size_mib": self.plugged, "requested_size_mib": self.requested,
                });
                (200, hotplug.to_string())
            }
            ("PATCH", "/hotplug/memory") if self.hotplug => self.patch_hotplug(&asked.body),
            ("GET", "/balloon") if self.balloon => {
                let balloon = json!({
                    "amount_mib": self.amount, "deflate_on_oom": true, "stats_polling_interval_s": 1,
                    "free_page_hinting": false, "free_page_reporting": false,
                });
                (200, balloon.to_string())
            }
            ("GET", "/balloon/statistics") if self.balloon && self.statistics => {
                let statistics = json!({
                    "target_pages": self.amount * 256, "actual_pages": self.actual * 256,
                    "target_mib": self.amount, "actual_mib": self.actual,
                });
                (200, statistics.to_string())
            }
            ("PATCH", "/balloon") if self.balloon => self.patch_balloon(&asked.body),
            ("GET", "/balloon" | "/balloon/statistics") => fault("Balloon config error: No balloon device found."),
            (method, target) => {
                fault(&format!("Invalid request method and/or path: {method} {}.", target.trim_start_matches('/')))
            }
        }
    }
}

struct Firecracker {
    dir: tempfile::TempDir,
    vm: Arc<Mutex<Vm>>,
}

impl Firecracker {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vm = Vm {
            mode: Mode::Normal,
            applies: true,
            state: "Running",
            active: true,
            hotplug: true,
            requested: 0,
            plugged: 0,
            balloon: false,
            statistics: true,
            amount: 0,
            actual: 0,
            sent: Vec::new(),
        };
        let vm = Arc::new(Mutex::new(vm));
        serve(&dir.path().join("api.sock"), Arc::clone(&vm));
        Self { dir, vm }
    }

    fn with_balloon() -> Self {
        let peer = Self::start();
        peer.vm().hotplug = false;
        peer.vm().balloon = true;
        peer
    }

    fn vm(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }
}

impl Peer for Firecracker {
    fn actuator(&self) -> Actuator {
        Actuator::new(&Config::Firecracker(self.path()))
    }

    fn set(&self, mode: Mode) {
        self.vm().mode = mode;
    }

    fn applies(&self, applies: bool) {
        self.vm().applies = applies;
    }

    fn apply(&self) {
        let mut vm = self.vm();
        vm.plugged = vm.requested;
        vm.actual = vm.amount;
    }

    fn sent(&self) -> Vec<String> {
        self.vm().sent.clone()
    }

    fn stop(&self) {
        std::fs::remove_file(self.path()).unwrap();
    }

    fn scales_cpus(&self) -> bool {
        false
    }
}

contract!(Firecracker::start());

#[tokio::test]
async fn without_hotplug_a_balloon_does_it() {
    let peer = Firecracker::with_balloon();
    let mut vmm = peer.actuator();
    let seen = vmm.observe().await.unwrap();
    assert_eq!((seen.has, seen.can.balloon), (size(1, 512), true));
    assert_eq!((seen.can.memory.max, seen.can.memory.block), (Bytes::mib(512), Bytes::mib(1)));

    peer.applies(false);
    let wanted = Size { cpu: MilliCpu(1000), memory: Bytes(Bytes::mib(384).0 - 1) };
    for _ in 0..2 {
        let seen = vmm.resize(wanted).await.unwrap();
        assert_eq!((seen.has, seen.wish), (size(1, 512), size(1, 384)));
    }
    peer.apply();
    assert_eq!(vmm.observe().await.unwrap().has, size(1, 384));
    assert_eq!(vmm.resize(size(1, 512)).await.unwrap().wish, size(1, 512));
    assert_eq!(peer.sent(), [r#"/balloon {"amount_mib":128}"#, r#"/balloon {"amount_mib":0}"#]);
    assert_eq!(vmm.resize(size(1, 513)).await.unwrap_err().kind(), "refused");
}

#[tokio::test]
async fn a_balloon_without_statistics_is_what_it_was_asked_to_be() {
    let peer = Firecracker::with_balloon();
    peer.vm().statistics = false;
    peer.applies(false);
    let seen = peer.actuator().resize(size(1, 256)).await.unwrap();
    assert_eq!((seen.has, seen.wish), (size(1, 256), size(1, 256)));
}

#[tokio::test]
async fn before_the_driver_is_up_it_is_not_yet() {
    for (hotplug, text) in [(true, "Device is not active"), (false, "Device not activated yet.")] {
        let peer = Firecracker::with_balloon();
        peer.vm().hotplug = hotplug;
        peer.vm().active = false;
        let wanted = if hotplug { size(1, 1024) } else { size(1, 256) };
        let error = peer.actuator().resize(wanted).await.unwrap_err();
        assert!(matches!(error, VmmError::NotYet(_)) && error.to_string().ends_with(text), "{error:?}");
        peer.vm().state = "Not started";
        let error = peer.actuator().resize(wanted).await.unwrap_err();
        assert!(matches!(error, VmmError::NotYet(_)) && error.to_string().contains("before starting"), "{error:?}");
        assert!(!peer.actuator().observe().await.unwrap().running);
    }
}

#[tokio::test]
async fn with_neither_nothing_can_be_changed() {
    let peer = Firecracker::start();
    peer.vm().hotplug = false;
    let seen = peer.actuator().observe().await.unwrap();
    assert!(seen.can.cpu.is_fixed() && seen.can.memory.is_fixed());
    assert_eq!(peer.actuator().resize(size(1, 512)).await.unwrap(), seen);
    let error = peer.actuator().resize(size(1, 1024)).await.unwrap_err();
    assert!(matches!(error, VmmError::Unsupported(_)), "{error:?}");
    assert_eq!(peer.sent(), [""; 0]);
}

#[tokio::test]
async fn its_own_refusals() {
    let peer = Firecracker::start();
    let mut vmm = peer.actuator();
    let now = vmm.observe().await.unwrap();
    let error = vmm.send(&now, size(1, 512 + 3)).await.unwrap_err();
    assert!(matches!(error, VmmError::Refused(_)), "{error:?}");
    assert!(error.to_string().ends_with(": Memory hotplug update error: Invalid requested size"), "{error}");
}
