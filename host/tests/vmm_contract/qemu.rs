//! A peer that answers as QEMU 7.2 did on its monitor, and what is particular about it.

use crate::suite::{Mode, Peer, REFUSAL, contract, size};
use informant_host::vmm::{Actuator, Config, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

const BASE: u64 = 512 << 20;

struct Device {
    id: &'static str,
    size: u64,
    requested: u64,
    max: u64,
    block: u64,
}

struct Vm {
    mode: Mode,
    applies: bool,
    /// Their ids; the one of boot has none. As many as fit.
    cpus: Vec<Option<String>>,
    /// Asked to leave.
    leaving: Vec<String>,
    /// The guest's ACPI has taken over.
    acpi: bool,
    hotpluggable: bool,
    devices: Vec<Device>,
    /// What is left and what was asked to be left.
    balloon: Option<(u64, u64)>,
    sent: Vec<String>,
}

fn device(id: &'static str, max: u64, block: u64) -> Device {
    Device { id, size: 0, requested: 0, max, block }
}

type Answer = Result<Value, (&'static str, String)>;

fn no(text: impl Into<String>) -> Answer {
    Err(("GenericError", text.into()))
}

impl Vm {
    fn apply(&mut self) {
        for device in &mut self.devices {
            device.size = device.requested;
        }
        if let Some((actual, wish)) = &mut self.balloon {
            *actual = *wish;
        }
        for id in std::mem::take(&mut self.leaving) {
            for cpu in &mut self.cpus {
                if cpu.as_ref() == Some(&id) {
                    *cpu = None;
                }
            }
        }
    }

    fn answer(&mut self, command: &str, arguments: &Value) -> Answer {
        let changes = ["qom-set", "device_add", "device_del", "balloon"].contains(&command);
        if changes {
            self.sent.push(format!("{command} {arguments}"));
            match self.mode {
                Mode::NotYet => return no(format!("{command} not allowed while migrating")),
                Mode::Refuse => return no(format!("{REFUSAL}\nand more")),
                _ => {}
            }
        }
        let answer = match command {
            "qmp_capabilities" => Ok(json!({})),
            "query-status" => Ok(json!({ "status": "running", "singlestep": false, "running": true })),
            "query-memory-size-summary" => Ok(json!({ "base-memory": BASE, "plugged-memory": 0 })),
            "query-memory-devices" => Ok(self.memory_devices()),
            "query-balloon" => match self.balloon {
                Some((actual, _)) => Ok(json!({ "actual": actual })),
                None => Err(("DeviceNotActive", "No balloon device has been activated".into())),
            },
            "balloon" => {
                let actual = self.balloon.unwrap().0;
                self.balloon = Some((actual, arguments["value"].as_u64().unwrap()));
                Ok(json!({}))
            }
            "query-hotpluggable-cpus" if self.hotpluggable => Ok(self.slots()),
            "query-hotpluggable-cpus" => no("machine does not support hot-plugging CPUs"),
            "query-cpus-fast" => Ok(json!([{ "cpu-index": 0 }, { "cpu-index": 1 }])),
            "qom-set" => self.set(arguments),
            "device_add" => self.add(arguments),
            "device_del" => self.remove(arguments),
            other => Err(("CommandNotFound", format!("The command {other} has not been found"))),
        };
        if changes && self.applies && answer.is_ok() {
            self.apply();
        }
        answer
    }

    fn memory_devices(&self) -> Value {
        self.devices
            .iter()
            .map(|device| {
                json!({ "type": "virtio-mem", "data": {
                    "memdev": "/objects/m", "memaddr": 4_294_967_296_u64, "block-size": device.block, "size": device.size,
                    "node": 0, "max-size": device.max, "requested-size": device.requested, "id": device.id,
                }})
            })
            .collect()
    }

    /// The highest first, as QEMU does.
    fn slots(&self) -> Value {
        let slot = |(socket, cpu): (usize, &Option<String>)| {
            let props = json!({ "core-id": 0, "thread-id": 0, "node-id": 0, "socket-id": socket });
            let mut slot = json!({ "props": props, "vcpus-count": 1, "type": "qemu64-x86_64-cpu" });
            match cpu {
                Some(id) if id.is_empty() => slot["qom-path"] = "/machine/unattached/device[0]".into(),
                Some(id) => slot["qom-path"] = format!("/machine/peripheral/{id}").into(),
                None => {}
            }
            slot
        };
        self.cpus.iter().enumerate().map(slot).rev().collect()
    }

    fn set(&mut self, arguments: &Value) -> Answer {
        let path = arguments["path"].as_str().unwrap();
        let value = arguments["value"].as_u64().unwrap();
        let id = path.strip_prefix("/machine/peripheral/").unwrap();
        let device = self.devices.iter_mut().find(|device| device.id == id).unwrap();
        assert_eq!(arguments["property"], "requested-size");
        if !value.is_multiple_of(device.block) {
            return no(format!("'requested-size' has to be multiples of 'block-size' ({:#x})", device.block));
        }
        if value > device.max {
            return no(format!("'requested-size' cannot exceed the memory backend size({:#x})", device.max));
        }
        device.requested = value;
        Ok(json!({}))
    }

    fn add(&mut self, arguments: &Value) -> Answer {
        let id = arguments["id"].as_str().unwrap().to_owned();
        assert_eq!((&arguments["driver"], &arguments["core-id"]), (&json!("qemu64-x86_64-cpu"), &json!(0)));
        if self.cpus.contains(&Some(id.clone())) {
            return no(format!("Duplicate device ID '{id}'"));
        }
        let socket = usize::try_from(arguments["socket-id"].as_u64().unwrap()).unwrap();
        if self.cpus[socket].is_some() {
            return no(format!("CPU[{socket}] with APIC ID {socket} exists"));
        }
        self.cpus[socket] = Some(id);
        Ok(json!({}))
    }

    fn remove(&mut self, arguments: &Value) -> Answer {
        let id = arguments["id"].as_str().unwrap().to_owned();
        if !self.cpus.contains(&Some(id.clone())) {
            return Err(("DeviceNotFound", format!("Device '{id}' not found")));
        }
        if !self.acpi {
            return no("acpi: device unplug request for not supported device type: qemu64-x86_64-cpu");
        }
        self.leaving.push(id);
        Ok(json!({}))
    }
}

struct Qemu {
    dir: tempfile::TempDir,
    vm: Arc<Mutex<Vm>>,
}

impl Qemu {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vm = Vm {
            mode: Mode::Normal,
            applies: true,
            cpus: vec![Some(String::new()), None, None, None],
            leaving: Vec::new(),
            acpi: true,
            hotpluggable: true,
            devices: vec![device("vm0", 2 << 30, 2 << 20)],
            balloon: None,
            sent: Vec::new(),
        };
        let vm = Arc::new(Mutex::new(vm));
        serve(&dir.path().join("qmp.sock"), Arc::clone(&vm));
        Self { dir, vm }
    }

    fn vm(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("qmp.sock")
    }
}

/// One client at a time: the next one is greeted when the one before is gone.
fn serve(path: &Path, vm: Arc<Mutex<Vm>>) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that went away in the middle is no fault of QEMU's.
            drop(client(&stream.unwrap(), &vm));
        }
    });
}

fn client(mut stream: &UnixStream, vm: &Mutex<Vm>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    if vm.lock().unwrap().mode == Mode::Silent {
        return hang(&mut reader);
    }
    let version = json!({ "qemu": { "micro": 22, "minor": 2, "major": 7 }, "package": "" });
    writeln!(stream, "{}\r", json!({ "QMP": { "version": version, "capabilities": ["oob"] } }))?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let Ok(asked) = serde_json::from_str::<Value>(&line) else {
            writeln!(stream, r#"{{"error": {{"class": "GenericError", "desc": "JSON parse error"}}}}"#)?;
            continue;
        };
        line.clear();
        let command = asked["execute"].as_str().unwrap();
        let (answer, mode) = {
            let mut vm = vm.lock().unwrap();
            let changes = !command.starts_with("query-") && command != "qmp_capabilities";
            if vm.mode == Mode::Hang && changes {
                drop(vm);
                return hang(&mut reader);
            }
            let mode = if vm.mode == Mode::TakeAndHang && !changes { Mode::Normal } else { vm.mode };
            (vm.answer(command, &asked["arguments"]), mode)
        };
        let mut text = match answer {
            Ok(value) => json!({ "return": value, "id": asked["id"] }),
            Err((class, desc)) => json!({ "id": asked["id"], "error": { "class": class, "desc": desc } }),
        }
        .to_string();
        // Events stand between a command and its answer; an answer that is nobody's is nobody's.
        let event = json!({ "timestamp": { "seconds": 1, "microseconds": 2 }, "event": "MEMORY_DEVICE_SIZE_CHANGE",
            "data": { "id": "vm0", "size": 4096, "qom-path": "/machine/peripheral/vm0" } });
        writeln!(stream, "{event}\r\n{}\r", json!({ "return": { "actual": 1 }, "id": "another" }))?;
        match mode {
            Mode::TakeAndHang => return hang(&mut reader),
            Mode::Garbage => text = "(qemu) info status".into(),
            Mode::Half => return stream.write_all(&text.as_bytes()[..text.len() / 2]),
            Mode::Endless => loop {
                stream.write_all(&[b'['; 4096])?;
            },
            _ => {}
        }
        let (first, second) = text.split_at(text.len() / 2);
        stream.write_all(first.as_bytes())?;
        thread::yield_now();
        writeln!(stream, "{second}\r\n{event}\r")?;
    }
    Ok(())
}

/// Until the client goes.
fn hang(reader: &mut impl Read) -> std::io::Result<()> {
    reader.read_to_end(&mut Vec::new()).map(drop)
}

impl Peer for Qemu {
    fn actuator(&self) -> Actuator {
        Actuator::new(&Config::Qemu(self.path()))
    }

    fn set(&self, mode: Mode) {
        self.vm().mode = mode;
    }

    fn applies(&self, applies: bool) {
        self.vm().applies = applies;
    }

    fn apply(&self) {
        self.vm().apply();
    }

    fn sent(&self) -> Vec<String> {
        self.vm().sent.clone()
    }

    fn stop(&self) {
        std::fs::remove_file(self.path()).unwrap();
    }
}

contract!(Qemu::start());

#[tokio::test]
async fn cpus_come_and_go_one_by_one_and_those_of_boot_stay() {
    let peer = Qemu::start();
    let mut vmm = peer.actuator();
    vmm.resize(size(3, 512)).await.unwrap();
    vmm.resize(size(2, 512)).await.unwrap();
    vmm.resize(size(4, 512)).await.unwrap();
    let add = |id, socket| {
        format!(
            r#"device_add {{"core-id":0,"driver":"qemu64-x86_64-cpu","id":"informant-cpu-{id}","node-id":0,"socket-id":{socket},"thread-id":0}}"#
        )
    };
    let sent = [add(1, 1), add(2, 2), r#"device_del {"id":"informant-cpu-2"}"#.to_owned(), add(2, 2), add(3, 3)];
    assert_eq!(peer.sent(), sent);

    peer.vm().cpus = vec![Some(String::new()), Some(String::new()), Some("theirs".into()), None];
    let seen = vmm.observe().await.unwrap();
    assert_eq!((seen.has.cpu, seen.can.cpu.min), (MilliCpu(3000), MilliCpu(2000)));
    assert_eq!(vmm.resize(size(1, 512)).await.unwrap_err().kind(), "refused");
    assert_eq!(vmm.resize(size(2, 512)).await.unwrap().has.cpu, MilliCpu(2000));
}

#[tokio::test]
async fn a_cpu_that_was_asked_to_leave_is_there_until_it_left() {
    let peer = Qemu::start();
    let mut vmm = peer.actuator();
    vmm.resize(size(4, 512)).await.unwrap();
    peer.applies(false);
    for _ in 0..3 {
        let seen = vmm.resize(size(2, 512)).await.unwrap();
        assert_eq!((seen.has.cpu, seen.wish.cpu), (MilliCpu(4000), MilliCpu(2000)));
    }
    assert_eq!(peer.sent().len(), 5, "each asked once");
    // Needed again: it cannot be told so, but another one comes when it has gone.
    let seen = vmm.resize(size(4, 512)).await.unwrap();
    assert_eq!((seen.has.cpu, seen.wish.cpu, peer.sent().len()), (MilliCpu(4000), MilliCpu(4000), 5));
    peer.apply();
    let seen = vmm.observe().await.unwrap();
    assert_eq!((seen.has.cpu, seen.wish.cpu), (MilliCpu(2000), MilliCpu(2000)));
    assert_eq!(vmm.resize(size(4, 512)).await.unwrap().has.cpu, MilliCpu(4000));
}

#[tokio::test]
async fn before_the_guest_has_acpi_no_cpu_leaves_yet_and_memory_goes_all_the_same() {
    let peer = Qemu::start();
    let mut vmm = peer.actuator();
    vmm.resize(size(2, 1024)).await.unwrap();
    peer.vm().acpi = false;
    let error = vmm.resize(size(1, 768)).await.unwrap_err();
    assert!(matches!(error, VmmError::NotYet(_)), "{error:?}");
    assert_eq!(vmm.observe().await.unwrap().wish, size(2, 768));
    peer.vm().acpi = true;
    assert_eq!(vmm.resize(size(1, 768)).await.unwrap().has, size(1, 768));
}

#[tokio::test]
async fn several_devices_are_filled_in_turn() {
    let peer = Qemu::start();
    peer.vm().devices = vec![device("a", 1 << 30, 2 << 20), device("b", 1 << 30, 4 << 20)];
    let mut vmm = peer.actuator();
    assert_eq!(vmm.observe().await.unwrap().can.memory.block, Bytes::mib(4));
    assert_eq!(vmm.resize(size(1, 512 + 1026)).await.unwrap().has, size(1, 512 + 1028));
    assert_eq!(vmm.resize(size(1, 612)).await.unwrap().has, size(1, 612));
    let set = |id, mib: u64| {
        format!(r#"qom-set {{"path":"/machine/peripheral/{id}","property":"requested-size","value":{}}}"#, mib << 20)
    };
    assert_eq!(peer.sent(), [set("a", 1024), set("b", 4), set("a", 100), set("b", 0)]);
}

#[tokio::test]
async fn a_balloon_where_there_is_no_virtio_mem() {
    let peer = Qemu::start();
    peer.vm().devices.clear();
    peer.vm().balloon = Some((BASE, BASE));
    peer.applies(false);
    let mut vmm = peer.actuator();
    let seen = vmm.observe().await.unwrap();
    assert!(seen.can.balloon);
    assert_eq!((seen.can.memory.max, seen.has), (Bytes(BASE), size(1, 512)));
    for _ in 0..2 {
        let seen = vmm.resize(Size { cpu: MilliCpu(1000), memory: Bytes((384 << 20) - 1) }).await.unwrap();
        assert_eq!((seen.has, seen.wish), (size(1, 512), size(1, 384)));
    }
    assert_eq!(peer.sent(), [r#"balloon {"value":402653184}"#]);
    peer.apply();
    let seen = vmm.observe().await.unwrap();
    assert_eq!((seen.has, seen.wish), (size(1, 384), size(1, 384)));
    let error = vmm.resize(size(1, 1024)).await.unwrap_err();
    assert!(matches!(error, VmmError::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn a_machine_on_which_nothing_can_be_changed() {
    let peer = Qemu::start();
    peer.vm().devices.clear();
    peer.vm().hotpluggable = false;
    let seen = peer.actuator().observe().await.unwrap();
    assert_eq!(seen.has, size(2, 512));
    assert!(seen.can.cpu.is_fixed() && seen.can.memory.is_fixed() && !seen.can.balloon);
    let error = peer.actuator().resize(size(1, 512)).await.unwrap_err();
    assert!(matches!(error, VmmError::Unsupported(_)), "{error:?}");
}

#[tokio::test]
async fn its_own_refusals() {
    let peer = Qemu::start();
    let mut vmm = peer.actuator();
    let now = vmm.observe().await.unwrap();
    peer.vm().devices[0].block = 1 << 20;
    peer.vm().mode = Mode::Refuse;
    let error = vmm.send(&now, size(2, 512)).await.unwrap_err();
    assert!(
        matches!(&error, VmmError::Refused(text) if text.ends_with("device_add: not with this machine")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_monitor_that_has_another_client() {
    let peer = Qemu::start();
    let other = UnixStream::connect(peer.path()).unwrap();
    let error = peer.actuator().observe().await.unwrap_err();
    assert!(matches!(error, VmmError::Timeout(_)) && error.to_string().contains("another client"), "{error:?}");
    drop(other);
    assert_eq!(peer.actuator().observe().await.unwrap().has, size(1, 512));
}
