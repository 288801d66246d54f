//! Random numbers for identities and jitter. Never blocks, not even early in a boot; not for secrets.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;

/// 64 random bits. The kernel's generator is asked each time, because two VMs started from one snapshot share
/// everything else; where `/dev` is not there yet, the keys of this process (drawn by the kernel at its start) and the
/// clock have to do.
#[must_use]
pub fn bits() -> u64 {
    let mut fresh = [0; 8];
    // /dev/urandom does not wait for the generator to be seeded; getrandom(2) would.
    let _ = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut fresh));
    let mut hasher = RandomState::new().build_hasher();
    hasher.write(&fresh);
    hasher.write_u64(crate::clock::boot_us());
    hasher.finish()
}

/// 128 random bits.
#[must_use]
pub fn bytes() -> [u8; 16] {
    (u128::from(bits()) << 64 | u128::from(bits())).to_le_bytes()
}
