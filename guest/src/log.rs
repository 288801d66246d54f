//! Log lines on standard error: `informant-guest: warn: message key=value`. At most ten a minute from one place in
//! the code, the rest counted; written only where that does not block; every byte that is not printable ASCII is
//! escaped, because peers' words may stand in them. No allocation.

use crate::clock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::{self, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

const LINES_PER_WINDOW: u32 = 10;
const WINDOW_US: u64 = 60_000_000;
/// Places in the code that are told apart; with more the one silent for longest is forgotten.
const SITES: usize = 32;
/// A line is cut here: less than a pipe takes whole, so that a write after `POLLOUT` does not block.
const LINE: usize = 480;

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Lines that were not written: over the rate, or standard error could not take them.
#[must_use]
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Writes lines of `level` and above from here on. A second call changes nothing.
pub fn init(level: LevelFilter) {
    let stderr = Stderr { level, sites: Mutex::new([const { None }; SITES]) };
    // Fails only when there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(stderr);
}

struct Stderr {
    level: LevelFilter,
    sites: Mutex<[Option<Site>; SITES]>,
}

struct Site {
    id: Identifier,
    window_us: u64,
    lines: u32,
    suppressed: u64,
}

impl Stderr {
    /// How many lines of this place went unwritten before this one; `None` when this one is over the rate.
    fn admit(&self, id: Identifier, now_us: u64) -> Option<u64> {
        let mut sites = self.sites.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let age = |site: &Option<Site>| site.as_ref().map_or(0, |site| site.window_us);
        let found = sites.iter().position(|site| site.as_ref().is_some_and(|site| site.id == id));
        let slot = match found {
            Some(at) => sites.get_mut(at)?,
            None => sites.iter_mut().min_by_key(|site| age(site))?,
        };
        if found.is_none() {
            *slot = None;
        }
        let site = slot.get_or_insert(Site { id, window_us: now_us, lines: 0, suppressed: 0 });
        if now_us.saturating_sub(site.window_us) >= WINDOW_US {
            (site.window_us, site.lines) = (now_us, 0);
        }
        if site.lines >= LINES_PER_WINDOW {
            site.suppressed += 1;
            return None;
        }
        site.lines += 1;
        Some(std::mem::take(&mut site.suppressed))
    }
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(unwritten) = self.admit(metadata.callsite(), clock::boot_us()) else {
            SUPPRESSED.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut line = Line { bytes: [0; LINE], length: 0 };
        let level = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        // A line that is full swallows the rest.
        let _ = write!(line, "informant-guest: {level}: ");
        event.record(&mut Fields(&mut line));
        if unwritten > 0 {
            let _ = write!(line, " (and {unwritten} like this)");
        }
        if !line.finish_and_write() {
            SUPPRESSED.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Nothing here opens spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        // The last byte is kept for the line end.
        if self.length + 1 < LINE
            && let Some(to) = self.bytes.get_mut(self.length)
        {
            *to = byte;
            self.length += 1;
        }
    }

    fn finish_and_write(mut self) -> bool {
        if let Some(to) = self.bytes.get_mut(self.length) {
            *to = b'\n';
            self.length += 1;
        }
        let stderr = std::io::stderr();
        let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        let writable = poll(&mut ready, PollTimeout::ZERO) == Ok(1);
        writable && nix::unistd::write(stderr.as_fd(), self.bytes.get(..self.length).unwrap_or_default()).is_ok()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b' '..=b'~' => self.push(byte),
                _ => {
                    let digit = |nibble: u8| b"0123456789abcdef".get(usize::from(nibble)).copied().unwrap_or(b'?');
                    for byte in [b'\\', b'x', digit(byte >> 4), digit(byte & 15)] {
                        self.push(byte);
                    }
                }
            }
        }
        Ok(())
    }
}

struct Fields<'a>(&'a mut Line);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    // No line has such a field; as the trait would write it, it brings 10 KiB of text for floating point along.
    fn record_f64(&mut self, _: &Field, _: f64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite;

    #[test]
    fn peers_words_can_not_break_the_line_or_the_terminal() {
        let mut line = Line { bytes: [0; LINE], length: 0 };
        write!(line, "refused: a\n\x1b[31mb\u{e9}~").unwrap();
        assert_eq!(&line.bytes[..line.length], br"refused: a\x0a\x1b[31mb\xc3\xa9~");
        write!(line, "{}", "x".repeat(2 * LINE)).unwrap();
        assert_eq!(line.length, LINE - 1);
    }

    #[test]
    fn one_place_in_the_code_writes_ten_lines_a_minute() {
        let log = Stderr { level: LevelFilter::INFO, sites: Mutex::new([const { None }; SITES]) };
        let site = || {
            tracing::callsite!(name: "here", kind: tracing::metadata::Kind::EVENT, fields: message)
                .metadata()
                .callsite()
        };
        let (here, there) = (
            site(),
            tracing::callsite!(name: "there", kind: tracing::metadata::Kind::EVENT, fields: message)
                .metadata()
                .callsite(),
        );
        for _ in 0..10 {
            assert_eq!(log.admit(here.clone(), 5), Some(0));
        }
        assert_eq!(log.admit(here.clone(), WINDOW_US), None);
        assert_eq!(log.admit(there, WINDOW_US), Some(0), "another place is not held back");
        assert_eq!(log.admit(here, WINDOW_US + 5), Some(1));
    }
}
