//! `/proc/stat`: CPU times by CPU and mode, and totals of the VM. See `proc_stat(5)`.
//!
//! A CPU is known by the number in its name: offline ones have no line, so numbers have gaps.

use super::Context;
use super::cpulist::CpuSet;
use super::roster::{Roster, Seen};
use crate::kfile::KFile;
use crate::parse::{self, fields, lines, number, only_number};
use informant_wire::metric::{MetricId, SubjectKind, id};

/// The columns of a CPU line, in the kernel's order. Older kernels print fewer.
const MODES: [MetricId; 10] = [
    id::CPU_USER,
    id::CPU_NICE,
    id::CPU_SYSTEM,
    id::CPU_IDLE,
    id::CPU_IOWAIT,
    id::CPU_IRQ,
    id::CPU_SOFTIRQ,
    id::CPU_STEAL,
    id::CPU_GUEST_USER,
    id::CPU_GUEST_NICE,
];

/// The collector.
#[derive(Debug)]
pub struct Stat {
    file: KFile,
    /// CPUs by number.
    pub cpus: Roster<()>,
    /// The CPUs that had a line in the last sample; `None` without the file.
    pub online: Option<CpuSet>,
}

impl Default for Stat {
    fn default() -> Self {
        Self { file: KFile::new(b"proc/stat"), cpus: Roster::new(SubjectKind::CPU), online: None }
    }
}

impl Stat {
    /// One pass.
    pub fn sample(&mut self, cx: &mut Context<'_>) {
        cx.row.absent(cx.vm, id::BOOT_TIME, id::PROCS_BLOCKED);
        self.cpus.begin();
        self.online = None;
        if let Some(bytes) = cx.files.read(&mut self.file) {
            let mut online = CpuSet::default();
            for line in lines(bytes) {
                if let Some(cpu) = line.strip_prefix(b"cpu") {
                    Self::cpu(&mut self.cpus, &mut online, cx.row, cpu);
                } else {
                    Self::totals(line, |id, value| cx.row.set(cx.vm, id, value));
                }
            }
            self.online = (!online.is_empty()).then_some(online);
            if self.online.is_none() {
                cx.files.count_error();
            }
        }
        self.cpus.end(cx.row, |(), _| {});
    }

    fn cpu(cpus: &mut Roster<()>, online: &mut CpuSet, row: &mut super::row::Row, line: &[u8]) {
        // The line of all CPUs together has no number: it is their sum, and steps back when one goes offline.
        let mut columns = fields(line);
        let name = match line.first() {
            Some(b'0'..=b'9') => columns.next().unwrap_or_default(),
            _ => return,
        };
        let Some(number_of) = number(name).and_then(|n| u32::try_from(n).ok()) else { return };
        if (name.len() > 1 && name.starts_with(b"0")) || !online.insert(number_of) {
            return;
        }
        let i = match cpus.see(name) {
            Seen::Known(i) => i,
            Seen::Again => return,
            Seen::New => match cpus.add(row, name, 0, ()) {
                Some(i) => i,
                None => return,
            },
        };
        let Some(place) = cpus.get_mut(i).map(|member| member.place) else { return };
        let mut values = [None; MODES.len()];
        parse::columns(columns.rest(), &mut values);
        row.put_columns(place, &MODES, &values);
    }

    fn totals(line: &[u8], mut found: impl FnMut(MetricId, u64)) {
        let Some(blank) = line.iter().position(|byte| *byte == b' ') else { return };
        let (Some(key), Some(value)) = (line.get(..blank), line.get(blank + 1..)) else { return };
        let id = match key {
            b"ctxt" => id::CONTEXT_SWITCHES,
            b"btime" => id::BOOT_TIME,
            b"processes" => id::FORKS,
            b"procs_running" => id::PROCS_RUNNING,
            b"procs_blocked" => id::PROCS_BLOCKED,
            // The total stands first; the thousands of numbers behind it are not looked at.
            b"intr" => {
                if let Some(total) = fields(value).next().and_then(number) {
                    found(id::INTERRUPTS, total);
                }
                return;
            }
            _ => return,
        };
        if let Some(value) = only_number(value) {
            found(id, value);
        }
    }
}
