//! What `watch` watches: the daemon's stream of changes, or the folders each second while it is down, and back.
//!
//! ```text
//! ask for the stream --ok--> Connected, Line*  --ends, hangs-->  ask again
//!        ^ `--fails--> Folders (with the reason)
//!        `------ 1 s -----'
//! ```

use super::client::{Client, ClientError, encode};
use super::escape::escape;
use super::reading::{Reading, no_such_api};
use super::{CommandError, Context};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Updates that wait for a slow reader; beyond them the daemon's stream waits, and the daemon says what it left out.
const QUEUE: usize = 64;
/// Between two readings of the folders, and two attempts to reach the daemon.
const POLL: Duration = Duration::from_secs(1);
/// Without a line for so long the daemon is asked whether it lives.
const QUIET: Duration = Duration::from_secs(10);

/// What happened.
#[derive(Debug)]
pub(super) enum Update {
    /// The daemon's stream begins: it tells all instances first, so what was known before is void.
    Connected,
    /// A line of it.
    Line(Vec<u8>),
    /// The daemon is not there: the folders as they are now, all of them.
    Folders(Reading),
    /// Nothing more can come.
    Failed(CommandError),
}

/// Begins to watch these instances (all, if none are named). Ends when the receiver is dropped.
pub(super) fn open(context: &Context, names: &[String]) -> mpsc::Receiver<Update> {
    let (updates, receiver) = mpsc::channel(QUEUE);
    let query: Vec<_> = names.iter().map(|name| format!("name={}", encode(name))).collect();
    let mut target = "/v1/watch".to_owned();
    if !query.is_empty() {
        target = format!("{target}?{}", query.join("&"));
    }
    let names = names.iter().map(|name| escape(name, 64)).collect();
    let feed = Feed { client: Client::new(&context.dir), dir: context.dir.clone(), names, target, updates };
    tokio::spawn(feed.run());
    receiver
}

/// The receiver is gone.
struct Gone;

struct Feed {
    client: Client,
    dir: PathBuf,
    /// As they may be shown.
    names: Vec<String>,
    target: String,
    updates: mpsc::Sender<Update>,
}

impl Feed {
    async fn run(self) {
        loop {
            let update = match self.stream().await {
                Ok(why) => self.read_folders(why),
                Err(Gone) => return,
            };
            let last = matches!(update, Update::Failed(_));
            if self.updates.send(update).await.is_err() || last {
                return;
            }
            sleep(POLL).await;
        }
    }

    /// Follows the stream to its end, and says why it ended.
    async fn stream(&self) -> Result<Result<ClientError, CommandError>, Gone> {
        let mut lines = match self.client.lines(&self.target).await {
            Ok(Some(lines)) => lines,
            // The daemon knows the path, so it misses a name: a folder went while the daemon was away.
            Ok(None) if !self.names.is_empty() => return Ok(Err(CommandError::Gone { names: self.names.clone() })),
            Ok(None) => return Ok(Err(no_such_api())),
            Err(error @ ClientError::Refused { .. }) => return Ok(Err(error.into())),
            Err(error) => return Ok(Ok(error)),
        };
        self.send(Update::Connected).await?;
        loop {
            match timeout(QUIET, lines.next()).await {
                Ok(Ok(Some(line))) => self.send(Update::Line(line)).await?,
                Ok(Ok(None)) => return Ok(Ok(self.client.ended())),
                Ok(Err(error)) => return Ok(Ok(error)),
                Err(_) => {
                    if let Err(error) = self.client.get("/v1/daemon").await {
                        return Ok(Ok(error));
                    }
                    if self.updates.is_closed() {
                        return Err(Gone);
                    }
                }
            }
        }
    }

    async fn send(&self, update: Update) -> Result<(), Gone> {
        self.updates.send(update).await.map_err(|_| Gone)
    }

    fn read_folders(&self, why: Result<ClientError, CommandError>) -> Update {
        match why.and_then(|why| Reading::of_folders(&self.dir, why.with_lock(&self.dir))) {
            Ok(reading) => Update::Folders(reading),
            Err(error) => Update::Failed(error),
        }
    }
}
