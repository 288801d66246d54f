//! Every maximum of the protocol, with its reason, and the proofs that they fit together.

use crate::varint;

/// Largest body of a frame, bytes: the u16 length counts the type byte and the body.
pub const MAX_BODY: usize = u16::MAX as usize - 1;
/// Largest whole frame: length, type and body.
pub const MAX_FRAME: usize = 2 + u16::MAX as usize;
/// Largest frame a host sends. Small, so that a guest can keep one fixed buffer for it.
pub const MAX_HOST_FRAME: usize = 1024;
/// Largest frame before the handshake is over, from either side.
pub const MAX_HANDSHAKE_FRAME: usize = 1024;
/// Largest single write to a vsock socket: a range of kernels corrupted larger ones (Linux 6.17, non-linear skbs).
pub const MAX_WRITE: usize = 32 * 1024;

/// Series of one session. What is over is cut by the agent in the order of [`crate::schema::CUT_ORDER`].
pub const MAX_SERIES: usize = 6_000;
/// Subjects of one session: 512 CPUs, 64 cgroups with a dozen disks each, and room.
pub const MAX_SUBJECTS: usize = 2_048;
/// Bytes of the bodies of all parts of one schema. The counts above allow megabytes of names, and a host keeps the
/// subjects of thousands of instances: one hostile guest must not cost it more than a fraction of a megabyte. 512
/// CPUs and 64 cgroups with a dozen disks each under names of usual lengths take about 110 KiB.
pub const MAX_SCHEMA_BYTES: usize = 192 * 1024;
/// Bytes of a subject's name or of a label's value. A longer one is shortened, see [`crate::schema::shorten`].
pub const MAX_NAME: usize = 255;
/// Bytes of a label's key.
pub const MAX_LABEL_KEY: usize = 32;
/// Labels of a subject besides its name.
pub const MAX_LABELS: usize = 4;
/// Ranges of metric ids that one subject lists.
pub const MAX_METRIC_RANGES: usize = 16;

/// Bytes of an agent's or a controller's name.
pub const MAX_PEER_NAME: usize = 64;
/// Bytes of an agent's version text.
pub const MAX_PEER_VERSION: usize = 64;
/// Bytes of the text of a refusal.
pub const MAX_REFUSED_TEXT: usize = 120;
/// Bytes of an event's body: an event must fit the 16 KiB outbox many times.
pub const MAX_EVENT_BODY: usize = 512;

/// Bytes of the text of an answer about scaling: a line for people.
pub const MAX_SCALE_TEXT: usize = 120;
/// Hosts that one list of controllers names: as many as an agent serves.
pub const MAX_CONTROLLERS: usize = MAX_HOST_SESSIONS;

/// Samples from one key frame to the next, both counted: every 60th is a key frame.
pub const KEY_FRAME_EVERY: u64 = 60;

/// Seconds for the whole handshake, on both sides.
pub const HANDSHAKE_DEADLINE_S: u64 = 4;
/// Seconds without a byte from the peer after which a session is dead.
pub const DEAD_AFTER_S: u64 = 15;
/// Seconds between heartbeats of an agent, and at most between acks of a host.
pub const HEARTBEAT_EVERY_S: u64 = 5;
/// Least seconds between two schemas on one session.
pub const SCHEMA_EVERY_S: u64 = 5;
/// Seconds between dials after a permanent refusal.
pub const REDIAL_REFUSED_S: u64 = 30;

/// Known frames in a row that do not decode, after which the session ends.
pub const MAX_BAD_FRAMES: u32 = 10;
/// Frames a host may send in a second of a session. It has one Ack a second to say, and a few questions.
pub const MAX_HOST_FRAMES_PER_S: u32 = 200;
/// Sessions one instance may hold, and how many of them may be unproven.
pub const MAX_SESSIONS: usize = 32;
/// See [`MAX_SESSIONS`].
pub const MAX_UNPROVEN_SESSIONS: usize = 16;
/// Host sessions one agent serves: the dialled one and those on the control port.
pub const MAX_HOST_SESSIONS: usize = 4;

/// Seconds that a controller has to finish what it has begun when it is suspended. Others gave 200 ms and had two that
/// decided.
pub const SUSPEND_DEADLINE_S: u64 = 5;
/// Seconds that a controller has to say that it decides.
pub const RESUME_DEADLINE_S: u64 = 2;
/// Seconds that a host has to answer a demand; it is asked again when they are over.
pub const DEMAND_DEADLINE_S: u64 = 2;
/// Least milliseconds from one asking of a demand to the next, whatever asks.
pub const DEMAND_EVERY_MS: u64 = 1000;
/// Milliseconds that a demand lives unless it is renewed.
pub const DEMAND_EXPIRES_MS: u64 = 10_000;
/// Seconds that an advisor has to answer.
pub const ADVISOR_DEADLINE_S: u64 = 2;

/// Bytes of the largest sample with `series` series: header, two bit sets, every value at its longest.
#[must_use]
pub const fn max_sample_body(series: usize) -> usize {
    3 * varint::MAX_LEN + 1 + 2 * series.div_ceil(8) + series * varint::MAX_LEN
}

const _: () = assert!(max_sample_body(MAX_SERIES) <= MAX_BODY, "a key frame of the most series must fit a frame");
const _: () = assert!(MAX_EVENT_BODY + 32 <= MAX_HANDSHAKE_FRAME);
