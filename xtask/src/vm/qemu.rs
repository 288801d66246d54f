//! The QEMU command line.

use std::path::Path;

use anyhow::Result;

use super::accel::Accel;
use super::builder::Builder;
use super::hotplug::{ACTUATOR_SOCKET, Hotplug, MEMORY_DEVICE};
use crate::child::{self, Child};

pub(super) fn start(vm: &Builder, dir: &Path, kernel: &Path, initrd: &Path, accel: Accel) -> Result<Child> {
    let mut command = child::command("qemu-system-x86_64");
    command.args(args(vm, dir, accel)).arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    child::log_to(&mut command, &dir.join("qemu.log"))?;
    Child::spawn("QEMU", command)
}

fn args(vm: &Builder, dir: &Path, accel: Accel) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));

    add(&["-nodefaults", "-no-user-config", "-display", "none"]);
    add(&["-machine", "q35,memory-backend=memory", "-accel", accel.name(), "-cpu", accel.cpu()]);
    let (mut smp, mut memory) = (vm.cpus.to_string(), format!("{}M", vm.memory_mib));
    if let Some(hotplug) = vm.hotplug {
        smp.push_str(&format!(",maxcpus={0},sockets={0},cores=1,threads=1", hotplug.max_cpus));
        memory.push_str(&format!(",maxmem={}M", hotplug.max_memory_mib(vm.memory_mib)));
    }
    add(&["-smp", &smp, "-m", &memory]);
    // The vsock device is another process and reads guest memory: it must be shared.
    add(&["-object", &format!("memory-backend-memfd,id=memory,size={}M,share=on", vm.memory_mib)]);
    add(&["-chardev", &format!("socket,id=serial,path={}", at("serial.sock")), "-serial", "chardev:serial"]);
    add(&["-qmp", &format!("unix:{},server=on,wait=off", at("qmp.sock"))]);
    // Without `reconnect`: QEMU 7.2 fails at its start with it.
    add(&["-chardev", &format!("socket,id=vsock,path={}", at("vhost.sock"))]);
    add(&["-device", "vhost-user-vsock-pci,id=vsock0,chardev=vsock"]);
    if let Some(hotplug) = vm.hotplug {
        let Hotplug { memory_mib, block_mib, .. } = hotplug;
        add(&["-object", &format!("memory-backend-memfd,id=pluggable,size={memory_mib}M,share=on")]);
        let device =
            format!("virtio-mem-pci,id={MEMORY_DEVICE},memdev=pluggable,requested-size=0,block-size={block_mib}M");
        add(&["-device", &device]);
        add(&["-qmp", &format!("unix:{},server=on,wait=off", at(ACTUATOR_SOCKET))]);
    }
    if vm.disk_mib.is_some() {
        add(&["-drive", &format!("file={},if=none,id=disk,format=raw,cache=unsafe", at("disk.img"))]);
        add(&["-device", "virtio-blk-pci,drive=disk,serial=informant-disk"]);
    }
    if !vm.reboots {
        add(&["-no-reboot"]);
    }
    add(&["-append", &kernel_command_line(vm)]);
    args.extend(vm.qemu_args.iter().cloned());
    args
}

fn kernel_command_line(vm: &Builder) -> String {
    // A panic reboots at once, and a reboot ends QEMU: a test sees it in a second, not at its deadline.
    let mut words = vec!["console=ttyS0", "quiet", "panic=-1", "random.trust_cpu=on", "initramfs.console=commands"];
    words.extend(vm.append.iter().map(String::as_str));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_builder_says_reaches_the_command_line() {
        let vm =
            Builder::default().memory_mib(384).cpus(2).disk_mib(16).append("informant.interval=1s").qemu_args(["-S"]);
        let line = args(&vm, Path::new("/d"), Accel::Tcg).join(" ");
        for part in ["-m 384M", "size=384M,share=on", "-smp 2", "-accel tcg -cpu max", "file=/d/disk.img", "-no-reboot"]
        {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        assert!(line.ends_with("initramfs.console=commands informant.interval=1s -S"), "{line}");
        assert!(!line.contains("maxmem"), "{line}");
        let hotplug = Hotplug { memory_mib: 1024, block_mib: 4, max_cpus: 3 };
        let line = args(&vm.clone().hotplug(hotplug), Path::new("/d"), Accel::Tcg).join(" ");
        for part in [
            "-smp 2,maxcpus=3,sockets=3",
            "-m 384M,maxmem=1408M",
            "size=1024M,share=on",
            "block-size=4M",
            "/d/actuator.sock",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        let line = args(&vm.reboots(), Path::new("/d"), Accel::Kvm).join(" ");
        assert!(line.contains("-accel kvm -cpu host") && !line.contains("-no-reboot"), "{line}");
    }
}
