//! The proof of root on a hybrid socket: dial the agent's control port, ask for a session, compare the challenge. One
//! in flight an instance, at least a second apart, each with a deadline. The challenge never travels host to listener.

use super::descriptors::is_shortage;
use super::shared::Shared;
use super::slot::Slot;
use crate::config::Address;
use crate::transport::hybrid;
use informant_wire::CONTROL_PORT;
use informant_wire::frame::{Decoder, Frame};
use informant_wire::guest_to_host::GuestToHost;
use informant_wire::host_to_guest::Prove;
use informant_wire::id::{Challenge, Nonce, SessionId};
use informant_wire::limits::{HANDSHAKE_DEADLINE_S, MAX_HANDSHAKE_FRAME};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Attempts for one session; then it stays unproven. Listeners come late and VMMs drop connections under load.
const ATTEMPTS: u32 = 5;

/// An answer that took longer was a slow one.
const SLOW: Duration = Duration::from_millis(250);
/// Proofs are waited for in pieces of this; from the second one on only while no other proof needs the place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Slow instances have this part of the places together.
const SLOW_PART: usize = 4;

/// Places for proofs: each takes a descriptor. Guests that do not answer are many, or one that makes them look many; the
/// part of the places that they have is all that they hold up.
#[derive(Debug)]
pub(super) struct Proofs {
    all: Semaphore,
    slow: Semaphore,
}

/// What one proof holds.
type Places<'a> = (Option<SemaphorePermit<'a>>, SemaphorePermit<'a>);

impl Proofs {
    pub(super) fn new(places: usize) -> Self {
        Self { all: Semaphore::new(places), slow: Semaphore::new((places / SLOW_PART).max(1)) }
    }

    /// Waits for a place; `slow`: the instance's proof before was a slow one.
    async fn place(&self, slow: bool) -> Result<Places<'_>, AcquireError> {
        let part = if slow { Some(self.slow.acquire().await?) } else { None };
        Ok((part, self.all.acquire().await?))
    }

    /// Whether others may wait for the place that a proof has.
    fn is_short(&self, slow: bool) -> bool {
        self.all.available_permits() == 0 || (slow && self.slow.available_permits() == 0)
    }
}

/// Starts the instance's proof task unless it runs.
pub(super) fn start(shared: &Arc<Shared>, slot: &Arc<Slot>) {
    let runs = slot.with(shared, |core| std::mem::replace(&mut core.proving, true));
    if !runs {
        tokio::spawn(run(Arc::clone(shared), Arc::clone(slot)));
    }
}

async fn run(shared: Arc<Shared>, slot: Arc<Slot>) {
    let mut attempts: HashMap<SessionId, u32> = HashMap::new();
    let mut last = None;
    loop {
        let next = slot.with(&shared, |core| {
            let session = core.instance.wants_proof(last);
            let uds = core.config.as_ref().and_then(|config| match &config.address {
                Address::Uds(uds) => Some(uds.clone()),
                _ => None,
            });
            let next = session.zip(uds);
            core.proving = next.is_some();
            next
        });
        let Some((session, uds)) = next else { return };
        last = Some(session);
        let slow = slot.look(|core| core.slow_proofs > 0);
        let Ok(place) = shared.proofs.place(slow).await else { return };
        let began = Instant::now();
        let answer = ask_patiently(&shared.proofs, slow, &uds, session).await;
        drop(place);
        let slow_proofs = slot.with(&shared, |core| {
            core.slow_proofs = if began.elapsed() > SLOW { core.slow_proofs.saturating_add(1) } else { 0 };
            core.slow_proofs
        });
        if let Err(error) = &answer
            && is_shortage(error)
        {
            // Ours, not the guest's: no attempt.
            slot.say(&shared, tracing::Level::WARN, format_args!("cannot ask for a proof yet: {error}"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        }
        let tried = attempts.entry(session).or_default();
        *tried += 1;
        let proven = match answer {
            Ok((nonce, answer)) => {
                let given = slot.look(|core| core.challenge(session));
                slot.with(&shared, |core| core.instance.listener(nonce));
                Some(given.is_some() && answer == given)
            }
            Err(error) if *tried >= ATTEMPTS => {
                let what = format_args!("session {:016x} stays unproven: port {CONTROL_PORT}: {error}", session.0);
                slot.say(&shared, tracing::Level::INFO, what);
                Some(false)
            }
            Err(_) => None,
        };
        // New sessions make no new start for one that does not answer.
        let unanswered = if proven.is_some() { 0 } else { *tried - 1 };
        let pause = Duration::from_secs(1 << unanswered.max(slow_proofs.saturating_sub(1)).min(3));
        if let Some(proven) = proven {
            attempts.remove(&session);
            slot.with(&shared, |core| core.instance.proof(session, proven, shared.now()));
        }
        attempts.retain(|session, _| slot.look(|core| core.challenge(*session).is_some()));
        tokio::time::sleep(pause).await;
    }
}

/// [`ask`] with a deadline that is shorter while places are short.
async fn ask_patiently(proofs: &Proofs, slow: bool, uds: &Path, session: SessionId) -> io::Result<Answer> {
    let began = Instant::now();
    let mut answer = std::pin::pin!(ask(uds, session));
    while began.elapsed() < Duration::from_secs(HANDSHAKE_DEADLINE_S) {
        if let Ok(answer) = tokio::time::timeout(PATIENCE, answer.as_mut()).await {
            return answer;
        }
        if proofs.is_short(slow) {
            break;
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
}

/// Who listens, and the challenge that it knows for a session; `None`: the session is not the listener's.
type Answer = (Nonce, Option<Challenge>);

async fn ask(uds: &Path, session: SessionId) -> io::Result<Answer> {
    let mut stream = hybrid::connect(uds, CONTROL_PORT).await?;
    let mut decoder = Decoder::new([0; MAX_HANDSHAKE_FRAME]);
    let nonce = read_frame(&mut stream, &mut decoder, |frame| match GuestToHost::decode(frame) {
        Ok(GuestToHost::Hello(hello)) => Ok(hello.nonce),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no hello")),
    })
    .await?;
    let mut frame = [0; 32];
    let length = Prove { session }.encode(&mut frame).map_err(io::Error::other)?;
    stream.write_all(frame.get(..length).unwrap_or_default()).await?;
    let answer = read_frame(&mut stream, &mut decoder, |frame| match GuestToHost::decode(frame) {
        Ok(GuestToHost::Proof(proof)) => Ok(Some(proof.challenge)),
        Ok(GuestToHost::NotMine) => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "neither proof nor a no")),
    });
    Ok((nonce, answer.await?))
}

/// Byte by byte up to the end of one frame: a proof is three frames, and nothing behind them is wanted.
async fn read_frame<T, const N: usize>(
    stream: &mut UnixStream,
    decoder: &mut Decoder<[u8; N]>,
    read: impl FnOnce(Frame<'_>) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let byte = [stream.read_u8().await?];
        let mut input = byte.as_slice();
        let next = decoder.next(&mut input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(frame) = next {
            return read(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_instances_never_have_the_places_of_the_others() {
        let proofs = Proofs::new(16);
        let now = || Duration::ZERO;
        let mut held = Vec::new();
        while let Ok(place) = tokio::time::timeout(now(), proofs.place(true)).await {
            held.push(place.unwrap());
        }
        assert_eq!((held.len(), proofs.is_short(true), proofs.is_short(false)), (4, true, false));
        for _ in 0..12 {
            held.push(tokio::time::timeout(now(), proofs.place(false)).await.unwrap().unwrap());
        }
        assert!(proofs.is_short(false));
    }
}
