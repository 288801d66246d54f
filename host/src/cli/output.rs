//! Standard output and standard error: whole texts, colours only where they are wanted, JSON that a terminal may
//! show. A write error is an error, never a panic.

use super::escape::shows_as_itself;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Whether standard output takes colours: a terminal, and `NO_COLOR` unset or empty (<https://no-color.org>).
#[must_use]
pub(super) fn colours() -> bool {
    let unwanted = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !unwanted("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns of the terminal on standard output; `None` when it is none.
#[must_use]
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let (terminal_size::Width(columns), terminal_size::Height(rows)) = terminal_size::terminal_size_of(io::stdout())?;
    // A serial console knows no size and says 0.
    Some((if columns == 0 { 80 } else { columns.into() }, if rows == 0 { 24 } else { rows.into() }))
}

/// Writes lines to standard output.
pub(super) fn print_lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    for line in lines {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// One line to standard error, under the program's name.
pub(super) fn complain(message: &str) {
    // Nowhere is left to complain that this failed.
    let _ = writeln!(io::stderr(), "informant-host: {message}");
}

/// JSON text in which every character shows as itself: others than ASCII are valid in JSON, and would still be
/// obeyed by a terminal. Means the same.
#[must_use]
pub(super) fn harmless_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // Between strings JSON has only spaces and newlines; within them serde_json has escaped ASCII's controls.
        if shows_as_itself(character) || matches!(character, '\n' | '\\') {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_hides_nothing_from_a_reader_and_moves_no_cursor() {
        let text = serde_json::to_string(&["a\u{9b}2J\u{202e}\u{7f}\x1b", "漢 \\ \"", "\u{e0041}"]).unwrap();
        let shown = harmless_json(&text);
        assert_eq!(shown, r#"["a\u009b2J\u202e\u007f\u001b","漢 \\ \"","\udb40\udc41"]"#);
    }

    proptest! {
        #[test]
        fn harmless_json_means_the_same(strings in any::<Vec<String>>()) {
            let text = serde_json::to_string_pretty(&strings).unwrap();
            let shown = harmless_json(&text);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), strings);
        }
    }
}
