//! A host that stands still costs no sample: judged by an observer on the control port, who sees each one.

use crate::agent::{Agent, Place};
use crate::host::{Host, PATIENCE, Peer, Said};
use informant_wire::hello::Role;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Long, so that a busy test machine does not look like a loop that waits.
const INTERVAL_MS: u64 = 500;

/// How long samples are watched at least.
fn watched() -> Duration {
    let is_soak = std::env::var("INFORMANT_COUNTS").as_deref() == Ok("soak");
    Duration::from_secs(if is_soak { 60 } else { 20 })
}

/// Network interfaces enough that samples in which all counters moved soon fill what the kernel takes for a host.
struct Tree(File);

impl Tree {
    fn new(place: &Place) -> Self {
        let directory = place.path("root/proc/net");
        std::fs::create_dir_all(&directory).unwrap();
        let tree = Self(File::create(directory.join("dev")).unwrap());
        tree.move_on(0);
        tree
    }

    /// Every counter rises. Always as many bytes: the agent never reads half a table.
    fn move_on(&self, step: u64) {
        let counters = format!(" {:012}", step * 100_000).repeat(16);
        let table: String = (100..220).map(|i| format!("veth{i}:{counters}\n")).collect();
        self.0.write_all_at(table.as_bytes(), 0).unwrap();
    }
}

struct Observer {
    peer: Peer,
    last: Option<(u64, u64)>,
    largest_gap_us: u64,
}

impl Observer {
    fn new(place: &Place) -> Self {
        let mut peer = Peer::connect(&place.path("control.sock"));
        peer.hello();
        peer.welcome_as(Role::OBSERVER, 0);
        Self { peer, last: None, largest_gap_us: 0 }
    }

    /// Takes the next sample, which must be the one behind the last, and gives its sequence.
    fn sample(&mut self) -> u64 {
        let (head, _) = self.peer.sample();
        self.peer.ack(head.sequence, 0);
        if let Some((sequence, boot_time_us)) = self.last.replace((head.sequence, head.boot_time_us)) {
            assert_eq!(head.sequence, sequence + 1, "the observer gets every sample");
            self.largest_gap_us = self.largest_gap_us.max(head.boot_time_us - boot_time_us);
        }
        head.sequence
    }

    /// No two samples were further apart than one and a half intervals.
    fn assert_kept_time(&self) {
        assert!(self.largest_gap_us * 2 <= INTERVAL_MS * 1000 * 3, "{} us between two samples", self.largest_gap_us);
    }
}

fn agent(place: &Place) -> Agent {
    let control = format!("unix:{}", place.path("control.sock").display());
    let (root, interval) = (place.path("root"), format!("{INTERVAL_MS}ms"));
    place.agent(&["--control", &control, "--root", root.to_str().unwrap(), "--interval", &interval])
}

#[test]
fn a_host_that_acknowledges_and_never_reads_stops_no_sample_and_gets_the_newest_afterwards() {
    let place = Place::new();
    let (host, tree) = (Host::new(&place), Tree::new(&place));
    let agent = agent(&place);
    let mut peer = host.session(0);
    peer.event();
    let (read, _) = peer.sample();
    let mut observer = Observer::new(&place);
    let begun = Instant::now();
    let mut next: Option<Peer> = None;
    let mut first = None;
    // The agent's output fills up, then stands still for 10 s; then the agent leaves and dials again.
    while first.is_none() || begun.elapsed() < watched() {
        assert!(begun.elapsed() < watched() + Duration::from_secs(100), "the agent leaves a host that takes nothing");
        let seen = observer.sample();
        tree.move_on(seen);
        if let Some(next) = &mut next {
            let (head, is_key) = next.sample();
            next.ack(head.sequence, 1);
            if first.is_none() {
                assert!(is_key && head.sequence + 1 >= seen, "the newest, of which the host has nothing");
                first = Some(head.sequence);
            }
        } else {
            peer.ack(read.sequence, 1);
            next = host.try_accept(Duration::ZERO);
            if let Some(next) = &mut next {
                next.hello();
                next.welcome(1);
            }
        }
    }
    observer.assert_kept_time();
    assert!(agent.log().contains("took no byte"), "{}", agent.log());
    // What the kernel still held is older; in between samples were replaced, not queued.
    let mut held = read.sequence;
    while let Some(Some(said)) = peer.next_within(PATIENCE) {
        if let Said::Sample { head, .. } = said {
            held = head.sequence;
        }
    }
    assert!(first.unwrap() > held + 10, "nothing is queued but what the kernel took");
}

#[test]
fn a_host_that_is_stopped_stops_no_sample() {
    let place = Place::new();
    let (host, _tree) = (Host::new(&place), Tree::new(&place));
    let agent = agent(&place);
    let mut peer = host.session(0);
    peer.sample();
    let mut observer = Observer::new(&place);
    let begun = Instant::now();
    // As a stopped process: the socket is open, nothing is read, nothing said, connects are queued by the kernel.
    while begun.elapsed() < watched() {
        observer.sample();
    }
    observer.assert_kept_time();
    assert!(agent.log().contains("acknowledged nothing"), "{}", agent.log());
    let mut next = host.accept();
    next.hello();
    while !next.welcome(0) || next.next_within(Duration::from_secs(1)) == Some(None) {
        next = host.accept();
        next.hello();
    }
    next.sample();
}
