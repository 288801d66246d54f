//! Frames of a byte stream that comes in pieces. Unlike the wire's decoder it holds no more than what has arrived of a
//! frame that somebody wants: thousands of sessions share the memory. Knows no message.

use informant_wire::frame::Frame;

/// Memory that is kept from one half frame to the next, bytes; more is given back.
const KEPT: usize = 1024;

/// What stood at the start of some bytes.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    Frame(Frame<'a>),
    /// A frame that is not looked at: unwanted, or longer than its type may be. Its bytes are never held.
    Skipped(u8),
    /// A frame of length 0: the stream can not be framed any further.
    Empty,
}

/// Makes frames of pieces. Unlike the wire's decoder it holds no more than what has arrived of a frame that somebody
/// wants: thousands of sessions share the memory.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    held: Vec<u8>,
    /// Bytes of an unwanted frame still to come.
    skip: usize,
    /// `held` is a frame that was handed out.
    spent: bool,
}

impl Inbox {
    /// Bytes of memory it holds.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.held.capacity()
    }

    /// `limit`: the longest body wanted of a type; `None` for a type that is not wanted.
    pub(crate) fn next<'a>(
        &'a mut self,
        input: &mut &'a [u8],
        limit: impl Fn(u8) -> Option<usize>,
    ) -> Option<Taken<'a>> {
        if self.spent {
            self.spent = false;
            if self.held.capacity() > KEPT {
                self.held = Vec::new();
            }
            self.held.clear();
        }
        let skipped = self.skip.min(input.len());
        self.skip -= skipped;
        *input = input.get(skipped..).unwrap_or_default();
        let fits = |kind, body| limit(kind).is_some_and(|limit| body <= limit);
        if self.held.is_empty() {
            let bytes: &'a [u8] = input;
            if let [low, high, kind, rest @ ..] = bytes {
                let body = usize::from(u16::from_le_bytes([*low, *high])).checked_sub(1);
                let whole = body.filter(|body| fits(*kind, *body)).and_then(|body| rest.split_at_checked(body));
                if let Some((body, behind)) = whole {
                    *input = behind;
                    return Some(Taken::Frame(Frame { kind: *kind, body }));
                }
            }
        }
        loop {
            let wanted = match self.held.as_slice() {
                [low, high, kind, ..] => {
                    let (length, kind) = (usize::from(u16::from_le_bytes([*low, *high])), *kind);
                    let Some(body) = length.checked_sub(1) else { return Some(Taken::Empty) };
                    if !fits(kind, body) {
                        self.held.clear();
                        let here = input.len().min(body);
                        self.skip = body - here;
                        *input = input.get(here..).unwrap_or_default();
                        return Some(Taken::Skipped(kind));
                    }
                    2 + length
                }
                // A length of 0 has no type behind it to wait for.
                [0, 0] => return Some(Taken::Empty),
                _ => {
                    if self.held.len() < 2 {
                        2
                    } else {
                        3
                    }
                }
            };
            let missing = wanted.saturating_sub(self.held.len());
            if missing == 0 {
                break;
            }
            let (piece, rest) = input.split_at(missing.min(input.len()));
            if piece.is_empty() {
                return None;
            }
            extend_within(&mut self.held, piece, wanted);
            *input = rest;
        }
        self.spent = true;
        match self.held.as_slice() {
            [_, _, kind, body @ ..] => Some(Taken::Frame(Frame { kind: *kind, body })),
            _ => None,
        }
    }
}

/// Appends as a `Vec` does, but takes no more memory than for `most` bytes: a doubled 64 KiB would be half wasted.
pub(crate) fn extend_within(bytes: &mut Vec<u8>, more: &[u8], most: usize) {
    let needed = bytes.len() + more.len();
    if needed > bytes.capacity() {
        let room = (bytes.capacity() * 2).min(most).max(needed);
        bytes.reserve_exact(room - bytes.len());
    }
    bytes.extend_from_slice(more);
}
