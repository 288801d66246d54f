//! Instances come, change and go while the daemon runs; what is wrong with one harms no other.

use crate::support::{AGENT, Daemon, Guest, Said, Who, wait_for};
use informant_wire::host_to_guest::ByeReason;
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Removes a folder into which the daemon may write until it has noticed.
fn remove(daemon: &Daemon, name: &str) {
    let folder = daemon.dir().join(name);
    wait_for("the folder to be removed", || fs::remove_dir_all(&folder).is_ok().then_some(()));
}

#[test]
fn a_broken_toml_is_reported_on_its_instance_and_harms_no_other() {
    let daemon = Daemon::start(&[("good", "unix = '@/good.sock'"), ("bad", "unx = '@/bad.sock'")]);
    let status = daemon.wait_status("bad", "the error", |status| status["config_error"].is_string());
    assert_eq!(status["config_error"], "unknown key `unx`: did you mean `unix`?");
    assert_eq!((&status["link"]["state"], &status["transport"]), (&json!("off"), &json!(null)));
    let mut guest = Guest::open(&daemon.run().join("good.sock"), AGENT);
    daemon.write("bad", "unix = '@/bad.sock'");
    let status = daemon.wait_status("bad", "mended", |status| status["link"]["state"] == "listening");
    assert_eq!(status["config_error"], json!(null));
    Guest::open(&daemon.run().join("bad.sock"), AGENT);
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
}

#[test]
fn folders_are_picked_up_changed_and_removed() {
    let daemon = Daemon::start(&[("stays", "unix = '@/stays.sock'")]);
    let mut stays = Guest::open(&daemon.run().join("stays.sock"), Who { boot: 9, ..AGENT });
    daemon.write("new", "unix = '@/one.sock'");
    let mut guest = Guest::open(&daemon.run().join("one.sock"), AGENT);
    daemon.write("new", "unix = '@/two.sock'");
    assert_eq!(guest.hear_other(), Said::Bye(ByeReason::MOVED));
    let mut guest = Guest::open(&daemon.run().join("two.sock"), AGENT);
    wait_for("the old socket to go", || (!daemon.run().join("one.sock").exists()).then_some(()));
    remove(&daemon, "new");
    assert_eq!((guest.hear_other(), guest.hear_other()), (Said::Bye(ByeReason::REMOVED), Said::Closed));
    wait_for("it to be forgotten", || (daemon.get("/v1/instances/new").0 == 404).then_some(()));
    assert!(!daemon.dir().join("new").exists(), "nothing is written into a folder that is gone");
    stays.schema();
    stays.sample(1, &[Some(1); 8]);
    stays.wait_ack(|ack| ack.sample == 1);
}

#[test]
fn names_that_are_none_are_left_alone_and_one_address_has_one_instance() {
    let daemon = Daemon::start(&[
        ("a", "unix = '@/vm.sock'"),
        ("b", "unix = '@/vm.sock'"),
        (".hidden", "unix = '@/hidden.sock'"),
        ("with space", "unix = '@/space.sock'"),
    ]);
    wait_for("one of them to be told", || {
        ["a", "b"].iter().find(|name| daemon.status(name).is_some_and(|status| status["config_error"].is_string()))
    });
    let (_, all) = daemon.get("/v1/instances");
    let names: Vec<_> = all["instances"].as_array().unwrap().iter().map(|status| status["name"].clone()).collect();
    assert_eq!(names, [json!("a"), json!("b")]);
    let errors: Vec<_> = ["a", "b"]
        .iter()
        .filter_map(|name| daemon.status(name).unwrap()["config_error"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("\" has the same address"), "{errors:?}");
    assert!(!daemon.dir().join(".hidden/status.json").exists());
    // However often the folders are looked at, it is said once.
    for name in ["c", "d", "e"] {
        daemon.write(name, &format!("unix = '@/{name}.sock'"));
        daemon.wait_status(name, "listening", |status| status["link"]["state"] == "listening");
    }
    let log = daemon.log();
    for (what, times) in [("has the same address", 1), ("the folder \"with space\" is left alone", 1), ("hidden", 0)] {
        assert_eq!(log.matches(what).count(), times, "{what} in {log}");
    }
}

#[test]
fn a_second_daemon_says_who_holds_the_directory() {
    let daemon = Daemon::start(&[]);
    let output = daemon.command().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains(&format!("is held by process {}: another daemon serves this directory", daemon.pid())),
        "{said}"
    );
}

#[test]
fn a_socket_is_where_and_as_it_should_be() {
    let long = "d".repeat(120);
    let hybrid = format!("uds = '@/{long}/v.sock'\nsocket_mode = '0600'");
    let mut daemon =
        Daemon::start(&[("long", &hybrid), ("taken", "unix = '@/file'"), ("stale", "unix = '@/stale.sock'")]);
    let status = daemon.wait_status("long", "waiting", |status| status["link"]["detail"].is_string());
    assert_eq!(status["link"]["state"], "waiting");
    assert!(status["link"]["detail"].as_str().unwrap().starts_with("waits for the directory of "));
    fs::create_dir(daemon.run().join(&long)).unwrap();
    daemon.wait_status("long", "listening", |status| status["link"]["state"] == "listening");
    let meta = fs::metadata(daemon.run().join(&long).join("v.sock_5252")).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    // A file that is no socket is somebody's; it is reported and left.
    assert!(daemon.terminate().success());
    fs::write(daemon.run().join("file"), "mine").unwrap();
    // What a killed daemon leaves behind is taken over.
    drop(UnixListener::bind(daemon.run().join("stale.sock")).unwrap());
    daemon.spawn();
    let status = daemon.wait_status("taken", "the error", |status| status["config_error"].is_string());
    assert!(status["config_error"].as_str().unwrap().contains("a file that is no socket is there"));
    assert_eq!(fs::read_to_string(daemon.run().join("file")).unwrap(), "mine");
    wait_for("the stale socket to work", || UnixStream::connect(daemon.run().join("stale.sock")).ok());
}

#[test]
fn a_socket_that_is_gone_or_replaced_is_bound_again() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm/v.sock'")]);
    let directory = daemon.run().join("vm");
    let path = directory.join("v.sock");
    fs::create_dir(&directory).unwrap();
    drop(Guest::open(&path, AGENT));
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    drop(Guest::open(&path, Who { boot: 2, ..AGENT }));
    fs::remove_file(&path).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    Guest::open(&path, Who { boot: 3, ..AGENT });
}

#[test]
fn an_instance_toml_that_is_no_file_is_an_error_and_stops_nobody() {
    let daemon = Daemon::start(&[("good", "unix = '@/good.sock'")]);
    for name in ["fifo", "directory"] {
        fs::create_dir(daemon.dir().join(name)).unwrap();
    }
    nix::unistd::mkfifo(&daemon.dir().join("fifo/instance.toml"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    fs::create_dir(daemon.dir().join("directory/instance.toml")).unwrap();
    for name in ["fifo", "directory"] {
        let status = daemon.wait_status(name, "the error", |status| status["config_error"].is_string());
        assert_eq!(status["config_error"], "is not a regular file");
    }
    Guest::open(&daemon.run().join("good.sock"), AGENT);
}

#[test]
fn no_instance_takes_a_socket_that_is_somebody_elses() {
    let daemon = Daemon::start(&[("vm", "uds = '@/v.sock'")]);
    daemon.wait_status("vm", "listening", |status| status["link"]["state"] == "listening");
    let other = UnixListener::bind(daemon.run().join("other.sock")).unwrap();
    std::os::unix::fs::symlink(daemon.run(), daemon.dir().join("link")).unwrap();
    let wrong = [
        ("api", "unix = '@/../dir/informant.sock'", "is the daemon's own socket"),
        ("port", "unix = '@/./../run/v.sock_5252'", "\"vm\" has the same address"),
        ("vmm", "unix = '@/../dir/link/v.sock'", "\"vm\" has the same address"),
        ("other", "unix = '@/other.sock'", "another process listens there"),
    ];
    for (name, toml, what) in wrong {
        daemon.write(name, toml);
        let status = daemon.wait_status(name, what, |status| status["config_error"].is_string());
        assert!(status["config_error"].as_str().unwrap().contains(what), "{name}: {status}");
    }
    assert_eq!(daemon.get("/v1/instances/api").0, 200);
    Guest::open(&daemon.run().join("v.sock_5252"), AGENT);
    // Whose it is does not even see a connection.
    other.set_nonblocking(true).unwrap();
    assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(other);
    Guest::open(&daemon.run().join("other.sock"), Who { boot: 9, ..AGENT });
    daemon.wait_status("other", "mended", |status| status["config_error"].is_null());
}

#[test]
fn labels_and_slips_in_a_toml_end_no_session() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    guest.schema();
    daemon.write("vm", "unix = '@/vm.sock'\nlabels = { role = 'web' }");
    daemon.wait_status("vm", "the label", |status| status["labels"]["role"] == "web");
    daemon.write("vm", "unix = '@/vm.sock'\nbanana = 1");
    let status = daemon.wait_status("vm", "the error", |status| status["config_error"].is_string());
    assert_eq!((&status["link"]["state"], &status["labels"]["role"]), (&json!("up"), &json!("web")));
    daemon.write("vm", "unix = '@/vm.sock'");
    daemon.wait_status("vm", "mended", |status| status["config_error"].is_null() && status["labels"] == json!({}));
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
}

#[test]
fn left_over_temporary_files_are_removed_at_start() {
    let mut daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    daemon.wait_status("vm", "listening", |status| status["link"]["state"] == "listening");
    daemon.kill();
    let left = daemon.dir().join("vm/.status.json.1.1");
    fs::write(&left, "{").unwrap();
    daemon.spawn();
    wait_for("it to be removed", || (!left.exists()).then_some(()));
}

/// The inodes that the daemon's inotify watches, as the kernel tells.
fn watched(daemon: &Daemon) -> HashSet<u64> {
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap();
    let texts: Vec<_> = infos.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("inotify "));
    let inode = |line: &str| {
        let inode = line.split(' ').find_map(|field| field.strip_prefix("ino:"))?;
        u64::from_str_radix(inode, 16).ok()
    };
    lines.map(|line| inode(line).unwrap()).collect()
}

/// Waits until exactly these are watched besides the daemon's directory.
fn wait_watched(daemon: &Daemon, what: &str, files: &[&Path]) {
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let expected: HashSet<u64> = files.iter().map(|path| inode(path)).chain([inode(&daemon.dir())]).collect();
    wait_for(what, || (watched(daemon) == expected).then_some(()));
}

#[test]
fn inotify_sees_a_toml_that_comes_late_is_replaced_or_goes_and_nothing_that_the_daemon_writes() {
    let daemon = Daemon::start(&[]);
    let folder = daemon.dir().join("late");
    let toml = folder.join("instance.toml");
    fs::create_dir(&folder).unwrap();
    wait_watched(&daemon, "a watch of the empty folder", &[&folder]);
    daemon.write("late", "unix = '@/one.sock'");
    drop(Guest::open(&daemon.run().join("one.sock"), AGENT));
    wait_watched(&daemon, "a watch of the file in its place", &[&toml]);
    // As editors do, and with the old file still there under another name.
    fs::hard_link(&toml, folder.join("backup")).unwrap();
    fs::write(folder.join("new"), format!("unix = '{}/two.sock'", daemon.run().display())).unwrap();
    fs::rename(folder.join("new"), &toml).unwrap();
    drop(Guest::open(&daemon.run().join("two.sock"), AGENT));
    wait_watched(&daemon, "a watch of the new file alone", &[&toml]);
    fs::remove_file(&toml).unwrap();
    wait_watched(&daemon, "a watch of the folder again", &[&folder]);
    wait_for("it to be forgotten", || (daemon.get("/v1/instances/late").0 == 404).then_some(()));
    fs::rename(&folder, daemon.run().join("elsewhere")).unwrap();
    wait_watched(&daemon, "no watch of what is not there", &[]);
}

#[test]
fn a_directory_that_is_renamed_is_told_of_and_ends_no_session() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'")]);
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    let away = daemon.run().join("away");
    fs::rename(daemon.dir(), &away).unwrap();
    wait_for("the warning", || daemon.log().contains("dir was renamed, removed or replaced").then_some(()));
    // Another directory in its place is not taken for it.
    fs::create_dir(daemon.dir()).unwrap();
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
    fs::remove_dir(daemon.dir()).unwrap();
    fs::rename(&away, daemon.dir()).unwrap();
    daemon.write("new", "unix = '@/new.sock'");
    drop(Guest::open(&daemon.run().join("new.sock"), AGENT));
    guest.sample(2, &[Some(2); 8]);
    daemon.wait_status("vm", "both samples", |status| status["counters"]["samples"] == 2);
    assert!(daemon.log().contains("dir is back"), "{}", daemon.log());
}
