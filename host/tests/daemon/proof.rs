//! Root in the guest is proven by an answer on its privileged port; clones are told apart.

use crate::support::{AGENT, Daemon, Guest, HybridVmm, Said, Who, hello, wait_for};
use informant_wire::frame::{encode, kind};
use informant_wire::guest_to_host::Proof;
use informant_wire::hello::{Capabilities, RefusedCode};
use informant_wire::host_to_guest::ByeReason;
use informant_wire::id::{Challenge, SessionId};
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HYBRID: (&str, &str) = ("vm", "uds = '@/v.sock'");
const PROVABLE: Who = Who { capabilities: Capabilities(3), ..AGENT };

/// Takes the host's dial to the control port and its question; answers.
fn answer(vmm: &HybridVmm, expected: SessionId, challenge: Option<Challenge>) {
    let (port, mut stream) = vmm.next();
    assert_eq!(port, 1022);
    // The answer line and the guest's Hello in one piece, as VMMs do.
    let mut bytes = b"OK 1073741824\n".to_vec();
    bytes.extend(hello(PROVABLE));
    stream.write_all(&bytes).unwrap();
    let mut listener = Guest::over(stream);
    assert_eq!(listener.hear(), Said::Prove(expected));
    let mut out = [0; 64];
    let length = match challenge {
        Some(challenge) => Proof { challenge }.encode(&mut out),
        None => encode(&mut out, kind::NOT_MINE, &()),
    };
    listener.send(&out[..length.unwrap()]);
    assert_eq!(listener.hear(), Said::Closed);
}

fn open(daemon: &Daemon, who: Who) -> (Guest, SessionId, Challenge) {
    let (guest, said) = Guest::greet(&daemon.run().join("v.sock_5252"), who);
    let Said::Welcome { session, challenge, .. } = said else { panic!("{said:?}") };
    (guest, session, challenge)
}

#[test]
fn a_proven_agent_gives_way_to_a_proven_one_only() {
    let daemon = Daemon::start(&[HYBRID]);
    let vmm = HybridVmm::bind(&daemon.run().join("v.sock"));
    let (mut root, session, challenge) = open(&daemon, PROVABLE);
    answer(&vmm, session, Some(challenge));
    daemon.wait_status("vm", "the proof", |status| status["guest"]["proven"] == true);

    // Somebody without the privileged port: refused when it can not even try, sent away when its proof fails.
    let (_, refused) = Guest::greet(&daemon.run().join("v.sock_5252"), AGENT);
    assert!(matches!(refused, Said::Refused { code: RefusedCode::AGENT_PRESENT, permanent: false, .. }), "{refused:?}");
    let (mut impostor, session, _) = open(&daemon, Who { nonce: 66, ..PROVABLE });
    answer(&vmm, session, None);
    assert_eq!(impostor.hear_other(), Said::Bye(ByeReason::REPLACED));
    // A wrong challenge is no proof.
    let (mut liar, session, _) = open(&daemon, Who { nonce: 67, ..PROVABLE });
    answer(&vmm, session, Some(Challenge([0; 16])));
    assert_eq!(liar.hear_other(), Said::Bye(ByeReason::REPLACED));
    root.schema();
    root.sample(1, &[Some(1); 8]);
    root.wait_ack(|ack| ack.sample == 1);

    // The same VM after a reset: what it sends while it waits is not lost.
    let (mut after_reset, session, challenge) = open(&daemon, Who { boot: 2, nonce: 2, ..PROVABLE });
    after_reset.schema();
    after_reset.sample(1, &[Some(2); 8]);
    answer(&vmm, session, Some(challenge));
    assert_eq!(root.hear_other(), Said::Bye(ByeReason::REPLACED));
    after_reset.wait_ack(|ack| ack.sample == 1);
    let status = daemon.wait_status("vm", "the new boot", |status| status["guest"]["boot_id"] == "02".repeat(16));
    assert_eq!(status["guest"]["proven"], true);
}

#[test]
fn a_storm_of_impostors_does_not_keep_root_out() {
    const ROOT: Who = Who { nonce: 9, ..PROVABLE };
    let daemon = Daemon::start(&[HYBRID]);
    let vmm = HybridVmm::bind(&daemon.run().join("v.sock"));
    let path = daemon.run().join("v.sock_5252");
    let own: Arc<Mutex<Option<(SessionId, Challenge)>>> = Arc::default();
    let known = Arc::clone(&own);
    std::thread::spawn(move || {
        loop {
            let (_, mut stream) = vmm.next();
            let mut bytes = b"OK 1073741824\n".to_vec();
            bytes.extend(hello(ROOT));
            let mut out = [0; 64];
            if stream.write_all(&bytes).is_err() {
                continue;
            }
            let mut listener = Guest::over(stream);
            let Said::Prove(asked) = listener.hear() else { continue };
            let length = match *known.lock().unwrap() {
                Some((session, challenge)) if session == asked => Proof { challenge }.encode(&mut out),
                _ => encode(&mut out, kind::NOT_MINE, &()),
            };
            listener.send(&out[..length.unwrap()]);
        }
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for nonce in 100..108 {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _held_for_a_while = Guest::greet(path, Who { nonce, ..PROVABLE });
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        daemon.wait_status("vm", "the impostors", |status| status["counters"]["refused"].as_u64() > Some(20));
        // As an agent does, root dials again after a while when it is refused.
        let _root = wait_for("root to be proven", || {
            let (guest, said) = Guest::greet(&path, ROOT);
            if let Said::Welcome { session, challenge, .. } = said {
                *own.lock().unwrap() = Some((session, challenge));
                daemon.wait_status("vm", "the proof", |status| status["guest"]["proven"] == true);
                return Some(guest);
            }
            std::thread::sleep(Duration::from_millis(500));
            None
        });
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn guests_that_never_answer_hold_up_nobody_elses_proof() {
    // 16 proofs are asked for at a time with this limit of open files.
    const MUTE: u8 = 64;
    let toml = |name: &str| (name.to_owned(), format!("uds = '@/{name}'"));
    let tomls: Vec<_> = (0..MUTE).map(|number| toml(&format!("mute{number}"))).chain([toml("vm")]).collect();
    let instances: Vec<_> = tomls.iter().map(|(name, toml)| (name.as_str(), toml.as_str())).collect();
    let daemon = Daemon::start_with(&instances, Some(256));
    let vmm = HybridVmm::bind(&daemon.run().join("vm"));
    let asked: Arc<[AtomicUsize]> = (0..MUTE).map(|_| AtomicUsize::new(0)).collect();
    let mut guests = Vec::new();
    for number in 0..MUTE {
        let (vmm, asked) = (HybridVmm::bind(&daemon.run().join(format!("mute{number}"))), Arc::clone(&asked));
        // Takes every question, and neither answers nor closes.
        std::thread::spawn(move || {
            let mut open = Vec::new();
            loop {
                open.push(vmm.next());
                asked[usize::from(number)].fetch_add(1, Ordering::Relaxed);
            }
        });
        let path = daemon.run().join(format!("mute{number}_5252"));
        guests.push(Guest::open(&path, Who { boot: number + 2, nonce: number + 2, ..PROVABLE }));
    }
    wait_for("each to be asked", || asked.iter().all(|asked| asked.load(Ordering::Relaxed) > 0).then_some(()));
    let questions = || asked.iter().map(|asked| asked.load(Ordering::Relaxed)).sum::<usize>();
    let before = questions();
    let (_guest, said) = Guest::greet(&daemon.run().join("vm_5252"), PROVABLE);
    let Said::Welcome { session, challenge, .. } = said else { panic!("{said:?}") };
    answer(&vmm, session, Some(challenge));
    let between = questions() - before;
    assert!(between <= 16, "{between} others were asked before");
    daemon.wait_status("vm", "the proof", |status| status["guest"]["proven"] == true);
}

#[test]
fn an_agent_that_is_not_root_reports_and_is_shown_as_unproven() {
    let daemon = Daemon::start(&[HYBRID]);
    let vmm = HybridVmm::bind(&daemon.run().join("v.sock"));
    let (mut guest, session, _) = open(&daemon, PROVABLE);
    answer(&vmm, session, None);
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
    let status = daemon.wait_status("vm", "a sample", |status| status["counters"]["samples"] == 1);
    assert_eq!((&status["guest"]["proven"], &status["agent"]["state"]), (&json!(false), &json!("ready")));
}

#[test]
fn trust_any_asks_nobody() {
    let daemon = Daemon::start(&[("vm", "unix = '@/vm.sock'\ntrust = 'any'")]);
    let _guest = Guest::open(&daemon.run().join("vm.sock"), AGENT);
    daemon.wait_status("vm", "trusted", |status| status["guest"]["proven"] == true);
}

#[test]
fn a_host_that_dials_takes_ok_and_payload_in_one_piece_and_tries_again_otherwise() {
    let daemon = Daemon::start(&[("vm", "uds = '@/v.sock'\ndial = 5252")]);
    let status = daemon.wait_status("vm", "the wait for the VMM", |status| status["link"]["detail"].is_string());
    assert_eq!(status["link"]["state"], "waiting");
    let expected = format!("cannot dial port 5252 of uds {}: ", daemon.run().join("v.sock").display());
    assert!(status["link"]["detail"].as_str().unwrap().starts_with(&expected));
    let vmm = HybridVmm::bind(&daemon.run().join("v.sock"));
    for answer in ["", "OK ", "NO 1\n", "OK 12x\n", &"OK 1".repeat(20)] {
        let (port, mut stream) = vmm.next();
        assert_eq!(port, 5252);
        stream.write_all(answer.as_bytes()).unwrap();
    }
    let (_, mut stream) = vmm.next();
    let mut bytes = b"OK 5252\n".to_vec();
    bytes.extend(hello(AGENT));
    stream.write_all(&bytes).unwrap();
    let mut guest = Guest::over(stream);
    assert!(matches!(guest.hear(), Said::Welcome { .. }));
    guest.schema();
    guest.sample(1, &[Some(1); 8]);
    guest.wait_ack(|ack| ack.sample == 1);
}

#[test]
fn clones_are_flagged_on_both_and_the_newer_is_asked_for_a_new_nonce() {
    let daemon = Daemon::start(&[("a", "unix = '@/a.sock'"), ("b", "unix = '@/b.sock'")]);
    let mut a = Guest::open(&daemon.run().join("a.sock"), AGENT);
    let mut b = Guest::open(&daemon.run().join("b.sock"), AGENT);
    assert_eq!(b.hear_other(), Said::Renonce);
    for (guest, name) in [(&mut a, "a"), (&mut b, "b")] {
        daemon.wait_status(name, "the flag", |status| status["guest"]["clone"] == true);
        guest.schema();
        guest.sample(1, &[Some(1); 8]);
        guest.wait_ack(|ack| ack.sample == 1);
    }
    drop(b);
    let _b = Guest::open(&daemon.run().join("b.sock"), Who { nonce: 2, ..AGENT });
    let status = daemon.wait_status("b", "the new session", |status| status["counters"]["sessions"] == 2);
    assert_eq!(status["guest"]["clone"], true, "the same boot is still there twice");
    let _fresh = Guest::open(&daemon.run().join("b.sock"), Who { boot: 5, nonce: 3, ..AGENT });
    daemon.wait_status("b", "another boot", |status| status["guest"]["clone"] == false);
}
