//! Which instance has which address: no two have the same. Who has one keeps it while its instance.toml says so, over
//! restarts too; of several that come new the first by name gets it.

use super::accept;
use super::shared::Shared;
use super::slot::transport;
use crate::config::{Address, Config};
use crate::publish::status::Transport;
use crate::publish::status_file;
use crate::transport::unix;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

/// What one instance can have, and no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Cid(u32),
    Socket(PathBuf),
}

/// What an instance needs for itself.
pub(super) fn places(shared: &Shared, config: &Config) -> Vec<Place> {
    let address = match &config.address {
        Address::Cid(cid) => Place::Cid(*cid),
        Address::Uds(path) | Address::Unix(path) => Place::Socket(unix::resolved(path)),
    };
    let listens = accept::listen_path(shared, config).map(|path| Place::Socket(unix::resolved(&path)));
    std::iter::once(address).chain(listens).collect()
}

/// What an instance.toml that is new or changed asks for.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) name: &'a str,
    pub(super) config: &'a Config,
    pub(super) places: &'a [Place],
    /// It has them all now.
    pub(super) has: bool,
    /// The daemon sees it for the first time.
    pub(super) is_new: bool,
}

/// Whom to prefer, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Title {
    Has,
    HadWithTheLastDaemon,
    None,
}

/// Decides over all claims of one look together. `holders`: what belongs to instances that claim nothing new. Gives the
/// names of those that do not get what they ask for, and why.
pub(super) fn settle(
    shared: &Shared,
    holders: &HashMap<Place, String>,
    claims: &[Claim<'_>],
) -> BTreeMap<String, String> {
    let mut wanted: HashMap<&Place, usize> = HashMap::new();
    for place in claims.iter().flat_map(|claim| claim.places) {
        *wanted.entry(place).or_default() += 1;
    }
    let is_contested = |claim: &Claim<'_>| claim.places.iter().any(|place| wanted.get(place).is_some_and(|n| *n > 1));
    let title = |claim: &Claim<'_>| match claim {
        claim if claim.has => Title::Has,
        claim if claim.is_new && is_contested(claim) && had(shared, claim) => Title::HadWithTheLastDaemon,
        _ => Title::None,
    };
    let mut order: Vec<_> = claims.iter().map(|claim| (title(claim), claim.name, claim)).collect();
    order.sort_by_key(|(title, name, _)| (*title, *name));
    let api = shared.dir.join("informant.sock");
    let mut given: HashMap<&Place, &str> = HashMap::new();
    let mut refused = BTreeMap::new();
    for (_, name, claim) in order {
        let holder = |place| given.get(place).copied().or_else(|| holders.get(place).map(String::as_str));
        let why = if claim.places.iter().any(|place| matches!(place, Place::Socket(path) if *path == api)) {
            Some(format!("{} is the daemon's own socket: every VM has its own", api.display()))
        } else {
            claim.places.iter().filter_map(holder).find(|other| *other != name).map(|other| {
                format!("\"{other}\" has the same address and keeps it while its instance.toml says so: every VM has its own")
            })
        };
        match why {
            Some(why) => drop(refused.insert(name.to_owned(), why)),
            None => given.extend(claim.places.iter().map(|place| (place, name))),
        }
    }
    refused
}

/// Whether the daemon before this one reached the instance there: its status file says so. That of a folder that was
/// copied or renamed since is another instance's, by its name.
fn had(shared: &Shared, claim: &Claim<'_>) -> bool {
    let file = status_file::path(&shared.dir.join(claim.name));
    let now = transport(claim.config, shared.port);
    said(&file).is_some_and(|said| {
        said.name == claim.name
            && said.transport.is_some_and(|then| (&then.kind, &then.address) == (&now.kind, &now.address))
    })
}

/// Bytes of a status file that are read.
const MAX_STATUS: u64 = 64 << 20;

/// The part of a status file that is asked for.
#[derive(Deserialize)]
struct Said {
    name: String,
    transport: Option<Transport>,
}

fn said(file: &Path) -> Option<Said> {
    // Only the daemon writes there; what is no file is nobody's word.
    if !std::fs::symlink_metadata(file).ok()?.is_file() {
        return None;
    }
    serde_json::from_reader(BufReader::new(File::open(file).ok()?.take(MAX_STATUS))).ok()
}
