//! The subjects of one kind that a collector knows, by name and incarnation, in the order of its file.
//!
//! In a steady state nothing is allocated and each look-up is one comparison: it begins behind the one before.

use super::row::{Place, Row, Subjects};
use informant_wire::limits::MAX_SUBJECTS;
use informant_wire::metric::SubjectKind;

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
    pass: u32,
    hint: usize,
    position: u32,
    overflow: usize,
    gone: usize,
}

impl<T> Roster<T> {
    /// Nobody yet.
    #[must_use]
    pub const fn new(kind: SubjectKind) -> Self {
        Self { kind, members: Vec::new(), pass: 0, hint: 0, position: 0, overflow: 0, gone: 0 }
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
        let matches = |(_, member): &(usize, &Member<T>)| !member.gone && *member.name == *name;
        let behind = self.members.iter().enumerate().skip(self.hint);
        let found = behind.chain(self.members.iter().enumerate().take(self.hint)).find(matches);
        let Some((i, _)) = found else { return Seen::New };
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

    /// Adds a newcomer, or brings back the one that is gone with the same name and incarnation. `None` when there are
    /// too many to keep; they are counted.
    pub fn add(&mut self, row: &mut Row, name: &[u8], incarnation: u64, data: T) -> Option<usize> {
        let (seen, position) = (self.pass, self.position);
        self.position += 1;
        let back = |member: &Member<T>| member.gone && member.incarnation == incarnation && *member.name == *name;
        if let Some(i) = self.members.iter().position(back) {
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
        self.gone = 0;
    }

    /// Gives every member its place, under its name and without labels.
    pub(super) fn place(&mut self, out: &mut dyn Subjects) {
        for member in &mut self.members {
            member.place = out.add(self.kind, &member.name, &[], member.incarnation, member.place);
        }
    }
}
