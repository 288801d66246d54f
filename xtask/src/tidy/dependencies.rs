//! Which crate may know which: `host -> wire <- guest`, and wire on next to nothing.

use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run;

/// Of our own crates: who may depend on whom, tests included.
const OWN: &[(&str, &[&str])] = &[
    ("informant-wire", &[]),
    ("informant-guest", &["informant-wire"]),
    ("informant-host", &["informant-wire"]),
    ("xtask", &["informant-wire"]),
];
/// All that the stable API brings into other people's programs.
const WIRE: &[&str] = &["heapless", "postcard", "serde"];

pub(super) fn metadata() -> Result<Value> {
    let mut cargo = run::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked"]).stderr(Stdio::inherit());
    serde_json::from_str(&run::read(&mut cargo)?).context("cargo metadata printed what is not JSON")
}

pub(super) fn findings(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut findings = Vec::new();
    for (name, allowed) in OWN {
        let package = packages.iter().find(|package| package["name"] == *name);
        let package = package.with_context(|| format!("cargo metadata has no package `{name}`"))?;
        let dependencies = package["dependencies"].as_array().context("a package without dependencies")?;
        for dependency in dependencies {
            let used = dependency["name"].as_str().unwrap_or_default();
            let own = OWN.iter().any(|(own, _)| *own == used);
            if own && !allowed.contains(&used) {
                findings.push(format!("{name}: must not depend on {used}; what both need belongs into wire"));
            }
            let normal = dependency["kind"].is_null();
            if *name == "informant-wire" && normal && !WIRE.contains(&used) {
                findings.push(format!("{name}: may depend on {} alone, not on {used}", WIRE.join(", ")));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({"name": name, "dependencies": dependencies})
    }

    #[test]
    fn guest_and_host_do_not_know_each_other_and_wire_stays_small() {
        let metadata = json!({"packages": [
            package("informant-wire", &[("serde", None), ("proptest", Some("dev")), ("anyhow", None)]),
            package("informant-guest", &[("informant-wire", None)]),
            package("informant-host", &[("informant-wire", None), ("informant-guest", Some("dev"))]),
            package("xtask", &[("informant-wire", None)]),
        ]});
        let found = findings(&metadata).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("not on anyhow"), "{found:?}");
        assert!(found[1].starts_with("informant-host: must not depend on informant-guest"), "{found:?}");
    }
}
