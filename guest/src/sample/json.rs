//! Just enough JSON to write samples: strings, integers, exact ratios. See RFC 8259.

use std::io::Write;

/// A string of any bytes; what is not UTF-8 is escaped as `sample` documents.
pub(super) fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let is_plain = std::str::from_utf8(bytes).is_ok() && !looks_escaped(bytes);
    for chunk in bytes.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                // A backslash of the name: one in the text, written as JSON wants it.
                b'\\' if is_plain => out.extend_from_slice(b"\\\\"),
                b'\\' => out.extend_from_slice(b"\\\\\\\\"),
                0..0x20 | 0x7f => _ = write!(out, "\\u{byte:04x}"),
                _ => out.push(byte),
            }
        }
        for byte in chunk.invalid() {
            _ = write!(out, "\\\\x{byte:02x}");
        }
    }
    out.push(b'"');
}

/// Whether a name contains what stands for an odd byte: `\x80` to `\xff`. systemd's `\x2d` is none of them.
fn looks_escaped(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|four| matches!(four, [b'\\', b'x', b'8' | b'9' | b'a'..=b'f', b'0'..=b'9' | b'a'..=b'f']))
}

/// A whole number.
pub(super) fn integer(out: &mut Vec<u8>, value: u128) {
    _ = write!(out, "{value}");
}

/// `value / divisor`, without a fraction where there is none, else with as many of nine digits as are needed.
pub(super) fn ratio(out: &mut Vec<u8>, value: u128, divisor: u128) {
    const DIGITS: u128 = 1_000_000_000;
    let divisor = divisor.max(1);
    integer(out, value / divisor);
    let fraction = (value % divisor).saturating_mul(DIGITS) / divisor;
    if fraction > 0 {
        let start = out.len();
        _ = write!(out, ".{fraction:09}");
        while out.len() > start && out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn written(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        text(&mut out, bytes);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn names_with_odd_bytes_quotes_and_escapes() {
        for (name, expected) in [
            (&b"eth0"[..], "eth0"),
            (b"a\"b\\c\td\n\0", "a\"b\\c\td\n\0"),
            (br"dev\x2ddisk", r"dev\x2ddisk"),
            (b"x\xe9", r"x\xe9"),
            (br"x\xe9", r"x\\xe9"),
            (b"\\\xe9", r"\\\xe9"),
            ("grüße".as_bytes(), "grüße"),
        ] {
            assert_eq!(written(name), expected);
        }
    }

    #[test]
    fn numbers() {
        let number = |value, divisor| {
            let mut out = Vec::new();
            ratio(&mut out, value, divisor);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(number(18_446_744_073_709, 1_000_000), "18446744.073709");
        assert_eq!(number(50, 100), "0.5");
        assert_eq!(number(200, 100), "2");
        assert_eq!(number(1, 3), "0.333333333");
        assert_eq!(number(u128::from(u64::MAX) * 1024, 1), "18889465931478580853760");
    }

    proptest! {
        #[test]
        fn two_names_never_become_one(names in prop::collection::vec(
            prop::collection::vec(prop::sample::select(b"\\xe98\xe9\x98a".to_vec()), 0..7), 2..200))
        {
            let mut seen = BTreeMap::new();
            for name in names {
                if let Some(other) = seen.insert(written(&name), name.clone()) {
                    prop_assert_eq!(other, name);
                }
            }
        }

        #[test]
        fn any_bytes_are_a_json_string(name in prop::collection::vec(any::<u8>(), 0..60)) {
            written(&name);
        }
    }
}
