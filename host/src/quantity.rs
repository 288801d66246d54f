//! Amounts of CPU and memory as people write them, in `instance.toml` and on the command line.

use informant_wire::size::{Bytes, MilliCpu};

/// What is no amount, in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Of CPU.
    #[error("no number of CPUs: write 2, 1.5 or 500m")]
    Cpu,
    /// Of memory.
    #[error("no amount of memory: write 2GiB, 1536MiB or a number of bytes")]
    Bytes,
}

/// Reads `2`, `1.5` or `500m`: exact thousandths, more than none.
///
/// # Errors
/// For anything else.
pub fn parse_cpu(text: &str) -> Result<MilliCpu, QuantityError> {
    let milli = match text.strip_suffix('m') {
        Some(milli) => digits(milli).and_then(|milli| u32::try_from(milli).ok()),
        None => thousandths(text),
    };
    milli.filter(|milli| *milli > 0).map(MilliCpu).ok_or(QuantityError::Cpu)
}

/// A decimal number with at most three digits behind the point, times a thousand.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part_digits = u32::try_from(part.len()).ok().filter(|digits| *digits <= 3)?;
    let part = if part.is_empty() && !text.contains('.') { 0 } else { digits(part)? };
    let milli = digits(whole)?.checked_mul(1000)?.checked_add(part * 10_u64.pow(3 - part_digits))?;
    u32::try_from(milli).ok()
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Reads bytes with or without a unit (`B`, `KiB`, `MiB`, `GiB`, `TiB`), more than none.
///
/// # Errors
/// For anything else. Powers of ten (`GB`) are refused: nobody agrees on what they are.
pub fn parse_bytes(text: &str) -> Result<Bytes, QuantityError> {
    const UNITS: [(&str, u64); 5] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];
    let unit = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = unit.unwrap_or((text, 1));
    let bytes = digits(number.trim_end()).and_then(|number| number.checked_mul(scale));
    bytes.filter(|bytes| *bytes > 0).map(Bytes).ok_or(QuantityError::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_exact_thousandths() {
        let good =
            [("2", 2000), ("1.5", 1500), ("500m", 500), ("0.25", 250), ("1.001", 1001), ("4294967.295", u32::MAX)];
        for (text, milli) in good {
            assert_eq!(parse_cpu(text), Ok(MilliCpu(milli)), "{text}");
        }
        for text in ["", "0", "0m", "-1", "1.", ".5", "1.0001", "m", "2 CPUs", "1e3", "4294968", "+1"] {
            assert_eq!(parse_cpu(text), Err(QuantityError::Cpu), "{text}");
        }
    }

    #[test]
    fn memory_has_a_unit_of_two() {
        let good = [("2GiB", 2 << 30), ("1536MiB", 1536 << 20), ("4096", 4096), ("1 TiB", 1 << 40), ("7B", 7)];
        for (text, bytes) in good {
            assert_eq!(parse_bytes(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "0", "2GB", "2G", "-1", "GiB", "1.5GiB", "99999999999TiB", "18446744073709551616"] {
            assert_eq!(parse_bytes(text), Err(QuantityError::Bytes), "{text}");
        }
    }
}
