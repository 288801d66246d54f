//! CPUs that are online, plugged and possible: `/sys/devices/system/cpu/{online,present,possible}`. See
//! Documentation/admin-guide/cputopology.rst. The agent's own affinity has no part in it.

use super::Context;
use super::cpulist::CpuSet;
use crate::kfile::KFile;
use informant_wire::event::{Changed, EventKind};
use informant_wire::metric::id;

/// The collector.
#[derive(Debug)]
pub struct Cpus {
    online: KFile,
    present: KFile,
    possible: KFile,
    last: Option<CpuSet>,
}

impl Default for Cpus {
    fn default() -> Self {
        Self {
            online: KFile::new(b"sys/devices/system/cpu/online"),
            present: KFile::new(b"sys/devices/system/cpu/present"),
            possible: KFile::new(b"sys/devices/system/cpu/possible"),
            last: None,
        }
    }
}

impl Cpus {
    /// One pass. `in_stat`: the CPUs of `/proc/stat`, which are the online ones where sysfs is not mounted.
    pub fn sample(&mut self, cx: &mut Context<'_>, in_stat: Option<&CpuSet>) {
        if cx.files.recheck {
            for (file, metric) in [(&mut self.present, id::CPUS_PRESENT), (&mut self.possible, id::CPUS_POSSIBLE)] {
                let count = cx.files.read(file).and_then(CpuSet::parse).map(|set| set.count());
                cx.row.put(cx.vm, metric, count);
            }
        }
        let listed = cx.files.read(&mut self.online).and_then(CpuSet::parse).filter(|set| !set.is_empty());
        let online = listed.or_else(|| in_stat.cloned());
        cx.row.put(cx.vm, id::CPUS_ONLINE, online.as_ref().map(CpuSet::count));
        let Some(online) = online else { return };
        // The sets, not the counts: one CPU may go while another comes.
        if let Some(last) = self.last.as_ref().filter(|last| **last != online) {
            cx.events.push(EventKind::CPUS_CHANGED, &Changed { old: last.count(), new: online.count() });
        }
        if self.last.as_ref() != Some(&online) {
            self.last = Some(online);
        }
    }
}
