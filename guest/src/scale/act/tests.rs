//! What is brought online, counted and written, on trees of files.

use super::*;
use informant_wire::size::{Bytes, MilliCpu};
use std::fs;
use std::time::Instant;

const MIB: u64 = Bytes::MIB;

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Two CPUs of which one is online, eight blocks of 128 MiB of which four are.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, "sys/devices/system/cpu/online", "0\n");
    put(root, "sys/devices/system/cpu/present", "0-2\n");
    for cpu in 1..3 {
        put(root, &format!("sys/devices/system/cpu/cpu{cpu}/online"), "0\n");
    }
    put(root, "sys/devices/system/memory/block_size_bytes", "8000000\n");
    for block in 0..8 {
        put(
            root,
            &format!("sys/devices/system/memory/memory{block}/state"),
            if block < 4 { "online\n" } else { "offline\n" },
        );
    }
    dir
}

fn done<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(result) = poll() {
            return result;
        }
        assert!(Instant::now() < end, "the thread does nothing");
        thread::yield_now();
    }
}

fn state(root: &Path, block: u32) -> String {
    fs::read_to_string(root.join(format!("sys/devices/system/memory/memory{block}/state"))).unwrap()
}

/// pitfalls K, "plugged memory stays offline"; as many as were given and no more.
#[test]
fn plugged_memory_and_cpus_come_online_as_far_as_they_were_given() {
    let root = tree();
    let actor = Actor::start(root.path());
    actor.bring(Size { cpu: MilliCpu(2000), memory: Bytes(800 * MIB) });
    let report = done(|| actor.take_report());
    assert_eq!((report.cpus, report.cpus_present), (2, Some(3)));
    let blocks = report.blocks.unwrap();
    assert_eq!((blocks.online_bytes, blocks.offline_bytes), (896 * MIB, 128 * MIB));
    assert_eq!(fs::read_to_string(root.path().join("sys/devices/system/cpu/cpu1/online")).unwrap(), "1");
    assert_eq!(fs::read_to_string(root.path().join("sys/devices/system/cpu/cpu2/online")).unwrap(), "0\n");
    let states: Vec<_> = (0..8).map(|block| state(root.path(), block)).collect();
    assert_eq!(states.iter().filter(|state| *state == "online_movable").count(), 3, "{states:?}");
}

/// as#1204: an all-movable VM is killed with gigabytes free.
#[test]
fn a_kernel_that_balances_zones_is_left_to_it() {
    let root = tree();
    put(root.path(), "sys/module/memory_hotplug/parameters/online_policy", "auto-movable\n");
    let actor = Actor::start(root.path());
    actor.bring(Size { cpu: MilliCpu(1000), memory: Bytes(640 * MIB) });
    done(|| actor.take_report());
    assert_eq!((4..8).filter(|block| state(root.path(), *block) == "online").count(), 1);
}

#[test]
fn a_look_changes_nothing() {
    let root = tree();
    let actor = Actor::start(root.path());
    actor.bring(Size::default());
    let report = done(|| actor.take_report());
    assert_eq!(report.blocks.unwrap().offline_bytes, 512 * MIB);
    assert_eq!(report.cpus, 1);
    assert!((4..8).all(|block| state(root.path(), block) == "offline\n"));
    let empty = tempfile::tempdir().unwrap();
    let actor = Actor::start(empty.path());
    actor.bring(Size { cpu: MilliCpu(9000), memory: Bytes(u64::MAX) });
    assert_eq!(done(|| actor.take_report()), Report::default());
}

#[test]
fn a_write_tells_how_it_went() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "g/memory.high", "max\n");
    let actor = Actor::start(root.path());
    let change = |path: &[u8]| Change { path: path.into(), value: "4096".try_into().unwrap(), is_awaited: true };
    assert!(actor.change(change(b"g/memory.high")));
    assert_eq!(done(|| actor.take_written()), Ok(()));
    assert_eq!(fs::read_to_string(root.path().join("g/memory.high")).unwrap(), "4096");
    assert!(actor.change(change(b"gone/memory.high")));
    assert_eq!(done(|| actor.take_written()), Err(Errno::ENOENT));
    actor.close();
    actor.change(change(b"g/memory.high"));
    assert_eq!(actor.take_written(), None, "nothing is begun behind the end");
}
