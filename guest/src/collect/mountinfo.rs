//! Lines of `/proc/self/mountinfo`. See `proc_pid_mountinfo(5)`. Pure: bytes in, mounts out.

use std::borrow::Cow;

/// A mount, its text as the kernel escaped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
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
        let (_id, _parent) = (next()?, next()?);
        let (device_number, root, mountpoint, options) = (next()?, next()?, next()?, next()?);
        // Zero or more optional fields, then the separator.
        while next()? != b"-" {}
        let (fstype, source, super_options) = (next()?, next()?, next()?);
        if mountpoint.is_empty() || fstype.is_empty() {
            return None;
        }
        Some(Self { device_number, root, mountpoint, options, fstype, source, super_options })
    }

    /// Read-only for any of three reasons; `emergency_ro` does not show in statvfs.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let has = |options: &[u8], wanted: &[u8]| options.split(|byte| *byte == b',').any(|option| option == wanted);
        has(self.options, b"ro") || has(self.super_options, b"ro") || has(self.super_options, b"emergency_ro")
    }
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
