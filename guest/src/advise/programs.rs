//! The helper thread that runs the advisors of a directory: all at once, for at most the time of one question. The
//! loop hands it a question and takes the voices; the lock is never held across a call, and nobody waits for it.

use super::child::{Call, Child, kill, reap};
use super::vet::{MAX_PROGRAMS, list};
use crate::clock;
use crate::local::tally::{Name, Voice};
use informant_wire::scale::AdvisorFault;
use informant_wire::size::Size;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::fmt;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// With all memory locked, a default stack would cost 2 MiB.
const STACK_BYTES: usize = 64 * 1024;
/// Between looks at whether a process has ended. Most end with their output, which is noticed at once.
const LOOK_EVERY_MS: u64 = 20;
/// Between tries to reap what was killed and does not go.
const REAP_EVERY: Duration = Duration::from_millis(250);
/// Processes that were killed and do not go, with which no more are started.
const MAX_LINGERING: usize = 32;

/// A question for advisors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) round: u64,
    pub(super) present: Size,
    pub(super) wanted: Size,
    /// Who has not answered then is killed, boot time in microseconds.
    pub(super) deadline_us: u64,
}

/// Voices by name.
pub(super) type Voices = Vec<(Name, Voice)>;

#[derive(Default)]
struct Board {
    question: Option<Question>,
    voices: Option<(u64, Voices)>,
    running: heapless::Vec<Pid, MAX_PROGRAMS>,
    waker: Option<Waker>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's side.
pub(super) struct Programs {
    shared: Option<Arc<Shared>>,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs").field("started", &self.shared.is_some()).finish()
    }
}

impl Programs {
    pub(super) fn start(directory: PathBuf) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let builder = thread::Builder::new().name("advise".to_owned()).stack_size(STACK_BYTES);
        match builder.spawn(move || work(&theirs, &directory)) {
            Ok(_) => Self { shared: Some(shared) },
            Err(error) => {
                tracing::warn!("no advisor's program is called: no thread: {error}");
                Self { shared: None }
            }
        }
    }

    /// Hands over a question; false when there is nobody to take it.
    pub(super) fn ask(&self, question: Question) -> bool {
        let Some(shared) = &self.shared else { return false };
        let mut board = shared.lock();
        (board.question, board.voices) = (Some(question), None);
        shared.work.notify_all();
        true
    }

    /// The voices of a round, once they are there; until then `waker` is kept.
    pub(super) fn take(&self, round: u64, waker: &Waker) -> Option<Voices> {
        let mut board = self.shared.as_ref()?.lock();
        if let Some((_, voices)) = board.voices.take_if(|(of, _)| *of == round) {
            return Some(voices);
        }
        if !board.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            board.waker = Some(waker.clone());
        }
        None
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        let mut board = shared.lock();
        board.closed = true;
        board.running.iter().copied().for_each(kill);
        shared.work.notify_all();
    }
}

fn work(shared: &Shared, directory: &std::path::Path) {
    let mut lingering: Vec<Pid> = Vec::new();
    let mut board = shared.lock();
    while !board.closed {
        let Some(question) = board.question.take() else {
            board = if lingering.is_empty() {
                shared.work.wait(board).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = shared.work.wait_timeout(board, REAP_EVERY);
                waited.map_or_else(|error| error.into_inner().0, |(board, _)| board)
            };
            lingering.retain(|pid| !reap(*pid));
            continue;
        };
        drop(board);
        let voices = ask_all(shared, directory, question, &mut lingering);
        board = shared.lock();
        board.voices = Some((question.round, voices));
        if let Some(waker) = board.waker.take() {
            waker.wake();
        }
    }
}

fn ask_all(shared: &Shared, directory: &std::path::Path, question: Question, lingering: &mut Vec<Pid>) -> Voices {
    let mut call = Call::new(question.present, question.wanted);
    let mut voices = Voices::new();
    let mut children: heapless::Vec<Child, MAX_PROGRAMS> = heapless::Vec::new();
    for (name, found) in list(directory) {
        let started = match found {
            Err(fault) => Err(fault),
            // The machine does not let go of what was killed: its like would pile up.
            Ok(_) if lingering.len() >= MAX_LINGERING => Err(AdvisorFault::SILENT),
            Ok(path) => Child::start(name.clone(), &path, &mut call).map_err(|error| {
                tracing::warn!("advisor '{name}' can not be started: {}", error.desc());
                AdvisorFault::CRASHED
            }),
        };
        match started {
            Ok(child) => {
                let mut board = shared.lock();
                let _ = board.running.push(child.pid);
                if board.closed {
                    kill(child.pid);
                }
                drop(board);
                let _ = children.push(child);
            }
            Err(fault) => voices.push((name, Voice::Failed(fault))),
        }
    }
    loop {
        let left_us = question.deadline_us.saturating_sub(clock::boot_us());
        children.iter_mut().for_each(Child::drain);
        children.retain_mut(|child| {
            match child.voice() {
                None if left_us > 0 => true,
                voice => {
                    // Not reaped yet: its number can be no other's.
                    kill(child.pid);
                    shared.lock().running.retain(|pid| *pid != child.pid);
                    if !reap(child.pid) {
                        lingering.push(child.pid);
                    }
                    voices.push((child.name.clone(), voice.unwrap_or(Voice::Failed(AdvisorFault::SILENT))));
                    false
                }
            }
        });
        if children.is_empty() {
            return voices;
        }
        wait(&children, left_us);
    }
}

/// Until one says something, or a short while.
fn wait(children: &heapless::Vec<Child, MAX_PROGRAMS>, left_us: u64) {
    let outputs = children.iter().filter_map(Child::output);
    let mut outputs: heapless::Vec<PollFd<'_>, MAX_PROGRAMS> =
        outputs.map(|output| PollFd::new(output.as_fd(), PollFlags::POLLIN)).collect();
    let wait_ms = u16::try_from(left_us.div_ceil(1000).min(LOOK_EVERY_MS)).unwrap_or_default();
    let _ = poll(&mut outputs, PollTimeout::from(wait_ms));
}
