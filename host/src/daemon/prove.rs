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
use informant_wire::id::{Challenge, SessionId};
use informant_wire::limits::{HANDSHAKE_DEADLINE_S, MAX_HANDSHAKE_FRAME};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Attempts for one session; then it stays unproven. Listeners come late and VMMs drop connections under load.
const ATTEMPTS: u32 = 5;

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
        let deadline = Duration::from_secs(HANDSHAKE_DEADLINE_S);
        let Ok(place) = shared.descriptors.proofs.acquire().await else { return };
        let answer = tokio::time::timeout(deadline, ask(&uds, session)).await;
        let answer = answer.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")));
        drop(place);
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
            Ok(answer) => {
                let given = slot.look(|core| core.challenge(session));
                Some(given.is_some() && answer == given)
            }
            Err(error) if *tried >= ATTEMPTS => {
                let what = format_args!("session {:016x} stays unproven: port {CONTROL_PORT}: {error}", session.0);
                slot.say(&shared, tracing::Level::INFO, what);
                Some(false)
            }
            Err(_) => None,
        };
        let pause = Duration::from_secs(if proven.is_some() { 1 } else { 1 << (*tried - 1).min(3) });
        if let Some(proven) = proven {
            attempts.remove(&session);
            slot.with(&shared, |core| core.instance.proof(session, proven, shared.now()));
        }
        attempts.retain(|session, _| slot.look(|core| core.challenge(*session).is_some()));
        tokio::time::sleep(pause).await;
    }
}

/// The challenge that the listener knows for a session; `None`: it is not the listener's.
async fn ask(uds: &Path, session: SessionId) -> io::Result<Option<Challenge>> {
    let mut stream = hybrid::connect(uds, CONTROL_PORT).await?;
    let mut decoder = Decoder::new([0; MAX_HANDSHAKE_FRAME + 3]);
    read_frame(&mut stream, &mut decoder, |frame| match GuestToHost::decode(frame) {
        Ok(GuestToHost::Hello(_)) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no hello")),
    })
    .await?;
    let mut frame = [0; 32];
    let length = Prove { session }.encode(&mut frame).map_err(io::Error::other)?;
    stream.write_all(frame.get(..length).unwrap_or_default()).await?;
    read_frame(&mut stream, &mut decoder, |frame| match GuestToHost::decode(frame) {
        Ok(GuestToHost::Proof(proof)) => Ok(Some(proof.challenge)),
        Ok(GuestToHost::NotMine) => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "neither proof nor a no")),
    })
    .await
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
