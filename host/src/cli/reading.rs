//! One reading of all instances: from the daemon, or from the folders when it does not answer.

use super::client::{Client, ClientError};
use super::{CommandError, Context, folders, now_ms, quantity, suggest};
use crate::config::is_instance_name;
use crate::publish::status::{Instances, SCHEMA, Status};
use serde::de::DeserializeOwned;
use std::path::Path;

/// One instance, and what is known of its state beyond its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entry {
    /// Without metrics.
    pub(super) status: Status,
    /// Why the status says nothing.
    pub(super) problem: Option<String>,
    /// Nobody writes this status any more.
    pub(super) stale: bool,
}

/// All instances at a moment, sorted by name.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) entries: Vec<Entry>,
    /// When, milliseconds since 1970.
    pub(super) now_ms: u64,
    /// Why this comes from the folders; `None`: the daemon said it.
    pub(super) without_daemon: Option<ClientError>,
}

impl Reading {
    /// Asks the daemon, else reads the folders.
    pub(super) async fn take(context: &Context) -> Result<Self, CommandError> {
        match Client::new(&context.dir).get("/v1/instances").await {
            Ok(Some(body)) => {
                let answer: Instances = parse("the daemon's answer", &body)?;
                check_schema("the daemon's answer", answer.schema)?;
                let entry = |status| Entry { status, ..Entry::default() };
                let misnamed = answer.daemon.misnamed.into_iter().map(folders::misnamed);
                let mut entries: Vec<_> = answer.instances.into_iter().chain(misnamed).map(entry).collect();
                entries.sort_by(|a, b| a.status.name.cmp(&b.status.name));
                Ok(Self { entries, now_ms: now_ms(), without_daemon: None })
            }
            Ok(None) => Err(no_such_api()),
            Err(error @ ClientError::Refused { .. }) => Err(error.into()),
            Err(error) => match Self::of_folders(&context.dir, error.with_lock(&context.dir))? {
                reading if reading.entries.is_empty() => Err(CommandError::Nothing { dir: context.dir.clone() }),
                reading => Ok(reading),
            },
        }
    }

    /// Reads the folders, because of `why`.
    pub(super) fn of_folders(dir: &Path, why: ClientError) -> Result<Self, CommandError> {
        let folders = folders::list(dir)?;
        let now_ms = now_ms();
        let entry = |folder: folders::Folder| Entry {
            // What is wrong with a folder's name is no daemon's word.
            stale: folder.problem.is_none() && !folder.is_left_alone() && is_stale(&folder.status, Some(&why), now_ms),
            status: folder.status,
            problem: folder.problem,
        };
        Ok(Self { entries: folders.into_iter().map(entry).collect(), now_ms, without_daemon: Some(why) })
    }

    /// Keeps only the instances of these names (all, if there are none); each must be there.
    pub(super) fn only(&mut self, dir: &Path, names: &[String]) -> Result<(), CommandError> {
        if names.is_empty() {
            return Ok(());
        }
        let known = |name: &&String| self.entries.iter().any(|entry| entry.status.name == **name);
        let missing: Vec<_> = names.iter().filter(|name| !known(name)).collect();
        if let [first, ..] = missing.as_slice() {
            let all = self.entries.iter().map(|entry| entry.status.name.as_str());
            return Err(unknown(dir, &missing, suggest::nearest(first, all)));
        }
        self.entries.retain(|entry| names.contains(&entry.status.name));
        Ok(())
    }

    /// The line that says that the daemon is down and how old this reading is; `None` when it is not.
    pub(super) fn fallback_notice(&self) -> Option<String> {
        let why = self.without_daemon.as_ref()?;
        let written = self.entries.iter().map(|entry| entry.status.written.ms).max().unwrap_or(0);
        Some(notice(why, written, self.now_ms))
    }
}

/// Whether nobody writes this status any more: nobody holds the lock, or who does is late.
pub(super) fn is_stale(status: &Status, without_daemon: Option<&ClientError>, now_ms: u64) -> bool {
    without_daemon.is_some_and(|why| matches!(why, ClientError::Down { .. }) || status.next_write_by.ms < now_ms)
}

/// "It is down; this comes from the folders, written so long ago."
pub(super) fn notice(why: &ClientError, written_ms: u64, now_ms: u64) -> String {
    match written_ms {
        0 => format!("{why}; reading the folders, where no daemon has written yet"),
        written => {
            format!("{why}; reading the folders, last written {} ago", quantity::age(now_ms.saturating_sub(written)))
        }
    }
}

/// The error of names that no instance has, each escaped for a terminal.
pub(super) fn unknown(dir: &Path, names: &[&String], suggestion: Option<&str>) -> CommandError {
    if let Some(name) = names.iter().find(|name| is_instance_name(name) && dir.join(name).is_dir()) {
        return CommandError::NoConfig { name: (*name).clone(), folder: dir.join(name) };
    }
    CommandError::Unknown {
        names: names.iter().map(|name| super::escape::escape(name, 64)).collect(),
        suggestion: suggestion.map(str::to_owned),
    }
}

/// The error of a daemon that does not know a path of version 1.
pub(super) fn no_such_api() -> CommandError {
    CommandError::Document {
        what: "the daemon's answer".to_owned(),
        cause: "it does not speak API version 1 (is it of the same release as this program?)".to_owned(),
    }
}

/// A document of the daemon's.
pub(super) fn parse<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T, CommandError> {
    serde_json::from_slice(text)
        .map_err(|error| CommandError::Document { what: what.to_owned(), cause: error.to_string() })
}

/// Refuses documents that a later version wrote.
pub(super) fn check_schema(what: &str, schema: u32) -> Result<(), CommandError> {
    if schema > SCHEMA {
        return Err(CommandError::Newer { what: what.to_owned(), schema, known: SCHEMA });
    }
    Ok(())
}
