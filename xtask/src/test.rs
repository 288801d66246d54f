//! `cargo xtask test` and `cargo xtask soak`: everything that must hold, every failure listed at the end.
//!
//! Both run the same tests; INFORMANT_COUNTS tells a test whether the counts are those of CI or of a soak.

mod binaries;
mod report;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::project::{self, Arch};
use crate::{guest, host, initramfs, run, setup, tidy, vm};
use report::{Outcome, Report};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    Ci,
    Soak,
}

impl Counts {
    fn name(self) -> &'static str {
        match self {
            Self::Ci => "ci",
            Self::Soak => "soak",
        }
    }

    /// How long one test program may take.
    fn deadline(self) -> Duration {
        match self {
            Self::Ci => Duration::from_secs(60 * 60),
            Self::Soak => Duration::from_secs(48 * 60 * 60),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub counts: Counts,
    /// Build what tests need, and run none.
    pub build_only: bool,
    /// Only these test programs (by name, such as `vm_smoke`), and no checks.
    pub programs: Vec<String>,
    /// Given on to the test programs, such as the name of a test.
    pub pass_on: Vec<String>,
}

pub fn run(options: &Options) -> Result<()> {
    let checks = options.programs.is_empty() && !options.build_only;
    let mut report = Report::new();
    report.required("setup", setup::all)?;
    if checks {
        report.part("format", || run::check(run::cargo().args(["fmt", "--all", "--check"])));
        report.part("clippy", clippy);
        report.tests("tidy", || Ok(Outcome { passed: 0, failures: tidy::findings()? }));
    }
    report.part("guest x86_64", || guest::build(Arch::X86_64).map(drop));
    if checks {
        report.part("guest aarch64", || guest::build(Arch::Aarch64).map(drop));
    }
    report.part("host", host::build);
    report.part("host, static", host::build_static);
    report.part("programs for the inside of VMs", test_tools);
    report.part("initramfs", || initramfs::build(false).map(drop));

    // What could not be built has its failure listed; the tests that need it say so themselves.
    let mut binaries = Vec::new();
    report.part("building the tests", || {
        let (built, all) = binaries::build()?;
        binaries = built;
        ensure!(all, "some tests do not build");
        Ok(())
    });
    if !options.build_only {
        eprintln!("== counts: {}", options.counts.name());
        let env = environment(options.counts)?;
        let wanted = |name: &str| options.programs.is_empty() || options.programs.iter().any(|program| program == name);
        for binary in binaries.iter().filter(|binary| wanted(&binary.name)) {
            report.tests(&binary.to_string(), || binary.run(&env, &options.pass_on, options.counts.deadline()));
        }
        if checks {
            report.part("documentation tests", || {
                run::check(with_target(run::cargo().args(["test", "--workspace", "--doc", "--quiet"])))
            });
        }
    }
    report.finish()
}

fn clippy() -> Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["clippy", "--workspace", "--all-targets", "--keep-going", "--quiet", "--", "-D", "warnings"]);
    run::check(with_target(&mut cargo))
}

/// The raw vsock program and the workload.
fn test_tools() -> Result<()> {
    let musl = Arch::X86_64.musl();
    let mut cargo = run::cargo();
    cargo.args(["build", "--package", "xtask", "--release", "--quiet", "--target", musl]);
    cargo.args(["--example", "vsock_cat", "--example", "workload"]);
    run::check(with_target(cargo.args(host::LIGHTER)))?;
    let built = project::target().join(musl).join("release/examples");
    guest::install(&built.join("vsock_cat"), &project::vsock_cat_path())?;
    guest::install(&built.join("workload"), &project::workload_path())
}

/// What tests are told. A development machine's CID 2 may be somebody else's host: no agent of a test dials it by default.
fn environment(counts: Counts) -> Result<BTreeMap<&'static str, OsString>> {
    let nowhere = project::target().join("no-host.sock");
    Ok(BTreeMap::from([
        ("INFORMANT_GUEST", project::guest_path(Arch::X86_64).into()),
        ("INFORMANT_HOST", project::host_path().into()),
        ("INFORMANT_HOST_STATIC", project::host_static_path().into()),
        ("INFORMANT_INITRAMFS", project::initramfs_path().into()),
        ("INFORMANT_VSOCK_CAT", project::vsock_cat_path().into()),
        ("INFORMANT_WORKLOAD", project::workload_path().into()),
        ("INFORMANT_COUNTS", counts.name().into()),
        ("INFORMANT_CONNECT", format!("unix:{}", nowhere.display()).into()),
        ("INFORMANT_CONTROL", "off".into()),
        (vm::ACCEL_VARIABLE, vm::accel()?.name().into()),
    ]))
}

fn with_target(cargo: &mut std::process::Command) -> &mut std::process::Command {
    cargo.env("CARGO_TARGET_DIR", project::target())
}
