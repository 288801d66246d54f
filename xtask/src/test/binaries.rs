//! The test programs of all crates: built by one cargo call, run by us, so that each one's time and failures are known.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::Outcome;
use super::with_target;
use crate::child::{self, Child};
use crate::run;

#[derive(Debug)]
pub(super) struct Binary {
    /// Of the package.
    package: String,
    /// Of the target: a library's or program's own name, or a file of tests/.
    pub(super) name: String,
    kind: String,
    program: PathBuf,
    dir: PathBuf,
}

/// What could be built, and whether that is all: one file that does not compile takes no other's tests away.
pub(super) fn build() -> Result<(Vec<Binary>, bool)> {
    let mut cargo = run::cargo();
    let json = "--message-format=json-render-diagnostics";
    with_target(cargo.args(["test", "--workspace", "--no-run", "--no-fail-fast", "--quiet", json]));
    cargo.stderr(Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    let text = String::from_utf8(output.stdout).context("cargo printed bytes that are not UTF-8")?;
    let mut binaries = Vec::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).context("cargo printed what is not JSON")?;
        binaries.extend(test_program(&message));
    }
    // Quick ones first; whole-system tests, which live in xtask, last.
    binaries.sort_by_key(|binary: &Binary| {
        let system = binary.package == "xtask" && binary.kind == "test";
        (system, binary.package.clone(), binary.name.clone())
    });
    Ok((binaries, output.status.success()))
}

fn test_program(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    Some(Binary {
        package: dir.file_name()?.to_str()?.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        program: message["executable"].as_str()?.into(),
        dir,
    })
}

impl Binary {
    pub(super) fn run(
        &self,
        env: &BTreeMap<&str, OsString>,
        pass_on: &[String],
        deadline: Duration,
    ) -> Result<Outcome> {
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        let mut command = child::command(&self.program);
        command.args(pass_on).current_dir(&self.dir).envs(env).env("CARGO_MANIFEST_DIR", &self.dir);
        if self.name.starts_with("vm_") {
            // VMs take turns anyway; one after the other, a waiting test's time is not counted as its own.
            command.env("RUST_TEST_THREADS", "1");
        }
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = Child::spawn(&self.to_string(), command)?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || forward(reader, &sender));

        let status = child.wait(deadline)?;
        let mut outcome = Outcome::default();
        // A daemon that a test forgot may hold the pipe open: what is there is read, its end is not waited for.
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(2)) {
            count(&line, &mut outcome);
        }
        if !status.success() && outcome.failures.is_empty() {
            outcome.failures.push(format!("ended with {}", child::shown(status)));
        }
        Ok(outcome)
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "test" => write!(f, "{} tests/{}", self.package, self.name),
            kind => write!(f, "{} ({kind})", self.package),
        }
    }
}

/// Prints as it comes and remembers.
fn forward(reader: PipeReader, lines: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        let _ = io::stdout().write_all(text.as_bytes());
        if lines.send(text).is_err() {
            return;
        }
    }
}

/// Reads libtest's lines `test NAME ... ok`. A test's own output may stand between name and verdict; the list of failures
/// and the sum at the end are whole all the same.
fn count(line: &str, outcome: &mut Outcome) {
    let line = line.trim_end();
    if let Some(sum) = line.strip_prefix("test result: ") {
        let passed = sum.split_once(". ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        outcome.passed += passed.unwrap_or(0);
    } else if let Some(name) = line.strip_prefix("    ").filter(|name| !name.starts_with(' ') && !name.contains(' ')) {
        // The final list names each failure again, four blanks deep.
        if !outcome.failures.iter().any(|known| known == name) {
            outcome.failures.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_sums_are_read_from_libtest() {
        let text = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\nfailures:\n\n---- c stdout ----\nthread 'c' panicked\n\
                    \nfailures:\n    c\n\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; finished in 0.00s\n";
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| count(line, &mut outcome));
        assert_eq!((outcome.passed, outcome.failures), (2, vec!["c".to_owned()]));
    }

    #[test]
    fn only_test_programs_are_taken_from_cargos_messages() {
        let program = r#"{"reason":"compiler-artifact","manifest_path":"/w/wire/Cargo.toml","target":{"kind":["lib"],"name":"informant_wire"},
            "profile":{"test":true},"executable":"/t/informant_wire-1"}"#;
        let binary = test_program(&serde_json::from_str(program).unwrap()).unwrap();
        assert_eq!((binary.to_string().as_str(), binary.dir.to_str().unwrap()), ("wire (lib)", "/w/wire"));
        assert!(test_program(&serde_json::from_str(&program.replace("true", "false")).unwrap()).is_none());
        assert!(test_program(&serde_json::from_str(r#"{"reason":"build-finished"}"#).unwrap()).is_none());
    }
}
