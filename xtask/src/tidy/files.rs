//! What lies where: the top level, the first line of every source file, no path of somebody's machine.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::project;

/// Dotfiles may stand beside these.
const TOP_LEVEL: &[&str] = &[
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "guest",
    "host",
    "images",
    "wire",
    "xtask",
];
/// Made by building.
const NOT_OURS: &[&str] = &["target", ".git"];

pub(super) fn findings() -> Result<Vec<String>> {
    let root = project::root();
    let mut findings = Vec::new();
    for entry in fs::read_dir(&root).with_context(|| format!("cannot read {}", root.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) && !TOP_LEVEL.contains(&name.as_str()) {
            findings.push(format!(
                "{name}: does not belong at the top level; move it into guest, host, wire, xtask or images"
            ));
        }
    }
    let machine_paths = machine_paths(&root);
    for path in sources(&root)? {
        let Ok(bytes) = fs::read(&path) else { continue };
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        let shown = project::shown(&path);
        if path.extension().is_some_and(|extension| extension == "rs") && !text.starts_with("//!") {
            findings.push(format!("{shown}: must begin with a `//!` line that says what the file is for"));
        }
        findings.extend(of_text(&shown, text, &machine_paths));
    }
    Ok(findings)
}

fn of_text(shown: &str, text: &str, machine_paths: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(path) = machine_paths.iter().find(|path| line.contains(path.as_str())) {
            findings.push(format!(
                "{shown}:{}: names a directory of this machine, {path}; write it relative or leave it out",
                number + 1
            ));
        }
        if shown.ends_with(".rs") && line.ends_with([' ', '\t']) {
            findings.push(format!("{shown}:{}: blank at the end of the line; cargo fmt", number + 1));
        }
    }
    findings
}

/// Only what cannot stand in a text by chance.
fn machine_paths(root: &Path) -> BTreeSet<String> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let mut paths: Vec<PathBuf> = vec![root.to_path_buf()];
    if let Some(home) = home {
        paths.extend([".cargo/registry", ".rustup/toolchains", ".cache/informant"].map(|dir| home.join(dir)));
    }
    paths.into_iter().map(|path| format!("{}/", path.display())).filter(|path| path.matches('/').count() > 2).collect()
}

/// Every file that is ours, without what building makes.
pub(super) fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            // Fixture trees have links that lead nowhere.
            let kind = entry.file_type()?;
            if kind.is_dir() && !NOT_OURS.iter().any(|other| name == *other) {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_path_and_a_trailing_blank_are_found_with_their_line() {
        let paths = BTreeSet::from(["/srv/build/informant/".to_owned()]);
        let found = of_text("host/src/a.rs", "one\nsee /srv/build/informant/host\nthree \n", &paths);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("host/src/a.rs:2: names a directory"), "{found:?}");
        assert!(found[1].starts_with("host/src/a.rs:3: blank"), "{found:?}");
        assert!(of_text("README.md", "a line break  \n", &paths).is_empty());
    }

    #[test]
    fn a_short_path_is_not_searched_for() {
        assert!(!machine_paths(Path::new("/w")).contains("/w/"));
        assert!(machine_paths(Path::new("/srv/build")).contains("/srv/build/"));
    }
}
