//! Bit sets as plain bytes: bit `i` is bit `i % 8` (least significant first) of byte `i / 8`, as on the wire.

/// Bytes that hold `bits` bits.
#[must_use]
pub const fn bytes_for(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Bit `i`; false outside the set.
#[must_use]
pub fn get(set: &[u8], i: usize) -> bool {
    set.get(i / 8).is_some_and(|byte| byte & (1 << (i % 8)) != 0)
}

/// Sets or clears bit `i`; nothing outside the set.
pub fn put(set: &mut [u8], i: usize, value: bool) {
    if let Some(byte) = set.get_mut(i / 8) {
        let mask = 1 << (i % 8);
        *byte = if value { *byte | mask } else { *byte & !mask };
    }
}

/// Clears the bits `from..to`; nothing outside the set.
pub fn clear(set: &mut [u8], from: usize, to: usize) {
    if from >= to {
        return;
    }
    let (first, last) = (from / 8, (to - 1) / 8);
    // What stays: below `from` in the first byte, from `to` on in the last.
    let (low, high) = (!(0xff_u8 << (from % 8)), !(0xff_u8 >> (7 - (to - 1) % 8)));
    if first == last {
        if let Some(byte) = set.get_mut(first) {
            *byte &= low | high;
        }
        return;
    }
    let end = set.len().min(last + 1);
    for (i, byte) in set.iter_mut().enumerate().take(end).skip(first) {
        *byte &= if i == first {
            low
        } else if i == last {
            high
        } else {
            0
        };
    }
}

/// Whether every bit from `bits` to the end of the last byte is zero.
#[must_use]
pub fn padding_is_zero(set: &[u8], bits: usize) -> bool {
    bits.is_multiple_of(8) || set.get(bits / 8).is_none_or(|last| last >> (bits % 8) == 0)
}

/// How many bits are set.
#[must_use]
pub fn count(set: &[u8]) -> usize {
    set.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// The numbers of the bits that are set, in order.
pub fn ones(set: impl IntoIterator<Item = u8>) -> impl Iterator<Item = usize> {
    set.into_iter().enumerate().flat_map(|(at, byte)| {
        let mut rest = byte;
        core::iter::from_fn(move || {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (bit < 8).then_some(at * 8 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_significant_bit_first() {
        let mut set = [0_u8; 2];
        put(&mut set, 0, true);
        put(&mut set, 9, true);
        put(&mut set, 99, true);
        assert_eq!(set, [1, 2]);
        assert!(get(&set, 9) && !get(&set, 8) && !get(&set, 99));
        put(&mut set, 0, false);
        assert_eq!((set, count(&set)), ([0, 2], 1));
        assert!(padding_is_zero(&set, 10) && !padding_is_zero(&set, 9));
        assert!(ones([0x81, 0, 0xff]).eq([0, 7, 16, 17, 18, 19, 20, 21, 22, 23]));
    }

    #[test]
    fn a_range_is_cleared_and_nothing_beside_it() {
        for from in 0..40 {
            for to in 0..40 {
                let mut set = [0xff_u8; 4];
                clear(&mut set, from, to);
                for i in 0..32 {
                    assert_eq!(get(&set, i), !(from..to).contains(&i), "{from}..{to}: {i}");
                }
            }
        }
    }
}
