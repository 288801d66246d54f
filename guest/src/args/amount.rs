//! Amounts as people write them: `2`, `500m` and `1.5` CPUs; `2GiB` and plain bytes.

use informant_wire::size::{Bytes, MilliCpu};

/// Thousandths of a CPU from `2`, `1.5` or `500m`; more than none.
pub(super) fn cpu(text: &str) -> Option<MilliCpu> {
    let milli = if let Some(milli) = text.strip_suffix('m') {
        number(milli)?
    } else {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let thousandths = match part.len() {
            1 => number(part)? * 100,
            2 => number(part)? * 10,
            3 => number(part)?,
            _ => return None,
        };
        number(whole)?.checked_mul(1000)?.checked_add(thousandths)?
    };
    u32::try_from(milli).ok().filter(|milli| *milli > 0).map(MilliCpu)
}

/// Bytes from whole B, KiB, MiB, GiB or TiB; more than none.
pub(super) fn bytes(text: &str) -> Option<Bytes> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at_checked(end)?;
    let unit = match unit {
        "" | "B" => 1,
        "KiB" => Bytes::KIB,
        "MiB" => Bytes::MIB,
        "GiB" => Bytes::GIB,
        "TiB" => 1024 * Bytes::GIB,
        _ => return None,
    };
    number(count)?.checked_mul(unit).filter(|bytes| *bytes > 0).map(Bytes)
}

/// Decimal digits; `u64::from_str` would take a plus sign.
pub(super) fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus() {
        for (text, milli) in [("2", 2000), ("500m", 500), ("1.5", 1500), ("0.25", 250), ("1.125", 1125), ("1m", 1)] {
            assert_eq!(cpu(text), Some(MilliCpu(milli)), "{text}");
        }
        for text in
            ["", "0", "0m", "m", ".5", "1.", "1.0625", "1.5m", "-1", "+1", "1e3", "4294968", "4294967296m", "2 "]
        {
            assert_eq!(cpu(text), None, "{text}");
        }
    }

    #[test]
    fn sizes() {
        let all = [("2GiB", 2 << 30), ("512MiB", 512 << 20), ("1KiB", 1024), ("1TiB", 1 << 40), ("7", 7), ("7B", 7)];
        for (text, count) in all {
            assert_eq!(bytes(text), Some(Bytes(count)), "{text}");
        }
        for text in
            ["", "0", "0GiB", "GiB", "1.5GiB", "2GB", "2G", "2gib", "-1", "+1", "1 GiB", "16777216TiB", "\u{e9}"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
