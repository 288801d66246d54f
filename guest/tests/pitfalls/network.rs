//! `/proc/net/dev` and `/sys/class/net`, pitfalls E.

use super::tree::Tree;

const FILE: &str = "proc/net/dev";
const HEAD: &str = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

fn file(lines: &[(&str, &str)]) -> String {
    lines.iter().fold(HEAD.to_owned(), |text, (name, numbers)| format!("{text}{name}:{numbers}\n"))
}

fn received(line: &super::tree::Line, name: &str) -> Option<f64> {
    line.get(&format!("node_network_receive_bytes_total{{device={name}}}"))
}

const ZEROS: &str = " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";

#[test]
fn a_colon_inside_a_name() {
    let text = file(&[
        (" bond0:1", ZEROS),
        ("ib0:30", " 40 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
        ("eth0", "5 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
    ]);
    let line = Tree::with(&[(FILE, &text)]).sample();
    assert_eq!(["bond0:1", "ib0:30", "eth0"].map(|name| received(&line, name)), [Some(0.0), Some(40.0), Some(5.0)]);
    assert_eq!(line.starting("node_network_receive_bytes_total").len(), 3, "the head is no interface");
}

#[test]
fn names_with_quotes_utf8_or_arbitrary_bytes() {
    let mut text = HEAD.as_bytes().to_vec();
    for name in [&b"x\xe9"[..], br"x\xe9", b"a\"b", "ü".as_bytes()] {
        text.extend_from_slice(b"    ");
        text.extend_from_slice(name);
        text.extend_from_slice(b": 8 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
    }
    let tree = Tree::new();
    tree.put(FILE, text);
    tree.put(b"sys/class/net/x\xe9/mtu", "1500\n");
    let line = tree.sample();
    assert_eq!([r"x\xe9", r"x\\xe9", "a\"b", "ü"].map(|name| received(&line, name)), [Some(8.0); 4]);
    assert_eq!(line.get(r"node_network_mtu_bytes{device=x\xe9}"), Some(1500.0), "files are found by the raw bytes");
}

#[test]
fn every_column_has_its_name() {
    let line = Tree::with(&[(FILE, &file(&[("eth0", " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")]))]).sample();
    let names = [
        "receive_bytes",
        "receive_packets",
        "receive_errs",
        "receive_drop",
        "receive_fifo",
        "receive_frame",
        "receive_compressed",
        "receive_multicast",
        "transmit_bytes",
        "transmit_packets",
        "transmit_errs",
        "transmit_drop",
        "transmit_fifo",
        "transmit_colls",
        "transmit_carrier",
        "transmit_compressed",
    ];
    for (i, name) in names.into_iter().enumerate() {
        assert_eq!(line.get(&format!("node_network_{name}_total{{device=eth0}}")), Some(i as f64 + 1.0), "{name}");
    }
}

#[test]
fn interface_counters_of_32_bits_wrap() {
    let numbers =
        |bytes: u64, packets: u64| file(&[("eth0", &format!(" {bytes} {packets} 0 0 0 0 0 0 0 0 0 0 0 0 0 0"))]);
    let tree = Tree::with(&[(FILE, &numbers(4_294_960_000, 500))]);
    let lines = tree.samples(2, |_, tree| {
        tree.put(FILE, numbers(5000, 520));
    });
    assert_eq!(received(&lines[1], "eth0").unwrap() - received(&lines[0], "eth0").unwrap(), 12_296.0);
}

#[test]
fn an_interface_vanishes_and_another_comes() {
    let tree = Tree::with(&[(FILE, &file(&[("lo", ZEROS), ("veth12ab", ZEROS)]))]);
    let lines = tree.samples(2, |_, tree| {
        tree.put(FILE, file(&[("lo", ZEROS), ("eth9", ZEROS)]));
    });
    let names = ["lo", "veth12ab", "eth9"];
    assert_eq!(names.map(|name| received(&lines[0], name)), [Some(0.0), Some(0.0), None]);
    assert_eq!(names.map(|name| received(&lines[1], name)), [Some(0.0), None, Some(0.0)]);
}

#[test]
fn an_interface_comes_back_under_its_name_as_another() {
    let numbers = |n: u64| file(&[("veth0", &format!(" {n} {n} 0 0 0 0 0 0 {n} {n} 0 0 0 0 0 0"))]);
    let tree = Tree::with(&[(FILE, &numbers(1000)), ("sys/class/net/veth0/ifindex", "7\n")]);
    let mut sensors = tree.sensors(false, informant_guest::collect::probe::statvfs(tree.path()));
    sensors.sample(&Default::default());
    sensors.reschema();
    sensors.sample(&Default::default());
    let incarnation = |sensors: &informant_guest::collect::Sensors| {
        sensors
            .subjects()
            .filter(|subject| subject.name == b"veth0")
            .map(|subject| subject.incarnation)
            .collect::<Vec<_>>()
    };
    assert_eq!(incarnation(&sensors), [7]);
    tree.put(FILE, numbers(3)).put("sys/class/net/veth0/ifindex", "9\n");
    // Seen with this sample, though it is none that looks for slow changes: its counters fell.
    sensors.sample(&Default::default());
    assert!(sensors.wants_schema());
    sensors.reschema();
    assert_eq!(incarnation(&sensors), [9]);
}

#[test]
fn a_speed_that_nobody_knows_is_absent() {
    for (speed, expected) in
        [("-1\n", None), ("65535\n", None), ("4294967295\n", None), ("", None), ("1000\n", Some(125_000_000.0))]
    {
        let tree = Tree::with(&[(FILE, &file(&[("eth0", ZEROS)])), ("sys/class/net/eth0/speed", speed)]);
        assert_eq!(tree.sample().get("node_network_speed_bytes{device=eth0}"), expected, "{speed:?}");
    }
}

#[test]
fn operstate_unknown_is_not_down() {
    for (state, expected) in
        [("unknown\n", None), ("up\n", Some(1.0)), ("down\n", Some(0.0)), ("dormant\n", Some(0.0)), ("", None)]
    {
        let tree = Tree::with(&[
            (FILE, &file(&[("eth0", ZEROS)])),
            ("sys/class/net/eth0/operstate", state),
            ("sys/class/net/eth0/carrier", "1\n"),
        ]);
        let line = tree.sample();
        assert_eq!(line.get("node_network_up{device=eth0}"), expected, "{state:?}");
        assert_eq!(line.get("node_network_carrier{device=eth0}"), Some(1.0));
    }
}
