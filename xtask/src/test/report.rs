//! What passed, what failed and how long it took; nothing is lost because something else failed first.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

#[derive(Debug)]
pub(super) struct Report {
    since: Instant,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    name: String,
    took: Duration,
    note: String,
    failures: Vec<String>,
}

/// How the tests of one program went.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) passed: usize,
    pub(super) failures: Vec<String>,
}

impl Report {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), parts: Vec::new() }
    }

    /// Without this part nothing else makes sense.
    pub(super) fn required<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let since = Instant::now();
        let value = work()?;
        self.add(name, since, String::new(), Vec::new());
        Ok(value)
    }

    pub(super) fn part<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        eprintln!("== {name}");
        let since = Instant::now();
        match work() {
            Ok(value) => {
                self.add(name, since, String::new(), Vec::new());
                Some(value)
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                self.add(name, since, String::new(), vec![format!("{error:#}")]);
                None
            }
        }
    }

    pub(super) fn tests(&mut self, name: &str, work: impl FnOnce() -> Result<Outcome>) {
        eprintln!("== {name}");
        let since = Instant::now();
        match work() {
            Ok(Outcome { passed: 0, failures }) => self.add(name, since, String::new(), failures),
            Ok(Outcome { passed, failures }) => self.add(name, since, format!("{passed} passed"), failures),
            Err(error) => self.add(name, since, String::new(), vec![format!("{error:#}")]),
        }
    }

    pub(super) fn finish(self) -> Result<()> {
        println!("\n{}", self.table());
        let failures: Vec<String> = self
            .parts
            .iter()
            .flat_map(|part| part.failures.iter().map(|failure| format!("{}: {failure}", part.name)))
            .collect();
        if failures.is_empty() {
            println!("all well, {:.0} s", self.since.elapsed().as_secs_f64());
            return Ok(());
        }
        println!("failures:");
        for failure in &failures {
            println!("  {failure}");
        }
        bail!(
            "{} failed",
            if failures.len() == 1 { "1 thing".to_owned() } else { format!("{} things", failures.len()) }
        )
    }

    fn add(&mut self, name: &str, since: Instant, note: String, failures: Vec<String>) {
        self.parts.push(Part { name: name.to_owned(), took: since.elapsed(), note, failures });
    }

    fn table(&self) -> String {
        let width = self.parts.iter().map(|part| part.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Part { name, took, note, failures } in &self.parts {
            let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
            let line = format!("{name:width$}  {:>7.1} s  {verdict:6}  {note}", took.as_secs_f64());
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_counted_and_the_rest_goes_on() {
        let mut report = Report::new();
        assert_eq!(report.part("one", || Ok(1)), Some(1));
        assert_eq!(report.part("two", || -> Result<()> { bail!("broken") }), None);
        report.tests("three", || Ok(Outcome { passed: 3, failures: vec!["a::b".to_owned()] }));
        assert!(report.table().contains("FAILED  3 passed"), "{}", report.table());
        assert_eq!(report.finish().unwrap_err().to_string(), "2 things failed");
    }
}
