//! Text that came from a guest, made harmless for a terminal: no byte of it can move the cursor, change a colour,
//! reorder the line or hide what follows. Must not be used for JSON, which has its own escapes.

use unicode_width::UnicodeWidthChar;

/// The mark of a text that was cut.
const CUT: char = '…';
/// Display columns of [`CUT`].
const CUT_WIDTH: usize = 1;

/// Columns that `text` takes on a terminal. Only meaningful for text that went through [`escape`].
#[must_use]
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// `text` as a terminal may show it, at most `max_columns` wide; what is longer is cut and ends with `…`.
///
/// Every character that does not show as itself becomes an escape as in a Rust string: control characters, line and
/// paragraph separators, unassigned and private ones, zero-width and format characters (which hold the bidirectional
/// overrides, and combining marks, of which a guest could stack thousands on one column), and letters of scripts that
/// are written from the right, beside which a terminal may put the numbers that follow in another order. A backslash is doubled, so
/// that `\n` in the output is always an escape. Spaces at either end are escaped, since nobody would see them.
#[must_use]
pub(super) fn escape(text: &str, max_columns: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max_columns * 4));
    let mut columns = 0;
    // Where to cut if the text turns out too long: the last place that leaves room for the mark.
    let mut cut_at = 0;
    let last = text.trim_end_matches(' ').len();
    let first = text.len() - text.trim_start_matches(' ').len();
    for (index, character) in text.char_indices() {
        let start = out.len();
        if character == ' ' && (index < first || index >= last) {
            out.push_str("\\x20");
        } else if shows_as_itself(character) {
            out.push(character);
        } else if character.escape_debug().len() > 1 {
            out.extend(character.escape_debug());
        } else {
            out.extend(character.escape_unicode());
        }
        columns += width(out.get(start..).unwrap_or_default());
        if columns > max_columns {
            out.truncate(cut_at);
            if max_columns > 0 {
                out.push(CUT);
            }
            return out;
        }
        if columns + CUT_WIDTH <= max_columns {
            cut_at = out.len();
        }
    }
    out
}

/// Whether a terminal shows a character as itself, in a column or two of its own: the standard library's table of
/// printable characters without its care for quotes. A backslash does not count: it begins escapes.
pub(super) fn shows_as_itself(character: char) -> bool {
    let plain = matches!(character, '"' | '\'') || character.escape_debug().len() == 1;
    plain && character.width().is_some_and(|width| width > 0) && !is_written_from_the_right(character)
}

/// The blocks whose letters are of bidirectional class R or AL (Unicode's `DerivedBidiClass.txt`, its defaults too).
const fn is_written_from_the_right(character: char) -> bool {
    matches!(character,
        '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_text_stays() {
        for text in ["web-1", "/var/lib/a b", "it's \"x\"", "データ", "schöne Größe", ""] {
            assert_eq!(escape(text, 80), text);
        }
    }

    #[test]
    fn terminal_sequences_and_controls_are_spelled_out() {
        assert_eq!(escape("a\x1b[31mb\x1b]0;t\x07", 80), r"a\u{1b}[31mb\u{1b}]0;t\u{7}");
        assert_eq!(escape("a\r\nb\tc\u{9b}2J\u{7f}", 80), r"a\r\nb\tc\u{9b}2J\u{7f}");
    }

    #[test]
    fn bidirectional_zero_width_and_combining_characters_are_spelled_out() {
        assert_eq!(escape("a\u{202e}b\u{2066}c\u{200f}", 80), r"a\u{202e}b\u{2066}c\u{200f}");
        assert_eq!(escape("a\u{200b}b\u{feff}c\u{ad}", 80), r"a\u{200b}b\u{feff}c\u{ad}");
        assert_eq!(escape("e\u{301}\u{301}", 80), r"e\u{301}\u{301}");
        assert_eq!(escape("a\u{2028}b\u{e000}\u{e0041}", 80), r"a\u{2028}b\u{e000}\u{e0041}");
    }

    #[test]
    fn letters_written_from_the_right_are_spelled_out() {
        assert_eq!(escape("\u{5d0}1 2", 80), r"\u{5d0}1 2");
        assert_eq!(escape("\u{645}\u{1e900}", 80), r"\u{645}\u{1e900}");
    }

    #[test]
    fn a_backslash_cannot_pose_as_an_escape() {
        assert_eq!(escape(r"\u{1b}", 80), r"\\u{1b}");
    }

    #[test]
    fn invisible_spaces_at_the_ends_are_spelled_out() {
        assert_eq!(escape("  a b ", 80), r"\x20\x20a b\x20");
        assert_eq!(escape("\u{a0}a\u{3000}", 80), r"\u{a0}a\u{3000}");
    }

    #[test]
    fn long_text_is_cut_by_columns_not_characters() {
        assert_eq!(escape("abcdef", 6), "abcdef");
        assert_eq!(escape("abcdefg", 6), "abcde…");
        assert_eq!(escape("漢字漢字", 8), "漢字漢字");
        assert_eq!(escape("漢字漢字", 7), "漢字漢…");
        assert_eq!(escape("漢字漢字", 6), "漢字…");
        // An escape is kept whole or not at all.
        assert_eq!(escape("ab\x1bcd", 6), "ab…");
        assert_eq!(escape("x", 0), "");
    }

    proptest! {
        #[test]
        fn nothing_dangerous_survives_and_the_width_holds(text in any::<String>(), max in 0usize..60) {
            let safe = escape(&text, max);
            prop_assert!(width(&safe) <= max);
            prop_assert!(safe.chars().all(|c| !c.is_control() && c.width().is_some_and(|w| w > 0)));
            let bidi = ['\u{202a}', '\u{202b}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{200f}'];
            prop_assert_eq!(safe.find(bidi), None);
        }
    }
}
