//! The directory below which everything is opened. No path leads out of it: of a tree that came from elsewhere,
//! absolute links, links with `..` and mount points with `..` are taken as if the tree were the whole world.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How often a look-up is repeated that a rename or a mount elsewhere disturbed.
const TRIES: u32 = 8;

/// A root directory. One that can not be opened has no files.
#[derive(Debug)]
pub struct Root {
    directory: Option<OwnedFd>,
    path: PathBuf,
    is_live: bool,
    /// Look-ups end inside; else they are the kernel's usual ones. So it is for `/`, which nothing is outside of, and
    /// where the kernel has no `openat2` (before Linux 5.6) or a filter of system calls denies it.
    is_contained: bool,
}

impl Root {
    /// `path`: `/` for this machine.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let is_live = path == Path::new("/");
        let directory = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok();
        let is_contained = !is_live
            && directory.as_ref().is_some_and(|directory| {
                let itself = open_inside(directory.as_fd(), b".", OFlag::O_PATH | OFlag::O_CLOEXEC);
                !matches!(itself, Err(Errno::ENOSYS | Errno::EPERM))
            });
        Self { directory, path: path.to_owned(), is_live, is_contained }
    }

    /// Whether it is this machine's own.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.is_live
    }

    /// As it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether look-ups end inside by themselves. Then they begin at the root: below another directory, a `..` of a
    /// link would end at that.
    #[must_use]
    pub const fn is_contained(&self) -> bool {
        self.is_contained
    }

    /// Opens what `path` leads to below the root. The empty path is the root itself.
    pub fn open(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        let root = self.directory.as_ref().ok_or(Errno::ENOENT)?.as_fd();
        let path = if path.is_empty() { b"." } else { path };
        if self.is_contained { open_inside(root, path, flags) } else { openat(root, path, flags, Mode::empty()) }
    }

    /// What a path below the root leads to.
    pub fn stat(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.stat_as(path, true)
    }

    /// As [`Self::stat`], of a symbolic link itself.
    pub fn stat_link(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.stat_as(path, false)
    }

    fn stat_as(&self, path: &[u8], follow: bool) -> Result<FileStat, Errno> {
        if self.is_contained {
            let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
            return fstat(self.open(path, if follow { flags } else { flags | OFlag::O_NOFOLLOW })?);
        }
        let root = self.directory.as_ref().ok_or(Errno::ENOENT)?;
        let flags = if follow { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
        fstatat(root, if path.is_empty() { &b"."[..] } else { path }, flags)
    }
}

fn open_inside(at: BorrowedFd<'_>, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
    let mut result = Err(Errno::EAGAIN);
    for _ in 0..TRIES {
        result = openat2(at, path, OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT));
        if !matches!(result, Err(Errno::EAGAIN | Errno::EINTR)) {
            break;
        }
    }
    result
}
