//! mountinfo and file systems, pitfalls G.

use super::tree::Tree;
use informant_guest::collect::probe::{self, Space};
use informant_wire::event::EventKind;
use nix::errno::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FILE: &str = "proc/self/mountinfo";
const SPACE: Space =
    Space { size_bytes: 1000, free_bytes: 400, available_bytes: 300, files: 10, files_free: 5, read_only: false };

fn series(metric: &str, device: &str, fstype: &str, mountpoint: &str) -> String {
    format!("node_filesystem_{metric}{{device={device},fstype={fstype},mountpoint={mountpoint}}}")
}

/// What statvfs was asked, with `answer` for an answer.
fn asked(
    tree: &Tree,
    answer: impl Fn(&Path) -> Result<Space, Errno> + Send + Sync + 'static,
) -> (Vec<PathBuf>, informant_guest::collect::Sensors) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (log, root) = (Arc::clone(&calls), tree.path().to_owned());
    let ask: probe::Ask = Arc::new(move |path| {
        let below = Path::new("/").join(path.strip_prefix(&root).unwrap());
        log.lock().unwrap().push(below.clone());
        answer(&below)
    });
    let mut sensors = tree.sensors(true, ask);
    for _ in 0..2 {
        sensors.sample(&Default::default());
        sensors.settle(Duration::from_secs(20));
        sensors.reschema();
    }
    let calls = calls.lock().unwrap().clone();
    (calls, sensors)
}

/// The metrics that a file system has, by id.
fn present(sensors: &informant_guest::collect::Sensors, mountpoint: &str) -> Vec<(u16, u64)> {
    let mut at = 0;
    let mut found = Vec::new();
    for subject in sensors.subjects() {
        for id in subject.metrics.iter().flat_map(|range| range.first.0..range.first.0 + range.count) {
            if subject.name == mountpoint.as_bytes() && informant_wire::bits::get(sensors.row().present, at) {
                found.push((id, sensors.row().values[at]));
            }
            at += 1;
        }
    }
    found
}

#[test]
fn optional_fields_empty_sources_and_escapes() {
    let table = "30 1 254:16 / /a\\040b rw,relatime - xfs /dev/vdb rw\n\
                 31 1 254:32 / /c rw shared:21 master:3 propagate_from:2 unbindable - ext4 /dev/vdc rw\n\
                 32 1 0:40 / /d rw shared:2 - tmpfs  ro,size=0k\nnonsense\n";
    let tree = Tree::with(&[(FILE, table)]);
    tree.directory("a b").directory("c").directory("d");
    let line = tree.sample();
    for (device, fstype, mountpoint, read_only) in
        [("/dev/vdb", "xfs", "/a b", 0.0), ("/dev/vdc", "ext4", "/c", 0.0), ("", "tmpfs", "/d", 1.0)]
    {
        assert_eq!(line.get(&series("readonly", device, fstype, mountpoint)), Some(read_only));
        assert!(line.get(&series("size_bytes", device, fstype, mountpoint)).unwrap() > 0.0);
    }
}

#[test]
fn read_only_three_places() {
    let table = "59 1 8:1 / /a rw - ext4 /dev/sda1 ro\n60 1 8:2 / /b ro - ext4 /dev/sda2 rw\n\
                 61 1 8:3 / /c rw - ext4 /dev/sda3 rw,emergency_ro\n62 1 8:4 / /d rw - ext4 /dev/sda4 rw\n";
    let line = Tree::with(&[(FILE, table)]).sample();
    for (device, mountpoint, expected) in
        [("/dev/sda1", "/a", 1.0), ("/dev/sda2", "/b", 1.0), ("/dev/sda3", "/c", 1.0), ("/dev/sda4", "/d", 0.0)]
    {
        assert_eq!(line.get(&series("readonly", device, "ext4", mountpoint)), Some(expected), "{mountpoint}");
    }
}

#[test]
fn the_last_mount_on_a_path_is_the_visible_one() {
    let table = "25 1 254:0 / / rw - ext4 /dev/vda1 rw\n26 25 254:0 /x /srv/app/tmp rw - ext4 /dev/vda1 rw\n\
                 40 25 254:0 /nix /nix/store rw - ext4 /dev/vda1 rw\n41 40 0:50 / /nix/store ro - erofs store ro\n\
                 42 25 254:16 / /gone rw - ext4 /dev/vdb rw\n43 25 0:51 / /gone rw - overlay overlay rw\n";
    let tree = Tree::with(&[(FILE, table)]);
    let line = tree.sample();
    let mut mounts = line.starting("node_filesystem_readonly");
    mounts.sort_unstable();
    assert_eq!(
        mounts,
        [
            series("readonly", "/dev/vda1", "ext4", "/srv/app/tmp"),
            series("readonly", "/dev/vda1", "ext4", "/"),
            series("readonly", "store", "erofs", "/nix/store"),
        ]
    );
}

#[test]
fn what_another_mount_covers_has_no_values() {
    let table = "25 1 254:0 / / rw - ext4 /dev/vda1 rw\n30 25 0:50 / /mnt/p/q rw - tmpfs inner rw\n\
                 31 25 0:51 / /mnt/p rw - tmpfs outer rw\n";
    let line = Tree::with(&[(FILE, table)]).sample();
    let mut mounts = line.starting("node_filesystem_readonly");
    mounts.sort_unstable();
    assert_eq!(mounts, [series("readonly", "/dev/vda1", "ext4", "/"), series("readonly", "outer", "tmpfs", "/mnt/p")]);
}

#[test]
fn the_root_of_an_initramfs_is_on_itself_and_covers_nothing() {
    let table =
        "1 1 0:2 / / rw - rootfs none rw\n20 1 0:3 / /run rw - tmpfs run rw\n21 20 0:4 / /run/x rw - tmpfs x rw\n";
    let line = Tree::with(&[(FILE, table)]).sample();
    assert_eq!(line.starting("node_filesystem_readonly").len(), 3);
}

#[test]
fn of_too_many_the_ones_in_memory_are_left_out() {
    let mut table = String::from("25 1 254:0 / / rw - ext4 /dev/vda1 rw\n");
    for i in 0..300 {
        table += &format!("{} 25 0:{} / /pods/{i} rw - tmpfs tmpfs rw\n", 100 + i, 100 + i);
    }
    table += "900 25 8:16 / /data rw - xfs /dev/vdb rw\n";
    let line = Tree::with(&[(FILE, &table)]).sample();
    let readonly = |device: &str, fstype: &str, at: &str| line.get(&series("readonly", device, fstype, at));
    assert_eq!(readonly("/dev/vdb", "xfs", "/data"), Some(0.0));
    assert_eq!(readonly("/dev/vda1", "ext4", "/"), Some(0.0));
    assert_eq!(line.starting("node_filesystem_readonly").len(), 256);
    assert!(line.get("informant_series_dropped").is_some_and(|dropped| dropped >= 46.0));
}

#[test]
fn autofs_is_never_asked() {
    let table = "30 1 0:30 / /misc rw - autofs systemd-1 rw,direct\n31 1 0:31 / / rw - ext4 /dev/vda rw\n";
    let (calls, _) = asked(&Tree::with(&[(FILE, table)]), |_| Ok(SPACE));
    assert!(!calls.is_empty() && calls.iter().all(|path| path == Path::new("/")), "{calls:?}");
}

#[test]
fn always_full_images_give_no_event() {
    let table = "30 1 7:0 / /snap/x ro - squashfs /dev/loop0 ro\n31 1 11:0 / /media/seed ro - iso9660 /dev/sr0 ro\n\
                 32 1 0:40 / /img ro - erofs /dev/vdb ro\n";
    let tree = Tree::with(&[(FILE, table)]);
    assert!(tree.events(3, |_, _| {}).is_empty());
    assert_eq!(
        tree.sample().starting("node_filesystem_readonly").len(),
        1,
        "images of packages and seeds are left out"
    );
}

#[test]
fn no_inodes_is_absent_not_zero() {
    let tree = Tree::with(&[(FILE, "30 1 0:30 / /btrfs rw - btrfs /dev/vdb rw\n")]);
    let (_, sensors) = asked(&tree, |_| Ok(Space { files: 0, files_free: 0, ..SPACE }));
    let ids: Vec<_> = present(&sensors, "/btrfs").into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [1300, 1301, 1302, 1305, 1306, 1307]);
}

#[test]
fn a_table_of_a_megabyte_is_read_to_its_end() {
    let mut table: String =
        (0..9000).map(|i| format!("{i} 1 0:{i} / /sys/kernel/{i}{} rw - tmpfs tmpfs rw\n", "x".repeat(100))).collect();
    table += "9999 1 254:0 / /data rw - ext4 /dev/vdb rw\n";
    assert!(table.len() > 1_200_000);
    let tree = Tree::with(&[(FILE, &table)]);
    assert_eq!(tree.sample().get(&series("readonly", "/dev/vdb", "ext4", "/data")), Some(0.0));
}

#[test]
fn more_file_systems_than_are_kept_are_counted() {
    let table: String = (0..300).map(|i| format!("{i} 1 0:{i} / /m{i} rw - ext4 /dev/vd{i} rw\n")).collect();
    let line = Tree::with(&[(FILE, &table)]).sample();
    assert_eq!(line.starting("node_filesystem_readonly").len(), 256);
    assert_eq!(line.get("informant_series_dropped"), Some(44.0 * 8.0));
}

#[test]
fn a_mount_that_can_not_be_asked_has_no_values_and_no_event() {
    let table = "30 1 0:30 / /gone rw - nfs4 server:/x rw\n31 1 0:31 / /data rw - ext4 /dev/vdb rw\n";
    let tree = Tree::with(&[(FILE, table)]);
    for error in [Errno::ENOENT, Errno::EACCES, Errno::ESTALE] {
        let (_, mut sensors) =
            asked(&tree, move |path| if path == Path::new("/gone") { Err(error) } else { Ok(SPACE) });
        assert_eq!(present(&sensors, "/gone"), [(1305, 0), (1306, 1), (1307, 0)]);
        assert_eq!(present(&sensors, "/data")[..3], [(1300, 1000), (1301, 400), (1302, 300)]);
        sensors.take_event(&mut |kind, _| panic!("{kind:?}"));
    }
}

#[test]
fn a_root_of_any_type_is_reported() {
    for (fstype, device) in
        [("overlay", "overlay"), ("tmpfs", "tmpfs"), ("9p", "host"), ("virtiofs", "kataShared"), ("rootfs", "none")]
    {
        let tree = Tree::with(&[(FILE, &format!("1 0 0:2 / / rw - {fstype} {device} rw\n"))]);
        assert!(tree.sample().get(&series("size_bytes", device, fstype, "/")).is_some(), "{fstype}");
    }
}

#[test]
fn a_hung_statvfs_is_told_once_harms_no_other_and_recovers() {
    let table = "30 1 0:30 / /nfs rw - nfs4 server:/x rw\n31 1 0:31 / /data rw - ext4 /dev/vdb rw\n";
    let tree = Tree::with(&[(FILE, table)]);
    let (let_go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let root = tree.path().to_owned();
    let ask: probe::Ask = Arc::new(move |path| {
        if path == root.join("nfs") {
            let _ = gate.lock().unwrap().recv();
        }
        Ok(SPACE)
    });
    let mut sensors = tree.sensors(true, ask);
    let mut events = Vec::new();
    let end = Instant::now() + Duration::from_secs(30);
    let mut look_until = |sensors: &mut informant_guest::collect::Sensors, hung: u64| {
        loop {
            sensors.sample(&Default::default());
            if sensors.wants_schema() {
                sensors.reschema();
            }
            sensors.settle(Duration::from_millis(50));
            sensors.take_event(&mut |kind, body| events.push((kind, body.to_vec())));
            let is = present(sensors, "/nfs").iter().find(|(id, _)| *id == 1307).map(|(_, value)| *value);
            let answered = present(sensors, "/data").len() == 8 && (hung == 1 || present(sensors, "/nfs").len() == 8);
            if is == Some(hung) && answered {
                return events.clone();
            }
            assert!(Instant::now() < end, "{is:?}");
        }
    };
    assert_eq!(look_until(&mut sensors, 1), [(EventKind::MOUNT_HUNG, b"/nfs".to_vec())]);
    assert_eq!(present(&sensors, "/nfs"), [(1305, 0), (1306, 1), (1307, 1)]);
    drop(let_go);
    let events = look_until(&mut sensors, 0);
    assert_eq!(events[1..], [(EventKind::MOUNT_RECOVERED, b"/nfs".to_vec())]);
}
