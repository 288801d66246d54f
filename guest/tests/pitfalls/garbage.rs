//! Whole trees of damaged files: no panic, valid output, and the same again from the same bytes.

use super::tree::Tree;
use proptest::prelude::*;

/// Small files in the kernel's own formats.
const FILES: &[(&str, &str)] = &[
    ("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 1 2\nctxt 6\nbtime 7\nprocesses 8\n"),
    ("proc/meminfo", "MemTotal:        4026532 kB\nMemFree:          500000 kB\nMemAvailable:     700000 kB\n"),
    ("proc/vmstat", "pgpgin 1\npgfault 2\noom_kill 3\n"),
    ("proc/loadavg", "0.50 0.25 0.10 1/100 42\n"),
    ("proc/uptime", "12.34 5.67\n"),
    ("proc/diskstats", " 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n"),
    ("proc/net/dev", "Inter-|\n face |\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"),
    (
        "proc/self/mountinfo",
        "30 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n31 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    ),
    (
        "proc/pressure/cpu",
        "some avg10=0.12 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    ),
    ("sys/devices/system/cpu/online", "0-1,3\n"),
    ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
    ("sys/fs/cgroup/a/memory.current", "4096\n"),
    ("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2\ninactive_file 1\n"),
    ("sys/fs/cgroup/a/cpu.max", "50000 100000\n"),
    ("sys/fs/cgroup/a/cpu.stat", "usage_usec 5\nuser_usec 3\n"),
    ("sys/fs/cgroup/a/io.stat", "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
];

#[derive(Clone, Debug)]
enum Damage {
    Cut(prop::sample::Index),
    Byte(prop::sample::Index, u8),
    Repeat(prop::sample::Index, prop::sample::Index),
    All(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b" \n\t:=-.0919/\\\0".to_vec())];
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Damage::Cut),
        (any::<prop::sample::Index>(), byte).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        any::<(prop::sample::Index, prop::sample::Index)>().prop_map(|(a, b)| Damage::Repeat(a, b)),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(Damage::All),
    ]
}

fn apply(content: &str, damage: &Damage) -> Vec<u8> {
    let mut bytes = content.as_bytes().to_vec();
    match damage {
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Byte(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Damage::Repeat(a, b) => {
            let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
            let piece = bytes[a.min(b)..a.max(b)].to_vec();
            bytes.splice(a.max(b)..a.max(b), piece);
        }
        Damage::All(other) => bytes.clone_from(other),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_files_harm_nothing_but_their_values(damages in prop::collection::vec(damage(), FILES.len())) {
        let tree = Tree::with(FILES);
        let lines = tree.samples(3, |n, tree| {
            for ((path, content), damage) in FILES.iter().zip(&damages) {
                if n == 0 {
                    tree.put(path, apply(content, damage));
                } else {
                    tree.put(path, content);
                }
            }
        });
        // Without what another thread asks, which is late when the machine is busy.
        let names = |n: usize| -> Vec<&str> {
            lines[n].starting("").into_iter().filter(|name| !name.contains("_filesystem_")).collect()
        };
        prop_assert_eq!(names(0), names(2), "all of it is back with the whole files");
    }
}
