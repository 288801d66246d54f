//! Byte parsers for the text the kernel prints: lines, fields, decimal numbers, CPU lists, `key value` tables.
//!
//! No allocation, no UTF-8, no panic: a piece that is not understood is `None` and takes nothing else with it.

/// The lines of a file, without their ends; a last one without a newline counts.
pub fn lines(bytes: &[u8]) -> Lines<'_> {
    Lines { rest: bytes }
}

/// Iterator of [`lines`].
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// What was not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = find(self.rest, b'\n').unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(line)
    }
}

/// The first `wanted` byte, eight bytes at a step: `intr` lines have tens of thousands of bytes.
#[must_use]
pub fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (chunks, tail) = bytes.as_chunks::<8>();
    let pattern = LOW * u64::from(wanted);
    for (i, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk) ^ pattern;
        // A zero byte borrows into its high bit; the lowest such byte is exact.
        let zero = word.wrapping_sub(LOW) & !word & HIGH;
        if zero != 0 {
            return Some(i * 8 + (zero.trailing_zeros() / 8) as usize);
        }
    }
    tail.iter().position(|byte| *byte == wanted).map(|i| chunks.len() * 8 + i)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// The fields of a line: what stands between runs of blanks, tabs and carriage returns.
pub fn fields(line: &[u8]) -> Fields<'_> {
    Fields { rest: line }
}

/// Iterator of [`fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.rest.iter().position(|byte| !is_blank(*byte))?;
        let (_, rest) = self.rest.split_at_checked(start)?;
        let end = rest.iter().position(|byte| is_blank(*byte)).unwrap_or(rest.len());
        let (field, rest) = rest.split_at_checked(end)?;
        self.rest = rest;
        Some(field)
    }
}

/// Without blanks, tabs and line ends at both ends.
#[must_use]
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

/// A decimal number, digits only. From 2^63 on it is a negative number that the kernel printed as unsigned: `None`.
#[must_use]
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0_u64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits stay below 2^64.
        value = value * 10 + u64::from(digit);
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// The only number of a one-line file; `None` for anything beside it.
#[must_use]
pub fn only_number(bytes: &[u8]) -> Option<u64> {
    number(trim(bytes))
}

/// A hexadecimal number without prefix, as sysfs prints memory block sizes.
#[must_use]
pub fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// A decimal with at most two digits after the point that count, in hundredths: `0.5` is 50, `12.349` is 1234.
#[must_use]
pub fn hundredths(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match find(text, b'.') {
        Some(point) => (text.get(..point)?, text.get(point + 1..)?),
        None => (text, &b"0"[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |i: usize| fraction.get(i).map_or(0, |byte| u64::from(byte - b'0'));
    number(whole)?.checked_mul(100)?.checked_add(digit(0) * 10 + digit(1))
}

/// `key=value`.
#[must_use]
pub fn pair(field: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = find(field, b'=')?;
    Some((field.get(..at)?, field.get(at + 1..)?))
}

/// FNV-1a: tells one table, or one path, from another.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The key of each line of a `key value` file that is wanted, and what it stands for, in the kernel's own order.
#[derive(Debug)]
pub struct Keys<T: 'static> {
    entries: &'static [(&'static [u8], T)],
    /// A bit a (length, first byte) of some key: most lines nobody wants fail here.
    filter: u64,
    /// What ends a key.
    end: u8,
}

impl<T: Copy> Keys<T> {
    /// `end`: the byte behind each key, a colon or a blank.
    #[must_use]
    pub const fn new(entries: &'static [(&'static [u8], T)], end: u8) -> Self {
        let (mut filter, mut i) = (0_u64, 0);
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, over constants")]
        while i < entries.len() {
            filter |= 1_u64 << Self::class(entries[i].0);
            i += 1;
        }
        Self { entries, filter, end }
    }

    const fn class(key: &[u8]) -> usize {
        match key {
            [first, ..] => (key.len() * 11 + *first as usize) % 64,
            [] => 0,
        }
    }

    /// Calls `found` with each wanted value. The search for a key begins behind the one found before: in a file that
    /// keeps the kernel's order it costs one comparison.
    pub fn read(&self, bytes: &[u8], mut found: impl FnMut(T, u64)) {
        let mut next = 0;
        for line in lines(bytes) {
            let Some(end) = line.iter().position(|byte| *byte == self.end) else { continue };
            let (Some(key), Some(value)) = (line.get(..end), line.get(end + 1..)) else { continue };
            if self.filter & (1_u64 << Self::class(key)) == 0 {
                continue;
            }
            let behind = self.entries.iter().enumerate().skip(next);
            let before = self.entries.iter().enumerate().take(next);
            let Some((i, (_, meaning))) = behind.chain(before).find(|(_, (wanted, _))| *wanted == key) else {
                continue;
            };
            next = i + 1;
            let mut fields = fields(value);
            let Some(value) = fields.next().and_then(number) else { continue };
            if fields.next().is_none_or(|unit| unit == b"kB") {
                found(*meaning, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"9223372036854775807"), Some(i64::MAX as u64));
        for bad in [&b""[..], b"-1", b"+1", b"1 ", b"0x1", b"9223372036854775808", b"18446744073709551615", b"1.0"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        assert_eq!(only_number(b" 100\r\n"), Some(100));
        assert_eq!(only_number(b"\n"), None);
        assert_eq!(only_number(b"1 2"), None);
        assert_eq!(hexadecimal(b"8000000"), Some(134_217_728));
        assert_eq!(hexadecimal(b"g"), None);
        for (text, value) in [(&b"0.5"[..], 50), (b"12.349", 1234), (b"7", 700), (b"7.", 700), (b"0.00", 0)] {
            assert_eq!(hundredths(text), Some(value));
        }
        for bad in [&b""[..], b".5", b"-1.00", b"1.x", b"nan", b"9223372036854775807.00"] {
            assert_eq!(hundredths(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn find_is_the_first_position(bytes in prop::collection::vec(0_u8..4, 0..64), wanted in 0_u8..4) {
            prop_assert_eq!(find(&bytes, wanted), bytes.iter().position(|byte| *byte == wanted));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for line in lines(&bytes) {
                for field in fields(line) {
                    let _ = (number(field), hexadecimal(field), hundredths(field), pair(field));
                }
            }
            prop_assert_eq!(lines(&bytes).collect::<Vec<_>>().join(&b'\n').len(), bytes.strip_suffix(b"\n").unwrap_or(&bytes).len());
        }
    }
}
