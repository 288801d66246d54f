//! A real VM: what comes, goes and is replaced in a running guest is shown as it is, and its clock moves nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::setup;
use xtask::system::{PATIENCE, System, value};
use xtask::vm::{self, Vm};

const SOON: Duration = Duration::from_secs(10);

/// The agent looks for what is new, and at what changes slowly, with every fifth sample. One more may be under way.
const SEEN: u64 = 5 + 1;
/// A mount is in the table of such a sample; where it leads to is looked up with the next one.
const MOUNTED: u64 = SEEN + 1;
/// A newcomer is reported under a new schema, which may have to wait 5 s for its turn, and has its values with the
/// sample after that.
const TOLD: u64 = SEEN + 5 + 1;

/// The instance as the daemon has it now; the status file may be a second older.
fn now(system: &System) -> Result<Value> {
    Ok(serde_json::from_str(&system.host(&["show", "vm", "--json"])?)?)
}

fn counter(status: &Value, name: &str) -> Result<u64> {
    status["counters"][name].as_u64().with_context(|| format!("no counter {name}"))
}

/// A guest that is changed.
struct Changed<'a> {
    system: &'a System,
    vm: &'a Vm,
}

impl Changed<'_> {
    /// Waits until the agent has looked at everything once more, and keeps open what it reads.
    fn settle(&self) -> Result<()> {
        let from = counter(&now(self.system)?, "samples")?;
        self.system
            .wait_status("vm", "more samples", |status| {
                counter(status, "samples").is_ok_and(|count| count >= from + TOLD)
            })
            .map(drop)
    }

    /// Runs `script` in the guest and waits until `wanted` is shown, at most `samples` later.
    fn shows(&self, script: &str, samples: u64, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        self.vm.sh(script, SOON)?;
        let from = counter(&now(self.system)?, "samples")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = now(self.system)?;
            let since = counter(&status, "samples")? - from;
            if wanted(&status) {
                println!("{since:3} of {samples} samples after `{script}`");
                ensure!(since <= samples, "seen only {since} samples after `{script}`, not {samples}");
                return Ok(status);
            }
            ensure!(since <= samples, "not seen {since} samples after `{script}`: {status:#}");
            ensure!(Instant::now() < deadline, "{since} samples within {PATIENCE:?}: {status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn cgroup(status: &Value, name: &str, id: &str) -> Option<f64> {
    value(status, name, &[("id", id)])
}

fn interface(status: &Value, name: &str, device: &str) -> Option<f64> {
    value(status, name, &[("device", device)])
}

fn size(status: &Value, device: &str) -> Option<f64> {
    value(status, "node_filesystem_size_bytes", &[("mountpoint", "/place"), ("device", device)])
}

fn cgroups(guest: &Changed<'_>) -> Result<()> {
    const CPU: &str = "container_cpu_usage_seconds_total";
    const MEMORY: &str = "container_memory_usage_bytes";
    let usage = |path: &str| -> Result<f64> {
        let text = guest.vm.sh(&format!("sed -n 's/^usage_usec //p' /sys/fs/cgroup{path}/cpu.stat"), SOON)?;
        Ok(text.trim().parse::<f64>()? / 1e6)
    };
    let burn = "(echo 0 >/sys/fs/cgroup/batch/cgroup.procs; i=0; while [ $i -lt 40000 ]; do i=$((i + 1)); done)";
    guest.shows(&format!("mkdir /sys/fs/cgroup/batch; {burn}"), TOLD, |status| {
        cgroup(status, CPU, "/batch").is_some()
    })?;
    guest.shows("rmdir /sys/fs/cgroup/batch", SEEN, |status| cgroup(status, CPU, "/batch").is_none())?;
    guest.shows(&format!("mkdir /sys/fs/cgroup/batch; {burn}"), TOLD, |status| {
        cgroup(status, CPU, "/batch").is_some()
    })?;

    // Another one under the same name, between two samples: it begins anew, and nobody takes it for the old one.
    let (old, before) = (usage("/batch")?, counter(&now(guest.system)?, "counters_back")?);
    let status = guest.shows("rmdir /sys/fs/cgroup/batch; mkdir /sys/fs/cgroup/batch", TOLD, |status| {
        cgroup(status, CPU, "/batch").is_some_and(|shown| shown < old)
    })?;
    assert_eq!(counter(&status, "counters_back")?, before, "the new cgroup's counters were taken for the old one's");
    let shown = cgroup(&status, CPU, "/batch").context("usage")?;
    assert!(shown <= usage("/batch")?, "{shown} is not the new cgroup's");

    // A controller that comes later brings its files, and one that goes takes them away.
    let status =
        guest.shows("mkdir /sys/fs/cgroup/batch/sub", TOLD, |status| cgroup(status, CPU, "/batch/sub").is_some())?;
    assert_eq!(cgroup(&status, MEMORY, "/batch/sub"), None);
    let subtree = "/sys/fs/cgroup/batch/cgroup.subtree_control";
    let has = |status: &Value| {
        let limit = "container_spec_memory_limit_bytes";
        [cgroup(status, MEMORY, "/batch/sub").is_some(), cgroup(status, "container_memory_rss", "/batch/sub").is_some()]
            .into_iter()
            .chain([status["metrics"].as_array().into_iter().flatten().any(|group| {
                group["labels"]["id"] == "/batch/sub"
                    && group["values"].as_array().into_iter().flatten().any(|value| value["name"] == limit)
            })])
            .collect::<Vec<_>>()
    };
    guest.shows(&format!("echo +memory >{subtree}"), TOLD, |status| !has(status).contains(&false))?;
    guest.shows(&format!("echo -memory >{subtree}"), SEEN, |status| !has(status).contains(&true))?;
    guest.shows(&format!("echo +memory >{subtree}"), TOLD, |status| !has(status).contains(&false))?;
    guest.shows("rmdir /sys/fs/cgroup/batch/sub /sys/fs/cgroup/batch", SEEN, |status| {
        cgroup(status, CPU, "/batch").is_none() && cgroup(status, CPU, "/batch/sub").is_none()
    })?;

    // Where the hierarchy was, something else is; it is mounted a second time at another place.
    guest.shows(
        "mkdir /sys/fs/cgroup/kept && mount -t tmpfs hides /sys/fs/cgroup && mkdir /sys/fs/cgroup/unified && \
         mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified && mkdir /sys/fs/cgroup/unified/late",
        TOLD + 1,
        |status| cgroup(status, CPU, "/late").is_some() && cgroup(status, CPU, "/kept").is_some(),
    )?;
    guest.shows(
        "umount -l /sys/fs/cgroup/unified && umount -l /sys/fs/cgroup && rmdir /sys/fs/cgroup/late",
        MOUNTED,
        |status| cgroup(status, CPU, "/late").is_none() && cgroup(status, CPU, "/kept").is_some(),
    )?;
    Ok(())
}

fn interfaces(guest: &Changed<'_>) -> Result<()> {
    const SENT: &str = "node_network_transmit_bytes_total";
    const MTU: &str = "node_network_mtu_bytes";
    let sends = |device: &str| {
        format!(
            "ip link set {device} up && ip addr add 10.9.0.1/24 dev {device} && ping -c 3 -A -W 1 10.9.0.2; ip link set {device} down"
        )
    };
    guest.shows(
        &format!("insmod /dummy.ko numdummies=0 && ip link add one type dummy && ({})", sends("one")),
        TOLD,
        |status| interface(status, SENT, "one").is_some_and(|sent| sent > 0.0),
    )?;
    let status = guest.shows("ip link set one name two", TOLD, |status| {
        interface(status, SENT, "one").is_none() && interface(status, SENT, "two").is_some()
    })?;
    let before = counter(&status, "counters_back")?;
    let shows_new = |mtu: f64| {
        move |status: &Value| {
            interface(status, MTU, "two") == Some(mtu) && interface(status, SENT, "two").is_some_and(|sent| sent < 1.0)
        }
    };
    // Another one under the same name, between two samples, ...
    guest.shows("ip link del two; ip link add two type dummy; ip link set two mtu 1400", TOLD, shows_new(1400.0))?;
    // ... and again, when the counters of both are at zero, ...
    guest.shows("ip link del two; ip link add two type dummy; ip link set two mtu 1300", TOLD, shows_new(1300.0))?;
    // ... and while the old one lives on under another name, its files open.
    guest.settle()?;
    let status = guest.shows(
        "ip link set two name old; ip link add two type dummy; ip link set two mtu 1200",
        TOLD,
        |status| shows_new(1200.0)(status) && interface(status, MTU, "old") == Some(1300.0),
    )?;
    assert_eq!(counter(&status, "counters_back")?, before, "a new interface's counters were taken for the old one's");
    guest.shows("ip link del two; ip link del old", SEEN, |status| {
        interface(status, SENT, "two").is_none() && interface(status, SENT, "old").is_none()
    })?;
    Ok(())
}

fn mounts(guest: &Changed<'_>) -> Result<()> {
    const MIB: f64 = 1_048_576.0;
    guest.shows("mkdir /place; mount -t tmpfs -o size=8m first /place", TOLD, |status| {
        size(status, "first") == Some(8.0 * MIB)
    })?;
    guest.shows("umount /place; mount -t tmpfs -o size=4m second /place", TOLD, |status| {
        size(status, "first").is_none() && size(status, "second") == Some(4.0 * MIB)
    })?;
    guest.shows("umount /place", SEEN, |status| size(status, "second").is_none())?;

    // lxcfs covers files of /proc like this.
    let load = |status: &Value| value(status, "node_load1", &[]);
    guest.shows(
        "echo '77.70 66.60 55.50 1/99 4242' >/tmp/loadavg; mount --bind /tmp/loadavg /proc/loadavg",
        MOUNTED,
        |status| load(status) == Some(77.7),
    )?;
    guest.shows("umount -l /proc/loadavg", MOUNTED, |status| load(status).is_some_and(|load| load < 77.0))?;
    Ok(())
}

#[test]
fn what_appears_vanishes_and_is_replaced_is_seen_within_five_samples() -> Result<()> {
    let _turn = vm::turn()?;
    let dummy = setup::kernel()?.modules.join("kernel/drivers/net/dummy.ko");
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256).program("dummy.ko", dummy))?;
    system.wait_ready("vm")?;
    let guest = Changed { system: &system, vm: &vm };
    mounts(&guest)?;
    interfaces(&guest)?;
    cgroups(&guest)?;
    Ok(())
}

/// Rates per second that no step of a wall clock may bend: they are shares of one CPU's time.
fn shares(status: &Value) -> impl Iterator<Item = (&str, f64)> {
    let groups = status["metrics"].as_array().into_iter().flatten();
    let values = groups.flat_map(|group| group["values"].as_array().into_iter().flatten());
    values.filter_map(|value| {
        let name = value["name"].as_str().filter(|name| name.ends_with("_seconds_total"))?;
        Some((name, value["per_second"].as_f64()?))
    })
}

/// What must hold at every look, whatever the guest's clock says. `last`: the look before.
fn holds(status: &Value, last: &Value) -> Result<()> {
    ensure!(status["guest"]["session"] == last["guest"]["session"], "the session was lost");
    for part in ["link", "agent", "data"] {
        ensure!(status[part]["state"] == last[part]["state"], "{part}: {}", status[part]);
        // For data it is the newest sample's time.
        let is_same = part == "data" || status[part]["since"] == last[part]["since"];
        ensure!(is_same, "{part} was something else meanwhile: {}", status[part]);
    }
    let age = status["data"]["age_ms"].as_u64().context("no age")?;
    ensure!(age < 5_000, "the data is {age} ms old");
    let interval = status["guest"]["interval_ms"].as_u64().context("no interval")?;
    ensure!((100..10_000).contains(&interval), "samples are {interval} ms apart");
    ensure!(shares(status).next().is_some(), "no rates");
    for (name, rate) in shares(status) {
        // A tick of 10 ms falls into one interval or the next.
        ensure!((0.0..1.5).contains(&rate), "{name} grows by {rate} a second");
    }
    let busy = status["summary"]["cpu_percent"].as_f64().context("no CPU share")?;
    ensure!((0.0..=100.0).contains(&busy), "{busy} % busy");
    for name in ["informant_uptime_seconds", "node_context_switches_total", "node_forks_total", "node_vmstat_pgfault"] {
        let (before, after) = (value(last, name, &[]).context(name)?, value(status, name, &[]).context(name)?);
        ensure!(after >= before, "{name} fell from {before} to {after}");
    }
    let uptime = |status: &Value| value(status, "informant_uptime_seconds", &[]).context("no uptime");
    ensure!(uptime(status)? - uptime(last)? < 30.0, "uptime jumped");
    for name in ["counters_back", "mismatches", "samples_missed", "protocol_errors", "sessions"] {
        ensure!(counter(status, name)? == counter(last, name)?, "{name} rose: {}", status["counters"]);
    }
    Ok(())
}

#[test]
fn t10_a_guest_clock_three_hours_wrong_either_way_shows_as_skew_and_moves_nothing_else() -> Result<()> {
    const HOUR_S: i64 = 3600;
    let _turn = vm::turn()?;
    let (system, vm) = System::with_real_vm(|builder| builder.memory_mib(256))?;
    system.wait_status("vm", "rates and a heartbeat", |status| {
        status["data"]["state"] == "fresh"
            && status["guest"]["proven"] == true
            && status["guest"]["clock_skew_ms"].is_i64()
            && status["summary"]["cpu_percent"].is_f64()
    })?;
    let mut last = now(&system)?;
    let start_ms = last["written"]["ms"].as_u64().context("written")?;
    let true_skew = last["guest"]["clock_skew_ms"].as_i64().context("skew")?;

    let mut wrong_s = 0;
    for next_s in [3 * HOUR_S, -3 * HOUR_S, 0] {
        vm.sh(&format!("date -s @$(($(date +%s) + {}))", next_s - wrong_s), SOON)?;
        wrong_s = next_s;
        // Every look until the next heartbeat tells the skew, and some more with it.
        let (mut told, mut since) = (false, 0);
        let deadline = Instant::now() + PATIENCE;
        while !(told && since >= 8) {
            ensure!(Instant::now() < deadline, "{next_s} s wrong, and not told: {last:#}");
            let status = now(&system)?;
            holds(&status, &last).with_context(|| format!("the guest's clock {next_s} s wrong; {status:#}"))?;
            since += counter(&status, "samples")? - counter(&last, "samples")?;
            let skew = status["guest"]["clock_skew_ms"].as_i64().context("skew")?;
            // `date` sets whole seconds.
            told = (skew - true_skew - next_s * 1000).abs() < 5_000;
            last = status;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    // The steps themselves are events, once each, in order, at the host's time and the guest's boot time.
    let events = system.events("vm")?;
    let steps: Vec<&Value> = events.iter().filter(|event| event["kind"] == "clock_stepped").collect();
    let hours: Vec<f64> =
        steps.iter().filter_map(|event| Some((event["body"]["step_us"].as_f64()? / 3.6e9).round())).collect();
    assert_eq!(hours, [3.0, -6.0, 3.0], "{steps:#?}");
    let times =
        |key: &dyn Fn(&Value) -> Option<u64>| steps.iter().map(|event| key(event)).collect::<Option<Vec<u64>>>();
    let shown = times(&|event| event["time"]["ms"].as_u64()).context("a step has no time")?;
    let end_ms = last["written"]["ms"].as_u64().context("written")?;
    assert!(shown.is_sorted() && shown.iter().all(|ms| (start_ms..=end_ms).contains(ms)), "{steps:#?}");
    let booted = times(&|event| event["boot_time_us"].as_u64()).context("a step has no boot time")?;
    let end_us = last["guest"]["boot_time_us"].as_u64().context("boot time")?;
    assert!(booted.is_sorted() && booted.iter().all(|us| *us <= end_us), "{steps:#?}");

    // A session that begins while the clock is wrong is as good.
    vm.sh(&format!("date -s @$(($(date +%s) - {})); kill -9 $(pidof informant-guest)", 3 * HOUR_S), SOON)?;
    let status = system.wait_ready_again("vm", &last)?;
    assert!(value(&status, "node_forks_total", &[]) >= value(&last, "node_forks_total", &[]), "a total fell");
    Ok(())
}
