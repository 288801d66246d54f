//! Findings about this process and where it may write.

use super::Findings;
use crate::kfile::Files;
use crate::parse::{fields, hexadecimal, lines};
use nix::fcntl::AtFlags;
use nix::sys::resource::{Resource, getrlimit};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{AccessFlags, faccessat, geteuid};

/// Capabilities that are used, by bit; see `capabilities(7)`.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (10, "CAP_NET_BIND_SERVICE", "the host shows this agent as unproven"),
    (14, "CAP_IPC_LOCK", "memory is not locked beyond the limit, and the agent may stall under memory pressure"),
    (24, "CAP_SYS_RESOURCE", "its OOM score stays, and the kernel may kill the agent first"),
];
/// Descriptors the collectors keep, and room for the link.
const DESCRIPTORS: u64 = 320;

/// User, capabilities, limits and clock of this process.
pub(super) fn privileges(files: &mut Files, findings: &mut Findings<'_>) {
    let held = files
        .read_once(None, b"proc/self/status")
        .and_then(|bytes| lines(bytes).find_map(|line| line.strip_prefix(b"CapEff:")))
        .and_then(|line| fields(line).next().and_then(hexadecimal));
    let user = geteuid();
    let lacks: Vec<_> = match held {
        Some(held) => CAPABILITIES.into_iter().filter(|(bit, _, _)| held & (1 << bit) == 0).collect(),
        None if user.is_root() => Vec::new(),
        None => CAPABILITIES.into(),
    };
    if lacks.is_empty() {
        findings.ok(format_args!("user {user} has every capability that is used"));
    }
    for (_, name, loss) in lacks {
        findings.warn(
            format_args!("user {user} lacks {name}: {loss}"),
            "run the agent as root in the initial user namespace",
        );
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < DESCRIPTORS
    {
        findings.warn(
            format_args!("at most {soft} open files: some cgroups will have no values"),
            "raise the limit to 1024 (ulimit -n, LimitNOFILE=)",
        );
    }
    if clock_gettime(ClockId::CLOCK_BOOTTIME).is_err() {
        findings.fail(format_args!("no CLOCK_BOOTTIME"), "use a kernel of 2.6.39 or later");
    }
}

/// Where events wait for the host across a restart of the agent.
pub(super) fn state_directory(files: &Files, findings: &mut Findings<'_>) {
    let writable = |run| faccessat(run, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::empty());
    match files.open_directory(b"run").and_then(writable) {
        Ok(()) => findings.ok(format_args!("/run is writable")),
        Err(error) => findings.warn(
            format_args!("/run: {}: events that wait are lost when the agent restarts", error.desc()),
            "mount -t tmpfs tmpfs /run, or give --state another directory that a boot empties",
        ),
    }
}
