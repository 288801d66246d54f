//! Sets of CPUs as sysfs and cpuset print them: `0-3,5`. See Documentation/admin-guide/cputopology.rst.

use crate::parse::{number, trim};
use std::fmt;

/// No kernel is built for more CPUs (`CONFIG_NR_CPUS` of x86 and of PowerPC; others have fewer).
const MAX_CPUS: usize = 8192;

/// A set of CPU numbers, however many gaps it has.
#[derive(Clone, PartialEq, Eq)]
pub struct CpuSet {
    words: [u64; MAX_CPUS / 64],
}

impl Default for CpuSet {
    fn default() -> Self {
        Self { words: [0; MAX_CPUS / 64] }
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
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
            if first > last || last >= MAX_CPUS as u64 {
                return None;
            }
            for cpu in first..=last {
                set.insert(u32::try_from(cpu).ok()?);
            }
        }
        Some(set)
    }

    /// Adds a CPU; false where no kernel has one of that number.
    pub fn insert(&mut self, cpu: u32) -> bool {
        let word = self.words.get_mut(cpu as usize / 64);
        word.map(|word| *word |= 1 << (cpu % 64)).is_some()
    }

    /// How many CPUs.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether it has this one.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Its CPUs, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(|cpu| self.contains(*cpu))
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
            (b"8191", Some(1)),
            (b"8192", None),
        ] {
            assert_eq!(count(text), expected, "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(CpuSet::parse(b"0,1,2"), CpuSet::parse(b"2,0-1"));
        assert_ne!(CpuSet::parse(b"0-2,4"), CpuSet::parse(b"0-1,4-5"));
    }

    #[test]
    fn as_many_gaps_as_cpus() {
        let every_other: Vec<String> = (0..MAX_CPUS).step_by(2).map(|cpu| cpu.to_string()).collect();
        assert_eq!(count(every_other.join(",").as_bytes()), Some(MAX_CPUS as u64 / 2));
        assert_eq!(format!("{:?}", CpuSet::parse(b"1,8191").unwrap()), "{1, 8191}");
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
