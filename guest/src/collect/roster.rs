//! The subjects of one kind that a collector knows, by name and incarnation, in the order of its file.
//!
//! In a steady state nothing is allocated and each look-up is one comparison: it begins behind the one before. Where the
//! order differs, and for names that are not kept because there are too many, it is a binary search.

use super::row::{Place, Row, Subjects};
use crate::parse::equal;
use informant_wire::limits::MAX_SUBJECTS;
use informant_wire::metric::SubjectKind;
use std::cmp::Ordering;

/// A subject.
#[derive(Debug)]
pub struct Member<T> {
    /// Its name, whole.
    pub name: Box<[u8]>,
    /// See [`informant_wire::schema::Subject::incarnation`].
    pub incarnation: u64,
    /// Its place in the row.
    pub place: Place,
    /// What its collector keeps.
    pub data: T,
    seen: u32,
    position: u32,
    gone: bool,
}

/// What [`Roster::see`] says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This member, for the first time in this pass.
    Known(usize),
    /// A member that this pass saw already.
    Again,
    /// Nobody of that name, or only one that is gone.
    New,
}

/// The subjects of one kind.
#[derive(Debug)]
pub struct Roster<T> {
    kind: SubjectKind,
    members: Vec<Member<T>>,
    /// Indices of all members in the order of their names.
    by_name: Vec<u32>,
    pass: u32,
    hint: usize,
    position: u32,
    overflow: usize,
    gone: usize,
    #[cfg(test)]
    compared: std::cell::Cell<u64>,
}

impl<T> Roster<T> {
    /// Nobody yet.
    #[must_use]
    pub const fn new(kind: SubjectKind) -> Self {
        Self {
            kind,
            members: Vec::new(),
            by_name: Vec::new(),
            pass: 0,
            hint: 0,
            position: 0,
            overflow: 0,
            gone: 0,
            #[cfg(test)]
            compared: std::cell::Cell::new(0),
        }
    }

    /// Begins a pass over the collector's file.
    pub const fn begin(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        self.hint = 0;
        self.position = 0;
        self.overflow = 0;
    }

    /// Looks for the living member of a name.
    pub fn see(&mut self, name: &[u8]) -> Seen {
        let is_living = |i: &usize| self.members.get(*i).is_some_and(|member| !member.gone);
        let hint = Some(self.hint).filter(|i| is_living(i) && self.is_named(*i, name));
        let Some(i) = hint.or_else(|| self.named(name).find(is_living)) else { return Seen::New };
        self.hint = i + 1;
        let pass = self.pass;
        match self.members.get_mut(i) {
            Some(member) if member.seen != pass => {
                member.seen = pass;
                member.position = self.position;
                self.position += 1;
                Seen::Known(i)
            }
            _ => Seen::Again,
        }
    }

    fn is_named(&self, i: usize, name: &[u8]) -> bool {
        #[cfg(test)]
        self.compared.set(self.compared.get() + 1);
        self.members.get(i).is_some_and(|member| equal(&member.name, name))
    }

    fn compare(&self, i: usize, name: &[u8]) -> Ordering {
        #[cfg(test)]
        self.compared.set(self.compared.get() + 1);
        self.members.get(i).map_or(Ordering::Greater, |member| (*member.name).cmp(name))
    }

    /// Where the members of a name begin in [`Self::by_name`].
    fn first_named(&self, name: &[u8]) -> usize {
        self.by_name.partition_point(|i| self.compare(*i as usize, name).is_lt())
    }

    /// All members of a name: at most one that lives, and those that are gone.
    fn named(&self, name: &[u8]) -> impl Iterator<Item = usize> {
        let from = self.by_name.iter().skip(self.first_named(name)).map(|i| *i as usize);
        from.take_while(move |i| self.compare(*i, name).is_eq())
    }

    /// Adds a newcomer, or brings back the one that is gone with the same name and incarnation. `None` when there are
    /// too many to keep; they are counted.
    pub fn add(&mut self, row: &mut Row, name: &[u8], incarnation: u64, data: T) -> Option<usize> {
        let (seen, position) = (self.pass, self.position);
        self.position += 1;
        let back = |member: &Member<T>| member.gone && member.incarnation == incarnation;
        let found = self.named(name).find(|i| self.members.get(*i).is_some_and(back));
        if let Some(i) = found {
            let member = self.members.get_mut(i)?;
            (member.seen, member.position, member.gone) = (seen, position, false);
            self.gone -= 1;
            self.hint = i + 1;
            return Some(i);
        }
        if self.members.len() >= MAX_SUBJECTS {
            self.overflow += 1;
            return None;
        }
        row.want_schema();
        if let Ok(i) = u32::try_from(self.members.len()) {
            self.by_name.insert(self.first_named(name), i);
        }
        self.members.push(Member {
            name: name.into(),
            incarnation,
            place: Place::NONE,
            data,
            seen,
            position,
            gone: false,
        });
        self.hint = self.members.len();
        Some(self.members.len() - 1)
    }

    /// The member is gone: its values are absent from here on.
    pub fn retire(&mut self, row: &mut Row, i: usize) {
        if let Some(member) = self.members.get_mut(i)
            && !member.gone
        {
            member.gone = true;
            self.gone += 1;
            row.absent_all(member.place, self.kind);
            if row.dropped() > 0 || self.gone > MAX_SUBJECTS / 2 {
                // There is room for another.
                row.want_schema();
            }
        }
    }

    /// Ends the pass: whom it did not see is gone. `leaving` is called for each.
    pub fn end(&mut self, row: &mut Row, mut leaving: impl FnMut(&mut T, &mut Row)) {
        for i in 0..self.members.len() {
            if let Some(member) = self.members.get_mut(i).filter(|member| !member.gone && member.seen != self.pass) {
                leaving(&mut member.data, row);
                self.retire(row, i);
            }
        }
    }

    /// A member by the index that [`Self::see`] and [`Self::add`] give; they change with the schema.
    pub fn get_mut(&mut self, i: usize) -> Option<&mut Member<T>> {
        self.members.get_mut(i)
    }

    /// A member by its index.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<&Member<T>> {
        self.members.get(i)
    }

    /// The living members and their indices.
    pub fn living(&self) -> impl Iterator<Item = (usize, &Member<T>)> {
        self.members.iter().enumerate().filter(|(_, member)| !member.gone)
    }

    /// The living members, to change.
    pub fn living_mut(&mut self) -> impl Iterator<Item = (usize, &mut Member<T>)> {
        self.members.iter_mut().enumerate().filter(|(_, member)| !member.gone)
    }

    /// Whether the member is there.
    #[must_use]
    pub fn is_living(&self, i: usize) -> bool {
        self.members.get(i).is_some_and(|member| !member.gone)
    }

    /// Indices are below this.
    #[must_use]
    pub const fn index_end(&self) -> usize {
        self.members.len()
    }

    /// How many could not be kept in the last pass.
    #[must_use]
    pub const fn overflow(&self) -> usize {
        self.overflow
    }

    /// Forgets who is gone and puts the others in the order of the file.
    pub fn prune(&mut self) {
        self.members.retain(|member| !member.gone);
        self.members.sort_by_key(|member| member.position);
        self.members.shrink_to(self.members.len() * 2);
        self.by_name.clear();
        self.by_name.extend((0_u32..).take(self.members.len()));
        let members = &self.members;
        self.by_name.sort_unstable_by_key(|i| members.get(*i as usize).map(|member| &member.name));
        self.gone = 0;
    }

    /// Gives every member its place, under its name and without labels.
    pub(super) fn place(&mut self, out: &mut dyn Subjects) {
        for member in &mut self.members {
            member.place = out.add(self.kind, &member.name, &[], member.incarnation, member.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pass over these names.
    fn pass(roster: &mut Roster<()>, row: &mut Row, names: &[String]) {
        roster.begin();
        for name in names {
            if roster.see(name.as_bytes()) == Seen::New {
                roster.add(row, name.as_bytes(), 0, ());
            }
        }
        roster.end(row, |(), _| {});
    }

    #[test]
    fn names_beyond_what_is_kept_cost_a_binary_search_each() {
        let (mut roster, mut row) = (Roster::new(SubjectKind::NETWORK), Row::default());
        let names: Vec<String> = (0..8000).map(|i| format!("veth{i}")).collect();
        for _ in 0..3 {
            pass(&mut roster, &mut row, &names);
            // 2 look-ups of 11 or 12 steps for a newcomer, one of them again to insert it.
            assert!(roster.compared.take() <= 8000 * 40);
            assert_eq!((roster.index_end(), roster.overflow()), (MAX_SUBJECTS, 8000 - MAX_SUBJECTS));
            roster.prune();
        }
        pass(&mut roster, &mut row, &names[..MAX_SUBJECTS]);
        assert_eq!(roster.compared.take(), MAX_SUBJECTS as u64, "one comparison each in a steady state");
    }

    #[test]
    fn members_are_found_in_any_order_and_come_back_under_their_old_index() {
        let (mut roster, mut row) = (Roster::new(SubjectKind::DISK), Row::default());
        let mut names: Vec<String> = (0..50).map(|i| format!("d{}", i * 7 % 50)).collect();
        pass(&mut roster, &mut row, &names);
        names.reverse();
        pass(&mut roster, &mut row, &names[..49]);
        assert_eq!((roster.living().count(), roster.index_end()), (49, 50));
        assert!(!roster.is_living(0), "the first was left out");
        names.rotate_left(20);
        pass(&mut roster, &mut row, &names);
        assert!(roster.is_living(0) && roster.index_end() == 50);
        roster.prune();
        let order: Vec<_> = roster.living().map(|(_, member)| String::from_utf8_lossy(&member.name)).collect();
        assert_eq!(order, names);
        roster.begin();
        assert_eq!(roster.see(b"d3"), Seen::Known(names.iter().position(|name| name == "d3").unwrap()));
        assert_eq!((roster.see(b"d3"), roster.see(b"d50")), (Seen::Again, Seen::New));
    }
}
