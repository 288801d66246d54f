//! A daemon with too few file descriptors serves whom it can, says so, and loses nothing.

use crate::support::{AGENT, Daemon, Guest, Said, Who, hello, wait_for};
use informant_wire::event::EventKind;
use informant_wire::hello::RefusedCode;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// So many listeners fit the half that instances get of [`LIMIT`], but not all their sessions.
const INSTANCES: u8 = 32;
const LIMIT: u32 = 100;

fn name(number: u8) -> String {
    format!("vm{number:02}")
}

fn who(number: u8) -> Who {
    Who { boot: number + 1, nonce: number + 1, stream: u64::from(number) + 1, ..AGENT }
}

/// Says Hello to a host that may have said no, and left, before it hears it.
fn greet(path: &Path, who: Who) -> (Guest, Said) {
    let mut guest = Guest::connect(path);
    let _it_left = guest.stream.write_all(&hello(who));
    let said = guest.hear();
    (guest, said)
}

/// All of them at once: an ack may take its second.
fn store_an_event<'a>(guests: impl Iterator<Item = &'a mut Guest>) {
    let mut guests: Vec<_> = guests.collect();
    for guest in &mut guests {
        guest.event(1, EventKind(200), b"x");
    }
    for guest in guests {
        guest.wait_ack(|ack| ack.event == 1);
    }
}

#[test]
fn whoever_finds_no_descriptor_left_is_refused_until_there_is_one_and_no_event_is_lost() {
    let names: Vec<String> = (0..INSTANCES).map(name).collect();
    let tomls: Vec<String> = names.iter().map(|name| format!("unix = '@/{name}.sock'")).collect();
    let instances: Vec<_> = names.iter().map(String::as_str).zip(tomls.iter().map(String::as_str)).collect();
    let daemon = Daemon::start_with(&instances, Some(LIMIT));
    let path = |number| daemon.run().join(format!("{}.sock", name(number)));

    let (mut open, mut refused) = (HashMap::new(), Vec::new());
    for number in 0..INSTANCES {
        match greet(&path(number), who(number)) {
            (guest, Said::Welcome { .. }) => drop(open.insert(number, guest)),
            (_, Said::Refused { code: RefusedCode::TOO_MANY, permanent: false, .. }) => refused.push(number),
            (_, said) => panic!("{} heard {said:?}", name(number)),
        }
    }
    assert!(open.len() >= 10 && refused.len() >= 5, "{} open, {} refused", open.len(), refused.len());
    assert!(daemon.log().contains("raise the limit (ulimit -n, LimitNOFILE=)"), "{}", daemon.log());

    // With everything taken the reserve still takes events, and a reader is answered.
    store_an_event(open.values_mut());
    assert_eq!(daemon.get("/v1/instances").0, 200);

    drop(open);
    let late = refused.into_iter().map(|number| {
        wait_for("a place", || match greet(&path(number), who(number)) {
            (guest, Said::Welcome { .. }) => Some(guest),
            _ => None,
        })
    });
    store_an_event(late.collect::<Vec<_>>().iter_mut());
    for name in &names {
        let events = daemon.events(name);
        assert_eq!(events.iter().filter(|event| event["sequence"] == 1).count(), 1, "{name}: {events:?}");
    }
}
