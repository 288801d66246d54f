//! The virtio-vsock device: one `vhost-device-vsock` process a VM, started before QEMU.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::child::{self, Child};
use crate::setup;

pub(super) fn start(dir: &Path, cid: u32) -> Result<Child> {
    let socket = dir.join("vhost.sock");
    let log = dir.join("vhost.log");
    let mut command = child::command(setup::vhost_device_vsock()?);
    command.arg("--vm").arg(format!(
        "guest-cid={cid},socket={},uds-path={}",
        socket.display(),
        dir.join("v.sock").display()
    ));
    child::log_to(&mut command, &log)?;
    let mut child = Child::spawn("vhost-device-vsock", command)?;
    // Looking at the file, not connecting: the device takes one peer, and QEMU is to be it.
    super::wait_until("the socket of vhost-device-vsock", Duration::from_secs(10), || {
        if let Some(status) = child.ended()? {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!("vhost-device-vsock ended at its start with {}: {}", child::shown(status), said.trim());
        }
        Ok(socket.exists())
    })?;
    Ok(child)
}
