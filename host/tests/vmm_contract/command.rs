//! A program as an operator might write one, and what is particular about programs.

use crate::suite::{Mode, Peer};
use informant_host::vmm::{Actuator, Config, Vmm, VmmError};
use informant_wire::size::{Bytes, MilliCpu, Size};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Keeps the VM's state in files of the directory that is its first argument.
const PROGRAM: &str = r#"
dir=$1 what=$2
mode=$(cat "$dir/mode")
report() {
    read cpu memory <"$dir/has"
    read wish_cpu wish_memory <"$dir/wish"
    printf '{"cpu_milli":%s,"memory_bytes":%s,"wish_cpu_milli":%s,"wish_memory_bytes":%s,' $cpu $memory $wish_cpu $wish_memory
    printf '"min_cpu_milli":1000,"max_cpu_milli":4000,"step_cpu_milli":1000,'
    printf '"min_memory_bytes":536870912,"max_memory_bytes":2684354560,"block_bytes":2097152,"more":[]}\n'
}
case $mode in
    Silent) sleep 60 ;;
    Garbage) echo done; exit ;;
    Half) report | head -c 40; exit ;;
    Endless) while :; do report; done ;;
esac
if [ $what = resize ]; then
    echo "$*" | cut -d' ' -f2- >>"$dir/sent"
    case $mode in
        NotYet) echo "the guest is not up" >&2; exit 75 ;;
        Refuse) printf 'not with this machine\nand more\n' >&2; exit 3 ;;
        Hang) sleep 60 ;;
    esac
    echo "$4 $6" >"$dir/wish"
    if [ -e "$dir/applies" ]; then cp "$dir/wish" "$dir/has"; fi
    if [ $mode = TakeAndHang ]; then sleep 60; fi
fi
report
"#;

struct Program {
    dir: tempfile::TempDir,
}

impl Program {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peer = Self { dir };
        for (name, text) in [
            ("program", PROGRAM),
            ("mode", "Normal"),
            ("has", "1000 536870912\n"),
            ("wish", "1000 536870912\n"),
            ("applies", ""),
        ] {
            fs::write(peer.file(name), text).unwrap();
        }
        peer
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn sh(script: &str, arguments: &[&str]) -> Actuator {
    let words = [&["sh", "-c", script, "sh"], arguments].concat();
    Actuator::new(&Config::Command(words.into_iter().map(str::to_owned).collect()))
}

impl Peer for Program {
    fn actuator(&self) -> Actuator {
        let dir = self.dir.path().to_str().unwrap();
        sh(r#"exec sh "$1/program" "$@""#, &[dir])
    }

    fn set(&self, mode: Mode) {
        fs::write(self.file("mode"), format!("{mode:?}")).unwrap();
    }

    fn applies(&self, applies: bool) {
        if applies {
            fs::write(self.file("applies"), "").unwrap();
        } else {
            fs::remove_file(self.file("applies")).unwrap();
        }
    }

    fn apply(&self) {
        fs::copy(self.file("wish"), self.file("has")).unwrap();
    }

    fn sent(&self) -> Vec<String> {
        fs::read_to_string(self.file("sent")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn stop(&self) {}
}

mod each {
    use super::Program;
    crate::suite::contract!(Program::start(); observes, grows_and_shrinks, asks_nothing_twice, rounds_up,
        not_yet_is_later, a_refusal_is_for_ever, garbage, half_an_answer, an_answer_without_end, beyond_both_ends,
        wish_and_truth_differ, giving_back_takes_time);
}

#[tokio::test]
async fn a_program_that_is_not_there() {
    let mut vmm = Actuator::new(&Config::Command(vec!["/no/such/program".into()]));
    let error = vmm.observe().await.unwrap_err();
    assert!(matches!(error, VmmError::Unreachable(_)), "{error:?}");
    assert_eq!(error.to_string(), "`/no/such/program`: cannot run: No such file or directory (os error 2)");
}

#[tokio::test]
async fn it_is_called_as_documented_and_may_tell_little() {
    let peer = Program::start();
    let script = r#"echo "$2 $3 $4 $5 $6" >>"$1/calls"; [ "$2" = resize ] || cat "$1/says""#;
    let mut vmm = sh(script, &[peer.dir.path().to_str().unwrap()]);
    fs::write(peer.file("says"), r#"{"cpu_milli":250,"memory_bytes":1000}"#).unwrap();
    let wanted = Size { cpu: MilliCpu(750), memory: Bytes(123_456_789) };
    for _ in 0..2 {
        let seen = vmm.resize(wanted).await.unwrap();
        assert_eq!((seen.has, seen.wish), (Size { cpu: MilliCpu(250), memory: Bytes(1000) }, wanted));
        assert!(seen.running);
    }
    let calls = fs::read_to_string(peer.file("calls")).unwrap();
    let calls: Vec<&str> = calls.lines().map(str::trim_end).collect();
    assert_eq!(calls, ["observe", "resize --cpu-milli 750 --memory-bytes 123456789", "observe", "observe"]);
    let error = vmm.resize(Size::default()).await.unwrap_err();
    assert_eq!(error, VmmError::Refused("0 CPUs wanted, and the VM cannot go below 1m CPU".into()));
}

#[tokio::test]
async fn a_hung_program_goes_with_all_it_started() {
    let peer = Program::start();
    let script = r#"sleep 1000 & echo $$ $! >"$1/pids"; wait"#;
    let mut vmm = sh(script, &[peer.dir.path().to_str().unwrap()]);
    assert!(matches!(vmm.observe().await, Err(VmmError::Timeout(_))));
    let pids = fs::read_to_string(peer.file("pids")).unwrap();
    let began = Instant::now();
    for pid in pids.split_whitespace() {
        let stat = format!("/proc/{pid}/stat");
        // Gone, or dead and waiting for whoever reaps orphans here.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(
                kill(Pid::from_raw(pid.parse().unwrap()), None).is_ok() && began.elapsed() < Duration::from_secs(30)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(pids.split_whitespace().count(), 2);
}

#[tokio::test]
async fn much_talk_on_standard_error_harms_nobody() {
    let mut vmm = sh(r#"head -c 1000000 /dev/zero | tr '\0' x >&2; echo '{"cpu_milli":1000,"memory_bytes":1}'"#, &[]);
    assert_eq!(vmm.observe().await.unwrap().has, Size { cpu: MilliCpu(1000), memory: Bytes(1) });
    let mut vmm = sh("kill -9 $$", &[]);
    let error = vmm.observe().await.unwrap_err();
    assert!(matches!(&error, VmmError::Protocol(text) if text.ends_with("killed by signal 9")), "{error:?}");
}
