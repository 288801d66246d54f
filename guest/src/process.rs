//! What the agent does to its own process so that it keeps its cadence when the VM is short of everything: memory
//! locked, last in line for the OOM killer, out of the cgroup it watches. Each step may be refused; none is needed.

use nix::sys::mman::{MlockAllFlags, mlockall};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Takes every step, and says in one line each which were refused. Only for an agent of the running system.
pub fn harden(watched: Option<&Path>) {
    if let Some(watched) = watched {
        leave_cgroup(watched);
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        tracing::info!("the OOM killer may choose this agent: oom_score_adj can not be lowered: {error}");
    }
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        tracing::info!("memory is not locked: {}; CAP_IPC_LOCK or a larger RLIMIT_MEMLOCK allows it", error.desc());
    }
}

/// Where cgroup2 is mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Moves this process to the nearest ancestor of the watched cgroup that takes it, if it is in the watched one: what
/// throttles or freezes the workload must not throttle its observer. Makes no cgroup.
fn leave_cgroup(watched: &Path) {
    let Ok(own) = fs::read("/proc/self/cgroup") else { return };
    let line = own.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"));
    let Some(own) = line.map(|path| Path::new(OsStr::from_bytes(path))) else { return };
    let watched = watched.strip_prefix("/").unwrap_or(watched);
    if watched.as_os_str().is_empty() || !own.starts_with(watched) {
        return;
    }
    let Some(mount) = MOUNTS.iter().map(Path::new).find(|mount| mount.join("cgroup.controllers").exists()) else {
        return;
    };
    // A cgroup whose controllers are given to its children takes no processes: then the next one up; the root does.
    let moved =
        watched.ancestors().skip(1).find(|above| fs::write(mount.join(above).join("cgroup.procs"), "0").is_ok());
    match moved {
        Some(above) => tracing::info!("moved out of the watched cgroup to /{}", above.display()),
        None => tracing::warn!("stays in the watched cgroup: no cgroup above it takes this process"),
    }
}
