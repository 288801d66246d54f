//! `key value` files: the keys that are wanted, and quick ways to them. As the other parsers: no allocation, no panic.

use super::{equal, fields, find, find_either, numbers};

/// The key of each line of a `key value` file that is wanted, and what it stands for, in the kernel's own order.
#[derive(Debug)]
pub struct Keys<T: 'static> {
    entries: &'static [(&'static [u8], T)],
    /// A bit a class of some key: most lines nobody wants fail here.
    filter: [u64; 4],
    /// What ends a key.
    end: u8,
}

/// Where the wanted lines of a file were when it was read last; see [`Keys::read_at`].
#[derive(Debug, Default)]
pub struct Places {
    /// An entry, and where its line begins; in the order of the file.
    lines: Vec<(usize, usize)>,
}

impl<T: Copy> Keys<T> {
    /// `end`: the byte behind each key, a colon or a blank.
    #[must_use]
    pub const fn new(entries: &'static [(&'static [u8], T)], end: u8) -> Self {
        let (mut filter, mut i) = ([0_u64; 4], 0);
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, over constants")]
        while i < entries.len() {
            let class = Self::class(entries[i].0);
            filter[class / 64] |= 1 << (class % 64);
            i += 1;
        }
        Self { entries, filter, end }
    }

    const fn class(key: &[u8]) -> usize {
        match key {
            [first, .., last] => (key.len() * 17 + *first as usize + *last as usize * 27) % 256,
            _ => 0,
        }
    }

    /// Calls `found` with each wanted value. The search for a key begins behind the one found before: in a file that
    /// keeps the kernel's order it costs one comparison.
    pub fn read(&self, bytes: &[u8], mut found: impl FnMut(T, u64)) {
        self.scan(bytes, |_, _, value| {
            if let Some((meaning, number)) = value {
                found(meaning, number);
            }
        });
    }

    /// As [`Self::read`], and notes where the wanted lines are.
    pub fn read_and_note(&self, bytes: &[u8], places: &mut Places, mut found: impl FnMut(T, u64)) {
        places.lines.clear();
        self.scan(bytes, |entry, line, value| {
            places.lines.push((entry, line));
            if let Some((meaning, number)) = value {
                found(meaning, number);
            }
        });
    }

    /// As [`Self::read`] of a file whose lines stand in the same order as when their places were noted, and between
    /// which nobody wants any: where numbers grew longer, lines are looked for from there on. False when one is missing;
    /// then the file must be read whole.
    #[must_use]
    pub fn read_at(&self, bytes: &[u8], places: &mut Places, mut found: impl FnMut(T, u64)) -> bool {
        let (mut behind, mut moved) = (0, 0_usize);
        for (entry, line) in &mut places.lines {
            let Some((key, meaning)) = self.entries.get(*entry) else { return false };
            let is_here = |at: usize| {
                let end = at.wrapping_add(key.len());
                bytes.get(end) == Some(&self.end) && bytes.get(at..end).is_some_and(|here| equal(here, key))
            };
            let begins_here = |at: usize| at == 0 || bytes.get(at - 1) == Some(&b'\n');
            let mut at = line.wrapping_add(moved);
            if at < behind || !begins_here(at) || !is_here(at) {
                at = behind;
                while !is_here(at) {
                    let Some(next) = bytes.get(at..).and_then(|rest| find(rest, b'\n')) else { return false };
                    at += next + 1;
                }
            }
            moved = at.wrapping_sub(*line);
            *line = at;
            let value = bytes.get(at + key.len() + 1..).unwrap_or_default();
            let length = find(value, b'\n').unwrap_or(value.len());
            behind = at + key.len() + 1 + length + 1;
            if let Some(number) = value.get(..length).and_then(number_of) {
                found(*meaning, number);
            }
        }
        true
    }

    /// Calls `found` with each wanted line: its entry, where it begins, what it stands for and its number.
    fn scan(&self, bytes: &[u8], mut found: impl FnMut(usize, usize, Option<(T, u64)>)) {
        let (mut rest, mut next) = (bytes, 0);
        while let Some(end) = find_either(rest, self.end, b'\n') {
            let line = bytes.len() - rest.len();
            let Some((key, behind)) = rest.split_at_checked(end) else { return };
            let Some((_, mut value)) = behind.split_first().filter(|(byte, _)| **byte == self.end) else {
                // A line without a key.
                rest = behind.get(1..).unwrap_or_default();
                continue;
            };
            rest = match find(value, b'\n').and_then(|end| value.split_at_checked(end)) {
                Some((this, behind)) => {
                    value = this;
                    behind.get(1..).unwrap_or_default()
                }
                None => &[],
            };
            let Some((entry, meaning)) = self.look_up(key, next) else { continue };
            next = entry + 1;
            found(entry, line, number_of(value).map(|number| (meaning, number)));
        }
    }

    fn look_up(&self, key: &[u8], next: usize) -> Option<(usize, T)> {
        let class = Self::class(key);
        if self.filter.get(class / 64)? & 1 << (class % 64) == 0 {
            return None;
        }
        let (before, behind) = self.entries.split_at_checked(next)?;
        let among = |entries: &[(&[u8], T)]| entries.iter().position(|(wanted, _)| equal(wanted, key));
        let i = among(behind).map(|i| next + i).or_else(|| among(before))?;
        self.entries.get(i).map(|(_, meaning)| (i, *meaning))
    }
}

/// The number of a line, alone or in the unit that `meminfo` has.
fn number_of(value: &[u8]) -> Option<u64> {
    let mut numbers = numbers(value);
    let number = numbers.next()??;
    let is_plain = match numbers.rest {
        [] | b" kB" => true,
        rest => fields(rest).next().is_none_or(|unit| unit == b"kB"),
    };
    is_plain.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static KEYS: Keys<u8> = Keys::new(&[(b"low", 0), (b"high", 1), (b"oom_kill", 2), (b"ab", 3)], b' ');

    fn read(text: &str) -> Vec<(u8, u64)> {
        let mut got = Vec::new();
        KEYS.read(text.as_bytes(), |meaning, value| got.push((meaning, value)));
        got
    }

    #[test]
    fn lines_are_found_where_they_were_and_where_numbers_pushed_them() {
        let mut places = Places::default();
        KEYS.read_and_note(b"x 1\nlow 2\ny 3\noom_kill 4\n", &mut places, |_, _| {});
        for text in
            ["x 1\nlow 7\ny 3\noom_kill 8\n", "x 100\nlow 7\ny 3\noom_kill 8\n", "x 9\nlow 70\ny 30\noom_kill 8"]
        {
            let mut got = Vec::new();
            assert!(KEYS.read_at(text.as_bytes(), &mut places, |meaning, value| got.push((meaning, value))));
            assert_eq!(got, read(text), "{text}");
        }
        assert!(!KEYS.read_at(b"x 1\nlow 2\ny 3\n", &mut places, |_, _| {}), "one is gone");
        assert!(!KEYS.read_at(b"oom_kill 4\nlow 2\n", &mut places, |_, _| {}), "another order");
        assert!(!KEYS.read_at(b"xlow 2\noom_kill 4\n", &mut places, |_, _| {}), "not the start of a line");
    }

    proptest! {
        #[test]
        fn keys_are_found_in_any_order_and_between_any_lines(
            text in "(([abc]{0,3}|low|high|oom_kill)[ \n]?[0-9]{0,3}( kB)?\n?){0,12}",
        ) {
            let names = ["low", "high", "oom_kill", "ab"];
            let expected: Vec<_> = text.lines().filter_map(|line| {
                let (key, value) = line.split_once(' ')?;
                let meaning = names.iter().zip(0..).find(|(name, _)| **name == key)?.1;
                let mut fields = value.split(' ').filter(|field| !field.is_empty());
                let number = fields.next()?.parse().ok()?;
                fields.next().is_none_or(|unit| unit == "kB").then_some((meaning, number))
            }).collect();
            prop_assert_eq!(read(&text), expected);
        }

        #[test]
        fn arbitrary_bytes_at_arbitrary_places_never_panic(
            bytes in prop::collection::vec(prop::sample::select(b"low ab\n1".to_vec()), 0..60),
            lines in prop::collection::vec((0_usize..6, 0_usize..70), 0..5),
        ) {
            let _ = KEYS.read_at(&bytes, &mut Places { lines }, |_, _| {});
        }

        #[test]
        fn numbers_of_any_length_are_read_as_by_a_whole_reading(
            before in prop::collection::vec(0_u64..2000, 8), after in prop::collection::vec(0_u64..2000, 8),
        ) {
            let text = |numbers: &[u64]| -> String {
                let names = ["a", "low", "b", "high", "c", "d", "oom_kill", "ab"];
                names.iter().zip(numbers).map(|(name, number)| format!("{name} {number}\n")).collect()
            };
            let (mut places, mut got) = (Places::default(), Vec::new());
            KEYS.read_and_note(text(&before).as_bytes(), &mut places, |_, _| {});
            let text = text(&after);
            prop_assert!(KEYS.read_at(text.as_bytes(), &mut places, |meaning, value| got.push((meaning, value))));
            prop_assert_eq!(got, read(&text));
        }
    }
}
