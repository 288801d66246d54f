//! What the folders of DIR say, without a daemon: each instance's `status.json`. Reads only.

use super::CommandError;
use crate::config::{NAME_RULE, is_instance_name};
use crate::publish::status::{SCHEMA, Status};
use serde::de::IgnoredAny;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The file that makes a folder an instance.
const CONFIG: &str = "instance.toml";
/// The file that the daemon writes into it.
const STATUS: &str = "status.json";
/// Bytes of a status file: 6,000 series take about 2 MB.
const MAX_STATUS: u64 = 64 << 20;

/// An instance as its folder shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Folder {
    /// Its newest status, without metrics; only a name where there is none.
    pub(super) status: Status,
    /// Why its status says nothing.
    pub(super) problem: Option<String>,
}

impl Folder {
    /// It has an instance.toml and is no instance all the same: see [`NAME_RULE`].
    pub(super) fn is_left_alone(&self) -> bool {
        self.problem.is_none() && self.status.written.ms == 0
    }
}

/// All instances of `dir`, sorted by name.
pub(super) fn list(dir: &Path) -> Result<Vec<Folder>, CommandError> {
    let unreadable = |cause| CommandError::Directory { dir: dir.to_owned(), cause };
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (name, is_link) = (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        if name.as_encoded_bytes().starts_with(b".") || !is_instance(&dir.join(&name)) {
            continue;
        }
        folders.push(match name.into_string() {
            Ok(name) if is_instance_name(&name) && !is_link => read(dir, name),
            Ok(name) => Folder { status: misnamed(name), problem: None },
            Err(name) => Folder { status: misnamed(name.to_string_lossy().into_owned()), problem: None },
        });
    }
    folders.sort_by(|a, b| a.status.name.cmp(&b.status.name));
    Ok(folders)
}

/// What stands for a folder that is no instance: see [`NAME_RULE`].
pub(super) fn misnamed(name: String) -> Status {
    Status {
        schema: SCHEMA,
        name,
        config_error: Some(format!("the folder is left alone: {NAME_RULE}")),
        ..Status::default()
    }
}

/// The text of an instance's status; `None` where there is no such instance.
pub(super) fn status_text(dir: &Path, name: &str) -> Result<Option<String>, CommandError> {
    let folder = dir.join(name);
    if !is_instance_name(name) || !is_instance(&folder) {
        return Ok(None);
    }
    let path = folder.join(STATUS);
    let failed = |cause: io::Error| {
        let cause = match cause.kind() {
            io::ErrorKind::NotFound => "not there: no daemon has seen this instance yet".to_owned(),
            _ => cause.to_string(),
        };
        CommandError::Document { what: path.display().to_string(), cause }
    };
    String::from_utf8(read_bounded(&path).map_err(failed)?).map(Some).map_err(|_| failed(io::Error::other("not UTF-8")))
}

fn is_instance(folder: &Path) -> bool {
    folder.join(CONFIG).exists() || folder.join(STATUS).exists()
}

fn read(dir: &Path, name: String) -> Folder {
    let problem = match read_bounded(&dir.join(&name).join(STATUS)) {
        Ok(text) => match serde_json::from_slice::<Status<IgnoredAny>>(&text) {
            Ok(status) if status.schema > SCHEMA => {
                format!("status.json is of schema {}: use a newer informant-host", status.schema)
            }
            // The folder's name is the instance's; the file may have been copied here.
            Ok(status) => return Folder { status: Status { name, ..without_metrics(status) }, problem: None },
            Err(error) => format!("status.json does not parse: {error}"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => "no daemon has seen it yet".to_owned(),
        Err(error) => format!("status.json: {error}"),
    };
    let mut status = Status { schema: SCHEMA, name, ..Status::default() };
    status.link.detail = Some(problem.clone());
    Folder { status, problem: Some(problem) }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_STATUS + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_STATUS {
        return Err(io::Error::other("larger than 64 MiB"));
    }
    Ok(text)
}

/// Metrics are skipped while reading: a list needs none, and 10,000 instances have millions.
fn without_metrics(status: Status<IgnoredAny>) -> Status {
    Status {
        schema: status.schema,
        name: status.name,
        written: status.written,
        next_write_by: status.next_write_by,
        transport: status.transport,
        labels: status.labels,
        config_error: status.config_error,
        link: status.link,
        agent: status.agent,
        workload: status.workload,
        data: status.data,
        guest: status.guest,
        summary: status.summary,
        scaling: status.scaling,
        counters: status.counters,
        metrics: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::status::{Group, Value};
    use std::fs;

    fn instance(dir: &Path, name: &str, status: Option<&str>) {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join(CONFIG), "uds = \"/x\"").unwrap();
        if let Some(text) = status {
            fs::write(dir.join(name).join(STATUS), text).unwrap();
        }
    }

    #[test]
    fn folders_are_instances_by_their_files_and_named_by_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let group = Group { values: vec![Value::default()], ..Group::default() };
        let full = Status { schema: 1, name: "other".to_owned(), metrics: vec![group], ..Status::default() };
        instance(dir.path(), "b", Some(&serde_json::to_string(&full).unwrap()));
        instance(dir.path(), "a", None);
        instance(dir.path(), "c", Some("{\"schema\":"));
        instance(dir.path(), "d", Some("{\"schema\":2}"));
        instance(dir.path(), ".hidden", None);
        instance(dir.path(), "bad name", Some("{}"));
        fs::create_dir(dir.path().join("no-instance")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let folders = list(dir.path()).unwrap();
        let names: Vec<_> = folders.iter().map(|folder| folder.status.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "bad name", "c", "d"]);
        assert_eq!(folders[0].problem.as_deref(), Some("no daemon has seen it yet"));
        assert_eq!((&folders[1].problem, &folders[1].status.config_error), (&None, &None));
        let error = folders[2].status.config_error.as_deref();
        assert_eq!(
            error,
            Some(
                "the folder is left alone: an instance is a folder (no link) whose name is 1 to 64 of A-Z a-z 0-9 . _ -, no dot first"
            )
        );
        assert!(folders[3].problem.as_ref().unwrap().starts_with("status.json does not parse"));
        assert!(folders[4].problem.as_ref().unwrap().contains("schema 2"));
    }

    #[test]
    fn a_name_cannot_lead_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        instance(dir.path(), "secret", Some("{}"));
        for name in ["../secret", "..", ".", "", "/etc", "a/../../secret"] {
            assert!(matches!(status_text(&inner, name), Ok(None)), "{name}");
        }
        assert!(matches!(status_text(dir.path(), "secret"), Ok(Some(_))));
    }
}
