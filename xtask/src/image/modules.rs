//! Which kernel modules go into the image, and in what order they load.
//!
//! An unpacked kernel package has no `modules.dep` (depmod runs when it is installed), so the order is computed from the
//! `depends=` line that each module carries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::elf;

/// A module with its place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub kind: String,
    pub name: String,
    pub file: PathBuf,
}

/// The wanted modules and what they depend on, each after its dependencies. What the kernel does not have as a module
/// (built in, or not configured) is left out when it is wanted, and an error when another module needs it.
pub fn in_order(modules: &Path, wanted: &[(String, String)]) -> Result<Vec<Module>> {
    let files = files(modules)?;
    let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    let built_in: BTreeSet<String> = built_in.lines().filter_map(|line| module_name(Path::new(line))).collect();
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let depends = |name: &str| -> Result<Vec<String>> {
        let file = files.get(name).with_context(|| format!("no module `{name}`"))?;
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        depends_of(&bytes).with_context(|| format!("cannot read what {} depends on", file.display()))
    };
    for (kind, name) in wanted.iter().filter(|(_, name)| files.contains_key(name.as_str())) {
        let mut names = Vec::new();
        visit(name, &built_in, &mut seen, &mut names, &depends, 0)?;
        order.extend(names.into_iter().map(|name| Module { kind: kind.clone(), file: files[&name].clone(), name }));
    }
    Ok(order)
}

/// The lines `KIND NAME` of images/initramfs/modules.
pub fn parse_wanted(text: &str) -> Result<Vec<(String, String)>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(' ') {
            Some((kind @ ("base" | "vsock"), name)) => Ok((kind.to_owned(), name.trim().to_owned())),
            _ => bail!("bad line `{line}`: expected `base NAME` or `vsock NAME`"),
        })
        .collect()
}

fn visit(
    name: &str,
    built_in: &BTreeSet<String>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<String>,
    depends: &impl Fn(&str) -> Result<Vec<String>>,
    depth: u32,
) -> Result<()> {
    if built_in.contains(name) || !seen.insert(name.to_owned()) {
        return Ok(());
    }
    if depth > 32 {
        bail!("the dependencies of `{name}` do not end");
    }
    for needed in depends(name)? {
        visit(&needed, built_in, seen, order, depends, depth + 1)
            .with_context(|| format!("`{name}` needs `{needed}`"))?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// The `depends=a,b` of a module's `.modinfo`, whose strings are separated by NULs.
fn depends_of(module: &[u8]) -> Result<Vec<String>> {
    let info = elf::section(module, ".modinfo")?;
    let line = info.split(|byte| *byte == 0).find_map(|line| line.strip_prefix(b"depends="));
    let names = std::str::from_utf8(line.unwrap_or_default())?;
    Ok(names.split(',').filter(|name| !name.is_empty()).map(normal).collect())
}

fn files(modules: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = vec![modules.join("kernel")];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "xz" || extension == "zst") {
                bail!("{} is compressed: this kernel package is newer than xtask knows", path.display());
            } else if let Some(name) = module_name(&path) {
                found.insert(name, path);
            }
        }
    }
    Ok(found)
}

fn module_name(path: &Path) -> Option<String> {
    path.file_name()?.to_str()?.strip_suffix(".ko").map(normal)
}

/// The kernel takes `-` and `_` as the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(wanted: &[&str], needs: &[(&str, &[&str])], built_in: &[&str]) -> Result<Vec<String>> {
        let built_in = built_in.iter().map(|name| (*name).to_owned()).collect();
        let depends = |name: &str| -> Result<Vec<String>> {
            let found =
                needs.iter().find(|(module, _)| *module == name).with_context(|| format!("no module `{name}`"))?;
            Ok(found.1.iter().map(|name| (*name).to_owned()).collect())
        };
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        for name in wanted {
            visit(name, &built_in, &mut seen, &mut order, &depends, 0)?;
        }
        Ok(order)
    }

    const VIRTIO: &[(&str, &[&str])] = &[
        ("virtio_ring", &[]),
        ("virtio", &["virtio_ring"]),
        ("virtio_pci_modern_dev", &[]),
        ("virtio_pci", &["virtio_ring", "virtio", "virtio_pci_modern_dev"]),
        ("vsock", &[]),
        ("transport_common", &["vsock"]),
        ("transport", &["transport_common", "virtio_ring", "virtio", "vsock"]),
    ];

    #[test]
    fn every_module_comes_once_and_after_what_it_needs() {
        let order = order(&["virtio_pci", "transport"], VIRTIO, &[]).unwrap();
        let expected =
            ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci", "vsock", "transport_common", "transport"];
        assert_eq!(order, expected);
    }

    #[test]
    fn built_in_dependencies_are_left_out() {
        assert_eq!(
            order(&["transport"], VIRTIO, &["virtio", "virtio_ring"]).unwrap(),
            ["vsock", "transport_common", "transport"]
        );
    }

    #[test]
    fn a_missing_dependency_names_who_needs_it() {
        let error = format!("{:#}", order(&["a"], &[("a", &["b"])], &[]).unwrap_err());
        assert_eq!(error, "`a` needs `b`: no module `b`");
    }

    #[test]
    fn the_list_in_images_parses() {
        let text = fs::read_to_string(crate::project::root().join("images/initramfs/modules")).unwrap();
        let wanted = parse_wanted(&text).unwrap();
        assert!(wanted.contains(&("vsock".to_owned(), "vmw_vsock_virtio_transport".to_owned())));
        assert!(parse_wanted("later x").is_err());
        assert!(parse_wanted("base").is_err());
    }

    #[test]
    fn names_are_compared_as_the_kernel_does() {
        assert_eq!(module_name(Path::new("kernel/x/virtio-rng.ko")).as_deref(), Some("virtio_rng"));
        assert_eq!(module_name(Path::new("modules.order")), None);
    }
}
