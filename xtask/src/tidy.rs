//! `cargo xtask tidy`: rules about files that no compiler checks. Each finding says what to do.

mod dependencies;
mod files;
mod lessons;
mod licences;
mod protocol;

use anyhow::{Result, bail};

/// Prints every finding. `bless` writes down what is derived (the protocol's hash) first.
pub fn check(bless: bool) -> Result<()> {
    if bless {
        protocol::bless()?;
    }
    let findings = findings()?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy found {} thing(s)", findings.len());
    }
    Ok(())
}

/// One line each: where, what, what to do.
pub fn findings() -> Result<Vec<String>> {
    let mut findings = files::findings()?;
    findings.extend(protocol::findings()?);
    findings.extend(lessons::findings()?);
    let metadata = dependencies::metadata()?;
    findings.extend(dependencies::findings(&metadata)?);
    findings.extend(licences::findings(&metadata)?);
    Ok(findings)
}
