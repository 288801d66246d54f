//! Token buckets: what one instance may cost. Beyond its budget reading from it is paused, so that it waits and nobody
//! else does.

use super::{Now, SECOND_US};

/// A bucket that fills at a steady rate and may go into debt for what has already arrived.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_second: u64,
    burst: u64,
    /// Microtokens: tokens times a million.
    level: i64,
    filled: Now,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_second: u64, burst: u64, now: Now) -> Self {
        let mut bucket = Self { per_second, burst, level: 0, filled: now };
        bucket.level = bucket.full();
        bucket
    }

    fn full(&self) -> i64 {
        i64::try_from(self.burst.saturating_mul(SECOND_US)).unwrap_or(i64::MAX)
    }

    fn fill(&mut self, now: Now) {
        let gained = now.since_us(self.filled).saturating_mul(self.per_second);
        self.level = self.level.saturating_add(i64::try_from(gained).unwrap_or(i64::MAX)).min(self.full());
        self.filled = now;
    }

    /// Takes `tokens`, which may leave a debt.
    pub fn spend(&mut self, tokens: u64, now: Now) {
        self.fill(now);
        self.level = self.level.saturating_sub(i64::try_from(tokens.saturating_mul(SECOND_US)).unwrap_or(i64::MAX));
    }

    /// Takes a token only when there is one.
    pub fn try_spend(&mut self, now: Now) -> bool {
        self.try_spend_many(1, now)
    }

    /// Takes tokens only when there is one; what is over leaves a debt.
    pub fn try_spend_many(&mut self, tokens: u64, now: Now) -> bool {
        self.fill(now);
        let enough = !self.is_spent();
        if enough {
            self.spend(tokens, now);
        }
        enough
    }

    /// Takes tokens, on credit when there are none; no more than a second's are lent.
    pub fn spend_on_credit(&mut self, tokens: u64, now: Now) -> bool {
        self.fill(now);
        let lends = self.wait_us() < SECOND_US;
        if lends {
            self.spend(tokens, now);
        }
        lends
    }

    /// Whether it holds so many tokens.
    pub fn has(&mut self, tokens: u64, now: Now) -> bool {
        self.fill(now);
        self.level >= i64::try_from(tokens.saturating_mul(SECOND_US)).unwrap_or(i64::MAX)
    }

    /// Whether it holds its burst.
    pub fn is_full(&mut self, now: Now) -> bool {
        self.fill(now);
        self.level == self.full()
    }

    /// Whether there is no whole token.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.level < i64::try_from(SECOND_US).unwrap_or(i64::MAX)
    }

    /// Microseconds until the debt is paid; 0 without one.
    #[must_use]
    pub fn wait_us(&self) -> u64 {
        if self.level >= 0 { 0 } else { self.level.unsigned_abs() / self.per_second.max(1) + 1 }
    }
}

/// Events of all unproven sessions of an instance that are taken at once; then one a second.
const UNPROVEN_EVENTS: u64 = 60;

/// Bytes of lines of the log that unproven sessions of an instance may fill at once; then [`UNPROVEN_BYTES_PER_S`].
const UNPROVEN_BYTES: u64 = 64 * 1024;
/// Two files of 1 MiB last for more than half a day against whoever tries to push the proven agent's events out.
const UNPROVEN_BYTES_PER_S: u64 = 32;
/// With this much room an unproven session may try again.
const UNPROVEN_BYTES_AGAIN: u64 = 8 * 1024;
/// A line of the log without its event's body, which stands in it as hexadecimal digits.
const LINE_BYTES: u64 = 256;

/// Events of all proven sessions of an instance that are taken at once, and a second's more on credit; then a hundred
/// a second. A full outbox of an agent has 672 of the smallest, and less by this measure of any others.
const PROVEN_EVENTS: u64 = 700;

/// Bytes of an event's body beyond which it counts as one more: it takes memory on its way to the log and to watchers.
const EVENT_BYTES: usize = 64;

/// The same of sessions whose proof is under way: an agent that comes back delivers its outbox before its proof is in.
const PENDING_EVENTS: u64 = 300;

/// The budget of one instance, all its sessions together.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    bytes: Bucket,
    frames: Bucket,
    schemas: Bucket,
    events: Bucket,
    pending_events: Bucket,
    unproven_events: Bucket,
    unproven_bytes: Bucket,
    /// The bytes that came last had events of an unproven session: only their reader waits for that bucket.
    unproven: bool,
    connections: Bucket,
}

impl Budget {
    /// A full budget. The largest honest guest (6,000 series at 10 Hz, all changing) sends 200 KB and a dozen frames
    /// a second; after an outage it delivers a whole outbox, some hundred events.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            bytes: Bucket::new(1 << 20, 1 << 20, now),
            frames: Bucket::new(500, 2_000, now),
            schemas: Bucket::new(1, 4, now),
            events: Bucket::new(100, PROVEN_EVENTS, now),
            pending_events: Bucket::new(1, PENDING_EVENTS, now),
            unproven_events: Bucket::new(1, UNPROVEN_EVENTS, now),
            unproven_bytes: Bucket::new(UNPROVEN_BYTES_PER_S, UNPROVEN_BYTES, now),
            unproven: false,
            connections: Bucket::new(20, 60, now),
        }
    }

    /// Bytes arrived from one session; what else comes until the next call is in them.
    pub fn bytes(&mut self, bytes: usize, now: Now) {
        self.unproven = false;
        self.bytes.spend(bytes as u64, now);
    }

    /// A frame arrived.
    pub fn frame(&mut self, now: Now) {
        self.frames.spend(1, now);
    }

    /// A schema arrived.
    pub fn schema(&mut self, now: Now) {
        self.schemas.spend(1, now);
    }

    /// An event of a proven session arrived: whether it is within the budget of such events. Reading pauses long
    /// before it is not, but a read has thousands of small ones, and there may be many sessions.
    pub fn event(&mut self, body_bytes: usize, now: Now) -> bool {
        self.events.spend_on_credit(events(body_bytes), now)
    }

    /// An event of a session whose proof is under way arrived: whether it is within the budget of such events.
    pub fn pending_event(&mut self, body_bytes: usize, now: Now) -> bool {
        self.pending_events.try_spend_many(events(body_bytes), now)
    }

    /// A session was proven: it may deliver what was over that budget.
    pub fn refill_pending(&mut self, now: Now) {
        self.pending_events = Bucket::new(1, PENDING_EVENTS, now);
    }

    /// The bytes that came last have an event of an unproven session, whatever becomes of it.
    pub fn unproven_bytes(&mut self) {
        self.unproven = true;
    }

    /// An event of an unproven session arrived: whether it is within the budget of such events. They share one log
    /// with the proven ones, and must not be able to roll it soon.
    pub fn unproven_event(&mut self, body_bytes: usize, now: Now) -> bool {
        let line = LINE_BYTES + 2 * body_bytes as u64;
        self.unproven_events.try_spend(now) && self.unproven_bytes.try_spend_many(line, now)
    }

    /// Whether events of proven sessions that were over the budget may come again: a whole burst is within it, whatever
    /// unproven ones have spent.
    pub fn has_event_burst(&mut self, now: Now) -> bool {
        self.events.is_full(now)
    }

    /// The same of sessions without proof; of their bytes a whole burst would take half an hour.
    pub fn has_unproven_burst(&mut self, now: Now) -> bool {
        self.unproven_events.is_full(now) && self.unproven_bytes.has(UNPROVEN_BYTES_AGAIN, now)
    }

    /// A connection came: whether it is within the budget.
    pub fn connection(&mut self, now: Now) -> bool {
        self.connections.try_spend(now)
    }

    /// Microseconds for which reading from the session that spoke last should pause; 0 to go on.
    #[must_use]
    pub fn pause_us(&self) -> u64 {
        let all = [self.bytes, self.frames, self.schemas, self.events].iter().map(Bucket::wait_us).max().unwrap_or(0);
        let spent = self.unproven && (self.unproven_events.is_spent() || self.unproven_bytes.is_spent());
        all.max(if spent { SECOND_US } else { 0 })
    }
}

/// How many an event counts as.
fn events(body_bytes: usize) -> u64 {
    1 + (body_bytes / EVENT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now { mono_us: ms * 1000, wall_ms: 0 }
    }

    #[test]
    fn a_debt_is_waited_for_and_a_burst_is_not() {
        let mut bucket = Bucket::new(10, 20, at(0));
        bucket.spend(20, at(0));
        assert_eq!(bucket.wait_us(), 0);
        bucket.spend(5, at(0));
        assert_eq!(bucket.wait_us(), 500_001);
        bucket.spend(0, at(400));
        assert_eq!(bucket.wait_us(), 100_001);
        bucket.spend(0, at(1_000_000));
        bucket.spend(21, at(1_000_000));
        assert!(bucket.wait_us() > 0, "a bucket never holds more than its burst");
    }

    #[test]
    fn credit_ends() {
        let mut bucket = Bucket::new(3, 2, at(0));
        assert_eq!((0..9).filter(|_| bucket.spend_on_credit(1, at(0))).count(), 5);
        assert_eq!((0..9).filter(|_| bucket.spend_on_credit(1, at(1000))).count(), 3);
    }

    #[test]
    fn unproven_events_take_half_a_day_to_roll_the_log() {
        let mut budget = Budget::new(at(0));
        let line = 256 + 2 * 512;
        let bytes = |seconds: std::ops::Range<u64>, budget: &mut Budget| -> u64 {
            seconds.filter(|s| budget.unproven_event(512, at(s * 1000))).count() as u64 * line
        };
        assert!(bytes(0..3600, &mut budget) < 192 << 10);
        assert!(bytes(3600..12 * 3600, &mut budget) < 2 << 20);
        let mut modest = Budget::new(at(0));
        assert!(
            (0..24 * 60).all(|minute| modest.unproven_event(16, at(minute * 60_000))),
            "one a minute, day and night"
        );
    }

    #[test]
    fn try_spend_leaves_no_debt() {
        let mut bucket = Bucket::new(1, 2, at(0));
        assert!(bucket.try_spend(at(0)) && bucket.try_spend(at(0)) && !bucket.try_spend(at(0)));
        assert!(!bucket.try_spend(at(900)) && bucket.try_spend(at(1000)));
    }
}
