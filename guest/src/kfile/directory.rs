//! Directories: opened when they are needed, and listed without the allocator.

use super::Files;
use nix::errno::Errno;
use std::cell::OnceCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes for directory entries at a time.
const DIRECTORY_BUFFER: usize = 4096;

/// A directory below the root that is opened when a file in it is.
#[derive(Debug)]
pub struct Directory<'a> {
    path: &'a [u8],
    opened: OnceCell<Result<OwnedFd, Errno>>,
}

impl<'a> Directory<'a> {
    /// `path`: as of [`super::KFile::new`].
    #[must_use]
    pub const fn new(path: &'a [u8]) -> Self {
        Self { path, opened: OnceCell::new() }
    }

    /// Where it is.
    #[must_use]
    pub const fn path(&self) -> &'a [u8] {
        self.path
    }

    /// Its descriptor, opened with the first call.
    pub fn open(&self, files: &Files) -> Result<BorrowedFd<'_>, Errno> {
        self.opened.get_or_init(|| files.open_directory(self.path)).as_ref().map(AsFd::as_fd).map_err(|error| *error)
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Any bytes but `/` and NUL.
    pub name: &'a [u8],
    /// Its inode, as the directory tells it.
    pub inode: u64,
    /// A symbolic link is none, wherever it leads. `None` where the file system does not tell: ask with
    /// [`Files::stat_link`].
    pub is_directory: Option<bool>,
}

/// Calls `found` for each entry but `.` and `..`, until it says `false`. Allocates nothing, which `readdir` does.
pub fn each_entry(directory: BorrowedFd<'_>, mut found: impl FnMut(Entry<'_>) -> bool) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); DIRECTORY_BUFFER];
    let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let is_directory = match entry.file_type() {
            rustix::fs::FileType::Unknown => None,
            kind => Some(kind == rustix::fs::FileType::Directory),
        };
        if !found(Entry { name, inode: entry.ino(), is_directory }) {
            break;
        }
    }
    Ok(())
}
