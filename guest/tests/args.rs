//! Arguments, environment and kernel command line: which one counts, and what is said of a wrong one.

use informant_guest::args::{ArgsError, Command, Demand, HostLink, Run, Surroundings, parse};
use informant_guest::link::Address;
use informant_wire::size::{Bytes, MilliCpu};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn parsed(arguments: &str, variables: &[(&str, &str)], kernel: &str) -> Result<Command, ArgsError> {
    parse(&Surroundings {
        arguments: arguments.split_whitespace().map(OsString::from).collect(),
        variable: &|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)),
        kernel_command_line: &|| kernel.as_bytes().to_vec(),
    })
}

fn run_with(arguments: &str, variables: &[(&str, &str)], kernel: &str) -> Run {
    match parsed(&format!("run {arguments}"), variables, kernel) {
        Ok(Command::Run(run)) => run,
        other => panic!("{other:?}"),
    }
}

fn complaint(arguments: &str) -> String {
    parsed(arguments, &[], "").unwrap_err().to_string()
}

#[test]
fn defaults() {
    let run = run_with("", &[], "");
    assert_eq!(run.host, HostLink::Connect(Address::Vsock { cid: Some(2), port: 5252 }));
    assert_eq!(run.control, Some(Address::Vsock { cid: None, port: 1022 }));
    assert_eq!((run.root.as_path(), run.state.as_path()), (Path::new("/"), Path::new("/run/informant")));
    assert_eq!((run.interval, run.cgroup, run.name), (Duration::from_secs(1), None, None));
}

#[test]
fn argument_before_environment_before_kernel_command_line() {
    let variables = [("INFORMANT_INTERVAL", "2s"), ("INFORMANT_NAME", "from-environment")];
    let kernel = "quiet informant.interval=3s informant.name=from-kernel informant.state=/from/kernel";
    let run = run_with("--interval 4s", &variables, kernel);
    assert_eq!(run.interval, Duration::from_secs(4));
    assert_eq!(run.name.as_deref(), Some("from-environment"));
    assert_eq!(run.state, Path::new("/from/kernel"));
}

#[test]
fn the_kernel_command_line_counts_for_the_running_system_only() {
    let kernel = "informant.name=host informant.root=/elsewhere";
    assert_eq!(run_with("--root /tree", &[], kernel).name, None);
    let run = run_with("--root /", &[], kernel);
    assert_eq!((run.name.as_deref(), run.root.as_path()), (Some("host"), Path::new("/")));
}

#[test]
fn kernel_parameters_may_be_quoted_and_the_last_one_counts() {
    let name = |kernel: &str| run_with("", &[], kernel).name;
    assert_eq!(name("a informant.name=\"two words\" b").as_deref(), Some("two words"));
    assert_eq!(name("\"informant.name=two words\"").as_deref(), Some("two words"));
    assert_eq!(name("informant.name=a informant.name=b\n").as_deref(), Some("b"));
    assert_eq!(name("xinformant.name=a informant.names=b informant.name"), None);
    assert_eq!(name("ro -- informant.name=init"), None);
}

#[test]
fn over_a_unix_socket_the_control_port_is_off_unless_asked_for() {
    assert_eq!(run_with("--connect unix:/h.sock", &[], "").control, None);
    assert_eq!(run_with("--listen unix:/g.sock", &[], "").control, None);
    let unix = run_with("--connect unix:/h.sock --control unix:/c.sock", &[], "");
    assert_eq!(unix.control, Some(Address::Unix("/c.sock".into())));
    assert_eq!(run_with("--control off", &[], "").control, None);
    let port = run_with("--control vsock:900", &[], "").control;
    assert_eq!(port, Some(Address::Vsock { cid: None, port: 900 }));
}

#[test]
fn who_dials_is_decided_at_one_place() {
    assert_eq!(complaint("run --connect unix:/a --listen unix:/b"), ArgsError::BothWays.to_string());
    let environment = [("INFORMANT_CONNECT", "unix:/a")];
    assert_eq!(run_with("--listen unix:/b", &environment, "").host, HostLink::Listen(Address::Unix("/b".into())));
    let environment = [("INFORMANT_LISTEN", "unix:/b")];
    assert_eq!(run_with("--connect unix:/a", &environment, "").host, HostLink::Connect(Address::Unix("/a".into())));
}

#[test]
fn where_processes_of_the_vm_are_heard() {
    let local = |arguments, variables: &[_], kernel| run_with(arguments, variables, kernel).local;
    assert_eq!(local("", &[], ""), Some(PathBuf::from("/run/informant/agent.sock")));
    assert_eq!(local("--state /s", &[], ""), Some(PathBuf::from("/s/agent.sock")));
    assert_eq!(local("--local /a", &[("INFORMANT_LOCAL", "off")], ""), Some(PathBuf::from("/a")));
    assert_eq!(local("", &[], "informant.local=off"), None);
    assert_eq!(run_with("", &[], "").advisors, Path::new("/etc/informant/advisors.d"));
    assert_eq!(run_with("", &[("INFORMANT_ADVISORS", "/x")], "").advisors, Path::new("/x"));
}

#[test]
fn amounts_of_a_demand() {
    let demand = |arguments: &str| match parsed(&format!("demand {arguments}"), &[], "") {
        Ok(Command::Demand(demand)) => demand,
        other => panic!("{other:?}"),
    };
    let plain = Demand {
        cpu: None,
        memory: Some(Bytes::gib(2)),
        disk: None,
        urgency: 50,
        wait: None,
        socket: PathBuf::from("/run/informant/agent.sock"),
    };
    assert_eq!(demand("--memory 2GiB"), plain);
    let minute = Some(Duration::from_secs(60));
    assert_eq!(demand("--wait --memory 2GiB"), Demand { wait: minute, ..demand("--memory 2GiB") });
    let all = demand("--cpu 500m --disk /d=a=20GiB --urgency 100 --wait=5 --socket /s");
    assert_eq!((all.cpu, all.disk), (Some(MilliCpu(500)), Some((b"/d=a".to_vec(), Bytes::gib(20)))));
    assert_eq!((all.urgency, all.wait, all.socket), (100, Some(Duration::from_secs(5)), PathBuf::from("/s")));
    for (arguments, why) in [
        ("", "demand: nothing is asked for; give --memory, --cpu or --disk"),
        ("--wait", "demand: nothing is asked for; give --memory, --cpu or --disk"),
        ("--memory 2GB", "--memory: '2GB' is no size; write 2GiB, 1536MiB or plain bytes"),
        ("--cpu two", "--cpu: 'two' is no CPU; write 2, 1.5 or 500m"),
        ("--disk 20GiB", "--disk: '20GiB' is not MOUNT=SIZE"),
        ("--disk data=20GiB", "--disk: 'data=20GiB' names no mount point; an absolute path of at most 255 bytes"),
        ("--disk /data=x", "--disk: '/data=x' is no size; write 2GiB, 1536MiB or plain bytes"),
        ("--cpu 1 --urgency 101", "--urgency: '101' is no urgency; 0 to 100"),
        ("--cpu 1 --wait=0", "--wait: '0' is no number of seconds; 1 to 86400"),
        ("--cpu 1 --wait 5", "demand: unexpected argument '5'"),
    ] {
        assert_eq!(complaint(&format!("demand {arguments}")), why);
    }
}

#[test]
fn times_from_100_milliseconds_to_an_hour() {
    for (text, ms) in [("100ms", 100), ("500ms", 500), ("1s", 1000), ("2m", 120_000), ("1h", 3_600_000)] {
        assert_eq!(run_with(&format!("--interval {text}"), &[], "").interval, Duration::from_millis(ms));
    }
    for text in ["99ms", "3601s", "2h", "1", "s", "1.5s", "-1s", "+1s", "18446744073709551615h", "1d"] {
        assert!(
            complaint(&format!("run --interval={text}")).starts_with(&format!("--interval: '{text}' is ")),
            "{text}"
        );
    }
}

#[test]
fn what_is_not_known_is_named_with_what_was_probably_meant() {
    assert_eq!(complaint("run --conect x"), "run: unknown option '--conect'; did you mean '--connect'?");
    assert_eq!(complaint("run --frobnicate"), "run: unknown option '--frobnicate'");
    assert_eq!(complaint("doctor --interval 1s"), "doctor: unknown option '--interval'");
    assert_eq!(complaint("smaple"), "unknown command 'smaple'; did you mean 'sample'?");
    assert_eq!(complaint("run -x"), "run: unknown option '-x'");
    assert_eq!(complaint("run extra"), "run: unexpected argument 'extra'");
    assert_eq!(complaint("run --state"), "--state: a value is missing (--state DIR)");
    assert_eq!(complaint("sample --count 0"), "--count: '0' is no number of samples; at least 1");
    assert_eq!(complaint(""), ArgsError::NoCommand.to_string());
}

#[test]
fn a_wrong_value_is_reported_where_it_stands() {
    let from_environment = parsed("run", &[("INFORMANT_CONNECT", "vsock:2")], "").unwrap_err().to_string();
    assert!(from_environment.starts_with("environment variable INFORMANT_CONNECT: 'vsock:2' is no address to dial"));
    let from_kernel = parsed("run", &[], "informant.log=loud").unwrap_err().to_string();
    assert!(from_kernel.starts_with("kernel command line, informant.log: 'loud' is no level"));
    // What a command does not have is not its business.
    assert!(parsed("doctor", &[("INFORMANT_CONNECT", "vsock:2")], "informant.log=loud").is_ok());
}

#[test]
fn paths_may_hold_any_bytes_and_names_may_not() {
    let odd = OsString::from_vec(b"/tree/\xff".to_vec());
    let with = |option: &str| {
        parse(&Surroundings {
            arguments: vec!["run".into(), option.into(), odd.clone()],
            variable: &|_| None,
            kernel_command_line: &Vec::new,
        })
    };
    assert!(matches!(with("--root"), Ok(Command::Run(run)) if run.root == Path::new(&odd)));
    assert!(with("--name").unwrap_err().to_string().ends_with("is not UTF-8"));
    assert!(run_with("--name n", &[], "").name.is_some());
    assert!(complaint(&format!("run --name {}", "n".repeat(65))).contains("1 to 64 bytes"));
}

#[test]
fn help_lists_every_option_of_a_command_and_no_other() {
    let help = |arguments: &str| match parsed(arguments, &[], "") {
        Ok(Command::Help(text)) => text,
        other => panic!("{other:?}"),
    };
    for option in
        ["connect", "listen", "control", "root", "interval", "cgroup", "name", "state", "local", "advisors", "log"]
    {
        assert!(help("run --help").contains(&format!("  --{option} ")), "{option}");
    }
    assert!(help("sample -h").contains("--count N") && !help("sample -h").contains("--connect"));
    for text in [
        help("--help"),
        help("help"),
        help("run --help"),
        help("sample --help"),
        help("doctor --help"),
        help("demand --help"),
    ] {
        assert!(text.lines().all(|line| line.len() <= 100) && text.ends_with('\n'));
    }
    for command in ["run", "doctor", "sample"] {
        let text = help(&format!("{command} --help"));
        assert_eq!(text.contains("--count"), command == "sample");
        assert!(text.contains("INFORMANT_<OPTION>") && text.contains("informant.<option>=VALUE"));
    }
    assert_eq!(parsed("--version", &[], ""), Ok(Command::Version));
}

#[test]
fn what_is_repeated_of_an_argument_does_nothing_to_a_terminal() {
    for arguments in [
        &["\x1b[31mrun"][..],
        &["run", "--\x1b[31m"],
        &["run", "\u{9b}31m"],
        &["sample", "--interval", "1\x07\n2"],
        &["sample", "--root", "/nowhere/\x1b[2J"],
    ] {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_informant-guest")).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let line = said.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control) && line.contains("\\u{"), "{line:?}");
        assert!(matches!(output.status.code(), Some(1 | 2)));
    }
}

#[test]
fn a_watched_cgroup_that_is_not_there_is_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("sys/fs/cgroup/a")).unwrap();
    std::fs::write(root.path().join("sys/fs/cgroup/cgroup.controllers"), "").unwrap();
    let said = |cgroup: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_informant-guest"));
        command.args(["sample", "--count", "2", "--interval", "100ms", "--cgroup", cgroup, "--root"]);
        let output = command.arg(root.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!((said("/a"), said("a"), said("/")), Default::default());
    for cgroup in ["/nope", "/a/../nope"] {
        let said = said(cgroup);
        assert!(said.contains(&format!("--cgroup {cgroup}: ")) && said.lines().count() == 1, "{said:?}");
    }
}
