//! Why sessions end, in words for the log. What an end means for the next dial is the dialler's to say.

use informant_wire::FrameError;
use informant_wire::hello::RefusedCode;
use informant_wire::host_to_guest::ByeReason;
use informant_wire::limits::{DEAD_AFTER_S, HANDSHAKE_DEADLINE_S, MAX_BAD_FRAMES, MAX_HOST_FRAMES_PER_S};
use nix::errno::Errno;

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The connection was closed.
    #[error("connection closed by the host")]
    Closed,
    /// The connection broke.
    #[error("connection broken: {}", .0.desc())]
    Broken(Errno),
    /// No answer to Hello in time.
    #[error("no answer to the handshake in {HANDSHAKE_DEADLINE_S} s")]
    NoAnswer,
    /// No Ack in time.
    #[error("host acknowledged nothing for {DEAD_AFTER_S} s")]
    Silent,
    /// The host does not read.
    #[error("host took no byte for 10 s")]
    Stalled,
    /// The host does not want this session.
    #[error("refused by the host: {} ({text})", .code.name().unwrap_or("unknown reason"))]
    Refused {
        /// Why.
        code: RefusedCode,
        /// Whether asking again soon is useless.
        permanent: bool,
        /// The host's words.
        text: Box<str>,
    },
    /// The host said goodbye.
    #[error("host said goodbye: {}", .0.name().unwrap_or("unknown reason"))]
    Bye(ByeReason),
    /// The host wants another nonce and stream.
    #[error("host asks for a new identity: another guest has this one")]
    Renonce,
    /// The host has stored events of this stream that this process has not produced: the VM was set back.
    #[error("host knows later events of this stream: this VM was set back to an earlier state")]
    Ahead,
    /// The bytes can not be framed.
    #[error("host broke the protocol: {0}")]
    Framing(FrameError),
    /// Too many known frames in a row did not decode.
    #[error("host broke the protocol: {MAX_BAD_FRAMES} frames in a row that do not decode")]
    BadFrames,
    /// Too many frames in a second.
    #[error("host broke the protocol: over {MAX_HOST_FRAMES_PER_S} frames in a second")]
    Flooding,
    /// An answer that does not fit the question.
    #[error("host broke the protocol: chose version {0}, which was not offered")]
    Version(u16),
    /// A message of this side does not fit its frame.
    #[error("a message does not fit its frame")]
    Unencodable,
    /// This side had no room or no more use for it.
    #[error("closed by the agent")]
    Done,
}
