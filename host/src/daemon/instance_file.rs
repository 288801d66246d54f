//! An instance.toml as it is on disk: whether it changed, and what it says. Whatever is there, reading it neither waits
//! nor touches anything but a file.

use crate::config::{self, Config};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

/// What a file was when it was read last. One that could not be looked at has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
    /// Why it could not be looked at.
    error: Option<i32>,
}

/// `None`: there is no such file. One that can not be looked at, and a link that leads nowhere, are there: whoever
/// locks a folder away, or mends a link, removes no instance.
pub(super) fn stamp(file: &Path) -> Option<Stamp> {
    let is_absent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    match std::fs::metadata(file) {
        Ok(meta) => Some(Stamp { modified: meta.modified().ok(), length: meta.len(), inode: meta.ino(), error: None }),
        Err(error) if is_absent(&error) && std::fs::symlink_metadata(file).is_err() => None,
        Err(error) => Some(Stamp { error: error.raw_os_error(), ..Stamp::default() }),
    }
}

/// What it says, or what is wrong with it. A FIFO or a device would stop the daemon.
pub(super) fn read(file: &Path) -> Result<Config, String> {
    const NO_FILE: &str = "is not a regular file";
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if file.is_symlink() => "is a link to a file that is not there".into(),
        io::ErrorKind::NotFound => "the file is gone".into(),
        _ => format!("cannot be read: {error}"),
    };
    if !std::fs::metadata(file).map_err(failed)?.is_file() {
        return Err(NO_FILE.into());
    }
    // Between the two it may have become something else.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = File::options().read(true).custom_flags(flags).open(file).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(NO_FILE.into());
    }
    let mut text = String::new();
    let length = file.take(config::MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > config::MAX_BYTES {
        return Err("over 64 KiB".into());
    }
    config::parse(&text).map_err(|error| error.to_string())
}
