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
fn what_can_not_be_looked_at_is_there_all_the_same() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'"), ("other", "unix = '@/other.sock'")]);
    let mut guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    guest.schema();
    let file = daemon.dir().join("vm/instance.toml");
    let text = fs::read(&file).unwrap();
    let wrong = [("instance.toml", "symbolic links"), ("nowhere", "is a link to a file that is not there")];
    for (sequence, (target, error)) in (1..).zip(wrong) {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(target, file.with_extension("new")).unwrap();
        fs::rename(file.with_extension("new"), &file).unwrap();
        daemon.wait_status("vm", "the error", |status| {
            status["config_error"].as_str().is_some_and(|text| text.contains(error))
        });
        guest.sample(sequence, &[Some(1); 8]);
        daemon.wait_status("vm", "its sample", |status| status["counters"]["samples"] == sequence);
        fs::write(file.with_extension("new"), &text).unwrap();
        fs::rename(file.with_extension("new"), &file).unwrap();
        daemon.wait_status("vm", "mended", |status| status["config_error"].is_null());
    }
    std::os::unix::fs::symlink("vm", daemon.dir().join("link")).unwrap();
    wait_for("the link to be told of", || {
        (daemon.get("/v1/instances").1["daemon"]["misnamed"] == json!(["link"])).then_some(())
    });
    assert_eq!(daemon.get("/v1/instances/link").0, 404);
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
fn a_socket_that_can_not_be_given_away_leaves_no_file() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'\nsocket_owner = 'nobody-of-that-name'")]);
    let status = daemon.wait_status("vm", "the error", |status| status["config_error"].is_string());
    let error = status["config_error"].as_str().unwrap();
    assert!(error.contains("owner and permissions: no user `nobody-of-that-name`"), "{error}");
    daemon.write("vm", "unix = '@/other.sock'");
    daemon.wait_status("vm", "another socket", |status| status["link"]["state"] == "listening");
    assert!(!daemon.run().join("vm.sock").exists());
}

#[test]
fn names_that_are_none_are_left_alone_and_one_address_has_one_instance() {
    let daemon = Daemon::start(&[
        ("a", "unix = '@/vm.sock'"),
        ("b", "unix = '@/vm.sock'"),
        (".hidden", "unix = '@/hidden.sock'"),
        ("with space", "unix = '@/space.sock'"),
    ]);
    daemon.wait_status("a", "listening", |status| status["link"]["state"] == "listening");
    let (_, all) = daemon.get("/v1/instances");
    let names: Vec<_> = all["instances"].as_array().unwrap().iter().map(|status| status["name"].clone()).collect();
    assert_eq!(names, [json!("a"), json!("b")]);
    let error = daemon.wait_status("b", "the error", |status| status["config_error"].is_string());
    assert!(error["config_error"].as_str().unwrap().starts_with("\"a\" has the same address"), "{error}");
    assert_eq!(all["daemon"]["misnamed"], json!(["with space"]));
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
fn who_has_an_address_keeps_it_over_restarts_whatever_the_names_of_the_others_are() {
    let mut daemon = Daemon::start(&[("m", "unix = '@/vm.sock'")]);
    daemon.wait_status("m", "listening", |status| status["link"]["state"] == "listening");
    for name in ["a", "z", "b", "y"] {
        daemon.write(name, "unix = '@/vm.sock'");
        daemon.wait_status(name, "the error", |status| status["config_error"].is_string());
    }
    assert!(daemon.terminate().success());
    // A copy says that it had the address, under another name.
    fs::create_dir(daemon.dir().join("copy")).unwrap();
    for file in ["instance.toml", "status.json"] {
        fs::copy(daemon.dir().join("m").join(file), daemon.dir().join("copy").join(file)).unwrap();
    }
    daemon.spawn();
    for name in ["a", "b", "y", "z", "copy"] {
        let told =
            |status: &serde_json::Value| status["config_error"].as_str().is_some_and(|e| e.starts_with("\"m\" has"));
        daemon.wait_status(name, "the error", |status| status["name"] == name && told(status));
    }
    drop(Guest::open(&daemon.run().join("vm.sock"), AGENT));
    daemon.wait_status("m", "the guest", |status| status["guest"]["name"] == "vm");
    // Who is left gets it, and keeps it too.
    remove(&daemon, "m");
    daemon.wait_status("a", "the address", |status| status["link"]["state"] == "listening");
}

#[test]
fn addresses_may_change_hands_at_once() {
    let daemon = Daemon::start(&[("a", "unix = '@/a.sock'"), ("b", "unix = '@/b.sock'"), ("c", "unix = '@/c.sock'")]);
    let open = |socket: &str, boot| Guest::open(&daemon.run().join(socket), Who { boot, nonce: boot, ..AGENT });
    let wait_guest = |name: &str, boot: u8| {
        let boot = format!("{boot:02x}").repeat(16);
        daemon.wait_status(name, "its guest", |status| {
            status["guest"]["boot_id"] == boot && status["link"]["state"] == "up" && status["config_error"].is_null()
        });
    };
    let (mut a, mut b) = (open("a.sock", 1), open("b.sock", 2));
    // Their folders' names change places, through one that the daemon does not see.
    let away = daemon.run().join("away");
    fs::rename(daemon.dir().join("a"), &away).unwrap();
    fs::rename(daemon.dir().join("b"), daemon.dir().join("a")).unwrap();
    fs::rename(&away, daemon.dir().join("b")).unwrap();
    for guest in [&mut a, &mut b] {
        let said = guest.hear_other();
        assert!(matches!(said, Said::Bye(ByeReason::MOVED | ByeReason::REMOVED)), "{said:?}");
    }
    let _guests = (open("a.sock", 3), open("b.sock", 4));
    wait_guest("a", 4);
    wait_guest("b", 3);
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.dir().join(name).join("instance.toml"));
    wait_watched(&daemon, "all three to be watched", &[&a, &b, &c]);

    // Who asks for what another one has gets nothing, and keeps nothing that it does not ask for any more.
    daemon.write("a", "unix = '@/c.sock'");
    daemon.wait_status("a", "the error", |status| status["config_error"].is_string());
    daemon.write("c", "unix = '@/b.sock'");
    daemon.wait_status("a", "c's address", |status| status["config_error"].is_null());
    let _guests = (open("c.sock", 5), open("b.sock", 6));
    wait_guest("a", 5);
    wait_guest("c", 6);
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
