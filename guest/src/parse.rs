//! Byte parsers for the text the kernel prints: lines, fields, decimal numbers, CPU lists, `key value` tables.
//!
//! No allocation, no UTF-8, no panic: a piece that is not understood is `None` and takes nothing else with it.

mod keys;

pub use keys::{Keys, Places};

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

const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// Bit 7 of each zero byte of a word is set; above the lowest of them others may be.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & (LOW_BITS << 7)
}

/// The first `wanted` byte, eight bytes at a step: `intr` lines have tens of thousands of bytes.
#[must_use]
pub fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    let pattern = LOW_BITS * u64::from(wanted);
    first(bytes, |word| zero_bytes(word ^ pattern), |byte| byte == wanted)
}

/// The first byte that is one of two.
fn find_either(bytes: &[u8], one: u8, other: u8) -> Option<usize> {
    let (a, b) = (LOW_BITS * u64::from(one), LOW_BITS * u64::from(other));
    first(bytes, |word| zero_bytes(word ^ a) | zero_bytes(word ^ b), |byte| byte == one || byte == other)
}

fn first(bytes: &[u8], in_word: impl Fn(u64) -> u64, is_it: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let found = in_word(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(at + (found.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    for byte in tail {
        if is_it(*byte) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Whether two names are the same, eight bytes at a step: what the C library of the agent does is one at a step.
#[must_use]
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    let ((a_words, a_tail), (b_words, b_tail)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let word = |chunk: &[u8; 8]| u64::from_le_bytes(*chunk);
    a.len() == b.len()
        && a_words.iter().zip(b_words).all(|(a, b)| word(a) == word(b))
        && a_tail.iter().zip(b_tail).all(|(a, b)| a == b)
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

impl<'a> Fields<'a> {
    /// What was not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let mut field = self.rest;
        while let [byte, rest @ ..] = field
            && is_blank(*byte)
        {
            field = rest;
        }
        let mut length = 0;
        for byte in field {
            if is_blank(*byte) {
                break;
            }
            length += 1;
        }
        let (field, rest) = field.split_at_checked(length)?;
        self.rest = rest;
        (length > 0).then_some(field)
    }
}

/// The fields of a line, each as [`number`] reads it.
pub fn numbers(line: &[u8]) -> Numbers<'_> {
    Numbers { rest: line }
}

/// Iterator of [`numbers`].
#[derive(Clone, Debug)]
pub struct Numbers<'a> {
    rest: &'a [u8],
}

impl Iterator for Numbers<'_> {
    type Item = Option<u64>;

    fn next(&mut self) -> Option<Option<u64>> {
        let mut rest = self.rest;
        // Numbers in columns have many blanks before them.
        while let Some((b"    ", behind)) = rest.split_first_chunk() {
            rest = behind;
        }
        while let [byte, behind @ ..] = rest
            && is_blank(*byte)
        {
            rest = behind;
        }
        let (begin, mut value) = (rest.len(), 0_u64);
        while let [byte @ b'0'..=b'9', behind @ ..] = rest {
            value = value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            rest = behind;
        }
        let digits = begin - rest.len();
        while let [byte, behind @ ..] = rest
            && !is_blank(*byte)
        {
            rest = behind;
        }
        self.rest = rest;
        let length = begin - rest.len();
        // See `number` for both bounds.
        let is_number = length == digits && digits <= 19 && value <= i64::MAX as u64;
        (length > 0).then_some(is_number.then_some(value))
    }
}

/// Fills columns from the fields of a line; what is not there, or no number, is `None`. Whether any is a number.
pub fn columns(line: &[u8], values: &mut [Option<u64>]) -> bool {
    let (mut numbers, mut any) = (numbers(line), false);
    for value in values {
        *value = numbers.next().flatten();
        any |= value.is_some();
    }
    any
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

/// Tells one text from another: a table of mounts from the one before, a path from the others of its table.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, tail) = bytes.as_chunks::<8>();
    let step = |hash: u64, word: u64| (hash.rotate_left(29) ^ word).wrapping_mul(FACTOR);
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| step(hash, u64::from_le_bytes(*word)));
    tail.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_plain_and_fit_63_bits() {
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
        fn equal_is_equality(a in prop::collection::vec(0_u8..2, 0..20), b in prop::collection::vec(0_u8..2, 0..20)) {
            prop_assert_eq!(equal(&a, &b), a == b);
            prop_assert!(equal(&a, &a.clone()));
        }

        #[test]
        fn numbers_are_those_of_the_fields(line in "[0-9 \\t\\rx-]{0,60}") {
            prop_assert!(numbers(line.as_bytes()).eq(fields(line.as_bytes()).map(number)));
        }

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
                prop_assert!(numbers(line).eq(fields(line).map(number)));
            }
            prop_assert_eq!(lines(&bytes).collect::<Vec<_>>().join(&b'\n').len(), bytes.strip_suffix(b"\n").unwrap_or(&bytes).len());
        }
    }
}
