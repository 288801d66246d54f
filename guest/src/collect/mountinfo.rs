//! Lines of `/proc/self/mountinfo`. See `proc_pid_mountinfo(5)`. Pure: bytes in, mounts out.

use crate::parse::number;
use std::borrow::Cow;

/// A mount, its text as the kernel escaped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Its number; 0 where that can not be read.
    pub id: u64,
    /// The number of the mount that it is on.
    pub parent: u64,
    /// `major:minor` of the file system.
    pub device_number: &'a [u8],
    /// Which directory of the file system is mounted.
    pub root: &'a [u8],
    /// Where.
    pub mountpoint: &'a [u8],
    /// Options of the mount.
    pub options: &'a [u8],
    /// Type of the file system.
    pub fstype: &'a [u8],
    /// What is mounted; may be empty.
    pub source: &'a [u8],
    /// Options of the file system.
    pub super_options: &'a [u8],
}

impl<'a> Mount<'a> {
    /// Reads a line. Fields are split at single blanks: an empty source leaves two.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut next = || fields.next();
        let (id, parent) = (number(next()?).unwrap_or(0), number(next()?).unwrap_or(0));
        let (device_number, root, mountpoint, options) = (next()?, next()?, next()?, next()?);
        // Zero or more optional fields, then the separator.
        while next()? != b"-" {}
        let (fstype, source, super_options) = (next()?, next()?, next()?);
        if mountpoint.is_empty() || fstype.is_empty() {
            return None;
        }
        Some(Self { id, parent, device_number, root, mountpoint, options, fstype, source, super_options })
    }

    /// Read-only for any of three reasons; `emergency_ro` does not show in statvfs.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let has = |options: &[u8], wanted: &[u8]| options.split(|byte| *byte == b',').any(|option| option == wanted);
        has(self.options, b"ro") || has(self.super_options, b"ro") || has(self.super_options, b"emergency_ro")
    }
}

/// How long a chain of mounts on mounts is followed.
const MAX_CHAIN: usize = 64;

/// Which mounts of a table a path leads to.
#[derive(Debug)]
pub struct Tree<'a> {
    /// All mounts: number, and number of the parent and path.
    by_id: Vec<(u64, (u64, &'a [u8]))>,
    /// The same without their numbers, of those that are on another.
    places: Vec<(u64, &'a [u8])>,
}

impl<'a> Tree<'a> {
    /// Of a table's mounts.
    pub fn new(mounts: impl Iterator<Item = Mount<'a>>) -> Self {
        let mut by_id: Vec<_> = mounts.map(|mount| (mount.id, (mount.parent, mount.mountpoint))).collect();
        by_id.sort_unstable();
        // The first mount of all is on itself, and on top of nothing.
        let on_another = |(id, (parent, _)): &&(u64, (u64, &[u8]))| id != parent;
        let mut places: Vec<_> = by_id.iter().filter(on_another).map(|(_, place)| *place).collect();
        places.sort_unstable();
        Self { by_id, places }
    }

    /// Whether the way to a mount, or to one that it is on, leads into another mount before it gets there: one on the
    /// same parent, nearer to the root. Without its parent in the table nothing is known.
    #[must_use]
    pub fn is_covered(&self, mount: &Mount<'a>) -> bool {
        let mut at = (mount.parent, mount.mountpoint);
        for _ in 0..MAX_CHAIN {
            let Some(parent) = self.find(at.0) else { return false };
            if ancestors(at.1).any(|path| self.places.binary_search(&(at.0, path)).is_ok()) {
                return true;
            }
            if parent.0 == at.0 {
                return false;
            }
            at = parent;
        }
        false
    }

    fn find(&self, id: u64) -> Option<(u64, &'a [u8])> {
        let at = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.by_id.get(at).map(|(_, place)| *place)
    }
}

/// The directories above a path, but for the path itself.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.filter_map(|at| path.get(..at.max(1))).filter(move |above| above.len() < path.len())
}

/// Undoes the kernel's escapes: a backslash and three octal digits for blank, tab, newline, backslash and `#`.
#[must_use]
pub fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = behind;
            }
            _ => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_or_several_optional_fields() {
        let none = Mount::parse(b"36 35 98:0 / /mnt rw,noatime - xfs /dev/vdb rw").unwrap();
        assert_eq!((none.fstype, none.source), (&b"xfs"[..], &b"/dev/vdb"[..]));
        let many =
            Mount::parse(b"36 35 98:0 /sub /mnt\\0402 rw shared:21 master:3 propagate_from:2 unbindable - ext4 /dev/vdc rw,errors=continue");
        let many = many.unwrap();
        assert_eq!(
            (many.root, many.fstype, many.super_options),
            (&b"/sub"[..], &b"ext4"[..], &b"rw,errors=continue"[..])
        );
        assert_eq!(&*unescape(many.mountpoint), b"/mnt 2");
        // A mount point called `-` is not the separator.
        assert_eq!(Mount::parse(b"1 2 0:3 / - rw - tmpfs - rw").unwrap().fstype, b"tmpfs");
    }

    #[test]
    fn a_mount_nearer_to_the_root_covers_what_was_there_before() {
        let covered = |table: &'static str| -> Vec<&str> {
            let mounts = || table.lines().filter_map(|line| Mount::parse(line.as_bytes()));
            let tree = Tree::new(mounts());
            let covered = mounts().filter(|mount| tree.is_covered(mount));
            covered.map(|mount| std::str::from_utf8(mount.source).unwrap()).collect()
        };
        let root = "1 1 0:1 / / rw - rootfs rootfs rw\n20 1 8:1 / / rw - ext4 root rw\n";
        let table = |rest: &str| -> &'static str { format!("{root}{rest}").leak() };
        assert_eq!(covered(table("")), [""; 0]);
        let initramfs = "1 1 0:2 / / rw - rootfs rootfs rw\n20 1 0:3 / /sys rw - sysfs sys rw\n\
                         21 20 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n22 1 0:5 / /run rw - tmpfs run rw\n";
        assert_eq!(covered(initramfs), [""; 0]);
        assert_eq!(
            covered(table("30 20 0:2 / /mnt/p/q rw - tmpfs inner rw\n31 20 0:3 / /mnt/p rw - tmpfs outer rw\n")),
            ["inner"]
        );
        assert_eq!(
            covered(table("31 20 0:3 / /mnt/p rw - tmpfs outer rw\n30 31 0:2 / /mnt/p/q rw - tmpfs inner rw\n")),
            [""; 0]
        );
        let beside = "30 20 0:2 / /mnt/pp rw - tmpfs beside rw\n31 20 0:3 / /mnt/p rw - tmpfs outer rw\n";
        assert_eq!(covered(table(beside)), [""; 0]);
        let on_covered =
            "30 20 0:2 / /a/b rw - tmpfs b rw\n32 30 0:4 / /a/b/c rw - tmpfs c rw\n31 20 0:3 / /a rw - tmpfs a rw\n";
        assert_eq!(covered(table(on_covered)), ["b", "c"]);
        let before_root = "5 1 0:9 / /old rw - tmpfs old rw\n";
        assert_eq!(covered(table(before_root)), ["old"], "under the root that was mounted over it");
        let unknown_parents = "30 9 0:2 / /p/q rw - tmpfs inner rw\n31 9 0:3 / /p rw - tmpfs outer rw\n";
        assert_eq!(covered(unknown_parents), [""; 0], "a part of a table says nothing");
        let circle = "30 31 0:2 / /p/q rw - tmpfs a rw\n31 30 0:3 / /p rw - tmpfs b rw\n";
        assert_eq!(covered(circle), [""; 0]);
    }

    #[test]
    fn empty_source_two_blanks() {
        let mount = Mount::parse(b"40 35 0:30 / /run rw - tmpfs  ro,size=0k").unwrap();
        assert_eq!((mount.source, mount.super_options), (&b""[..], &b"ro,size=0k"[..]));
    }

    #[test]
    fn read_only_three_places() {
        for (line, expected) in [
            (&b"59 1 8:1 / /a rw - ext4 /dev/sda1 ro,errors=remount-ro"[..], true),
            (b"60 1 8:1 / /a ro,relatime - ext4 /dev/sda1 rw", true),
            (b"61 1 8:1 / /a rw - ext4 /dev/sda1 rw,emergency_ro", true),
            (b"62 1 8:1 / /a rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro", false),
        ] {
            assert_eq!(Mount::parse(line).unwrap().is_read_only(), expected);
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(&*unescape(br"/a\040b\011c\134d\012e\043"), b"/a b\tc\\d\ne#");
        assert_eq!(&*unescape(br"/a\04"), br"/a\04");
        assert_eq!(&*unescape(br"\x\999"), br"\x\999");
        assert_eq!(&*unescape(b"/\xe9\\351"), b"/\xe9\xe9");
    }

    proptest! {
        #[test]
        fn arbitrary_lines_never_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Mount::parse(&line).map(|mount| (mount.is_read_only(), unescape(mount.mountpoint).len()));
            prop_assert!(unescape(&line).len() <= line.len());
        }
    }
}
