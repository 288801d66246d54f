//! All of an open file. A short read is not its end.

use nix::errno::Errno;
use nix::sys::uio::pread;
use std::os::fd::BorrowedFd;

/// A longer file is an error: nothing the kernel prints for an ordinary VM comes near it.
const BUFFER_MAX: usize = 4 * 1024 * 1024;

/// Reads from offset 0 until a read gives nothing.
pub(super) fn read_whole(file: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            if buffer.len() >= BUFFER_MAX {
                return Err(Errno::EFBIG);
            }
            buffer.resize(buffer.len() * 2, 0);
        }
        let offset = i64::try_from(length).map_err(|_| Errno::EFBIG)?;
        match pread(file, buffer.get_mut(length..).unwrap_or_default(), offset) {
            Ok(0) => return Ok(length),
            Ok(more) => length += more,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}
