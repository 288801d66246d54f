//! A reproducible `newc` archive: sorted, without times, owned by root.
//!
//! The kernel unpacks archives one after the other, so what a test adds is a second archive behind the first.

use std::collections::BTreeMap;
use std::io::Write;

use ::cpio::newc::{Builder, ModeFileType, trailer};
use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};

#[derive(Clone, Debug)]
enum Entry {
    Directory,
    File { bytes: Vec<u8>, mode: u32 },
    Link { to: String },
    CharacterDevice { major: u32, minor: u32 },
}

/// Paths are given from the root without the leading slash; directories above them come by themselves.
#[derive(Clone, Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.add(path, Entry::Directory)
    }

    pub fn file(&mut self, path: &str, bytes: Vec<u8>, mode: u32) -> Result<()> {
        self.add(path, Entry::File { bytes, mode })
    }

    pub fn program(&mut self, path: &str, bytes: Vec<u8>) -> Result<()> {
        self.file(path, bytes, 0o755)
    }

    pub fn link(&mut self, path: &str, to: &str) -> Result<()> {
        self.add(path, Entry::Link { to: to.to_owned() })
    }

    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.add(path, Entry::CharacterDevice { major, minor })
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    fn add(&mut self, path: &str, entry: Entry) -> Result<()> {
        if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            bail!("bad path in an archive: `{path}`");
        }
        for (at, _) in path.match_indices('/') {
            // A link to a directory may stand where a directory is wanted.
            self.entries.entry(path[..at].to_owned()).or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
        Ok(())
    }

    /// The archive, compressed; equal contents give equal bytes.
    pub fn to_gzip(&self) -> Result<Vec<u8>> {
        let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::fast());
        let mut inode = 0;
        // A BTreeMap gives `a` before `a/b`: every directory before what is in it.
        for (path, entry) in &self.entries {
            inode += 1;
            let builder = Builder::new(path).ino(inode);
            let (builder, bytes): (Builder, &[u8]) = match entry {
                Entry::Directory => (builder.mode(0o755).nlink(2).set_mode_file_type(ModeFileType::Directory), &[]),
                Entry::File { bytes, mode } => (builder.mode(*mode).set_mode_file_type(ModeFileType::Regular), bytes),
                Entry::Link { to } => (builder.mode(0o777).set_mode_file_type(ModeFileType::Symlink), to.as_bytes()),
                Entry::CharacterDevice { major, minor } => {
                    let builder = builder.mode(0o600).set_mode_file_type(ModeFileType::Char);
                    (builder.rdev_major(*major).rdev_minor(*minor), &[])
                }
            };
            let size = u32::try_from(bytes.len()).with_context(|| format!("{path} is too large for an archive"))?;
            let mut writer = builder.write(gzip, size);
            writer.write_all(bytes)?;
            gzip = writer.finish()?;
        }
        Ok(trailer(gzip)?.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use ::cpio::newc::Reader;
    use flate2::read::GzDecoder;

    use super::*;

    fn listing(archive: &Archive) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut plain = Vec::new();
        GzDecoder::new(archive.to_gzip().unwrap().as_slice()).read_to_end(&mut plain).unwrap();
        let mut rest: &[u8] = &plain;
        let mut found = Vec::new();
        loop {
            let mut reader = Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            let entry = reader.entry();
            assert_eq!((entry.mtime(), entry.uid(), entry.gid()), (0, 0, 0));
            found.push((entry.name().to_owned(), entry.mode(), entry.rdev_major(), bytes));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn entries_are_sorted_with_their_directories_first() {
        let mut archive = Archive::new();
        archive.link("bin/sh", "busybox").unwrap();
        archive.program("bin/busybox", b"ELF".to_vec()).unwrap();
        archive.character_device("dev/console", 5, 1).unwrap();
        archive.directory("proc").unwrap();
        let expected = [
            ("bin", 0o040_755, 0, ""),
            ("bin/busybox", 0o100_755, 0, "ELF"),
            ("bin/sh", 0o120_777, 0, "busybox"),
            ("dev", 0o040_755, 0, ""),
            ("dev/console", 0o020_600, 5, ""),
            ("proc", 0o040_755, 0, ""),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, mode, major, text)| (name.to_owned(), mode, major, text.as_bytes().to_vec()))
            .collect();
        assert_eq!(listing(&archive), expected);
    }

    #[test]
    fn equal_contents_give_equal_bytes_in_any_order() {
        let (mut one, mut other) = (Archive::new(), Archive::new());
        one.file("a/b", vec![1], 0o644).unwrap();
        one.directory("c").unwrap();
        other.directory("c").unwrap();
        other.file("a/b", vec![1], 0o644).unwrap();
        assert_eq!(one.to_gzip().unwrap(), other.to_gzip().unwrap());
    }

    #[test]
    fn paths_that_leave_the_root_are_refused() {
        for path in ["", "/etc", "a/../b", "a//b", "."] {
            assert!(Archive::new().directory(path).is_err(), "{path}");
        }
    }
}
