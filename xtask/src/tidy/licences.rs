//! Every dependency's licence must be one that a program under MIT OR Apache-2.0 may be linked with.

use anyhow::{Context, Result};
use serde_json::Value;

/// Permissive ones only. Add one here when a dependency needs it, after reading it.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub(super) fn findings(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        match package["license"].as_str() {
            Some(expression) if allowed(expression) => {}
            Some(expression) => {
                findings.push(format!("{name}: licence `{expression}` is not on xtask's list; choose another crate"));
            }
            None => findings.push(format!("{name}: names no licence; choose another crate")),
        }
    }
    Ok(findings)
}

/// An SPDX expression: `OR` needs one side, `AND` both, `WITH` belongs to its licence. `A/B` is the old way to say OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest).is_some_and(|verdict| verdict && rest.is_empty())
}

fn any(words: &mut &[&str]) -> Option<bool> {
    let mut verdict = all(words)?;
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        verdict |= all(words)?;
    }
    Some(verdict)
}

fn all(words: &mut &[&str]) -> Option<bool> {
    let mut verdict = one(words)?;
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        verdict &= one(words)?;
    }
    Some(verdict)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first == "(" {
        let verdict = any(words)?;
        let (closing, rest) = words.split_first()?;
        *words = rest;
        return (*closing == ")").then_some(verdict);
    }
    let mut licence = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = words {
        licence = format!("{licence} WITH {exception}");
        *words = rest;
    }
    Some(ALLOWED.contains(&licence.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "Apache-2.0/MIT",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT",
            "MIT)",
            "MIT OR",
            "Apache-2.0 WITH Other-exception",
            "MIT GPL-3.0",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
