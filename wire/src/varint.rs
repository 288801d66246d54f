//! Variable-length integers, the same bytes as postcard's: seven bits a byte, least significant first, the high bit
//! says that more follow. At most ten bytes; bits beyond 64 are an error.

/// Bytes of the longest u64.
pub const MAX_LEN: usize = 10;

/// Writes `value` at `out[at..]` and returns the position behind it; `None` when it does not fit.
#[must_use]
pub fn write(out: &mut [u8], mut at: usize, mut value: u64) -> Option<usize> {
    loop {
        let byte = out.get_mut(at)?;
        at += 1;
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            *byte = low;
            return Some(at);
        }
        *byte = low | 0x80;
    }
}

/// Reads a u64 at `bytes[at..]`; `None` when it is cut short or longer than 64 bits.
#[must_use]
pub fn read(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    let mut shift = 0;
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= low << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
        shift += 7;
    }
}

/// Maps small steps of either sign to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[must_use]
pub const fn zigzag(step: i64) -> u64 {
    (step.cast_unsigned() << 1) ^ (step >> 63).cast_unsigned()
}

/// The inverse of [`zigzag`].
#[must_use]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn eleven_bytes_or_bits_beyond_64_are_refused() {
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 0), Some((u64::MAX, 10)));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], 0), None);
        assert_eq!(read(&[0x80; 16], 0), None);
        assert_eq!(read(&[], 0), None);
    }

    proptest! {
        #[test]
        fn same_bytes_as_postcard(value: u64) {
            let (mut ours, mut theirs) = ([0; MAX_LEN], [0; MAX_LEN]);
            let end = write(&mut ours, 0, value).unwrap();
            let expected = postcard::to_slice(&value, &mut theirs).unwrap();
            prop_assert_eq!(&ours[..end], &*expected);
            prop_assert_eq!(read(&ours, 0), Some((value, end)));
            prop_assert_eq!(write(&mut ours[..end - 1], 0, value), None);
            prop_assert_eq!(read(&ours[..end - 1], 0), None);
        }

        #[test]
        fn zigzag_is_its_inverse(step: i64) {
            prop_assert_eq!(unzigzag(zigzag(step)), step);
        }
    }
}
