//! Findings about the kernel: its files, its devices, how it was built and booted.

use super::Findings;
use super::reading::{PRESSURE, Reading, State};
use crate::collect::mountinfo::{Mount, unescape};
use crate::kfile::{Files, KFile, each_entry};
use crate::parse::{fields, lines, trim};
use nix::errno::Errno;
use std::os::fd::AsFd;

/// virtio device id 19, as `/sys/bus/virtio/devices/*/device` prints it.
const VIRTIO_VSOCK: &[u8] = b"0x0013";
/// Controllers whose files the agent reads.
const CONTROLLERS: [&str; 4] = ["memory", "cpu", "io", "pids"];

fn exists(files: &Files, path: &str) -> bool {
    files.stat(path.as_bytes()).is_ok()
}

/// The way to the host.
pub(super) fn vsock(files: &mut Files, findings: &mut Findings<'_>) {
    let mut device = None;
    if let Ok(directory) = files.open_directory(b"sys/bus/virtio/devices") {
        let mut names = Vec::new();
        let _ = each_entry(directory.as_fd(), |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            names.len() < 1024
        });
        device = names.into_iter().find(|name| {
            let path = format!("sys/bus/virtio/devices/{name}/device");
            files.read_once(None, path.as_bytes()).map(trim) == Some(VIRTIO_VSOCK)
        });
    }
    let family = exists(files, "sys/class/misc/vsock") || exists(files, "dev/vsock");
    match device {
        Some(name) if exists(files, &format!("sys/bus/virtio/devices/{name}/driver")) => {
            findings.ok(format_args!("virtio vsock device {name} has its driver"));
        }
        Some(name) => findings.fail(
            format_args!("virtio vsock device {name} has no driver"),
            "modprobe vmw_vsock_virtio_transport, or build the kernel with CONFIG_VIRTIO_VSOCKETS=y",
        ),
        None if family => findings.warn(
            format_args!("AF_VSOCK is there, but no virtio vsock device"),
            "give the VM one (QEMU: -device vhost-vsock-pci,guest-cid=N), unless it has another vsock transport",
        ),
        None => {}
    }
    if !family {
        findings.fail(
            format_args!("no AF_VSOCK: the host can not be reached over vsock"),
            "modprobe vsock and vmw_vsock_virtio_transport before or after the agent starts, or build the kernel with \
             CONFIG_VSOCKETS=y and CONFIG_VIRTIO_VSOCKETS=y",
        );
    }
}

/// Version, place and controllers of cgroups, and their files.
pub(super) fn cgroups(files: &mut Files, reading: &Reading, findings: &mut Findings<'_>) {
    let table = match files.try_read(&mut KFile::new(b"proc/self/mountinfo")) {
        Ok(length) => files.bytes(length),
        Err(Errno::ENOENT | Errno::ENOTDIR) => &[],
        // That has its finding.
        Err(_) => return,
    };
    let mounts = || lines(table).filter_map(Mount::parse);
    let has_v1 = mounts().any(|mount| mount.fstype == b"cgroup");
    let Some(place) =
        mounts().find(|mount| mount.fstype == b"cgroup2").map(|mount| unescape(mount.mountpoint).into_owned())
    else {
        if has_v1 {
            findings.warn(
                format_args!("cgroup v1 only: no figures of cgroups"),
                "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, or mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            );
        } else {
            findings.warn(
                format_args!("cgroup2 is not mounted: no figures of cgroups"),
                "mount -t cgroup2 cgroup2 /sys/fs/cgroup (kernel: CONFIG_CGROUPS=y, CONFIG_MEMCG=y)",
            );
        }
        return;
    };
    let shown = String::from_utf8_lossy(&place).escape_debug().to_string();
    if has_v1 {
        findings.warn(
            format_args!("cgroups are hybrid: cgroup2 is at {shown}, but v1 hierarchies hold controllers"),
            "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all",
        );
    } else {
        findings.ok(format_args!("cgroup v2 at {shown}"));
    }
    let place = place.strip_prefix(b"/").unwrap_or(&place);
    reading.cgroups(files, place, findings);
    // One that can not be read has its finding.
    let read = |files: &mut Files, name: &str| match files.try_read(&mut KFile::new(&[place, name.as_bytes()].concat()))
    {
        Ok(length) => Some(fields(files.bytes(length)).map(<[u8]>::to_vec).collect()),
        Err(Errno::ENOENT) => Some(Vec::new()),
        Err(_) => None,
    };
    let (Some(there), Some(given_on)) = (read(files, "/cgroup.controllers"), read(files, "/cgroup.subtree_control"))
    else {
        return;
    };
    let lacks = |has: &[Vec<u8>]| -> Vec<&str> {
        CONTROLLERS.into_iter().filter(|name| !has.iter().any(|field| field == name.as_bytes())).collect()
    };
    let (missing, kept_back) = (lacks(&there), lacks(&given_on));
    if !missing.is_empty() {
        findings.warn(
            format_args!("no {} controller in cgroup2: those figures of cgroups are missing", missing.join(", ")),
            "kernel: CONFIG_MEMCG, CONFIG_CGROUP_SCHED, CONFIG_BLK_CGROUP, CONFIG_CGROUP_PIDS; and no v1 mount of them",
        );
    }
    let kept_back: Vec<&str> = kept_back.into_iter().filter(|name| !missing.contains(name)).collect();
    if !kept_back.is_empty() {
        let enable = kept_back.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
        findings.note(
            format_args!(
                "cgroup.subtree_control lacks {}: cgroups below the root have no such files",
                kept_back.join(", ")
            ),
            &format!("echo '{enable}' > {shown}/cgroup.subtree_control, where no service manager does it"),
        );
    }
}

/// Pressure stall information.
pub(super) fn pressure(files: &mut Files, reading: &Reading, findings: &mut Findings<'_>) {
    let states = PRESSURE.map(|source| (source, reading.check(files, source, findings)));
    let all = |wanted| states.iter().all(|(_, state)| *state == wanted);
    if all(State::Good) {
        findings.ok(format_args!("pressure stall information is on"));
    } else if all(State::Off) {
        findings.warn(
            format_args!("pressure stall information is built in but off: no pressure"),
            "boot with psi=1, or build the kernel without CONFIG_PSI_DEFAULT_DISABLED",
        );
    } else if all(State::Missing) {
        findings.warn(
            format_args!("no /proc/pressure: no pressure stall information"),
            "build the kernel with CONFIG_PSI=y",
        );
    } else {
        for (source, _) in states.iter().filter(|(_, state)| matches!(state, State::Missing | State::Off)) {
            findings.warn(
                format_args!("no /{}: no {}", source.path, source.what),
                "let nothing mask /proc/pressure, and copy all of it into a tree",
            );
        }
    }
}

/// Memory that is plugged while the VM runs.
pub(super) fn hotplug(files: &mut Files, findings: &mut Findings<'_>) {
    let mode = files.try_read(&mut KFile::new(b"sys/devices/system/memory/auto_online_blocks"));
    match mode.map(|length| trim(files.bytes(length))) {
        Ok(b"offline") => findings.note(
            format_args!("plugged memory stays offline until somebody onlines it"),
            "boot with memhp_default_state=online_movable",
        ),
        Ok(_) => findings.ok(format_args!("plugged memory comes online by itself")),
        Err(Errno::EACCES | Errno::EPERM) => findings.note(
            format_args!("auto_online_blocks of memory can not be read: it may not come online when it is plugged"),
            "run doctor as root",
        ),
        Err(_) => findings.note(
            format_args!("no memory hot-plug: the VM's memory can not grow while it runs"),
            "build the kernel with CONFIG_MEMORY_HOTPLUG=y and CONFIG_VIRTIO_MEM",
        ),
    }
}

/// What time is made of.
pub(super) fn clock(files: &mut Files, findings: &mut Findings<'_>) {
    let source = files.read_once(None, b"sys/devices/system/clocksource/clocksource0/current_clocksource").map(trim);
    let Some(source) = source.map(|source| String::from_utf8_lossy(source).escape_debug().to_string()) else { return };
    match source.as_str() {
        "jiffies" | "refined-jiffies" => findings.warn(
            format_args!("clock source {source}: times are only as fine as a tick"),
            "build the kernel with CONFIG_KVM_GUEST=y or CONFIG_HYPERV_TIMER=y, or let the VMM offer a TSC",
        ),
        "hpet" | "acpi_pm" | "pit" => findings.note(
            format_args!("clock source {source}: each reading leaves the VM and costs microseconds"),
            "build the kernel with CONFIG_KVM_GUEST=y, or boot with clocksource=tsc where that is stable",
        ),
        _ => findings.ok(format_args!("clock source {source}")),
    }
}
