//! Kernel files: read whole, from the start, into one shared buffer; kept open where that is worth a descriptor.
//!
//! Everything is opened below one [`Root`]. Nothing here waits: a file that would block is opened so that it
//! does not. See `proc(5)` and Documentation/filesystems/seq_file.rst: a short read is not the end of a file.

mod directory;
mod fault;
mod root;
mod whole;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub use directory::{Directory, Entry, each_entry};
pub use fault::Fault;
pub use root::Root;
use whole::read_whole;

/// The shared buffer begins with this many bytes: more than all but a few kernel files have.
const BUFFER_START: usize = 16 * 1024;
/// After this many reads in which the buffer was more than twice as long as any of them needed, it shrinks.
const SHRINK_AFTER: u32 = 1024;

const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);
const WRITE: OFlag = OFlag::O_WRONLY.union(OFlag::O_TRUNC).union(OFlag::O_CLOEXEC).union(OFlag::O_NOCTTY);
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_CLOEXEC).union(OFlag::O_DIRECTORY);

/// A file of the root that is read again and again through one descriptor.
#[derive(Debug)]
pub struct KFile {
    path: Box<[u8]>,
    file: Option<OwnedFd>,
    /// Device and inode of the open file.
    identity: (u64, u64),
    /// It was not there when last looked for; see [`Look`].
    missing: bool,
    /// See [`Self::bound`].
    is_bound: bool,
}

impl KFile {
    /// `path`: below the root, without a leading slash.
    #[must_use]
    pub fn new(path: &[u8]) -> Self {
        Self { path: path.into(), file: None, identity: (0, 0), missing: false, is_bound: false }
    }

    /// A file of something that may go, and whose path something else may take: once gone, it is missing until
    /// [`Self::look_again`].
    #[must_use]
    pub fn bound(path: &[u8]) -> Self {
        Self { is_bound: true, ..Self::new(path) }
    }

    /// The descriptor, while the file is open.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Gives the descriptor back.
    pub fn close(&mut self) {
        self.file = None;
        self.missing = true;
    }

    /// Whether it was not there when last looked for.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        self.missing
    }

    /// It may be there by now, though it was not.
    pub const fn look_again(&mut self) {
        self.missing = false;
    }
}

/// Where the descriptor of a file that is read now and then is kept; see [`Files::read_kept`].
#[derive(Debug, Default)]
pub enum Slot {
    /// Not opened yet.
    #[default]
    Empty,
    /// Open.
    Open(OwnedFd),
    /// It was not there; looked for with [`Look::All`] and after [`Self::look_again`].
    Missing,
}

impl Slot {
    /// As [`KFile::look_again`].
    pub fn look_again(&mut self) {
        if matches!(self, Self::Missing) {
            *self = Self::Empty;
        }
    }
}

/// Which paths a pass looks up, besides those never looked up before. A look-up costs about as much as the read of a
/// small file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// None: below a live root a path leads to another file only when something was mounted, or when the kernel says
    /// of the old file that it is gone.
    Kept,
    /// Those of a [`KFile`] that led nowhere.
    Missing,
    /// All, the files that are open among them: another one may stand at their path.
    All,
}

/// The root directory and the buffer that all reads share.
#[derive(Debug)]
pub struct Files {
    root: Root,
    buffer: Vec<u8>,
    /// The most bytes a read needed since the last look, and reads since then.
    peak: usize,
    reads: u32,
    errors: u64,
    died: u64,
    faults: fault::Log,
    /// Reused memory for a path.
    path: Vec<u8>,
    /// Whether this pass reads what changes slowly.
    pub recheck: bool,
    /// What this pass looks up.
    pub look: Look,
}

impl Files {
    /// A root that can not be opened has no files.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: Root::new(root),
            buffer: vec![0; BUFFER_START],
            peak: 0,
            reads: 0,
            errors: 0,
            died: 0,
            faults: fault::Log::default(),
            path: Vec::new(),
            recheck: true,
            look: Look::All,
        }
    }

    /// As [`Self::new`], with a buffer for short files, that grows when it must: memory is locked, and costs.
    #[must_use]
    pub fn small(root: &Path) -> Self {
        let mut files = Self::new(root);
        files.buffer = vec![0; BUFFER_START / 4];
        files
    }

    /// Whether the root is this machine's own.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.root.is_live()
    }

    /// Files that existed but could not be read or understood, so far.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Descriptors whose file the kernel took away under them, so far. When this moves, something below the root is
    /// gone, and another one may stand in its place.
    #[must_use]
    pub const fn died(&self) -> u64 {
        self.died
    }

    /// From now on keeps which files could not be read, and why.
    pub fn keep_faults(&mut self) {
        self.faults.keep();
    }

    /// Those that are kept, by path; see [`Self::keep_faults`].
    #[must_use]
    pub fn take_faults(&mut self) -> Vec<Fault> {
        self.faults.take()
    }

    /// Counts a file that was read but had nothing in it that was understood.
    pub const fn count_error(&mut self) {
        self.errors += 1;
    }

    /// All of a kept file, or `None` where it is missing or can not be read. It is opened anew when the kernel says
    /// that the old one is gone, and when its path leads to another file by now.
    pub fn read(&mut self, kept: &mut KFile) -> Option<&[u8]> {
        match self.try_read(kept) {
            Ok(length) => self.buffer.get(..length),
            Err(error) => {
                self.note(None, &kept.path, error);
                None
            }
        }
    }

    /// As [`Self::read`], with the reason. An absent file is `ENOENT`.
    pub fn try_read(&mut self, kept: &mut KFile) -> Result<usize, Errno> {
        if self.look == Look::All && kept.file.is_some() {
            let now = self.root.stat(&kept.path).map(|stat| identity(&stat));
            if now != Ok(kept.identity) {
                kept.file = None;
            }
            kept.missing = false;
        }
        if kept.file.is_none() && kept.missing && self.look == Look::Kept {
            return Err(Errno::ENOENT);
        }
        for _ in 0..2 {
            if kept.file.is_none() {
                match self.root.open(&kept.path, READ) {
                    Ok(file) => {
                        kept.identity = fstat(&file).map_or((0, 0), |stat| identity(&stat));
                        kept.file = Some(file);
                        kept.missing = false;
                    }
                    Err(error) => {
                        kept.missing = !is_passing(error);
                        return Err(error);
                    }
                }
            }
            let Some(file) = &kept.file else { break };
            match read_whole(file.as_fd(), &mut self.buffer) {
                Ok(length) => {
                    self.account(length);
                    return Ok(length);
                }
                // Gone, or another one stands at its path: look once more.
                Err(Errno::ENODEV | Errno::ESTALE | Errno::ENOENT) => {
                    kept.file = None;
                    self.died += 1;
                    if kept.is_bound {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        kept.missing = true;
        Err(Errno::ENODEV)
    }

    /// The bytes of the last successful `try_read`.
    #[must_use]
    pub fn bytes(&self, length: usize) -> &[u8] {
        self.buffer.get(..length).unwrap_or_default()
    }

    /// All of a file that is not kept open. `path`: below `directory`, or below the root where that is `None`.
    pub fn read_once(&mut self, directory: Option<&Directory<'_>>, path: &[u8]) -> Option<&[u8]> {
        let length = self.open(directory, path).and_then(|file| read_whole(file.as_fd(), &mut self.buffer));
        self.outcome(length, directory, path)
    }

    /// As [`Self::read_once`], through a descriptor that stays in `slot` where `keep` allows it. Only on a live root:
    /// there a kernel file is replaced by its kernel alone, and then the old one says so.
    pub fn read_kept(
        &mut self,
        slot: &mut Slot,
        keep: bool,
        directory: Option<&Directory<'_>>,
        path: &[u8],
    ) -> Option<&[u8]> {
        let length = self.try_read_kept(slot, keep, directory, path);
        self.outcome(length, directory, path)
    }

    fn outcome(
        &mut self,
        length: Result<usize, Errno>,
        directory: Option<&Directory<'_>>,
        path: &[u8],
    ) -> Option<&[u8]> {
        match length {
            Ok(length) => {
                self.account(length);
                self.buffer.get(..length)
            }
            Err(error) => {
                self.note(directory, path, error);
                None
            }
        }
    }

    fn open(&mut self, directory: Option<&Directory<'_>>, path: &[u8]) -> Result<OwnedFd, Errno> {
        let Some(directory) = directory else { return self.root.open(path, READ) };
        if !self.root.is_contained() {
            return openat(directory.open(self)?, path, READ, Mode::empty());
        }
        self.path.clear();
        self.path.extend_from_slice(directory.path());
        self.path.push(b'/');
        self.path.extend_from_slice(path);
        self.root.open(&self.path, READ)
    }

    fn try_read_kept(
        &mut self,
        slot: &mut Slot,
        keep: bool,
        directory: Option<&Directory<'_>>,
        path: &[u8],
    ) -> Result<usize, Errno> {
        if self.look == Look::All || !self.is_live() {
            slot.look_again();
        }
        let keep = keep && self.is_live();
        if !keep && matches!(slot, Slot::Open(_)) {
            *slot = Slot::Empty;
        }
        if let Slot::Open(file) = slot {
            match read_whole(file.as_fd(), &mut self.buffer) {
                // Gone, or another one stands at its path: look once more.
                Err(Errno::ENODEV | Errno::ESTALE | Errno::ENOENT) => {
                    *slot = Slot::Empty;
                    self.died += 1;
                }
                length => return length,
            }
        }
        if matches!(slot, Slot::Missing) {
            return Err(Errno::ENOENT);
        }
        let file = self.open(directory, path).inspect_err(|error| {
            if !is_passing(*error) {
                *slot = Slot::Missing;
            }
        })?;
        let length = read_whole(file.as_fd(), &mut self.buffer);
        if keep {
            *slot = Slot::Open(file);
        }
        length
    }

    /// Writes `bytes` in one piece to a file that is there, in place of what it holds. The kernel's own files may take
    /// their time over it: not for the loop.
    pub fn write(&self, path: &[u8], bytes: &[u8]) -> Result<(), Errno> {
        let file = self.root.open(path, WRITE)?;
        loop {
            match nix::unistd::write(&file, bytes) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(_) => return Err(Errno::EIO),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens a file below the root to be kept by the caller, for `flags`.
    pub fn open_file(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        self.root.open(path, flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
    }

    /// Opens a directory below the root; the empty path is the root itself.
    pub fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.root.open(path, DIRECTORY).inspect_err(|error| self.faults.note(None, path, *error))
    }

    /// What a path below the root leads to.
    pub fn stat(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.root.stat(path).inspect_err(|error| self.faults.note(None, path, *error))
    }

    /// As [`Self::stat`], of a symbolic link itself.
    pub fn stat_link(&self, path: &[u8]) -> Result<FileStat, Errno> {
        self.root.stat_link(path).inspect_err(|error| self.faults.note(None, path, *error))
    }

    /// As [`Self::stat`] of a directory that is not replaced while the kernel runs, through a descriptor that stays in
    /// `slot` on a live root: a look-up in sysfs costs ten times as much.
    pub fn stat_kept(&self, slot: &mut Slot, path: &[u8]) -> Result<FileStat, Errno> {
        if !self.is_live() || self.look == Look::All {
            *slot = Slot::Empty;
        }
        if let Slot::Open(directory) = slot {
            return fstat(directory);
        }
        let directory = self.open_directory(path)?;
        let stat = fstat(&directory);
        if self.is_live() {
            *slot = Slot::Open(directory);
        }
        stat
    }

    /// A missing file is a state, not an error; so is a removed cgroup, a child cgroup with a file's name, pressure
    /// that is switched off, and an interface without a link.
    fn note(&mut self, directory: Option<&Directory<'_>>, path: &[u8], error: Errno) {
        self.faults.note(directory, path, error);
        if !matches!(
            error,
            Errno::ENOENT
                | Errno::ENOTDIR
                | Errno::EISDIR
                | Errno::ENODEV
                | Errno::ESTALE
                | Errno::EOPNOTSUPP
                | Errno::EINVAL
        ) {
            self.errors += 1;
        }
    }

    fn account(&mut self, length: usize) {
        self.peak = self.peak.max(length + 1);
        self.reads += 1;
        if self.reads >= SHRINK_AFTER {
            let enough = self.peak.next_power_of_two().max(BUFFER_START);
            if enough < self.buffer.len() / 2 {
                self.buffer.truncate(enough.max(length));
                self.buffer.shrink_to_fit();
            }
            (self.peak, self.reads) = (0, 0);
        }
    }
}

fn identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// What an open may say of a file that is there: it is tried again with the next reading.
const fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::EINTR | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)
}
