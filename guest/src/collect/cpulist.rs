//! Sets of CPUs as sysfs and cpuset print them: `0-3,5`. See Documentation/admin-guide/cputopology.rst.

use crate::parse::{number, trim};

/// Ranges a set may have: a kernel's `nr_cpu_ids` is at most 8192, and real sets have few holes.
const MAX_RANGES: usize = 128;
/// No kernel is built for more CPUs than this.
const MAX_CPU: u64 = 65_535;

/// A set of CPU numbers, as ascending ranges with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    ranges: heapless::Vec<(u32, u32), MAX_RANGES>,
}

impl CpuSet {
    /// Reads a list; a lone newline is the empty set. `None` for anything that is not a list, or not a believable one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut set = Self::default();
        let text = trim(bytes);
        if text.is_empty() {
            return Some(set);
        }
        for part in text.split(|byte| *byte == b',') {
            let part = trim(part);
            let (first, last) = match part.iter().position(|byte| *byte == b'-') {
                Some(dash) => (number(part.get(..dash)?)?, number(part.get(dash + 1..)?)?),
                None => (number(part)?, number(part)?),
            };
            if first > last || last > MAX_CPU {
                return None;
            }
            if !set.insert_range(u32::try_from(first).ok()?, u32::try_from(last).ok()?) {
                return None;
            }
        }
        Some(set)
    }

    /// Adds a CPU; false when it can not be held.
    pub fn insert(&mut self, cpu: u32) -> bool {
        u64::from(cpu) <= MAX_CPU && self.insert_range(cpu, cpu)
    }

    fn insert_range(&mut self, mut first: u32, mut last: u32) -> bool {
        // The usual case: in ascending order.
        match self.ranges.last_mut() {
            Some(end) if first == end.1 + 1 => {
                end.1 = last;
                return true;
            }
            Some(end) if first > end.1 => return self.ranges.push((first, last)).is_ok(),
            None => return self.ranges.push((first, last)).is_ok(),
            Some(_) => {}
        }
        self.ranges.retain(|range| {
            let touches = range.0 <= last + 1 && first <= range.1 + 1;
            if touches {
                first = first.min(range.0);
                last = last.max(range.1);
            }
            !touches
        });
        let at = self.ranges.iter().position(|range| range.0 > last).unwrap_or(self.ranges.len());
        self.ranges.insert(at, (first, last)).is_ok()
    }

    /// How many CPUs.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(text: &[u8]) -> Option<u64> {
        CpuSet::parse(text).map(|set| set.count())
    }

    #[test]
    fn cpulist_strings() {
        for (text, expected) in [
            (&b"0\n"[..], Some(1)),
            (b"0-3", Some(4)),
            (b"0-1,3-5, 9", Some(6)),
            (b"\n", Some(0)),
            (b"0-2,4,6\n", Some(5)),
            (b"0-3,2-5", Some(6)),
            (b"5,1,3", Some(3)),
            (b"0-", None),
            (b"3-1", None),
            (b"1-4294967294", None),
            (b"abc", None),
            (b"0,,1", None),
            (b"-1", None),
        ] {
            assert_eq!(count(text), expected, "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(CpuSet::parse(b"0,1,2"), CpuSet::parse(b"2,0-1"));
        assert_ne!(CpuSet::parse(b"0-2,4"), CpuSet::parse(b"0-1,4-5"));
    }

    proptest! {
        #[test]
        fn any_order_gives_the_same_set(cpus in prop::collection::btree_set(0_u32..200, 0..60), seed in any::<u64>()) {
            let mut shuffled: Vec<u32> = cpus.iter().copied().collect();
            shuffled.sort_by_key(|cpu| u64::from(*cpu).wrapping_mul(seed | 1));
            let (mut a, mut b) = (CpuSet::default(), CpuSet::default());
            prop_assert!(cpus.iter().all(|cpu| a.insert(*cpu)) && shuffled.iter().all(|cpu| b.insert(*cpu)));
            prop_assert_eq!(&a, &b);
            prop_assert_eq!(a.count(), cpus.len() as u64);
        }

        #[test]
        fn arbitrary_bytes_never_panic(text in "[0-9,\\- a\n]{0,60}") {
            let _ = CpuSet::parse(text.as_bytes());
        }
    }
}
