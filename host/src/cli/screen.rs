//! A picture on the terminal that is drawn again and again. The terminal's other screen is used, and given back
//! however the command ends (short of kill -9).

use std::fmt::Write as _;
use std::io::{self, Write};

/// To the other screen, cursor away.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Back to what was there before.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The other screen, while this lives.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        write_all(ENTER)?;
        Ok(Self(()))
    }

    /// Draws `lines` from the top; those that do not fit below `rows` are left out. One write, nothing is cleared
    /// before it is overwritten: no flicker.
    pub(super) fn draw(&self, lines: &[String], rows: usize) -> io::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (index, line) in lines.iter().take(rows).enumerate() {
            let newline = if index > 0 { "\r\n" } else { "" };
            let _ = write!(text, "{newline}{line}\x1b[K");
        }
        text.push_str("\x1b[J");
        write_all(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to give back.
        let _ = write_all(LEAVE);
    }
}

fn write_all(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
