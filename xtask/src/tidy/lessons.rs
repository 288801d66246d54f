//! host/SCALING.md names tests: each of them must be there.

use std::collections::HashSet;
use std::fs;

use anyhow::{Context, Result};

use super::files;
use crate::project;

const DOCUMENT: &str = "host/SCALING.md";

/// Names in the document that no test has.
pub(super) fn findings() -> Result<Vec<String>> {
    let root = project::root();
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let mut known = HashSet::new();
    for path in files::sources(&root)?.iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs")) {
        known.extend(functions(&fs::read_to_string(path).unwrap_or_default()));
    }
    let unknown = named(&text).into_iter().filter(|name| !known.contains(name));
    Ok(unknown.map(|name| format!("{DOCUMENT}: there is no test `{name}`: name the one that shows it now")).collect())
}

/// What the document calls tests: words in back quotes behind "test", with at least three parts.
fn named(text: &str) -> Vec<String> {
    let is_test = |word: &&str| {
        word.matches('_').count() >= 2
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    text.lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(is_test)
        .map(str::to_owned)
        .collect()
}

fn functions(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.trim_start().split_once("fn "));
    names.filter_map(|(_, rest)| rest.split_once('(')).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_are_told_from_other_words() {
        let text = "| a | test `as_1_two_words`, `x_y`, `Big_one_two`, `memory.max_of_all` |\nnot `in_a_table`\n";
        assert_eq!(named(text), ["as_1_two_words"]);
        assert_eq!(functions("    pub async fn one_two(x: u8) {\nlet fn_ = 1;\nfn three() {}"), ["one_two", "three"]);
    }
}
