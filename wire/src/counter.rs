//! Counters that wrap, step back or start anew: how far one really moved from one sample to the next.
//!
//! Raw values travel; whoever publishes a total or a rate asks [`step`]. A published total is the sum of steps, so
//! it never falls.

/// How many bits the kernel may keep a counter in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 64 bits: a fall is never a wrap.
    Bits64,
    /// Some drivers keep 32 bits (network counters, old block statistics): a fall near the top is a wrap.
    Maybe32,
}

/// What a pair of readings of the same series says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It grew by this much.
    Forward(u64),
    /// It grew by this much and wrapped at 32 bits.
    Wrapped(u64),
    /// It fell: nothing is known of the interval, and the new value is the new baseline.
    Back,
}

impl Step {
    /// The growth to add to a total: nothing for a fall.
    #[must_use]
    pub const fn growth(self) -> u64 {
        match self {
            Self::Forward(by) | Self::Wrapped(by) => by,
            Self::Back => 0,
        }
    }
}

/// From `old` to `new`. A fall is a 32-bit wrap only where the counter may have 32 bits, both readings fit, and it
/// went from the top quarter to the bottom quarter; anything else is [`Step::Back`].
#[must_use]
pub const fn step(old: u64, new: u64, width: Width) -> Step {
    const TOP: u64 = 1 << 32;
    if new >= old {
        return Step::Forward(new - old);
    }
    if matches!(width, Width::Maybe32) && old < TOP && old >= TOP / 4 * 3 && new < TOP / 4 {
        return Step::Wrapped(TOP - old + new);
    }
    Step::Back
}

/// A total that never falls, made of raw readings: the raw value plus what falls and wraps took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(u64);

impl Offset {
    /// Takes the next pair of readings.
    pub const fn advance(&mut self, old: u64, new: u64, width: Width) -> Step {
        let step = step(old, new, width);
        // total(new) = total(old) + growth, where total(x) = x + offset.
        self.0 = self.0.wrapping_add(old).wrapping_add(step.growth()).wrapping_sub(new);
        step
    }

    /// The total at a raw reading.
    #[must_use]
    pub const fn total(self, raw: u64) -> u64 {
        raw.wrapping_add(self.0)
    }

    /// Whether nothing was taken away so far.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_and_falls() {
        assert_eq!(step(4_294_960_000, 5_000, Width::Maybe32), Step::Wrapped(12_296));
        assert_eq!(step(4_294_967_290, 4, Width::Maybe32), Step::Wrapped(10));
        assert_eq!(step(4_294_967_290, 4, Width::Bits64), Step::Back);
        assert_eq!(step(9_000, 8_990, Width::Maybe32), Step::Back);
        assert_eq!(step(1 << 40, 4, Width::Maybe32), Step::Back);
        assert_eq!(step(35_312_117_399, 35_312_117_390, Width::Bits64), Step::Back);
        assert_eq!(step(7, 7, Width::Bits64), Step::Forward(0));
    }

    proptest! {
        #[test]
        fn a_total_never_falls_and_follows_every_forward_step(raw in prop::collection::vec(0_u64..1 << 40, 2..50)) {
            let mut offset = Offset::default();
            let mut total = offset.total(raw[0]);
            for pair in raw.windows(2) {
                let step = offset.advance(pair[0], pair[1], Width::Maybe32);
                let next = offset.total(pair[1]);
                prop_assert_eq!(next - total, step.growth());
                total = next;
            }
        }
    }
}
