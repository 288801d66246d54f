//! Real virtual machines: QEMU with a virtio-vsock device, our image and Debian's cloud kernel.
//!
//! ```no_run
//! use std::time::Duration;
//! use xtask::vm::Vm;
//!
//! # fn main() -> anyhow::Result<()> {
//! let vm = Vm::builder().memory_mib(256).append("informant.interval=1s").boot()?;
//! let stat = vm.sh("cat /proc/stat", Duration::from_secs(10))?;
//! # Ok(()) }
//! ```
//!
//! The host's side of the device is hybrid vsock as Firecracker has it: what the guest dials at CID 2, port P arrives at
//! the unix socket `<uds>_P`, and `CONNECT P` on `<uds>` reaches the guest. Nothing here ever opens AF_VSOCK.

mod accel;
mod base64;
mod builder;
mod console;
mod hotplug;
mod qemu;
mod qmp;
mod tap;
mod vhost;
mod workload;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use accel::{Accel, VARIABLE as ACCEL_VARIABLE, accel};
pub use builder::Builder;
pub use console::Output;
pub use hotplug::{ACTUATOR_SOCKET, CpuSlot, Hotplug, MEMORY_DEVICE, PluggedMemory};
pub use qmp::Qmp;
pub use tap::{Line, Resize, Tap, Way};
pub use workload::{Hold, Workload};

use crate::child::Child;
use crate::lock::{self, Lock};
use crate::project;
use console::Console;

/// Under emulation on a busy two-core machine a boot takes 5 to 15 s; what is over a minute does not come.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until no other test on this machine runs VMs: take it first, and keep it for the whole test.
pub fn turn() -> Result<Lock> {
    lock::take(&project::cache()?.join("vm.lock"), "VM tests take turns", Duration::from_secs(60 * 60))
}

/// A running VM. Dropping ends QEMU first, then the vsock device, then removes the directory.
#[derive(Debug)]
pub struct Vm {
    console: Console,
    qmp: Mutex<Qmp>,
    qemu: Mutex<Child>,
    vhost: Mutex<Child>,
    dir: PathBuf,
    cid: u32,
    accel: Accel,
    reboots: bool,
    /// A reset is under way, see [`Vm::reset`].
    resetting: AtomicBool,
    _temporary: Option<TempDir>,
}

impl Vm {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The host's end of the vsock device.
    pub fn uds(&self) -> PathBuf {
        self.dir.join("v.sock")
    }

    /// Where the guest arrives that dials CID 2 at this port.
    pub fn uds_port(&self, port: u32) -> PathBuf {
        self.dir.join(format!("v.sock_{port}"))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn cid(&self) -> u32 {
        self.cid
    }

    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// Everything that came over the serial line.
    pub fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Waits until the console of the image takes commands.
    pub fn wait_boot(&self, timeout: Duration) -> Result<()> {
        let alive = || self.check_running();
        self.console.wait_ready(timeout, &alive).with_context(|| self.last_words())?;
        if self.resetting.swap(false, Ordering::Relaxed) && !self.reboots {
            self.qmp("set-action", json!({"reboot": "shutdown"}))?;
        }
        Ok(())
    }

    /// Runs a shell script in the guest and gives what it printed; an error when its exit code is not 0.
    pub fn sh(&self, script: &str, timeout: Duration) -> Result<String> {
        let output = self.run(script, timeout)?;
        if output.code != 0 {
            bail!("in the VM, `{script}` ended with code {}: {}", output.code, output.text().trim());
        }
        Ok(output.text())
    }

    /// The same with exit code and bytes.
    pub fn run(&self, script: &str, timeout: Duration) -> Result<Output> {
        let alive = || self.check_running();
        self.console.run(script, timeout, &alive).with_context(|| format!("in the VM: `{script}`"))
    }

    /// One QMP command and its `return`.
    pub fn qmp(&self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner).execute(command, arguments)
    }

    /// The rig's own control socket, for as long as `run` takes.
    pub fn with_qmp<T>(&self, run: impl FnOnce(&mut Qmp) -> Result<T>) -> Result<T> {
        run(&mut self.qmp.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// QEMU's control socket for whoever resizes this VM; there with [`Builder::hotplug`].
    pub fn actuator_socket(&self) -> PathBuf {
        self.dir.join(ACTUATOR_SOCKET)
    }

    /// Presses the reset button; the VM boots again (see [`Vm::wait_boot`]). The vsock device goes on.
    pub fn reset(&self) -> Result<()> {
        // Without this, `-no-reboot` would end QEMU here. It stays until the boot is over: the firmware, finding itself
        // run already, resets twice more.
        self.qmp("set-action", json!({"reboot": "reset"}))?;
        self.resetting.store(true, Ordering::Relaxed);
        self.console.forget_ready();
        self.qmp("system_reset", json!({}))?;
        self.qmp.lock().unwrap_or_else(PoisonError::into_inner).wait_event("RESET", Duration::from_secs(10)).map(drop)
    }

    /// Stops the virtual CPUs; the guest's clock of boot time goes on or not as QEMU has it.
    pub fn pause(&self) -> Result<()> {
        self.qmp("stop", json!({})).map(drop)
    }

    pub fn resume(&self) -> Result<()> {
        self.qmp("cont", json!({})).map(drop)
    }

    /// Kills the vsock device under the guest; it does not come back in this VM.
    pub fn kill_vsock_device(&self) -> Result<()> {
        self.vhost.lock().unwrap_or_else(PoisonError::into_inner).kill()
    }

    /// Opens a connection to a port in the guest. A refusal is an error here, as is a guest without driver.
    pub fn dial(&self, port: u32, timeout: Duration) -> Result<UnixStream> {
        let uds = self.uds();
        let mut stream = UnixStream::connect(&uds).with_context(|| format!("cannot connect to {}", uds.display()))?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.write_all(format!("CONNECT {port}\n").as_bytes()).context("the vsock device takes no command")?;
        let mut line = Vec::new();
        // Byte by byte: what the guest says may follow in the same packet.
        while line.last() != Some(&b'\n') && line.len() < 64 {
            let mut byte = [0];
            if stream.read(&mut byte).with_context(|| format!("no answer to CONNECT {port}"))? == 0 {
                bail!("the guest refused port {port}");
            }
            line.push(byte[0]);
        }
        if !line.starts_with(b"OK ") {
            bail!("the vsock device answered `{}` to CONNECT {port}", String::from_utf8_lossy(&line).trim());
        }
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    /// Listens where the guest arrives that dials CID 2 at this port.
    pub fn listen(&self, port: u32) -> Result<UnixListener> {
        let path = self.uds_port(port);
        UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))
    }

    /// Waits for QEMU to end by itself (the guest powered off, or rebooted without `reboots`).
    pub fn wait_end(&self, timeout: Duration) -> Result<()> {
        self.qemu.lock().unwrap_or_else(PoisonError::into_inner).wait(timeout).map(drop)
    }

    pub fn is_running(&self) -> Result<bool> {
        Ok(self.qemu.lock().unwrap_or_else(PoisonError::into_inner).ended()?.is_none())
    }

    fn check_running(&self) -> Result<()> {
        if let Some(status) = self.qemu.lock().unwrap_or_else(PoisonError::into_inner).ended()? {
            let said = fs::read_to_string(self.dir.join("qemu.log")).unwrap_or_default();
            bail!("QEMU ended with {}: {}", crate::child::shown(status), said.trim());
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        format!("the VM's console ended with:\n{}", self.console.tail(20))
    }

    /// After a failed test: what a person would look at first.
    fn print_evidence(&self) {
        eprintln!("-- the VM's console, last lines:\n{}", self.console.tail(40));
        for name in ["qemu.log", "vhost.log"] {
            let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
            if !text.trim().is_empty() {
                eprintln!("-- {name}:\n{}", tail(&text, 20));
            }
        }
        match self.sh("tail -n 40 /run/informant.log", Duration::from_secs(5)) {
            Ok(text) => eprintln!("-- the agent's log:\n{text}"),
            Err(error) => eprintln!("-- no log of the agent: {error:#}"),
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_evidence();
        }
        // The device last: QEMU complains at length when it goes first.
        let _ = self.qemu.lock().unwrap_or_else(PoisonError::into_inner).kill();
        let _ = self.vhost.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// Waits for a condition, asking again every 20 ms.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition()? {
        if Instant::now() >= deadline {
            bail!("{what} did not happen within {:.1} s", timeout.as_secs_f64());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
