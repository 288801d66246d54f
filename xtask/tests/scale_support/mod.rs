//! What the tests of scaling in a real VM share: the rig, what the guest says, what the host shows.

pub(crate) mod guest;

pub(crate) const MIB: u64 = 1 << 20;
