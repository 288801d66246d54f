//! Actuators: how the size of a VM is really changed. One trait, one file a VMM; nothing here decides.
//!
//! A VMM's wish is not the truth: what was accepted may arrive later, in part, or never. So each resize first asks what
//! is true, sends only what differs, and asks again. What no VMM can see (has the guest onlined it?) the guest says.

mod bounds;
mod cloud_hypervisor;
mod command;
mod config;
mod deadline;
mod error;
pub mod fake;
mod firecracker;
mod http;
mod pending;
mod qemu;
mod qmp;
mod retry;

pub use bounds::{Capabilities, CpuRange, MemoryRange};
pub use cloud_hypervisor::CloudHypervisor;
pub use command::Command;
pub use config::{Config, ConfigError, parse};
pub use error::VmmError;
pub use firecracker::Firecracker;
pub use qemu::Qemu;
pub use retry::Retry;

use deadline::WHOLE;
use informant_wire::size::Size;
use std::future::Future;

/// What a VMM says of its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// What the VM has now. Where a VMM cannot tell (`cloud_hypervisor` for CPUs), this is its wish.
    pub has: Size,
    /// What it was last asked to have; the same as `has` once that arrived.
    pub wish: Size,
    /// What it can be made.
    pub can: Capabilities,
    /// Whether its CPUs run: neither paused, nor before its start, nor after its end.
    pub running: bool,
}

impl Reported {
    /// Whether everything that was wished arrived.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.has == self.wish
    }
}

/// One VM's size, as its VMM has it. Every call ends within 10 s; none holds a connection beyond its end.
pub trait Vmm: Send {
    /// As in `instance.toml`.
    fn name(&self) -> &'static str;

    /// Asks the VMM what is true.
    fn observe(&mut self) -> impl Future<Output = Result<Reported, VmmError>> + Send;

    /// Sends what makes `target` the wish, where that differs from `now`'s, and returns when it was accepted. `target`
    /// is within what `now` can. The new state, if the answer tells it. For [`Vmm::resize`], which is what others call.
    fn send(&mut self, now: &Reported, target: Size)
    -> impl Future<Output = Result<Option<Reported>, VmmError>> + Send;

    /// Makes the nearest size that has at least `wanted` the VMM's wish: CPUs whole, memory rounded up to its blocks,
    /// growing and shrinking alike. Sends nothing if it is so already. Returns once it was accepted, which is long
    /// before it is applied, with what the VMM says then.
    ///
    /// # Errors
    /// See [`VmmError`]. After one that leaves open what came of it ([`VmmError::is_open`]) the VMM is asked, and its
    /// word counts: an error is returned only if the wish is not there.
    fn resize(&mut self, wanted: Size) -> impl Future<Output = Result<Reported, VmmError>> + Send {
        async move {
            let name = self.name();
            tokio::time::timeout(WHOLE, resize(self, wanted)).await.unwrap_or_else(|_| Err(too_long(name)))
        }
    }
}

async fn resize<V: Vmm + ?Sized>(vmm: &mut V, wanted: Size) -> Result<Reported, VmmError> {
    let now = vmm.observe().await?;
    let target = now.can.target(wanted)?;
    if now.wish == target {
        return Ok(now);
    }
    match vmm.send(&now, target).await {
        Ok(Some(after)) => Ok(after),
        Ok(None) => vmm.observe().await,
        Err(error) if error.is_open() => match vmm.observe().await {
            Ok(after) if after.wish == target => Ok(after),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn too_long(name: &str) -> VmmError {
    VmmError::Timeout(format!("{name} took more than {} s in all", WHOLE.as_secs()))
}

/// The actuator of an instance.
#[derive(Debug)]
pub enum Actuator {
    /// QEMU over QMP.
    Qemu(Qemu),
    /// cloud-hypervisor over its API socket.
    CloudHypervisor(CloudHypervisor),
    /// Firecracker over its API socket.
    Firecracker(Firecracker),
    /// A program that knows how.
    Command(Command),
    /// None at all, for tests.
    Fake(fake::Fake),
}

impl Actuator {
    /// Connects nowhere yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        match config {
            Config::Qemu(path) => Self::Qemu(Qemu::new(path)),
            Config::CloudHypervisor(path) => Self::CloudHypervisor(CloudHypervisor::new(path)),
            Config::Firecracker(path) => Self::Firecracker(Firecracker::new(path)),
            Config::Command(words) => Self::Command(Command::new(words)),
        }
    }
}

macro_rules! each {
    ($actuator:expr, $vmm:ident => $what:expr) => {
        match $actuator {
            Actuator::Qemu($vmm) => $what,
            Actuator::CloudHypervisor($vmm) => $what,
            Actuator::Firecracker($vmm) => $what,
            Actuator::Command($vmm) => $what,
            Actuator::Fake($vmm) => $what,
        }
    };
}

impl Vmm for Actuator {
    fn name(&self) -> &'static str {
        each!(self, vmm => vmm.name())
    }

    async fn observe(&mut self) -> Result<Reported, VmmError> {
        let name = self.name();
        let observed = tokio::time::timeout(WHOLE, async { each!(self, vmm => vmm.observe().await) }).await;
        observed.unwrap_or_else(|_| Err(too_long(name)))
    }

    async fn send(&mut self, now: &Reported, target: Size) -> Result<Option<Reported>, VmmError> {
        each!(self, vmm => vmm.send(now, target).await)
    }
}
