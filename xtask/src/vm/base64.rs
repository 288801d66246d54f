//! Base64 as busybox speaks it, for scripts and output on a serial line.

use anyhow::{Result, bail};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = [chunk[0], chunk.get(1).copied().unwrap_or(0), chunk.get(2).copied().unwrap_or(0)];
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(if place > chunk.len() { '=' } else { char::from(DIGITS[digit as usize]) });
        }
    }
    text
}

/// Blanks and line ends are skipped.
pub(super) fn decode(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()) {
        if byte == b'=' {
            break;
        }
        let Some(digit) = DIGITS.iter().position(|known| *known == byte) else {
            bail!("not base64: byte {byte:#04x}");
        };
        bits = (bits << 6) | u32::try_from(digit)?;
        count += 1;
        if count == 4 {
            bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
            (bits, count) = (0, 0);
        }
    }
    match count {
        0 => {}
        2 => bytes.push(bits.to_be_bytes()[3] >> 4 | bits.to_be_bytes()[2] << 4),
        3 => bytes.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
        _ => bail!("base64 ends in the middle of a byte"),
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_both_ways() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded.as_bytes()).unwrap(), plain.as_bytes());
        }
    }

    #[test]
    fn every_byte_survives_and_line_ends_are_skipped() {
        let all: Vec<u8> = (0..=255).collect();
        let coded = encode(&all);
        let lines: Vec<&str> = coded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        assert_eq!(decode(lines.join("\r\n").as_bytes()).unwrap(), all);
    }

    #[test]
    fn other_text_is_an_error() {
        assert!(decode(b"Zm9v[  12.3] kernel").is_err());
        assert!(decode(b"Z").is_err());
    }
}
