//! `DIR/NAME/status.json`: replaced whole, never seen half written.

use super::snapshot::Snapshot;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the temporary files begin: left ones are removed at start.
const TEMPORARY: &str = ".status.json.";

/// Where it is.
#[must_use]
pub fn path(folder: &Path) -> PathBuf {
    folder.join("status.json")
}

/// Replaces the file: a new name in the same folder that nobody else has, then a rename. No fsync: it is written again
/// soon, and after a crash of the host its values are of no use.
pub fn write(folder: &Path, snapshot: &Snapshot) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{TEMPORARY}{}.{count}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
    // Whatever the umask is at this moment: another thread may be binding a socket.
    file.set_permissions(Permissions::from_mode(0o644))?;
    let mut out = BufWriter::with_capacity(16 * 1024, file);
    let written = snapshot
        .write_json(&mut out)
        .map_err(io::Error::from)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .and_then(|()| std::fs::rename(&temporary, path(folder)));
    if written.is_err() {
        let _already_failed = std::fs::remove_file(&temporary);
    }
    written
}

/// Removes what a killed daemon left half written.
pub fn remove_left_over(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::status::Status;
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn eight_writers_and_eight_readers_see_whole_files_and_leave_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let replace = |length: usize| {
            let labels = BTreeMap::from([("text".into(), "x".repeat(length))]);
            write(dir.path(), &Snapshot { head: Status { labels, ..Status::default() }, ..Snapshot::default() })
        };
        replace(1).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut lengths = std::collections::HashSet::new();
                        while !done.load(Ordering::Relaxed) {
                            let bytes = std::fs::read(dir.path().join("status.json")).unwrap();
                            let status: Status = serde_json::from_slice(&bytes).unwrap();
                            lengths.insert(status.labels["text"].len());
                        }
                        lengths
                    })
                })
                .collect();
            // Longer than the writers' buffer, and shorter.
            let writers: Vec<_> = (0..8)
                .map(|writer| scope.spawn(move || (0..50).try_for_each(|turn| replace(1 + writer * 7_000 + turn))))
                .collect();
            for writer in writers {
                writer.join().unwrap().unwrap();
            }
            done.store(true, Ordering::Relaxed);
            let seen: usize = readers.into_iter().map(|reader| reader.join().unwrap().len()).max().unwrap_or(0);
            assert!(seen > 1, "readers saw one file only");
        });
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["status.json"]);
    }
}
