//! Which files could not be read, and why, for `doctor`. The agent counts such files and keeps none of this.

use super::Directory;
use nix::errno::Errno;
use std::cell::RefCell;

/// Faults that are kept. Of 64 cgroups, all files are less than half as many.
const MAX_FAULTS: usize = 4096;

/// A file or directory that is there, as far as the kernel tells, and could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Below the root, without a leading slash.
    pub path: Vec<u8>,
    /// What the kernel said.
    pub error: Errno,
}

/// Keeps faults once it was asked to. Look-ups share the files they look in, hence the cell.
#[derive(Debug, Default)]
pub(super) struct Log(RefCell<Option<Vec<Fault>>>);

impl Log {
    pub(super) fn keep(&mut self) {
        self.0.get_mut().get_or_insert_default();
    }

    /// Each once, in the order of their paths.
    pub(super) fn take(&mut self) -> Vec<Fault> {
        let mut faults = self.0.get_mut().take().unwrap_or_default();
        faults.sort_by(|a, b| a.path.cmp(&b.path));
        faults.dedup();
        faults
    }

    /// What is not there, or went in the meantime, is no fault.
    pub(super) fn note(&self, directory: Option<&Directory<'_>>, path: &[u8], error: Errno) {
        if matches!(error, Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV | Errno::ESTALE) {
            return;
        }
        if let Ok(mut faults) = self.0.try_borrow_mut()
            && let Some(faults) = faults.as_mut().filter(|faults| faults.len() < MAX_FAULTS)
        {
            let path = directory.map_or_else(|| path.to_vec(), |directory| [directory.path(), path].join(&b'/'));
            faults.push(Fault { path, error });
        }
    }
}
