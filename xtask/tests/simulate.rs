//! The simulator speaks the protocol: a scripted daemon follows its schema and samples, proves it, and loses it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use informant_wire::event::EventKind;
use informant_wire::hello::{Role, Welcome};
use informant_wire::host_to_guest::{Ack, Prove};
use informant_wire::id::{Challenge, ControllerId, SessionId};
use informant_wire::limits::MAX_FRAME;
use informant_wire::sample::Base;
use informant_wire::schema::SchemaReader;
use informant_wire::{Decoder, GuestToHost, bits};
use xtask::simulate::{self, Options};

const SOON: Duration = Duration::from_secs(10);
const CHALLENGE: Challenge = Challenge([7; 16]);

/// What a session brought until it had a number of samples.
#[derive(Debug, Default)]
struct Seen {
    name: String,
    events: Vec<(u64, EventKind)>,
    series: usize,
    keys: usize,
    deltas: usize,
    mismatches: usize,
}

fn accept(listener: &UnixListener) -> UnixStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Serves a session until it has `samples` samples; acknowledges all of them.
fn serve(stream: &mut UnixStream, last_event: u64, samples: usize) -> Seen {
    let (mut seen, mut schema) = (Seen::default(), SchemaReader::default());
    let (mut values, mut present) = (Vec::new(), Vec::new());
    let (mut decoder, mut buffer, mut out) = (Decoder::new(vec![0; MAX_FRAME]), [0; 4096], [0; 1024]);
    let deadline = Instant::now() + SOON;
    while seen.keys + seen.deltas < samples {
        assert!(Instant::now() < deadline, "{seen:?}");
        let read = stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "the simulator closed: {seen:?}");
        let mut bytes = &buffer[..read];
        while let Some(frame) = decoder.next(&mut bytes).unwrap() {
            let body = frame.body;
            match GuestToHost::decode(frame).unwrap() {
                GuestToHost::Hello(hello) => {
                    seen.name = hello.name.to_owned();
                    let welcome = Welcome {
                        version: 1,
                        session: SessionId(5),
                        challenge: CHALLENGE,
                        role: Role::CONTROLLER,
                        controller: ControllerId([1; 16]),
                        controller_name: "test",
                        last_event,
                    };
                    let end = welcome.encode(&mut out).unwrap();
                    stream.write_all(&out[..end]).unwrap();
                }
                GuestToHost::Event(event) => seen.events.push((event.sequence, event.kind)),
                GuestToHost::SchemaPart(part) => schema.part(&part, body).unwrap(),
                GuestToHost::SchemaEnd(end) => {
                    seen.series = schema.end(&end).unwrap();
                    values = vec![0; seen.series];
                    present = vec![0; bits::bytes_for(seen.series)];
                }
                GuestToHost::Sample(sample) => {
                    let applied = sample.apply(&mut Base { values: &mut values, present: &mut present }).unwrap();
                    *(if applied.key { &mut seen.keys } else { &mut seen.deltas }) += 1;
                    seen.mismatches += if seen.keys == 1 { 0 } else { applied.mismatches };
                    let end = Ack { sample: sample.head.sequence, event: 1 }.encode(&mut out).unwrap();
                    stream.write_all(&out[..end]).unwrap();
                }
                GuestToHost::Heartbeat(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    seen
}

fn connect(path: &Path, port: u32) -> UnixStream {
    let deadline = Instant::now() + SOON;
    let mut stream = loop {
        match UnixStream::connect(path) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).unwrap();
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    assert!(line.starts_with(b"OK "), "{line:?}");
    stream
}

/// Asks on a control connection and gives the answer, which must not be the Hello.
fn prove(uds: &Path, session: u64) -> Option<Challenge> {
    let mut stream = connect(uds, informant_wire::CONTROL_PORT);
    let mut out = [0; 64];
    let end = Prove { session: SessionId(session) }.encode(&mut out).unwrap();
    stream.write_all(&out[..end]).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let (mut bytes, mut decoder) = (all.as_slice(), Decoder::new(vec![0; 1024]));
    // In a block: a message borrows the decoder until it is dropped.
    {
        let hello = decoder.next(&mut bytes).unwrap().map(GuestToHost::decode);
        assert!(matches!(hello, Some(Ok(GuestToHost::Hello(_)))), "{hello:?}");
    }
    match decoder.next(&mut bytes).unwrap().map(GuestToHost::decode) {
        Some(Ok(GuestToHost::Proof(proof))) => Some(proof.challenge),
        Some(Ok(GuestToHost::NotMine)) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn simulated_agents_report_prove_themselves_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        instances: 2,
        first: 40,
        dialled: 1,
        dir: dir.path().to_path_buf(),
        sockets: dir.path().join(".sim"),
        port: 5252,
        interval: Duration::from_millis(20),
        time: None,
        cgroups: 1,
    };
    let uds = |number| options.sockets.join(simulate::name(number));
    let listener_path = options.sockets.join("sim00041_5252");
    std::fs::create_dir(&options.sockets).unwrap();
    let listener = UnixListener::bind(&listener_path).unwrap();
    let played = {
        let options = options.clone();
        std::thread::spawn(move || simulate::run(&options))
    };

    // It dials us; 61 samples are two key frames.
    let mut stream = accept(&listener);
    let seen = serve(&mut stream, 0, 61);
    assert_eq!((seen.name.as_str(), seen.keys, seen.deltas, seen.mismatches), ("sim00041", 2, 59, 0));
    assert_eq!(seen.events, [(1, EventKind::AGENT_STARTED)]);
    assert!(seen.series > 200, "{seen:?}");
    assert_eq!(prove(&uds(41), 5), Some(CHALLENGE));
    assert_eq!(prove(&uds(41), 6), None);

    // We go; it comes back and does not repeat what is stored.
    drop(stream);
    let again = serve(&mut accept(&listener), 1, 3);
    assert_eq!((again.keys, again.deltas, again.events.len()), (1, 2, 0));

    // We dial the other one.
    let dialled = serve(&mut connect(&uds(40), 5252), 0, 3);
    assert_eq!((dialled.name.as_str(), dialled.keys, dialled.series), ("sim00040", 1, seen.series));
    let toml = std::fs::read_to_string(dir.path().join("sim00040/instance.toml")).unwrap();
    assert_eq!(toml, format!("uds = {:?}\ndial = 5252\n", uds(40)));
    assert!(!played.is_finished(), "it goes on until it is told to end: {:?}", played.join());
}
