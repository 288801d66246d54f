//! Which files of the directory of advisors are run, and what is wrong with the others.

use crate::local::tally::{Name, line};
use informant_wire::scale::AdvisorFault;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Advisors that one directory may hold.
pub(super) const MAX_PROGRAMS: usize = 16;
/// Files of the directory that are looked at.
const MAX_FILES: usize = 256;

/// A file of the directory.
pub(super) type Found = (Name, Result<PathBuf, AdvisorFault>);

/// Files by name. Those that others could have written are refused: the agent runs as root. So are all when others can
/// write the directory, for they could put a link to any program there.
pub(super) fn list(directory: &Path) -> Vec<Found> {
    let refused = |what| vec![(name_of(directory.as_os_str()), Err(what))];
    let entries = match std::fs::metadata(directory).and_then(|found| Ok((found, std::fs::read_dir(directory)?))) {
        Ok((found, entries)) if is_ours(found.uid(), found.mode()) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        _ => return refused(AdvisorFault::REFUSED),
    };
    let mut names: Vec<_> = entries.take(MAX_FILES).filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort_unstable();
    // Hidden files and an editor's copies are no advisors.
    names.retain(|name| !name.as_bytes().starts_with(b".") && !name.as_bytes().ends_with(b"~"));
    let mut programs = 0;
    let vetted = names.into_iter().filter_map(|name| {
        let path = directory.join(&name);
        let file = std::fs::symlink_metadata(&path).ok()?;
        if file.is_dir() {
            return None;
        }
        let fits = file.is_file() && is_ours(file.uid(), file.mode()) && file.mode() & 0o111 != 0;
        programs += usize::from(fits);
        let verdict = match fits {
            true if programs > MAX_PROGRAMS => Err(AdvisorFault::LEFT_OUT),
            true => Ok(path),
            false => Err(AdvisorFault::REFUSED),
        };
        Some((name_of(&name), verdict))
    });
    vetted.collect()
}

fn is_ours(uid: u32, mode: u32) -> bool {
    (uid == 0 || uid == nix::unistd::geteuid().as_raw()) && mode & 0o022 == 0
}

fn name_of(name: &OsStr) -> Name {
    line(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    fn put(directory: &Path, name: &str, mode: u32) {
        write(directory.join(name), "#!/bin/sh\n").unwrap();
        set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_could_have_written_is_not_run() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("b", 0o755), ("a", 0o700), ("group", 0o775), ("world", 0o757), ("plain", 0o644)] {
            put(path, name, mode);
        }
        put(path, ".hidden", 0o755);
        put(path, "copy~", 0o755);
        create_dir(path.join("folder")).unwrap();
        std::os::unix::fs::symlink("b", path.join("link")).unwrap();
        let seen: Vec<_> = list(path).into_iter().map(|(name, found)| (name.to_string(), found)).collect();
        let (run, no) = (|name: &str| Ok(path.join(name)), Err(AdvisorFault::REFUSED));
        let all =
            [("a", run("a")), ("b", run("b")), ("group", no.clone()), ("link", no.clone()), ("plain", no.clone())];
        let all: Vec<_> = all.into_iter().chain([("world", no)]).map(|(n, f)| (n.to_owned(), f)).collect();
        assert_eq!(seen, all);
        set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        assert!(
            matches!(&list(path)[..], [(name, Err(AdvisorFault::REFUSED))] if path.to_str().unwrap().starts_with(name.as_str()))
        );
        assert!(list(Path::new("/nonexistent/advisors")).is_empty());
    }

    #[test]
    fn sixteen_are_run_and_the_rest_is_told() {
        let place = tempfile::tempdir().unwrap();
        set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        (10..28).for_each(|i| put(place.path(), &i.to_string(), 0o755));
        let found = list(place.path());
        assert!(found[..16].iter().all(|(_, found)| found.is_ok()));
        let rest: Vec<_> = found[16..].iter().map(|(name, found)| (name.as_str(), found.clone())).collect();
        assert_eq!(rest, [("26", Err(AdvisorFault::LEFT_OUT)), ("27", Err(AdvisorFault::LEFT_OUT))]);
    }
}
