//! What a watcher of the API is told: each instance as it is, then what changes. A watcher that reads slowly is waited
//! for, loses events, and is told how many; it never holds anybody else up.

use super::shared::{Change, Shared};
use super::slot::Slot;
use crate::publish::status::WatchLine;
use axum::body::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};

/// Between two looks for new values.
const EVERY: Duration = Duration::from_secs(1);

/// One watcher's task.
pub(super) struct Watch {
    shared: Arc<Shared>,
    /// Empty: all.
    names: Vec<String>,
    changes: broadcast::Receiver<Change>,
    /// What was said last of each instance: its revision and its samples.
    seen: HashMap<Arc<str>, (u64, u64)>,
    /// Whose turn it is in this round of looking.
    round: VecDeque<Arc<Slot>>,
    lines: mpsc::Sender<Bytes>,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, names: Vec<String>, lines: mpsc::Sender<Bytes>) -> Self {
        let changes = shared.changes.subscribe();
        Self { shared, names, changes, seen: HashMap::new(), round: VecDeque::new(), lines }
    }

    pub(super) async fn run(mut self) {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let line = tokio::select! {
                _ = every.tick(), if self.round.is_empty() => {
                    self.round = self.slots();
                    None
                }
                // Events are not kept waiting by a long round, nor a round by many events.
                () = std::future::ready(()), if !self.round.is_empty() => {
                    self.round.pop_front().and_then(|slot| self.status(&slot))
                }
                change = self.changes.recv() => match change {
                    Ok(change) => self.line(change),
                    Err(RecvError::Lagged(count)) => Some(WatchLine::Lost { count }),
                    Err(RecvError::Closed) => return,
                },
                () = self.lines.closed() => return,
            };
            let open = match line {
                Some(line) => self.say(&line).await,
                None => true,
            };
            if !open {
                return;
            }
            if self.shared.is_stopping() {
                self.drain().await;
                self.say(&WatchLine::Stopping).await;
                return;
            }
        }
    }

    async fn drain(&mut self) {
        loop {
            let line = match self.changes.try_recv() {
                Ok(change) => self.line(change),
                Err(TryRecvError::Lagged(count)) => Some(WatchLine::Lost { count }),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            };
            if let Some(line) = line {
                self.say(&line).await;
            }
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }

    fn slots(&self) -> VecDeque<Arc<Slot>> {
        if self.names.is_empty() {
            self.shared.slots().into()
        } else {
            self.names.iter().filter_map(|name| self.shared.slot(name)).collect()
        }
    }

    /// What has changed since it was said last.
    fn status(&mut self, slot: &Arc<Slot>) -> Option<WatchLine> {
        let version = slot.look(|core| (core.revision, core.instance.counters.samples));
        if self.shared.slot(&slot.name).is_none() || self.seen.get(&slot.name) == Some(&version) {
            return None;
        }
        self.seen.insert(Arc::clone(&slot.name), version);
        Some(WatchLine::Status { status: Box::new(slot.overview(&self.shared, self.shared.now())) })
    }

    fn line(&mut self, change: Change) -> Option<WatchLine> {
        match change {
            Change::State(name) if self.wants(&name) => self.shared.slot(&name).and_then(|slot| self.status(&slot)),
            Change::Event(name, event) if self.wants(&name) => {
                Some(WatchLine::Event { instance: name.as_ref().into(), event: Box::new(event.as_ref().clone()) })
            }
            Change::Removed(name) if self.wants(&name) => {
                self.seen.remove(&name);
                Some(WatchLine::Removed { name: name.as_ref().into() })
            }
            Change::State(_) | Change::Event(..) | Change::Removed(_) => None,
        }
    }

    /// False when the watcher is gone.
    async fn say(&self, line: &WatchLine) -> bool {
        let Ok(mut bytes) = serde_json::to_vec(line) else { return true };
        bytes.push(b'\n');
        self.lines.send(bytes.into()).await.is_ok()
    }
}
