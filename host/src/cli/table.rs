//! Tables aligned by display width. Cells must already be harmless (see [`super::escape`]); colours are added here,
//! outside of what is measured. Knows no instance and no metric.

use super::escape::{escape, width};
use std::fmt::Write as _;

/// Blank columns between two cells.
const GAP: usize = 2;

/// How a cell stands out, where colours are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    /// As the terminal writes.
    #[default]
    Plain,
    /// Less important.
    Dim,
    /// A heading.
    Bold,
    /// As it should be.
    Good,
    /// Wants a look.
    Warning,
    /// Wrong.
    Bad,
}

impl Style {
    const fn code(self) -> Option<&'static str> {
        Some(match self {
            Self::Plain => return None,
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
        })
    }

    /// `text` in this style, or as it is without colours.
    #[must_use]
    pub(super) fn paint(self, text: &str, colours: bool) -> String {
        match self.code() {
            Some(code) if colours && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// One cell: harmless text and its style.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell of text that this program made.
    #[must_use]
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::Plain }
    }

    /// A cell of text from outside: escaped, and cut to `max_columns`.
    #[must_use]
    pub(super) fn foreign(text: &str, max_columns: usize) -> Self {
        Self::new(escape(text, max_columns))
    }

    /// The same cell in another style.
    #[must_use]
    pub(super) const fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

/// At which side a column's cells line up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A heading and rows of as many cells.
#[derive(Clone, Debug)]
pub(super) struct Table<const N: usize> {
    heading: [(&'static str, Align); N],
    rows: Vec<[Cell; N]>,
}

impl<const N: usize> Table<N> {
    /// An empty table. Headings are ASCII; empty ones everywhere: no heading line.
    #[must_use]
    pub(super) const fn new(heading: [(&'static str, Align); N]) -> Self {
        Self { heading, rows: Vec::new() }
    }

    /// Adds a row at the end.
    pub(super) fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// The lines, each without its newline and without blanks at its end, at most `max_columns` wide.
    #[must_use]
    pub(super) fn lines(&self, colours: bool, max_columns: Option<usize>) -> Vec<String> {
        let widths = self.widths();
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        if self.heading.iter().any(|(title, _)| !title.is_empty()) {
            let cells = self.heading.map(|(title, _)| Cell::new(title).style(Style::Bold));
            lines.push(self.line(&cells, &widths, colours, max_columns));
        }
        lines.extend(self.rows.iter().map(|cells| self.line(cells, &widths, colours, max_columns)));
        lines
    }

    fn widths(&self) -> [usize; N] {
        let mut widths = self.heading.map(|(title, _)| title.len());
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(&cell.text));
            }
        }
        widths
    }

    fn line(&self, cells: &[Cell; N], widths: &[usize; N], colours: bool, max_columns: Option<usize>) -> String {
        let mut line = String::new();
        // Blanks that are owed: written only when something follows them.
        let mut blanks = 0;
        let mut columns = 0;
        for ((cell, (_, align)), widest) in cells.iter().zip(&self.heading).zip(widths) {
            let own = width(&cell.text);
            let padding = widest - own;
            if *align == Align::Right {
                blanks += padding;
            }
            if own > 0 {
                let room = max_columns.map_or(usize::MAX, |max| max.saturating_sub(columns + blanks));
                if room == 0 {
                    break;
                }
                let _ = write!(line, "{:blanks$}", "");
                if own <= room {
                    line.push_str(&cell.style.paint(&cell.text, colours));
                } else {
                    line.push_str(&cell.style.paint(&cut(&cell.text, room), colours));
                    break;
                }
                columns += blanks + own;
                blanks = 0;
            }
            blanks += GAP;
            if *align == Align::Left {
                blanks += padding;
            }
        }
        line
    }
}

/// `text`, which is harmless already, cut to `max_columns`.
fn cut(text: &str, max_columns: usize) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let mut buffer = [0; 4];
        if width(&out) + width(character.encode_utf8(&mut buffer)) + 1 > max_columns {
            break;
        }
        out.push(character);
    }
    if max_columns > 0 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table<3> {
        let mut table = Table::new([("NAME", Align::Left), ("CPU", Align::Right), ("AGENT", Align::Left)]);
        table.row([Cell::new("web-1"), Cell::new("3.0 %"), Cell::new("0.1.0")]);
        table.row([Cell::foreign("データ", 20), Cell::new("100.0 %").style(Style::Warning), Cell::default()]);
        table.row([Cell::foreign("e\x1b[2J", 20), Cell::default(), Cell::foreign(&"x".repeat(300), 10)]);
        table
    }

    #[test]
    fn columns_line_up_by_display_width() {
        assert_eq!(
            sample().lines(false, None),
            [
                "NAME            CPU  AGENT",
                "web-1         3.0 %  0.1.0",
                "データ      100.0 %",
                "e\\u{1b}[2J           xxxxxxxxx…",
            ]
        );
    }

    #[test]
    fn colours_change_no_alignment() {
        let coloured = sample().lines(true, None);
        assert_eq!(coloured[2], "データ      \x1b[33m100.0 %\x1b[0m");
        assert_eq!(coloured[1], "web-1         3.0 %  0.1.0");
    }

    #[test]
    fn lines_are_cut_to_the_terminal() {
        for max in 0..40 {
            for (line, whole) in sample().lines(false, Some(max)).iter().zip(sample().lines(false, None)) {
                assert!(width(line) <= max, "{line:?}");
                assert!(width(&whole) > max || *line == whole, "{line:?} {whole:?}");
            }
        }
        assert_eq!(sample().lines(false, Some(21))[1], "web-1         3.0 %");
        assert_eq!(sample().lines(false, Some(17))[1], "web-1         3.…");
    }
}
