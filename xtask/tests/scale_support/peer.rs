//! A second host of a guest's agent: dials port 1022, says Welcome, acknowledges, and lets itself be made current and
//! suspended. It decides nothing.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use informant_wire::frame::Decoder;
use informant_wire::hello::{Role, Welcome};
use informant_wire::host_to_guest::{Ack, Bye, ByeReason};
use informant_wire::id::{Challenge, ControllerId, SessionId};
use informant_wire::limits::MAX_FRAME;
use informant_wire::scale::{Epoch, RoleAnswer};
use informant_wire::{CONTROL_PORT, GuestToHost, MAX_VERSION};
use xtask::vm::Vm;

const SOON: Duration = Duration::from_secs(10);

/// What came from the agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) samples: u64,
    pub(crate) events: u64,
    /// The turn it has, while it decides.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) suspended: u32,
    pub(crate) demands: u32,
    /// The agent ended the session.
    pub(crate) bye: Option<ByeReason>,
    pub(crate) closed: bool,
}

/// An open session; dropping ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    heard: Arc<Mutex<Heard>>,
    reader: Option<JoinHandle<Result<()>>>,
}

impl Peer {
    /// `number` makes it another process than other peers, and a newer one the higher it is.
    pub(crate) fn open(vm: &Vm, role: Role, number: u8) -> Result<Self> {
        let stream = vm.dial(CONTROL_PORT, SOON)?;
        stream.set_write_timeout(Some(SOON))?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (reading, shared) = (stream.try_clone()?, Arc::clone(&heard));
        let reader = thread::Builder::new().name("peer".to_owned()).spawn(move || {
            let result = read_all(&reading, role, number, &shared);
            lock(&shared).closed = true;
            result
        })?;
        Ok(Self { stream, heard, reader: Some(reader) })
    }

    pub(crate) fn heard(&self) -> Heard {
        lock(&self.heard).clone()
    }

    /// Says Bye, and waits for the agent's end of it.
    pub(crate) fn leave(mut self) -> Result<Heard> {
        let mut out = [0; 32];
        let end = Bye { reason: ByeReason::STOPPING }.encode(&mut out)?;
        (&self.stream).write_all(&out[..end]).context("the agent takes no Bye")?;
        self.stream.set_read_timeout(Some(SOON))?;
        match self.reader.take().map(JoinHandle::join) {
            Some(Ok(result)) => result?,
            _ => bail!("the thread that reads is gone"),
        }
        Ok(self.heard())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_all(mut stream: &UnixStream, role: Role, number: u8, heard: &Mutex<Heard>) -> Result<()> {
    let mut decoder = Decoder::new(vec![0; MAX_FRAME + 2]);
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let count = stream.read(&mut buffer).context("the agent is silent")?;
        if count == 0 {
            return Ok(());
        }
        let mut bytes = &buffer[..count];
        while let Some(frame) = decoder.next(&mut bytes)? {
            if let Some(answer) = answer(GuestToHost::decode(frame)?, role, number, heard)? {
                stream.write_all(&answer)?;
            }
        }
    }
}

/// What is said to a message, once it is written down.
fn answer(message: GuestToHost<'_>, role: Role, number: u8, heard: &Mutex<Heard>) -> Result<Option<Vec<u8>>> {
    let mut out = vec![0; 512];
    let mut heard = lock(heard);
    let end = match message {
        GuestToHost::Hello(_) => Welcome {
            version: MAX_VERSION,
            session: SessionId(0x7000 + u64::from(number)),
            challenge: Challenge([number; 16]),
            role,
            controller: ControllerId([number; 16]),
            controller_name: "second",
            last_event: 0,
        }
        .encode(&mut out)?,
        GuestToHost::Sample(body) => {
            heard.samples += 1;
            Ack { sample: body.head.sequence, event: 0 }.encode(&mut out)?
        }
        GuestToHost::Suspend(suspend) => {
            heard.suspended += 1;
            heard.epoch = None;
            RoleAnswer { request: suspend.request, accepted: true }.encode(&mut out)?
        }
        GuestToHost::Resume(resume) => {
            heard.epoch = Some(resume.epoch);
            RoleAnswer { request: resume.request, accepted: true }.encode(&mut out)?
        }
        GuestToHost::Event(_) => {
            heard.events += 1;
            return Ok(None);
        }
        GuestToHost::Demand(_) => {
            heard.demands += 1;
            return Ok(None);
        }
        GuestToHost::Bye(bye) => {
            heard.bye = Some(bye.reason);
            return Ok(None);
        }
        _ => return Ok(None),
    };
    out.truncate(end);
    Ok(Some(out))
}
