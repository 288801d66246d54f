//! CRC-32 (IEEE 802.3, reflected, as zlib and PNG): finds bugs and torn records, not attackers.
//!
//! Bit by bit, without a table: it runs once per schema and once per event, and the guest has no kilobyte to spare.

/// A checksum over bytes that arrive in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Crc32 {
    /// Takes the next bytes.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            }
        }
        Self(crc)
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.0
    }
}

/// The checksum of one slice.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    Crc32::default().update(bytes).value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(Crc32::default().update(b"1234").update(b"56789").value(), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
