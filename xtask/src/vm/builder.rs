//! What a VM is to be like, and starting it.

use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::console::Console;
use super::hotplug::{ACTUATOR_SOCKET, Hotplug};
use super::qmp::Qmp;
use super::{BOOT_TIMEOUT, Vm, qemu, vhost};
use crate::image::cpio::Archive;
use crate::{project, setup};

/// A VM to be; see [`Vm::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) memory_mib: u32,
    pub(super) cpus: u32,
    pub(super) cid: u32,
    pub(super) disk_mib: Option<u32>,
    pub(super) hotplug: Option<Hotplug>,
    pub(super) append: Vec<String>,
    pub(super) qemu_args: Vec<String>,
    pub(super) reboots: bool,
    dir: Option<PathBuf>,
    initramfs: Option<PathBuf>,
    files: Vec<(String, PathBuf)>,
    extra: Archive,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            memory_mib: 256,
            cpus: 1,
            cid: 3,
            disk_mib: None,
            hotplug: None,
            append: Vec::new(),
            qemu_args: Vec::new(),
            reboots: false,
            dir: None,
            initramfs: None,
            files: Vec::new(),
            extra: Archive::new(),
        }
    }
}

impl Builder {
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    pub fn cpus(mut self, count: u32) -> Self {
        self.cpus = count;
        self
    }

    /// Two VMs may have the same: each has a vsock device of its own.
    pub fn cid(mut self, cid: u32) -> Self {
        self.cid = cid;
        self
    }

    /// An existing directory for sockets and logs, which stays. Without it a temporary one is made and removed.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Words for the kernel command line: `informant.NAME=VALUE` for the agent, `initramfs.NAME=VALUE` for the image.
    pub fn append(mut self, words: impl Into<String>) -> Self {
        self.append.push(words.into());
        self
    }

    /// Do not start the agent.
    pub fn without_agent(self) -> Self {
        self.append("initramfs.agent=off")
    }

    /// An empty disk, /dev/vda in the guest.
    pub fn disk_mib(mut self, mib: u32) -> Self {
        self.disk_mib = Some(mib);
        self
    }

    /// Memory and CPUs that can come and go, and a QMP socket for whoever makes them: [`Vm::actuator_socket`].
    pub fn hotplug(mut self, hotplug: Hotplug) -> Self {
        self.hotplug = Some(hotplug);
        self
    }

    /// A program of this machine for the guest, such as `bin/informant-host`; it must be static.
    pub fn program(mut self, path_in_guest: &str, source: impl Into<PathBuf>) -> Self {
        self.files.push((path_in_guest.trim_start_matches('/').to_owned(), source.into()));
        self
    }

    /// A file for the guest.
    pub fn file(mut self, path_in_guest: &str, bytes: impl Into<Vec<u8>>, mode: u32) -> Result<Self> {
        self.extra.file(path_in_guest.trim_start_matches('/'), bytes.into(), mode)?;
        Ok(self)
    }

    /// Another image than that of `cargo xtask initramfs`.
    pub fn initramfs(mut self, path: impl Into<PathBuf>) -> Self {
        self.initramfs = Some(path.into());
        self
    }

    /// The guest may reboot itself; otherwise a reboot ends QEMU, which shows a panic at once.
    pub fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// More arguments for QEMU, such as devices.
    pub fn qemu_args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.qemu_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts the VM and waits until it takes commands.
    pub fn boot(self) -> Result<Vm> {
        let vm = self.start()?;
        vm.wait_boot(BOOT_TIMEOUT)?;
        Ok(vm)
    }

    /// Starts the VM: first its vsock device, then QEMU.
    pub fn start(mut self) -> Result<Vm> {
        let initramfs = match self.initramfs.take() {
            Some(path) => path,
            None => project::initramfs()?,
        };
        let kernel = setup::kernel()?;
        let accel = super::accel()?;
        let (dir, temporary) = match self.dir.take() {
            Some(dir) => (dir.canonicalize().with_context(|| format!("no directory {}", dir.display()))?, None),
            None => {
                let temporary = tempfile::Builder::new().prefix("informant-vm-").tempdir()?;
                (temporary.path().to_path_buf(), Some(temporary))
            }
        };
        check_dir(&dir)?;
        let initrd = self.image(&initramfs, &dir)?;
        if let Some(mib) = self.disk_mib {
            File::create(dir.join("disk.img"))?.set_len(u64::from(mib) << 20).context("cannot make the disk image")?;
        }

        let serial = dir.join("serial.sock");
        // A directory that is used again has the sockets of the VM before.
        for name in ["serial.sock", "qmp.sock", ACTUATOR_SOCKET, "vhost.sock", "v.sock"] {
            fs::remove_file(dir.join(name)).ok();
        }
        let listener = UnixListener::bind(&serial).with_context(|| format!("cannot listen at {}", serial.display()))?;
        let vhost = vhost::start(&dir, self.cid)?;
        let mut qemu = qemu::start(&self, &dir, &kernel.image, &initrd, accel)?;
        let console = accept(&listener, &mut || match qemu.ended()? {
            None => Ok(()),
            Some(status) => {
                let said = fs::read_to_string(dir.join("qemu.log")).unwrap_or_default();
                bail!("QEMU ended at its start with {}: {}", crate::child::shown(status), said.trim())
            }
        })?;
        let console = Console::attach(console, File::create(dir.join("console.log"))?)?;
        let qmp = Qmp::connect(&dir.join("qmp.sock"))?;
        Ok(Vm {
            console,
            qmp: Mutex::new(qmp),
            qemu: Mutex::new(qemu),
            vhost: Mutex::new(vhost),
            dir,
            cid: self.cid,
            accel,
            reboots: self.reboots,
            resetting: AtomicBool::new(false),
            _temporary: temporary,
        })
    }

    /// The image, with what this VM adds behind it.
    fn image(&mut self, base: &Path, dir: &Path) -> Result<PathBuf> {
        for (path, source) in std::mem::take(&mut self.files) {
            let bytes = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            self.extra.program(&path, bytes)?;
        }
        if self.extra.is_empty() {
            return Ok(base.to_path_buf());
        }
        let mut image = fs::read(base).with_context(|| format!("cannot read {}", base.display()))?;
        image.resize(image.len().next_multiple_of(4), 0);
        image.extend(self.extra.to_gzip()?);
        let path = dir.join("initramfs");
        fs::write(&path, image).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn check_dir(dir: &Path) -> Result<()> {
    let text = dir.to_str().context("the VM's directory must be UTF-8")?;
    if text.contains([',', '=']) {
        bail!("QEMU cannot take a directory with a comma or an equals sign: {text}");
    }
    // sun_path holds 108 bytes, and `/v.sock_4294967295` comes behind.
    if text.len() > 88 {
        bail!("the path is too long for unix sockets, {} bytes of at most 88: {text}", text.len());
    }
    Ok(())
}

fn accept(listener: &UnixListener, alive: &mut dyn FnMut() -> Result<()>) -> Result<std::os::unix::net::UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept QEMU's serial line"),
        }
        alive()?;
        if Instant::now() >= deadline {
            bail!("QEMU did not open its serial line within 15 s");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
