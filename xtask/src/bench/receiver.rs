//! The host's side of a real agent's session, for counting: every frame is decoded and acknowledged, nothing is kept but
//! numbers.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use informant_wire::hello::{Role, Welcome};
use informant_wire::host_to_guest::Ack;
use informant_wire::id::{Challenge, ControllerId, SessionId};
use informant_wire::limits::MAX_FRAME;
use informant_wire::sample::Base;
use informant_wire::schema::SchemaReader;
use informant_wire::{Decoder, GuestToHost, bits};

/// One sample, as it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) key: bool,
    /// The whole frame.
    pub(super) bytes: usize,
    /// Series that have a value.
    pub(super) present: usize,
}

/// A listening host. The thread ends with the process.
#[derive(Debug)]
pub(super) struct Receiver {
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Receiver {
    /// Serves every agent that connects to `path`, one after the other.
    pub(super) fn listen(path: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let samples = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&samples);
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if let Err(error) = serve(stream, &seen) {
                    eprintln!("== an agent's session ended: {error:#}");
                }
            }
        });
        Ok(Self { samples })
    }

    /// Forgets the samples so far.
    pub(super) fn forget(&self) {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many samples arrived since the last [`Receiver::forget`].
    pub(super) fn wait(&self, count: usize, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let seen = self.samples().len();
            if seen >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("only {seen} of {count} samples arrived within {:.0} s", timeout.as_secs_f64());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn serve(mut stream: UnixStream, samples: &Mutex<Vec<Sample>>) -> Result<()> {
    let mut schema = SchemaReader::default();
    let (mut values, mut present): (Vec<u64>, Vec<u8>) = (Vec::new(), Vec::new());
    let (mut decoder, mut buffer, mut out) = (Decoder::new(vec![0; MAX_FRAME]), vec![0; 32 * 1024], [0; 1024]);
    let mut ack = Ack::default();
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        let mut bytes = &buffer[..read];
        while let Some(frame) = decoder.next(&mut bytes)? {
            let body = frame.body;
            match GuestToHost::decode(frame)? {
                GuestToHost::Hello(hello) => {
                    let welcome = Welcome {
                        version: hello.agreed_version().context("no common version")?,
                        session: SessionId(1),
                        challenge: Challenge([1; 16]),
                        role: Role::CONTROLLER,
                        controller: ControllerId([1; 16]),
                        controller_name: "bench",
                        last_event: 0,
                    };
                    let end = welcome.encode(&mut out)?;
                    stream.write_all(&out[..end])?;
                }
                GuestToHost::Event(event) => ack.event = event.sequence,
                GuestToHost::SchemaPart(part) => schema.part(&part, body)?,
                GuestToHost::SchemaEnd(end) => {
                    let series = schema.end(&end)?;
                    (values, present) = (vec![0; series], vec![0; bits::bytes_for(series)]);
                }
                GuestToHost::Sample(sample) => {
                    let applied = sample.apply(&mut Base { values: &mut values, present: &mut present })?;
                    let seen = Sample { key: applied.key, bytes: 3 + body.len(), present: bits::count(&present) };
                    samples.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
                    ack.sample = sample.head.sequence;
                    // Once a second is what a daemon does at most, and samples come once a second.
                    let end = ack.encode(&mut out)?;
                    stream.write_all(&out[..end])?;
                }
                _ => {}
            }
        }
    }
}
