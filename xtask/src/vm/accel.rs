//! KVM where it runs a guest, emulation (TCG) elsewhere.
//!
//! On a nested host `/dev/kvm` may open and QEMU still hang or abort, so only a boot tells: the kernel without an image,
//! which must get as far as its panic about the missing root.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::child::{self, Child};
use crate::{run, setup};

/// On KVM this boot takes about a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(8);
/// Names the verdict for child processes, and lets a person choose.
pub const VARIABLE: &str = "INFORMANT_ACCEL";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    Kvm,
    Tcg,
}

impl Accel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    pub(super) fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// The verdict, found once a process.
pub fn accel() -> Result<Accel> {
    static VERDICT: OnceLock<Accel> = OnceLock::new();
    if let Some(verdict) = VERDICT.get() {
        return Ok(*verdict);
    }
    let verdict = match env::var(VARIABLE).as_deref() {
        Ok("kvm") => Accel::Kvm,
        Ok("tcg") => Accel::Tcg,
        Ok(other) => bail!("{VARIABLE}={other}: expected kvm or tcg"),
        Err(_) => probe()?,
    };
    Ok(*VERDICT.get_or_init(|| verdict))
}

fn probe() -> Result<Accel> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Accel::Tcg);
    }
    let step = run::Step::new("trying KVM with a short boot");
    let works = kvm_boots().context("cannot try KVM")?;
    step.done(if works { "KVM runs guests" } else { "KVM does not run guests here, emulating (slower)" });
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

fn kvm_boots() -> Result<bool> {
    let kernel = setup::kernel()?;
    let dir = tempfile::Builder::new().prefix("informant-kvm-").tempdir()?;
    let serial = dir.path().join("serial.log");
    let mut command = child::command("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel", "kvm"]);
    command.args(["-cpu", "host", "-m", "128M", "-no-reboot", "-append", "console=ttyS0 panic=-1", "-kernel"]);
    command.arg(&kernel.image).arg("-serial").arg(format!("file:{}", serial.display()));
    child::log_to(&mut command, &dir.path().join("qemu.log"))?;
    let mut qemu = Child::spawn("QEMU with KVM", command)?;
    let ended = qemu.wait(PROBE_TIMEOUT);
    let printed = fs::read(&serial).unwrap_or_default();
    let panicked = String::from_utf8_lossy(&printed).contains("Kernel panic");
    Ok(panicked && ended.is_ok_and(|status| status.success()))
}
