//! The few facts wanted from 64-bit little-endian ELF files: is it static, and what does a kernel module depend on.

use anyhow::{Context, Result, bail};

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// Needs no loader and no library. A position-independent static file has a dynamic section but no interpreter.
pub fn is_static(file: &[u8]) -> Result<bool> {
    check(file)?;
    let (start, size, count) = (u64_at(file, 0x20)?, u64::from(u16_at(file, 0x36)?), u64::from(u16_at(file, 0x38)?));
    for index in 0..count {
        if u32_at(file, start + index * size)? == PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Loads wherever the kernel likes: has a dynamic section.
pub fn is_position_independent(file: &[u8]) -> Result<bool> {
    check(file)?;
    let (start, size, count) = (u64_at(file, 0x20)?, u64::from(u16_at(file, 0x36)?), u64::from(u16_at(file, 0x38)?));
    for index in 0..count {
        if u32_at(file, start + index * size)? == PT_DYNAMIC {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bytes of the section called `name`.
pub fn section<'a>(file: &'a [u8], name: &str) -> Result<&'a [u8]> {
    check(file)?;
    let (start, size) = (u64_at(file, 0x28)?, u64::from(u16_at(file, 0x3a)?));
    let (count, names_index) = (u64::from(u16_at(file, 0x3c)?), u64::from(u16_at(file, 0x3e)?));
    let contents = |index: u64| -> Result<&'a [u8]> {
        let header = start + index * size;
        slice(file, u64_at(file, header + 0x18)?, u64_at(file, header + 0x20)?)
    };
    let names = contents(names_index)?;
    for index in 0..count {
        let at = usize::try_from(u32_at(file, start + index * size)?)?;
        let found = names.get(at..).and_then(|rest| rest.split(|byte| *byte == 0).next());
        if found == Some(name.as_bytes()) {
            return contents(index);
        }
    }
    bail!("no section `{name}`")
}

fn check(file: &[u8]) -> Result<()> {
    if file.get(..6) != Some(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        bail!("not a 64-bit little-endian ELF file");
    }
    Ok(())
}

fn slice(file: &[u8], at: u64, length: u64) -> Result<&[u8]> {
    let start = usize::try_from(at)?;
    let end = start.checked_add(usize::try_from(length)?).context("ELF offset overflows")?;
    file.get(start..end).context("ELF file ends early")
}

fn u16_at(file: &[u8], at: u64) -> Result<u16> {
    Ok(u16::from_le_bytes(slice(file, at, 2)?.try_into()?))
}

fn u32_at(file: &[u8], at: u64) -> Result<u32> {
    Ok(u32::from_le_bytes(slice(file, at, 4)?.try_into()?))
}

fn u64_at(file: &[u8], at: u64) -> Result<u64> {
    Ok(u64::from_le_bytes(slice(file, at, 8)?.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_itself_is_dynamic_and_has_a_text_section() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(!is_static(&own).unwrap());
        assert!(is_position_independent(&own).unwrap());
        assert!(!section(&own, ".text").unwrap().is_empty());
        assert!(section(&own, ".no-such-section").is_err());
    }

    #[test]
    fn short_or_foreign_files_are_errors() {
        assert!(is_static(b"").is_err());
        assert!(is_static(b"#!/bin/sh\n").is_err());
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(section(&own[..64], ".text").is_err());
    }
}
