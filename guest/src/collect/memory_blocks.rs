//! Memory blocks, the unit of memory hot-plug: how much memory is plugged, and how much of it is online. See
//! Documentation/admin-guide/mm/memory-hotplug.rst.
//!
//! A VM may have thousands of blocks, each with a file of its own. A round over them is made when something moved (the
//! number of blocks, or MemTotal, which every block that comes or goes changes), else rarely, and is spread over
//! several samples.

use super::Context;
use crate::kfile::{Directory, KFile, Slot, each_entry};
use crate::parse::{hexadecimal, number, trim};
use informant_wire::metric::id;
use std::os::fd::AsFd;

/// Where blocks are, below the root.
pub const DIRECTORY: &[u8] = b"sys/devices/system/memory";
/// Blocks read in one sample.
const PER_SAMPLE: usize = 128;
/// Blocks of a round. With more, their sums are absent rather than wrong.
pub const MAX_BLOCKS: usize = 8192;
/// Without a change, a round is made when it was left out this many times: an hour at one sample a second.
const MAX_LEFT_OUT: u32 = 720;

/// The collector.
#[derive(Debug)]
pub struct MemoryBlocks {
    size: KFile,
    directory: Slot,
    /// The blocks of the round that is under way, and how many of them were read.
    blocks: Vec<u32>,
    done: usize,
    online: u64,
    offline: u64,
    /// What the last round found: block size, online and offline, bytes.
    found: [Option<u64>; 3],
    /// Links of the directory, one a block, and MemTotal, when the last round began.
    before: Option<(nix::libc::nlink_t, Option<u64>)>,
    left_out: u32,
}

impl Default for MemoryBlocks {
    fn default() -> Self {
        Self {
            size: KFile::new(b"sys/devices/system/memory/block_size_bytes"),
            directory: Slot::Empty,
            blocks: Vec::new(),
            done: 0,
            online: 0,
            offline: 0,
            found: [None; 3],
            before: None,
            left_out: 0,
        }
    }
}

/// Memory that is plugged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Size of one, bytes.
    pub size_bytes: u64,
    /// In blocks that are online, bytes.
    pub online_bytes: u64,
    /// In blocks that are not, bytes.
    pub offline_bytes: u64,
}

/// Whether a block's `state` says that its memory is in use; `None` for a word that is no state.
/// `going-offline` still holds data; it counts as online until it is not.
#[must_use]
pub fn is_online(state: &[u8]) -> Option<bool> {
    match trim(state) {
        b"online" | b"going-offline" => Some(true),
        b"offline" => Some(false),
        _ => None,
    }
}

/// The number of a block, from the name of its directory.
#[must_use]
pub fn block_number(name: &[u8]) -> Option<u32> {
    name.strip_prefix(b"memory").and_then(number).and_then(|n| u32::try_from(n).ok())
}

/// Size of a block, from `block_size_bytes`; `None` for what is no size.
#[must_use]
pub fn block_size(bytes: &[u8]) -> Option<u64> {
    hexadecimal(trim(bytes)).filter(|size| *size > 0)
}

impl MemoryBlocks {
    /// What the last round found; `None` where the kernel does not tell.
    #[must_use]
    pub fn found(&self) -> Option<Blocks> {
        let [size, online, offline] = self.found;
        Some(Blocks { size_bytes: size?, online_bytes: online?, offline_bytes: offline? })
    }

    /// One pass. `total_kib`: MemTotal of this sample. `all`: a whole round, at once.
    pub fn sample(&mut self, cx: &mut Context<'_>, total_kib: Option<u64>, all: bool) {
        self.round(cx, total_kib, all);
        for (metric, value) in
            [id::MEMORY_BLOCK_SIZE, id::MEMORY_ONLINE, id::MEMORY_OFFLINE].into_iter().zip(self.found)
        {
            cx.row.put(cx.vm, metric, value);
        }
    }

    fn round(&mut self, cx: &mut Context<'_>, total_kib: Option<u64>, all: bool) {
        if self.done >= self.blocks.len() {
            if !cx.files.recheck {
                return;
            }
            let now = cx.files.stat_kept(&mut self.directory, DIRECTORY).ok().map(|stat| (stat.st_nlink, total_kib));
            if now.is_some() && now == self.before && !all && self.left_out < MAX_LEFT_OUT {
                self.left_out += 1;
                return;
            }
            (self.before, self.left_out) = (now, 0);
            self.list(cx);
        }
        let directory = Directory::new(DIRECTORY);
        if directory.open(cx.files).is_ok() {
            self.read(cx, &directory, all);
        } else {
            self.blocks.clear();
            self.done = 0;
        }
        if self.done < self.blocks.len() {
            return;
        }
        let size = cx.files.read(&mut self.size).and_then(block_size);
        let known = (self.online + self.offline > 0).then_some(());
        let bytes = |blocks: u64| known.and(size).and_then(|size| size.checked_mul(blocks));
        self.found = [size, bytes(self.online), bytes(self.offline)];
    }

    fn read(&mut self, cx: &mut Context<'_>, directory: &Directory<'_>, all: bool) {
        let end = if all { self.blocks.len() } else { self.blocks.len().min(self.done + PER_SAMPLE) };
        for block in self.blocks.get(self.done..end).unwrap_or_default() {
            match cx.files.read_once(Some(directory), state_path(*block).as_bytes()).and_then(is_online) {
                Some(true) => self.online += 1,
                Some(false) => self.offline += 1,
                None => {}
            }
        }
        self.done = end;
    }

    fn list(&mut self, cx: &Context<'_>) {
        self.blocks.clear();
        (self.done, self.online, self.offline) = (0, 0, 0);
        let Ok(directory) = cx.files.open_directory(DIRECTORY) else { return };
        let _ = each_entry(directory.as_fd(), |entry| {
            self.blocks.extend(block_number(entry.name));
            self.blocks.len() <= MAX_BLOCKS
        });
        if self.blocks.len() > MAX_BLOCKS {
            self.blocks.clear();
        }
        // A directory that lists a name twice has it once.
        self.blocks.sort_unstable();
        self.blocks.dedup();
    }
}

/// `memoryN/state`, without the allocator.
#[must_use]
pub fn state_path(block: u32) -> heapless::String<32> {
    let mut path = heapless::String::new();
    let _ = core::fmt::write(&mut path, format_args!("memory{block}/state"));
    path
}
