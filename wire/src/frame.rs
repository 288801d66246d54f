//! Frames: u16 little-endian length of what follows, u8 type, body. The incremental [`Decoder`] takes bytes in pieces
//! of any size and never allocates.

use crate::limits::MAX_BODY;
use core::fmt;

/// Frame types. 01-1f core, 20-3f scaling, 40-5f monitoring; an unknown one is skipped and counted.
pub mod kind {
    /// Guest to host, the first frame of a connection.
    pub const HELLO: u8 = 0x01;
    /// Host to guest: the session begins.
    pub const WELCOME: u8 = 0x02;
    /// Host to guest: no session.
    pub const REFUSED: u8 = 0x03;
    /// Guest to host: some subjects of the next schema.
    pub const SCHEMA_PART: u8 = 0x04;
    /// Guest to host: the schema is whole and holds from here.
    pub const SCHEMA_END: u8 = 0x05;
    /// Guest to host: one row of values.
    pub const SAMPLE: u8 = 0x06;
    /// Host to guest: what has arrived and is stored.
    pub const ACK: u8 = 0x07;
    /// Guest to host, every 5 s.
    pub const HEARTBEAT: u8 = 0x08;
    /// Guest to host: something happened.
    pub const EVENT: u8 = 0x09;
    /// Either way: this side ends the session, with a reason.
    pub const BYE: u8 = 0x0a;
    /// Host to guest: draw a new nonce and stream and dial again.
    pub const RENONCE: u8 = 0x0b;
    /// Host to guest on a proof connection: is this session yours?
    pub const PROVE: u8 = 0x0c;
    /// Guest to host: yes, and this is its challenge.
    pub const PROOF: u8 = 0x0d;
    /// Guest to host: no.
    pub const NOT_MINE: u8 = 0x0e;
    /// Guest to host: decide no more, and say when all is finished.
    pub const SUSPEND: u8 = 0x20;
    /// Guest to host: you decide.
    pub const RESUME: u8 = 0x21;
    /// Guest to host: what the guest wants to have.
    pub const DEMAND: u8 = 0x22;
    /// Guest to host: whether another size has arrived.
    pub const APPLIED: u8 = 0x23;
    /// Guest to host: whether it may become smaller.
    pub const DOWNSCALE_ANSWER: u8 = 0x24;
    /// Guest to host: a command of a turn that is over.
    pub const STALE: u8 = 0x25;
    /// Guest to host: which hosts have sessions.
    pub const CONTROLLERS: u8 = 0x26;
    /// Guest to host: the answer to a controller's Bye.
    pub const UNREGISTERED: u8 = 0x27;
    /// Host to guest: drained, or ready to decide.
    pub const ROLE_ANSWER: u8 = 0x30;
    /// Host to guest: what becomes of a demand.
    pub const DEMAND_ANSWER: u8 = 0x31;
    /// Host to guest: the VMM gives another size.
    pub const RESIZED: u8 = 0x32;
    /// Host to guest: may the VM become smaller?
    pub const DOWNSCALE: u8 = 0x33;
    /// Host to guest: which hosts have sessions?
    pub const LIST_CONTROLLERS: u8 = 0x34;
}

/// One frame. The body is not looked at yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Which message the body is; see [`kind`].
    pub kind: u8,
    /// postcard, in the form of that type.
    pub body: &'a [u8],
}

/// A stream that can not be framed any further. Fatal for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A length of zero: there is no room for the type.
    Empty,
    /// A frame longer than this side takes; both in bytes after the length field.
    TooLong {
        /// What the frame claims.
        length: usize,
        /// What this side takes.
        limit: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "frame of length 0"),
            Self::TooLong { length, limit } => write!(f, "frame of {length} bytes where at most {limit} are taken"),
        }
    }
}

impl core::error::Error for FrameError {}

/// What stands at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// A whole frame, and how many bytes it took.
    Frame(Frame<'a>, usize),
    /// Not a whole frame yet: at least this many bytes are needed in all.
    Need(usize),
}

/// Splits the first frame off `bytes` without copying. `limit`: the longest frame taken, after the length field.
pub fn split(bytes: &[u8], limit: usize) -> Result<Split<'_>, FrameError> {
    let [low, high, rest @ ..] = bytes else { return Ok(Split::Need(3)) };
    let length = usize::from(u16::from_le_bytes([*low, *high]));
    if length == 0 {
        return Err(FrameError::Empty);
    }
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    Ok(match rest.get(..length) {
        Some([kind, body @ ..]) => Split::Frame(Frame { kind: *kind, body }, 2 + length),
        _ => Split::Need(2 + length),
    })
}

/// Takes a stream in pieces of any size. Holds at most one unfinished frame, in a buffer that the caller lends;
/// the buffer's size is the limit of a frame.
#[derive(Debug)]
pub struct Decoder<B> {
    buffer: B,
    held: usize,
    /// The held bytes are a frame that was handed out: forget them at the next call.
    spent: bool,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Decoder<B> {
    /// A decoder with nothing held. `buffer`: at least 3 bytes; [`crate::limits::MAX_FRAME`] takes every frame.
    pub const fn new(buffer: B) -> Self {
        Self { buffer, held: 0, spent: false }
    }

    /// Forgets a half frame: for a new connection.
    pub const fn reset(&mut self) {
        self.held = 0;
        self.spent = false;
    }

    /// Whether the stream stands in the middle of a frame: an end of file here is a cut frame.
    #[must_use]
    pub const fn is_mid_frame(&self) -> bool {
        self.held > 0 && !self.spent
    }

    /// The next frame of `input`, which moves behind what was taken. `None`: all of it was taken, feed more.
    /// After an error the stream is lost: every further call gives the same error or nothing.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<Frame<'s>>, FrameError> {
        if self.spent {
            self.reset();
        }
        let limit = self.buffer.as_ref().len().saturating_sub(2);
        if self.held == 0 {
            let bytes: &'i [u8] = input;
            match split(bytes, limit)? {
                Split::Frame(frame, used) => {
                    *input = bytes.get(used..).unwrap_or_default();
                    return Ok(Some(frame));
                }
                Split::Need(_) => {}
            }
        }
        loop {
            let wanted = match split(self.held_bytes(), limit)? {
                Split::Frame(..) => break,
                Split::Need(wanted) => wanted,
            };
            let missing = wanted.saturating_sub(self.held).min(input.len());
            if missing == 0 {
                return Ok(None);
            }
            let (piece, rest) = input.split_at(missing);
            let Some(room) = self.buffer.as_mut().get_mut(self.held..self.held + missing) else {
                return Err(FrameError::TooLong { length: wanted.saturating_sub(2), limit });
            };
            room.copy_from_slice(piece);
            self.held += missing;
            *input = rest;
        }
        self.spent = true;
        match split(self.held_bytes(), limit)? {
            Split::Frame(frame, _) => Ok(Some(frame)),
            Split::Need(_) => Ok(None),
        }
    }

    fn held_bytes(&self) -> &[u8] {
        self.buffer.as_ref().get(..self.held).unwrap_or_default()
    }
}

/// A message could not be written: the buffer is too small for it, or it is over a limit of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError;

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message does not fit its frame")
    }
}

impl core::error::Error for EncodeError {}

/// Writes one frame to the start of `out` and returns its bytes. `body` writes the body into the slice it is given
/// and returns its length.
pub fn encode_with(
    out: &mut [u8],
    kind: u8,
    body: impl FnOnce(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<usize, EncodeError> {
    let (head, rest) = out.split_at_mut_checked(3).ok_or(EncodeError)?;
    let room = rest.len().min(MAX_BODY);
    let length = body(rest.get_mut(..room).ok_or(EncodeError)?)?;
    let framed = u16::try_from(length + 1).map_err(|_| EncodeError)?.to_le_bytes();
    head.copy_from_slice(&[framed[0], framed[1], kind]);
    Ok(3 + length)
}

/// Writes one frame whose body is `message` in postcard form.
pub fn encode<T: serde::Serialize>(out: &mut [u8], kind: u8, message: &T) -> Result<usize, EncodeError> {
    encode_with(out, kind, |body| postcard::to_slice(message, body).map(|used| used.len()).map_err(|_| EncodeError))
}

/// A body that is not what its type says. The frame stays framed: whether the session goes on is the session's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes do not hold the message.
    Malformed,
    /// Bytes are left over behind the message.
    Trailing,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}",
            match self {
                Self::Malformed => "body does not decode",
                Self::Trailing => "body has bytes left over",
            }
        )
    }
}

impl core::error::Error for DecodeError {}

/// Decodes a body that must be used up.
pub fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, DecodeError> {
    let (message, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Malformed)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing) }
}

/// Decodes a body that later versions may lengthen: bytes left over are ignored.
pub fn decode_extensible<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, DecodeError> {
    postcard::take_from_bytes(body).map(|(message, _)| message).map_err(|_| DecodeError::Malformed)
}
