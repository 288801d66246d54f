//! `/proc/net/dev`, and each interface's state from `/sys/class/net`. See `proc_pid_net(5)` and
//! Documentation/ABI/testing/sysfs-class-net.
//!
//! Names are bytes: everything before the last colon of a line.

use super::Context;
use super::roster::{Roster, Seen};
use super::row::Row;
use crate::kfile::{Files, KFile, Look, Slot};
use crate::parse::{self, lines, only_number, trim};
use informant_wire::metric::{MetricId, SubjectKind, id};

/// The columns behind the name.
const COLUMNS: [MetricId; 16] = [
    id::NET_RX_BYTES,
    id::NET_RX_PACKETS,
    id::NET_RX_ERRORS,
    id::NET_RX_DROPPED,
    id::NET_RX_FIFO,
    id::NET_RX_FRAME,
    id::NET_RX_COMPRESSED,
    id::NET_RX_MULTICAST,
    id::NET_TX_BYTES,
    id::NET_TX_PACKETS,
    id::NET_TX_ERRORS,
    id::NET_TX_DROPPED,
    id::NET_TX_FIFO,
    id::NET_TX_COLLISIONS,
    id::NET_TX_CARRIER,
    id::NET_TX_COMPRESSED,
];
/// What drivers say when they do not know a speed, besides -1.
const SPEEDS_UNKNOWN: [u64; 2] = [65_535, 4_294_967_295];

/// Attributes of an interface that are read through kept descriptors.
const ATTRIBUTES: usize = 4;
/// Interfaces that have such; attributes of the others are opened each time.
const MAX_KEPT_INTERFACES: usize = 8;
/// Descriptors that interfaces keep at most.
pub const MAX_KEPT: usize = MAX_KEPT_INTERFACES * ATTRIBUTES;

/// What is kept of an interface.
#[derive(Debug, Default)]
pub struct Interface {
    /// Bytes and packets received and sent, of the last sample.
    last: [u64; 4],
    /// Its state in sysfs is to be read with this sample: it is new, or several of its counters fell.
    look: bool,
    /// Its attributes in sysfs.
    slots: [Slot; ATTRIBUTES],
}

/// The collector.
#[derive(Debug)]
pub struct NetDev {
    file: KFile,
    /// Interfaces by name.
    pub interfaces: Roster<Interface>,
    path: Vec<u8>,
}

impl Default for NetDev {
    fn default() -> Self {
        Self { file: KFile::new(b"proc/net/dev"), interfaces: Roster::new(SubjectKind::NETWORK), path: Vec::new() }
    }
}

impl NetDev {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        self.interfaces.begin();
        let mut has_newcomer = false;
        if let Some(bytes) = cx.files.read(&mut self.file) {
            for line in lines(bytes) {
                has_newcomer |= Self::line(&mut self.interfaces, cx.row, line) == Some(Seen::New);
            }
        }
        self.interfaces.end(cx.row, |gone, _| gone.slots = Default::default());
        for i in 0..self.interfaces.index_end() {
            let looked_at = self.interfaces.get_mut(i).is_some_and(|member| std::mem::take(&mut member.data.look));
            // A newcomer may be a known one under another name, and then its old name may be another's.
            let looked_at = looked_at || has_newcomer && i < MAX_KEPT_INTERFACES;
            if self.interfaces.is_living(i) && (looked_at || cx.files.recheck) {
                self.state(cx, i, looked_at);
            }
        }
    }

    /// What was known of the interface of a line, where that is one.
    fn line(interfaces: &mut Roster<Interface>, row: &mut Row, line: &[u8]) -> Option<Seen> {
        let colon = line.iter().rposition(|byte| *byte == b':')?;
        let (name, numbers) = (trim(line.get(..colon)?), line.get(colon + 1..)?);
        let mut values = [None; COLUMNS.len()];
        if name.is_empty() || !parse::columns(numbers, &mut values) {
            return None;
        }
        let now = [0, 1, 8, 9].map(|i: usize| values.get(i).copied().flatten().unwrap_or_default());
        let seen = interfaces.see(name);
        let i = match seen {
            Seen::Known(i) => i,
            Seen::Again => return None,
            Seen::New => interfaces.add(row, name, 0, Interface { last: now, look: true, ..Interface::default() })?,
        };
        let interface = interfaces.get_mut(i)?;
        row.put_columns(interface.place, &COLUMNS, &values);
        // One counter may wrap; two that fall together look like another interface of the same name.
        interface.data.look |= now.iter().zip(interface.data.last).filter(|(now, last)| *now < last).count() > 1;
        interface.data.last = now;
        Some(seen)
    }

    fn state(&mut self, cx: &mut Context<'_>, i: usize, looked_at: bool) {
        let Some(interface) = self.interfaces.get_mut(i) else { return };
        let path = &mut self.path;
        path.clear();
        path.extend_from_slice(b"sys/class/net/");
        path.extend_from_slice(&interface.name);
        path.push(b'/');
        let base = path.len();
        let keep = i < MAX_KEPT_INTERFACES;
        let index = if keep && !looked_at && cx.files.look == Look::Kept {
            // Its counters went on, and its descriptors live.
            interface.incarnation
        } else {
            // By its path: a descriptor would follow an interface that is renamed.
            let mut once = Slot::Empty;
            attribute(cx.files, &mut once, false, path, base, b"ifindex").and_then(only_number).unwrap_or(0)
        };
        let place = if interface.incarnation == index {
            interface.place
        } else if interface.incarnation == 0 && interface.place == super::row::Place::NONE {
            // A newcomer: nobody was told its incarnation yet.
            interface.incarnation = index;
            interface.place
        } else {
            let (name, last) = (interface.name.clone(), interface.data.last);
            interface.data.slots = Default::default();
            self.interfaces.retire(cx.row, i);
            self.interfaces.add(cx.row, &name, index, Interface { last, ..Interface::default() });
            return;
        };
        let died = cx.files.died();
        let [operstate, carrier, mtu, speed] = &mut interface.data.slots;
        let up = match attribute(cx.files, operstate, keep, path, base, b"operstate").map(trim) {
            Some(b"up") => Some(1),
            // No statement: lo and many virtio and tun links say so for ever.
            None | Some(b"unknown" | b"") => None,
            Some(_) => Some(0),
        };
        cx.row.put(place, id::NET_UP, up);
        let carrier = attribute(cx.files, carrier, keep, path, base, b"carrier")
            .and_then(only_number)
            .filter(|value| *value <= 1);
        cx.row.put(place, id::NET_CARRIER, carrier);
        let mtu = attribute(cx.files, mtu, keep, path, base, b"mtu").and_then(only_number);
        cx.row.put(place, id::NET_MTU, mtu);
        let speed = attribute(cx.files, speed, keep, path, base, b"speed").and_then(only_number);
        cx.row.put(place, id::NET_SPEED, speed.filter(|speed| !SPEEDS_UNKNOWN.contains(speed)));
        // Another interface of the same name by now.
        interface.data.look |= died != cx.files.died();
    }
}

fn attribute<'a>(
    files: &'a mut Files,
    slot: &mut Slot,
    keep: bool,
    path: &mut Vec<u8>,
    base: usize,
    name: &[u8],
) -> Option<&'a [u8]> {
    path.truncate(base);
    path.extend_from_slice(name);
    files.read_kept(slot, keep, None, path)
}
