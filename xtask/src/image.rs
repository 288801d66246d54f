//! Initial file systems: the archive format, and kernel modules in the order in which they load.

pub mod cpio;
pub mod modules;
