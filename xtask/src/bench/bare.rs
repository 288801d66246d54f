//! What the system calls of a daemon cost by themselves: as many connections, samples and acks, through an epoll loop
//! that looks at no byte and keeps nothing.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::time::{ClockId, clock_gettime};

/// As the daemon answers: one ack for so many samples.
const SAMPLES_AN_ACK: u64 = 4;
/// About what an Ack takes.
const ACK: [u8; 12] = [0; 12];
/// How often the sending side looks what is due.
const TICK: Duration = Duration::from_millis(1);
/// Until everything is warm.
const WARM_UP: Duration = Duration::from_secs(3);

/// CPU microseconds for each of a second's samples of `bytes`, one a connection, spread over the second.
pub(super) fn us_a_sample(connections: usize, bytes: usize, time: Duration) -> Result<f64> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for number in 0..connections {
        let (a, b) = UnixStream::pair().with_context(|| format!("of {connections} socket pairs, the {number}th"))?;
        for end in [&a, &b] {
            end.set_nonblocking(true)?;
        }
        epoll.add(&a, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, number as u64))?;
        near.push(a);
        far.push(b);
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&mut far, &vec![0; bytes], &over));
        let measured = receive(&epoll, &mut near, time);
        over.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
        measured
    })
}

fn send(far: &mut [UnixStream], sample: &[u8], over: &AtomicBool) -> Result<()> {
    let began = Instant::now();
    let connections = far.len();
    let mut sent = 0;
    let mut answer = [0; 256];
    while !over.load(Ordering::Relaxed) {
        let due = began.elapsed().as_secs_f64() * connections as f64;
        while (sent as f64) < due {
            let stream = &mut far[sent % connections];
            for result in [stream.write(sample), stream.read(&mut answer)] {
                match result {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                    _ => {}
                }
            }
            sent += 1;
        }
        thread::sleep(TICK);
    }
    Ok(())
}

fn receive(epoll: &Epoll, near: &mut [UnixStream], time: Duration) -> Result<f64> {
    let mut events = vec![EpollEvent::empty(); 1024];
    let mut received = vec![0_u64; near.len()];
    let mut buffer = vec![0; 64 * 1024];
    let began = Instant::now();
    let (mut samples, mut cpu_before) = (0_u64, None);
    loop {
        let elapsed = began.elapsed();
        if elapsed >= WARM_UP && cpu_before.is_none() {
            (samples, cpu_before) = (0, Some(thread_cpu()?));
        }
        if let Some(before) = cpu_before.filter(|_| elapsed >= WARM_UP + time) {
            return Ok((thread_cpu()? - before).as_secs_f64() * 1e6 / samples.max(1) as f64);
        }
        let count = epoll.wait(&mut events, EpollTimeout::from(100_u8))?;
        for event in &events[..count] {
            let number = usize::try_from(event.data())?;
            let _bytes = near[number].read(&mut buffer)?;
            samples += 1;
            received[number] += 1;
            if received[number].is_multiple_of(SAMPLES_AN_ACK) {
                near[number].write_all(&ACK)?;
            }
        }
    }
}

fn thread_cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}
