//! A real VM boots, answers on its console, and its vsock device carries bytes in both directions.

use std::time::{Duration, Instant};

use anyhow::Result;
use xtask::vm::{self, Vm};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_vm_boots_and_its_console_is_exact() -> Result<()> {
    let _turn = vm::turn()?;
    let since = Instant::now();
    let vm = Vm::builder().memory_mib(256).cpus(2).without_agent().disk_mib(16).boot()?;
    println!("booted in {:.1} s ({:?})", since.elapsed().as_secs_f64(), vm.accel());
    for s in ["cat /proc/cmdline; lsmod; mount; ls -la /run /dev; cat /sys/fs/cgroup/cgroup.controllers; ps; df; cat /proc/stat | head -3", "dmesg | tail -30"] {
        let t = Instant::now();
        println!("{}", vm.sh(s, SOON)?);
        println!("took {:?}", t.elapsed());
    }
    let t = Instant::now();
    let out = vm.run("head -c 262144 /dev/urandom", SOON)?;
    println!("256K took {:?} {}", t.elapsed(), out.bytes.len());
    for _ in 0..3 {
        let t = Instant::now();
        vm.reset()?;
        vm.wait_boot(vm::BOOT_TIMEOUT)?;
        println!("reset {:?} {}", t.elapsed(), vm.sh("cat /proc/uptime", SOON)?);
    }
    Ok(())
}
