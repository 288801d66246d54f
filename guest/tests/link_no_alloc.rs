//! A wake-up of the whole loop in which neither subjects nor connections change allocates nothing: sample, encode,
//! send, receive an acknowledgement, hear an advisor and acknowledge that.
#![expect(unsafe_code, reason = "a counting allocator is an `unsafe impl GlobalAlloc`; it only counts and passes on")]

use informant_guest::args::{HostLink, Run};
use informant_guest::clock::Timer;
use informant_guest::link::Address;
use informant_guest::{reactor, run};
use informant_wire::frame::{Decoder, kind};
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::hello::{Capabilities, Hello, MAGIC, PeerKind, Role, Welcome};
use informant_wire::host_to_guest::Ack;
use informant_wire::id::{BootId, Challenge, ControllerId, Nonce, SessionId, StreamId};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::task::Poll;
use std::time::Duration;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down has no counter, and is not the loop.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Takes one session and acknowledges every frame, on a thread of its own.
fn host(listener: UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut decoder = Decoder::new([0; 65_537]);
    let (mut bytes, mut out) = ([0; 4096], [0; 256]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        let mut input = &bytes[..count];
        while let Some(frame) = decoder.next(&mut input).unwrap() {
            let answer = if frame.kind == kind::HELLO {
                Welcome {
                    version: 1,
                    session: SessionId(1),
                    challenge: Challenge([0; 16]),
                    role: Role::CONTROLLER,
                    controller: ControllerId([0; 16]),
                    controller_name: "",
                    last_event: 0,
                }
                .encode(&mut out)
            } else {
                Ack { sample: 0, event: 1 }.encode(&mut out)
            };
            if stream.write_all(&out[..answer.unwrap()]).is_err() {
                return;
            }
        }
    }
}

/// An advisor that shows that it lives, and reads what it is told, until the agent ends.
fn advisor(path: &std::path::Path) {
    let mut stream = loop {
        match UnixStream::connect(path) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut out = [0; 256];
    let hello = Hello {
        magic: MAGIC,
        min_version: 1,
        max_version: 1,
        kind: PeerKind::ADVISOR,
        name: "a",
        boot_id: BootId([0; 16]),
        nonce: Nonce([0; 16]),
        stream: StreamId(0),
        next_event: 1,
        ticks_per_second: 0,
        capabilities: Capabilities(0),
        version: "",
    };
    let end = hello.encode(&mut out).unwrap();
    stream.write_all(&out[..end]).unwrap();
    let mut decoder = Decoder::new([0; 1024]);
    let mut acks = 0;
    while let Ok(count @ 1..) = stream.read(&mut out) {
        let mut input = &out[..count];
        while let Some(frame) = decoder.next(&mut input).unwrap() {
            acks += u32::from(frame.kind == kind::ACK);
        }
        // Each is answered with an ack, a second after the one before.
        let beat = Heartbeat { boot_time_us: 0, wall_time_us: 0, loop_lag_us: 0, sample_cost_us: 0 };
        let end = beat.encode(&mut out).unwrap();
        if stream.write_all(&out[..end]).is_err() {
            break;
        }
    }
    assert!(acks >= 5, "{acks} acks");
}

#[test]
fn a_steady_wake_up_allocates_nothing() {
    let place = tempfile::tempdir().unwrap();
    let proc = place.path().join("proc");
    std::fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
    // A tree that stays as it is: on a live machine subjects come and go.
    for file in ["stat", "meminfo", "vmstat", "loadavg", "diskstats", "sys/kernel/random/boot_id"] {
        std::fs::write(proc.join(file), std::fs::read(format!("/proc/{file}")).unwrap()).unwrap();
    }
    let group = place.path().join("sys/fs/cgroup/app");
    std::fs::create_dir_all(&group).unwrap();
    std::fs::write(group.with_file_name("cgroup.controllers"), "memory\n").unwrap();
    for (file, content) in [("memory.stat", "anon 4096\nshmem 4096\n"), ("memory.events", "high 1\noom 2\n")] {
        std::fs::write(group.join(file), content).unwrap();
    }
    let socket = place.path().join("host.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let served = std::thread::spawn(|| host(listener));
    let local = place.path().join("agent.sock");
    let advisor = {
        let local = local.clone();
        std::thread::spawn(move || advisor(&local))
    };
    let options = Run {
        host: HostLink::Connect(Address::Unix(socket)),
        control: None,
        root: place.path().to_owned(),
        interval: Duration::from_millis(100),
        cgroup: Some("app".into()),
        tripwire: false,
        clear_memory_high: false,
        thaw: false,
        name: None,
        state: place.path().join("state"),
        local: Some(local),
        advisors: place.path().join("advisors.d"),
        log: tracing::level_filters::LevelFilter::INFO,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let none = SignalFd::with_flags(&SigSet::empty(), SfdFlags::SFD_NONBLOCK).unwrap();
        let mut agent = run::build(&options, Timer::new().unwrap(), reactor::register(none).unwrap());
        let (mut at_start, mut sent_at_start) = (0, 0);
        std::future::poll_fn(|cx| {
            assert!(agent.poll(cx).is_pending());
            let sequence = agent.newest.map_or(0, |newest| newest.sequence);
            // Slow sources are read every 5th sample; a heartbeat goes every 5 s; every 60th frame is a key frame.
            if sequence < 20 {
                (at_start, sent_at_start) = (ALLOCATIONS.get(), agent.own.sent_bytes);
            }
            if sequence < 90 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        assert!(agent.own.sent_bytes > sent_at_start + 70 * 10, "samples went out all the time");
        assert_eq!(ALLOCATIONS.get() - at_start, 0);
    });
    drop(runtime);
    advisor.join().unwrap();
    served.join().unwrap();
}
