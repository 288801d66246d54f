//! Fixture trees: kernel files written into a temporary directory, and what is sampled from them.

use informant_guest::collect::{Config, OwnFigures, Sensors, probe};
use informant_guest::sample;
use informant_wire::event::EventKind;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory with `proc` and `sys` as far as a test writes them.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A tree with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let tree = Self::new();
        for (path, content) in files {
            tree.put(path, content);
        }
        tree
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.path().join(OsStr::from_bytes(path.as_ref()))
    }

    /// Writes a file in place, and the directories above it.
    pub(crate) fn put(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> &Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Puts another file, with another inode, in a file's place.
    pub(crate) fn replace(&self, path: &str, content: &str) {
        self.put("next", content);
        fs::rename(self.at("next"), self.at(path)).unwrap();
    }

    pub(crate) fn directory(&self, path: impl AsRef<[u8]>) -> &Self {
        fs::create_dir_all(self.at(path)).unwrap();
        self
    }

    /// A symbolic link.
    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) -> &Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    pub(crate) fn remove(&self, path: impl AsRef<[u8]>) {
        let path = self.at(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// One line of samples.
    pub(crate) fn sample(&self) -> Line {
        self.samples(1, |_, _| {}).remove(0)
    }

    /// Several lines; `between` changes the tree after each.
    pub(crate) fn samples(&self, count: u64, between: impl FnMut(usize, &Self)) -> Vec<Line> {
        self.samples_of(count, None, between)
    }

    /// As [`Self::samples`], with a watched cgroup.
    pub(crate) fn samples_of(&self, count: u64, cgroup: Option<&str>, between: impl FnMut(usize, &Self)) -> Vec<Line> {
        let mut out = Between { tree: self, lines: Vec::new(), between };
        sample::run(self.path(), count, Duration::ZERO, cgroup.map(Path::new), &mut out, &mut |_| {}).unwrap();
        out.lines
    }

    /// Sensors as the agent has them, with another statvfs.
    pub(crate) fn sensors(&self, all_fresh: bool, statvfs: probe::Ask) -> Sensors {
        Sensors::with_statvfs(&Config { root: self.path().to_owned(), cgroup: None, all_fresh }, statvfs)
    }

    /// The events of as many samples, and one more at the start.
    pub(crate) fn events(&self, count: usize, mut between: impl FnMut(usize, &Self)) -> Vec<(EventKind, Vec<u8>)> {
        let mut sensors = self.sensors(true, probe::statvfs(self.path()));
        let mut events = Vec::new();
        for n in 0..=count {
            sensors.sample(&OwnFigures::default());
            sensors.reschema();
            sensors.take_event(&mut |kind, body| events.push((kind, body.to_vec())));
            if n < count {
                between(n, self);
            }
        }
        events
    }
}

struct Between<'a, F> {
    tree: &'a Tree,
    lines: Vec<Line>,
    between: F,
}

impl<F: FnMut(usize, &Tree)> Write for Between<'_, F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.push(Line::parse(line));
        (self.between)(self.lines.len() - 1, self.tree);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line of `sample`: values by `name{label=value,...}`, labels in alphabetical order.
#[derive(Debug)]
pub(crate) struct Line(BTreeMap<String, f64>);

impl Line {
    /// Panics when it is not the documented JSON, or has a series twice.
    fn parse(line: &[u8]) -> Self {
        let json: serde_json::Value = serde_json::from_slice(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert!(json["time_ms"].as_u64().is_some());
        let mut values = BTreeMap::new();
        for metric in json["metrics"].as_array().unwrap() {
            let labels: BTreeMap<_, _> = metric["labels"].as_object().unwrap().iter().collect();
            let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap())).collect();
            let mut key = metric["name"].as_str().unwrap().to_owned();
            if !labels.is_empty() {
                key = format!("{key}{{{}}}", labels.join(","));
            }
            let twice = values.insert(key.clone(), metric["value"].as_f64().unwrap());
            assert_eq!(twice, None, "{key} is there twice");
        }
        Self(values)
    }

    /// A value, where it is there.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// Whether a series that begins with `prefix` is there.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        !self.starting(prefix).is_empty()
    }

    /// The series that begin with `prefix`.
    pub(crate) fn starting(&self, prefix: &str) -> Vec<&str> {
        self.0.keys().filter(|key| key.starts_with(prefix)).map(String::as_str).collect()
    }

    /// Checks several values at once; `None` is absent.
    pub(crate) fn check(&self, expected: &[(&str, Option<f64>)]) {
        for (series, value) in expected {
            assert_eq!(self.get(series), *value, "{series}");
        }
    }
}
