//! wire/PROTOCOL.md is in step with the code: it carries a hash of wire/src, so that changing one makes one look at the
//! other. Comments and unit tests do not count.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Crc;

use crate::project;

const DOCUMENT: &str = "wire/PROTOCOL.md";
const BEGIN: &str = "<!-- wire/src: ";
const END: &str = " -->";

pub(super) fn findings() -> Result<Vec<String>> {
    let path = project::root().join(DOCUMENT);
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(vec![format!("{DOCUMENT}: is missing")]);
    };
    let expected = hash_of_sources()?;
    let how = "read it against your change, correct it, then: cargo xtask tidy --bless";
    Ok(match written(&text) {
        Some(found) if found == expected => Vec::new(),
        Some(found) => {
            vec![format!("{DOCUMENT}: was last compared with wire/src {found}, which is now {expected}; {how}")]
        }
        None => vec![format!("{DOCUMENT}: has no line `{BEGIN}{expected}{END}`; {how}")],
    })
}

/// Writes the hash down, as the document's last line when it has none.
pub(super) fn bless() -> Result<()> {
    let path = project::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let blessed = with_hash(&text, &hash_of_sources()?);
    if blessed != text {
        fs::write(&path, blessed).with_context(|| format!("cannot write {DOCUMENT}"))?;
        eprintln!("== {DOCUMENT}: hash of wire/src written down");
    }
    Ok(())
}

fn with_hash(text: &str, hash: &str) -> String {
    let line = format!("{BEGIN}{hash}{END}");
    match written(text) {
        Some(old) => text.replace(&format!("{BEGIN}{old}{END}"), &line),
        None => format!("{}\n\n{line}\n", text.trim_end()),
    }
}

fn written(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(END))
}

fn hash_of_sources() -> Result<String> {
    let dir = project::root().join("wire/src");
    let mut files = Vec::new();
    collect(&dir, &mut files)?;
    files.sort();
    let mut crc = Crc::new();
    for path in files {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        crc.update(path.strip_prefix(&dir)?.to_string_lossy().as_bytes());
        crc.update(normal(&text).as_bytes());
    }
    Ok(format!("{:08x}", crc.sum()))
}

fn collect(dir: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The code without blank lines, whole-line comments and what follows `#[cfg(test)] mod`.
fn normal(text: &str) -> String {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).collect();
    let tests = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod "));
    let mut code = lines[..tests.unwrap_or(lines.len())].join("\n");
    code.push('\n');
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_do_not_count_but_code_does() {
        let plain = normal("pub const A: u8 = 1;\n");
        assert_eq!(normal("//! Doc.\n\n    pub const A: u8 = 1;\n// note\n#[cfg(test)]\nmod tests {}\n"), plain);
        assert_ne!(normal("pub const A: u8 = 2;\n"), plain);
        assert_ne!(normal("#[cfg(test)]\npub const A: u8 = 1;\n"), plain, "a gated item is not the test module");
    }

    #[test]
    fn the_hash_is_replaced_or_added() {
        assert_eq!(written(&with_hash("# P\n\ntext\n", "0123abcd")), Some("0123abcd"));
        assert_eq!(
            with_hash("# P\n<!-- wire/src: 00000000 -->\nx\n", "0123abcd"),
            "# P\n<!-- wire/src: 0123abcd -->\nx\n"
        );
    }
}
