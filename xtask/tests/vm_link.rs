//! A real VM: the link survives what VMs, kernels and processes do to it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::project;
use xtask::setup;
use xtask::system::{self, System, value, wait_for};
use xtask::vm::{self, Vm};

const SOON: Duration = Duration::from_secs(10);

fn agent_pid(vm: &Vm) -> Result<u32> {
    let text = vm.sh("pidof informant-guest", SOON)?;
    text.split_whitespace().next().context("no agent runs")?.parse().context("a process id")
}

fn boot_id(status: &Value) -> String {
    status["guest"]["boot_id"].as_str().unwrap_or_default().to_owned()
}

/// Whether the vsock device still carries a dial of a program that has nothing to do with us.
fn device_is_alive(vm: &Vm) -> Result<bool> {
    let listener = vm.listen(7_000)?;
    listener.set_nonblocking(true)?;
    vm.sh("vsock-cat connect 2 7000 </dev/null >/dev/null 2>&1 &", SOON)?;
    Ok(system::wait_at_most(SOON, "a dial", || listener.accept().ok()).is_ok())
}

/// One reset with the session open; the status afterwards, or `None` when it killed the vsock device.
fn reset(system: &System, vm: &Vm, before: &Value) -> Result<Option<Value>> {
    // What is under way in the device at the moment of a reset may kill it, and so does a pause before it: the daemon
    // sends nothing to a guest that is silent, and what belongs to the proof is over in a second.
    thread::sleep(Duration::from_secs(1));
    vm.reset()?;
    vm.wait_boot(vm::BOOT_TIMEOUT)?;
    let old = boot_id(before);
    let waited = system.wait_status("vm", "another boot, ready, proven", |status| {
        !boot_id(status).is_empty()
            && boot_id(status) != old
            && status["agent"]["state"] == "ready"
            && status["guest"]["proven"] == true
    });
    match waited {
        Ok(status) => Ok(Some(status)),
        Err(_) if !device_is_alive(vm)? => Ok(None),
        Err(error) => {
            let log = vm.sh("cat /run/informant.log", SOON)?;
            Err(error.context(format!("the device is alive; the agent's log:\n{log}")))
        }
    }
}

#[test]
fn five_resets_with_the_session_open_are_five_boots() -> Result<()> {
    let _turn = vm::turn()?;
    let vsock_cat = project::vsock_cat()?;
    let (mut resets, mut devices) = (0, 0);
    // vhost-device-vsock 0.3 does not survive every reset; then another VM goes on, and says so.
    while resets < 5 {
        devices += 1;
        assert!(devices <= 8, "{resets} resets with eight devices");
        let (system, vm) =
            System::with_real_vm(|builder| builder.memory_mib(256).program("bin/vsock-cat", &vsock_cat))?;
        let mut status = system.wait_status("vm", "ready, proven", |status| {
            status["guest"]["proven"] == true && status["data"]["state"] == "fresh"
        })?;
        while resets < 5 {
            let Some(after) = reset(&system, &vm, &status)? else {
                println!("after {resets} resets, the vsock device of VM {devices} is dead");
                break;
            };
            status = after;
            resets += 1;
            let uptime = value(&status, "informant_uptime_seconds", &[]).context("uptime")?;
            assert!(uptime < 60.0, "counters begin anew: uptime {uptime}");
            let expected = vm.sh("tr -d - </proc/sys/kernel/random/boot_id", SOON)?;
            assert_eq!(boot_id(&status), expected.trim());
            // A rate across the reset would be negative or huge.
            let busy = status["summary"]["cpu_percent"].as_f64();
            assert!(busy.is_none_or(|busy| (0.0..=100.0).contains(&busy)), "{busy:?}");
        }
    }
    Ok(())
}

#[test]
fn t20_vsock_modules_that_come_late_are_waited_for() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256).append("initramfs.modules_delay=10"))?;
    assert_eq!(vm.sh("grep -c ^vsock /proc/modules || true", SOON)?.trim(), "0", "the modules are not late");
    let pid = agent_pid(&vm)?;
    system.wait_status("vm", "ready, proven", |status| {
        status["agent"]["state"] == "ready" && status["guest"]["proven"] == true
    })?;
    assert_eq!(agent_pid(&vm)?, pid, "the agent was started again");
    let log = vm.sh("wc -l </run/informant.log", SOON)?;
    assert!(log.trim().parse::<u32>()? <= 8, "{}", vm.sh("cat /run/informant.log", SOON)?);
    Ok(())
}

#[test]
fn kills_of_the_agent_and_a_host_away_for_a_minute_end_by_themselves() -> Result<()> {
    let _turn = vm::turn()?;
    let (mut system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    let mut status = system.wait_ready("vm")?;

    // Whatever happens, what is shown as a total never falls within a boot.
    let totals = ["node_context_switches_total", "node_forks_total", "node_vmstat_pgfault"];
    let stop = AtomicBool::new(false);
    let file = system.host_dir().join("vm/status.json");
    thread::scope(|scope| -> Result<()> {
        let watcher = scope.spawn(|| {
            let mut last = [0.0_f64; 3];
            while !stop.load(Ordering::Relaxed) {
                let text = std::fs::read(&file).unwrap_or_default();
                if let Ok(status) = serde_json::from_slice::<Value>(&text) {
                    for (last, name) in last.iter_mut().zip(totals) {
                        if let Some(now) = value(&status, name, &[]) {
                            assert!(now >= *last, "{name} fell from {last} to {now}");
                            *last = now;
                        }
                    }
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let result = (|| -> Result<()> {
            for _ in 0..3 {
                let pid = agent_pid(&vm)?;
                vm.sh(&format!("kill -9 {pid}"), SOON)?;
                status = system.wait_ready_again("vm", &status)?;
            }
            for _ in 0..3 {
                system.kill_daemon()?;
                system.start_daemon()?;
                status = system.wait_ready_again("vm", &status)?;
            }
            system.kill_daemon()?;
            thread::sleep(Duration::from_secs(60));
            let log = vm.sh("tail -n 3 /run/informant.log; wc -l </run/informant.log", SOON)?;
            let since = Instant::now();
            system.start_daemon()?;
            status = system.wait_ready_again("vm", &status)?;
            assert!(since.elapsed() < Duration::from_secs(10), "back after {:?}; the agent: {log}", since.elapsed());
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        assert!(watcher.join().is_ok(), "a total fell");
        result
    })?;

    // Equal at the end: bracketed by the guest's own numbers.
    let forks = || -> Result<f64> { Ok(vm.sh("awk '/^processes/ {print $2}' /proc/stat", SOON)?.trim().parse()?) };
    let low = forks()?;
    let status = system.wait_status("vm", "newer data", |status| {
        value(status, "node_forks_total", &[]).is_some_and(|shown| shown >= low)
    })?;
    let (shown, high) = (value(&status, "node_forks_total", &[]).context("forks")?, forks()?);
    assert!((low..=high).contains(&shown), "{low} <= {shown} <= {high}");
    Ok(())
}

#[test]
fn t17_without_the_vsock_device_the_agent_is_silent_and_idle() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    system.wait_ready("vm")?;
    vm.kill_vsock_device()?;
    system.wait_status("vm", "down or silent", |status| {
        status["link"]["state"] == "down" || status["link"]["state"] == "silent"
    })?;
    let pid = agent_pid(&vm)?;
    let ticks = || -> Result<u64> {
        let stat = vm.sh(&format!("cat /proc/{pid}/stat"), SOON)?;
        let fields: Vec<&str> = stat.split_whitespace().collect();
        Ok(fields.get(13).context("utime")?.parse::<u64>()? + fields.get(14).context("stime")?.parse::<u64>()?)
    };
    let before = ticks()?;
    thread::sleep(Duration::from_secs(20));
    let spent = ticks()? - before;
    // Emulated, one sample costs about 10 ms; a loop that spins would cost 2000 ticks.
    assert!(spent <= 100, "{spent} ticks of 10 ms in 20 s");
    Ok(())
}

#[test]
fn t18_a_full_backlog_on_a_foreign_port_is_not_of_our_making() -> Result<()> {
    let _turn = vm::turn()?;
    let (mut system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    let status = system.wait_ready("vm")?;
    // The daemon does not run for a while, which is when a backlog fills; its socket still takes what comes.
    system.daemon()?.signal(Signal::SIGSTOP)?;
    vm.sh(
        "for i in 1 2 3 4 5; do informant-guest run --control off --state /tmp/extra$i </dev/null >/dev/null 2>&1 & echo $! >>/tmp/extra; done; sleep 5; kill -9 $(cat /tmp/extra)",
        Duration::from_secs(30),
    )?;
    system.daemon()?.signal(Signal::SIGCONT)?;
    let status = system
        .wait_status("vm", "ready and proven again", |now| {
            now["agent"]["state"] == "ready" && now["guest"]["proven"] == true && now["data"]["state"] == "fresh"
        })
        .map_err(|error| error.context(format!("before: {status:#}")))?;
    drop(status);
    assert!(vm.dial(1022, SOON).is_ok(), "the device still connects");
    Ok(())
}

#[test]
fn t19_a_flood_of_small_frames_at_a_stopped_agent_costs_one_session_at_most() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    system.wait_ready("vm")?;
    let pid = agent_pid(&vm)?;
    let mut flood = vm.dial(1022, SOON)?;
    flood.set_write_timeout(Some(Duration::from_secs(2)))?;
    vm.sh(&format!("kill -STOP {pid}"), SOON)?;
    // Unknown frames of 32 bytes, as many as the channel takes.
    let mut frame = vec![0x1e, 0x00, 0x1f];
    frame.resize(32, 0);
    let sent = (0..20_000).take_while(|_| flood.write_all(&frame).is_ok()).count();
    println!("{sent} frames taken");
    vm.sh(&format!("kill -CONT {pid}"), SOON)?;
    system.wait_ready("vm")?;
    assert_eq!(agent_pid(&vm)?, pid);
    Ok(())
}

#[test]
fn t22_t23_the_agent_tells_its_own_cost_truly() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    system.wait_ready("vm")?;
    let pid = agent_pid(&vm)?;
    let outside = || -> Result<(f64, f64)> {
        let text = vm.sh(&format!("cat /proc/{pid}/stat; grep VmRSS /proc/{pid}/status"), SOON)?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        let field = |i: usize| -> Result<f64> { Ok(fields.get(i).context("stat")?.parse()?) };
        let resident: f64 =
            text.split("VmRSS:").nth(1).and_then(|rest| rest.split_whitespace().next()).context("VmRSS")?.parse()?;
        Ok(((field(13)? + field(14)?) / 100.0, resident * 1024.0))
    };
    thread::sleep(Duration::from_secs(20));
    let (cpu_before, _) = outside()?;
    let cpu = |status: &Value| value(status, "informant_agent_cpu_seconds_total", &[]);
    let status = system.wait_status("vm", "a self-report after that", |status| {
        cpu(status).is_some_and(|cpu| cpu >= cpu_before * 0.9)
    })?;
    thread::sleep(Duration::from_secs(3));
    let (cpu_after, resident) = outside()?;
    let told = cpu(&status).context("cpu")?;
    assert!((cpu_before * 0.9..=cpu_after * 1.1 + 0.05).contains(&told), "{cpu_before} <= {told} <= {cpu_after}");
    let told = value(&status, "informant_agent_resident_bytes", &[]).context("resident")?;
    assert!((told - resident).abs() <= resident * 0.1, "resident: {told}, the kernel says {resident}");
    assert!(resident <= f64::from(1 << 20), "resident {resident}, over 1 MiB with memory locked");
    Ok(())
}

#[test]
fn a_hung_file_system_delays_no_sample_and_is_told_once() -> Result<()> {
    let _turn = vm::turn()?;
    let fuse = setup::kernel()?.modules.join("kernel/fs/fuse/fuse.ko");
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256).program("fuse.ko", fuse))?;
    system.wait_ready("vm")?;
    // A FUSE file system whose server never answers; the mount's root is known without asking it, statfs is not.
    vm.sh("insmod /fuse.ko && mkdir -p /hung", SOON)?;
    vm.sh(
        "(exec 3<>/dev/fuse; mount -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other server /hung && sleep 100000) >/dev/null 2>&1 &",
        SOON,
    )?;
    let told = |events: &[Value]| events.iter().filter(|event| event["kind"] == "mount_hung").count();
    wait_for("the event", || (told(&system.events("vm").ok()?) > 0).then_some(()))?;
    let status = system.wait_status("vm", "hung, in the metrics", |status| {
        value(status, "informant_filesystem_hung", &[("mountpoint", "/hung")]) == Some(1.0)
    })?;
    let late = |status: &Value| value(status, "informant_agent_samples_late_total", &[]);
    let before = late(&status).context("late")?;
    // One minute: each sample's time is at most 1.5 intervals behind the one before.
    let (mut last, mut gaps) = (0.0, Vec::new());
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if let Some(uptime) = system.status("vm").and_then(|status| value(&status, "informant_uptime_seconds", &[])) {
            if uptime > last && last > 0.0 {
                gaps.push(uptime - last);
            }
            last = last.max(uptime);
        }
        thread::sleep(Duration::from_millis(100));
    }
    let status = system.wait_ready("vm")?;
    assert!(gaps.len() >= 40, "{} samples in a minute", gaps.len());
    assert_eq!(late(&status), Some(before), "samples came late; seen gaps: {gaps:?}");
    assert_eq!(told(&system.events("vm")?), 1);
    Ok(())
}

#[test]
fn the_daemon_serves_an_agent_over_af_vsock_loopback_inside_a_vm() -> Result<()> {
    let _turn = vm::turn()?;
    let vm =
        Vm::builder().memory_mib(384).without_agent().program("bin/informant-host", project::host_static()?).boot()?;
    vm.sh(
        "mkdir -p /tmp/h/loop && echo 'cid = 1' >/tmp/h/loop/instance.toml
         informant-host serve --dir /tmp/h </dev/null >/tmp/host.log 2>&1 &
         informant-guest run --connect vsock:1:5252 --control vsock:1022 </dev/null >/tmp/agent.log 2>&1 &",
        SOON,
    )?;
    let shown = || -> Option<Value> { serde_json::from_str(&vm.sh("cat /tmp/h/loop/status.json", SOON).ok()?).ok() };
    let status = wait_for("ready over loopback", || {
        shown().filter(|status| status["agent"]["state"] == "ready" && status["data"]["state"] == "fresh")
    })
    .or_else(|error| {
        let logs = vm.sh("cat /tmp/host.log /tmp/agent.log", SOON)?;
        Err(error.context(logs))
    })?;
    assert_eq!(status["guest"]["proven"], true, "the source port shows root: {status:#}");
    let total: f64 = vm.sh("awk '/^MemTotal/ {print $2 * 1024}' /proc/meminfo", SOON)?.trim().parse()?;
    assert_eq!(value(&status, "node_memory_MemTotal_bytes", &[]), Some(total));
    let table = vm.sh("informant-host ls --dir /tmp/h", SOON)?;
    assert!(table.contains("loop") && table.contains("ready"), "{table}");
    let pid = agent_pid(&vm)?;
    vm.sh(&format!("kill -9 {pid}"), SOON)?;
    wait_for("down", || shown().filter(|status| status["link"]["state"] == "down"))?;
    Ok(())
}

#[test]
fn an_unprivileged_process_in_the_guest_does_not_speak_for_the_vm() -> Result<()> {
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    let before = system.wait_status("vm", "proven", |status| status["guest"]["proven"] == true)?;
    vm.sh(
        "adduser -D -H mallory 2>/dev/null || echo 'mallory:x:1000:1000::/:/bin/sh' >>/etc/passwd
         chmod 666 /dev/vsock 2>/dev/null
         (su mallory -s /bin/sh -c 'informant-guest run --control off --state /tmp/mallory --name mallory' </dev/null >/tmp/mallory.log 2>&1; true) &
         sleep 6",
        Duration::from_secs(30),
    )?;
    let log = vm.sh("cat /tmp/mallory.log", SOON)?;
    assert!(log.contains("agent present"), "mallory was not refused: {log}");
    let after = system.wait_ready("vm")?;
    assert_eq!(after["guest"]["session"], before["guest"]["session"], "the session was disturbed");
    assert_eq!(after["guest"]["proven"], true);
    assert!(after["counters"]["refused"].as_u64() > before["counters"]["refused"].as_u64());
    Ok(())
}

#[test]
fn system_helpers_read_what_the_kernel_says() -> Result<()> {
    let me = std::process::id();
    assert!(system::descriptors(me)? > 3 && system::resident(me)? > 1 << 20);
    Ok(())
}
