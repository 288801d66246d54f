//! The metric table: one row a metric. Append-only within a kind's block of ids: a released row keeps its id, name,
//! unit and kind for ever, and a metric that goes out of use keeps its row.
//!
//! Names are node_exporter's for the VM, cAdvisor's where a cgroup has an equal, `informant_*` elsewhere.

use crate::units::Unit;
use serde::{Deserialize, Serialize};

/// A metric. Open: one that this version does not know keeps its place in a schema, is counted, and is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetricId(pub u16);

/// What a metric is about. Open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubjectKind(pub u8);

impl SubjectKind {
    /// The VM as a whole; one subject with an empty name.
    pub const VM: Self = Self(0);
    /// A CPU, by its number.
    pub const CPU: Self = Self(1);
    /// A block device, by its kernel name.
    pub const DISK: Self = Self(2);
    /// A network interface, by its name.
    pub const NETWORK: Self = Self(3);
    /// A file system, by its mount point; labels `device` and `fstype`.
    pub const FILESYSTEM: Self = Self(4);
    /// A cgroup, by its path below the cgroup root, beginning with `/`.
    pub const CGROUP: Self = Self(5);
    /// A cgroup's use of a block device: the cgroup's path; label `device`.
    pub const CGROUP_DISK: Self = Self(6);

    /// All kinds this version knows.
    pub const ALL: [Self; 7] =
        [Self::VM, Self::CPU, Self::DISK, Self::NETWORK, Self::FILESYSTEM, Self::CGROUP, Self::CGROUP_DISK];

    /// The label under which a subject's name is published; `None` for the VM and for unknown kinds.
    #[must_use]
    pub const fn name_label(self) -> Option<&'static str> {
        Some(match self {
            Self::CPU => "cpu",
            Self::DISK | Self::NETWORK => "device",
            Self::FILESYSTEM => "mountpoint",
            Self::CGROUP | Self::CGROUP_DISK => "id",
            _ => return None,
        })
    }

    /// The kind's name in documents and JSON.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VM => "vm",
            Self::CPU => "cpu",
            Self::DISK => "disk",
            Self::NETWORK => "network",
            Self::FILESYSTEM => "filesystem",
            Self::CGROUP => "cgroup",
            Self::CGROUP_DISK => "cgroup_disk",
            _ => return None,
        })
    }

    /// The kind's rows: their ids are consecutive.
    #[must_use]
    pub fn rows(self) -> &'static [Metric] {
        let start = TABLE.partition_point(|row| row.subject < self);
        let end = TABLE.partition_point(|row| row.subject <= self);
        TABLE.get(start..end).unwrap_or_default()
    }
}

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows, until its subject ends. See [`crate::counter`] for wraps and falls.
    Counter,
    /// Any value at any time.
    Gauge,
    /// A bound; [`UNLIMITED`] when there is none.
    Limit,
}

/// A [`Kind::Limit`] without a bound: left out of `sample`, `max` in tables, `+Inf` in Prometheus.
pub const UNLIMITED: u64 = u64::MAX;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its id on the wire.
    pub id: MetricId,
    /// Its published name.
    pub name: &'static str,
    /// Labels that tell it from the other metrics of that name.
    pub labels: &'static [(&'static str, &'static str)],
    /// Its unit on the wire, with the exact scale to the published one.
    pub unit: Unit,
    /// How it moves.
    pub kind: Kind,
    /// What it is about.
    pub subject: SubjectKind,
    /// What it is, in a sentence.
    #[cfg(feature = "help")]
    pub help: &'static str,
}

impl Metric {
    /// The row of an id.
    #[must_use]
    pub fn find(id: MetricId) -> Option<&'static Self> {
        TABLE.binary_search_by_key(&id, |row| row.id).ok().and_then(|i| TABLE.get(i))
    }

    /// Whether an agent may leave it as it was for [`SLOW_EVERY`] samples: it costs much to read. Its growth from one
    /// sample to the next says little.
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        let id = self.id.0;
        let hot = id <= id::CGROUP_MEMORY_WORKING_SET.0
            || (id >= id::CGROUP_EVENT_LOW.0 && id <= id::CGROUP_CPU_NR_THROTTLED.0);
        matches!(self.subject, SubjectKind::CGROUP | SubjectKind::CGROUP_DISK) && !hot
    }
}

/// See [`Metric::is_slow`].
pub const SLOW_EVERY: u32 = 5;

macro_rules! metrics {
    ($($subject:ident { $($id:literal $const:ident $name:literal [$(($key:literal, $value:literal)),*]
        $unit:ident $kind:ident $help:literal;)* })*) => {
        /// The ids by name, for those who fill them.
        #[allow(missing_docs, reason = "the table's help text says it")]
        pub mod id {
            use super::MetricId;
            $($(pub const $const: MetricId = MetricId($id);)*)*
        }

        /// Every metric, by subject kind and id.
        pub static TABLE: &[Metric] = &[$($(Metric {
            id: MetricId($id),
            name: $name,
            labels: &[$(($key, $value)),*],
            unit: Unit::$unit,
            kind: Kind::$kind,
            subject: SubjectKind::$subject,
            #[cfg(feature = "help")]
            help: $help,
        },)*)*];
    };
}

metrics! {
    VM {
        1 LOAD1 "node_load1" [] Hundredths Gauge "Load average over 1 minute.";
        2 LOAD5 "node_load5" [] Hundredths Gauge "Load average over 5 minutes.";
        3 LOAD15 "node_load15" [] Hundredths Gauge "Load average over 15 minutes.";
        4 UPTIME "informant_uptime_seconds" [] Hundredths Gauge "Time since boot, suspend included.";
        5 BOOT_TIME "node_boot_time_seconds" [] Seconds Gauge "Wall clock at boot, as the kernel reckons it now.";
        6 INTERRUPTS "node_intr_total" [] Count Counter "Interrupts served.";
        7 CONTEXT_SWITCHES "node_context_switches_total" [] Count Counter "Context switches.";
        8 FORKS "node_forks_total" [] Count Counter "Processes and threads created.";
        9 PROCS_RUNNING "node_procs_running" [] Count Gauge "Runnable threads.";
        10 PROCS_BLOCKED "node_procs_blocked" [] Count Gauge "Threads waiting for I/O.";
        11 CPUS_ONLINE "informant_cpus_online" [] Count Gauge "CPUs that are online.";
        12 CPUS_PRESENT "informant_cpus_present" [] Count Gauge "CPUs that are plugged.";
        13 CPUS_POSSIBLE "informant_cpus_possible" [] Count Gauge "CPUs that could ever be plugged.";
        14 MEMORY_BLOCK_SIZE "informant_memory_block_size_bytes" [] Bytes Gauge "Size of a memory block, the unit of hot-plug.";
        15 MEMORY_ONLINE "informant_memory_online_bytes" [] Bytes Gauge "Memory in blocks that are online.";
        16 MEMORY_OFFLINE "informant_memory_offline_bytes" [] Bytes Gauge "Memory in blocks that are plugged but not online.";
        17 MEMORY_AVAILABLE_ESTIMATE "informant_memory_available_estimate_bytes" [] Bytes Gauge "Free + Buffers + Cached + SReclaimable - Shmem, where the kernel gives no MemAvailable.";
        18 PRESSURE_CPU_SOME "node_pressure_cpu_waiting_seconds_total" [] Micros Counter "Time in which at least one task waited for cpu.";
        19 PRESSURE_CPU_FULL "node_pressure_cpu_stalled_seconds_total" [] Micros Counter "Time in which all non-idle tasks waited for cpu.";
        20 PRESSURE_IO_SOME "node_pressure_io_waiting_seconds_total" [] Micros Counter "Time in which at least one task waited for io.";
        21 PRESSURE_IO_FULL "node_pressure_io_stalled_seconds_total" [] Micros Counter "Time in which all non-idle tasks waited for io.";
        22 PRESSURE_MEMORY_SOME "node_pressure_memory_waiting_seconds_total" [] Micros Counter "Time in which at least one task waited for memory.";
        23 PRESSURE_MEMORY_FULL "node_pressure_memory_stalled_seconds_total" [] Micros Counter "Time in which all non-idle tasks waited for memory.";
        24 PRESSURE_IRQ_FULL "node_pressure_irq_stalled_seconds_total" [] Micros Counter "Time in which all non-idle tasks waited for irq.";
        25 PRESSURE_CPU_SOME_AVG10 "informant_pressure_avg10_ratio" [("resource", "cpu"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        26 PRESSURE_CPU_FULL_AVG10 "informant_pressure_avg10_ratio" [("resource", "cpu"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        27 PRESSURE_IO_SOME_AVG10 "informant_pressure_avg10_ratio" [("resource", "io"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        28 PRESSURE_IO_FULL_AVG10 "informant_pressure_avg10_ratio" [("resource", "io"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        29 PRESSURE_MEMORY_SOME_AVG10 "informant_pressure_avg10_ratio" [("resource", "memory"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        30 PRESSURE_MEMORY_FULL_AVG10 "informant_pressure_avg10_ratio" [("resource", "memory"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        31 PRESSURE_IRQ_FULL_AVG10 "informant_pressure_avg10_ratio" [("resource", "irq"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        32 MEM_TOTAL "node_memory_MemTotal_bytes" [] Kib Gauge "/proc/meminfo MemTotal.";
        33 MEM_FREE "node_memory_MemFree_bytes" [] Kib Gauge "/proc/meminfo MemFree.";
        34 MEM_AVAILABLE "node_memory_MemAvailable_bytes" [] Kib Gauge "/proc/meminfo MemAvailable.";
        35 MEM_BUFFERS "node_memory_Buffers_bytes" [] Kib Gauge "/proc/meminfo Buffers.";
        36 MEM_CACHED "node_memory_Cached_bytes" [] Kib Gauge "/proc/meminfo Cached.";
        37 MEM_SWAP_CACHED "node_memory_SwapCached_bytes" [] Kib Gauge "/proc/meminfo SwapCached.";
        38 MEM_ACTIVE "node_memory_Active_bytes" [] Kib Gauge "/proc/meminfo Active.";
        39 MEM_INACTIVE "node_memory_Inactive_bytes" [] Kib Gauge "/proc/meminfo Inactive.";
        40 MEM_ACTIVE_ANON "node_memory_Active_anon_bytes" [] Kib Gauge "/proc/meminfo Active(anon).";
        41 MEM_INACTIVE_ANON "node_memory_Inactive_anon_bytes" [] Kib Gauge "/proc/meminfo Inactive(anon).";
        42 MEM_ACTIVE_FILE "node_memory_Active_file_bytes" [] Kib Gauge "/proc/meminfo Active(file).";
        43 MEM_INACTIVE_FILE "node_memory_Inactive_file_bytes" [] Kib Gauge "/proc/meminfo Inactive(file).";
        44 MEM_UNEVICTABLE "node_memory_Unevictable_bytes" [] Kib Gauge "/proc/meminfo Unevictable.";
        45 MEM_MLOCKED "node_memory_Mlocked_bytes" [] Kib Gauge "/proc/meminfo Mlocked.";
        46 MEM_SWAP_TOTAL "node_memory_SwapTotal_bytes" [] Kib Gauge "/proc/meminfo SwapTotal.";
        47 MEM_SWAP_FREE "node_memory_SwapFree_bytes" [] Kib Gauge "/proc/meminfo SwapFree.";
        48 MEM_ZSWAP "node_memory_Zswap_bytes" [] Kib Gauge "/proc/meminfo Zswap.";
        49 MEM_ZSWAPPED "node_memory_Zswapped_bytes" [] Kib Gauge "/proc/meminfo Zswapped.";
        50 MEM_DIRTY "node_memory_Dirty_bytes" [] Kib Gauge "/proc/meminfo Dirty.";
        51 MEM_WRITEBACK "node_memory_Writeback_bytes" [] Kib Gauge "/proc/meminfo Writeback.";
        52 MEM_ANON_PAGES "node_memory_AnonPages_bytes" [] Kib Gauge "/proc/meminfo AnonPages.";
        53 MEM_MAPPED "node_memory_Mapped_bytes" [] Kib Gauge "/proc/meminfo Mapped.";
        54 MEM_SHMEM "node_memory_Shmem_bytes" [] Kib Gauge "/proc/meminfo Shmem.";
        55 MEM_KRECLAIMABLE "node_memory_KReclaimable_bytes" [] Kib Gauge "/proc/meminfo KReclaimable.";
        56 MEM_SLAB "node_memory_Slab_bytes" [] Kib Gauge "/proc/meminfo Slab.";
        57 MEM_SRECLAIMABLE "node_memory_SReclaimable_bytes" [] Kib Gauge "/proc/meminfo SReclaimable.";
        58 MEM_SUNRECLAIM "node_memory_SUnreclaim_bytes" [] Kib Gauge "/proc/meminfo SUnreclaim.";
        59 MEM_KERNEL_STACK "node_memory_KernelStack_bytes" [] Kib Gauge "/proc/meminfo KernelStack.";
        60 MEM_SHADOW_CALL_STACK "node_memory_ShadowCallStack_bytes" [] Kib Gauge "/proc/meminfo ShadowCallStack.";
        61 MEM_PAGE_TABLES "node_memory_PageTables_bytes" [] Kib Gauge "/proc/meminfo PageTables.";
        62 MEM_SEC_PAGE_TABLES "node_memory_SecPageTables_bytes" [] Kib Gauge "/proc/meminfo SecPageTables.";
        63 MEM_NFS_UNSTABLE "node_memory_NFS_Unstable_bytes" [] Kib Gauge "/proc/meminfo NFS_Unstable.";
        64 MEM_BOUNCE "node_memory_Bounce_bytes" [] Kib Gauge "/proc/meminfo Bounce.";
        65 MEM_WRITEBACK_TMP "node_memory_WritebackTmp_bytes" [] Kib Gauge "/proc/meminfo WritebackTmp.";
        66 MEM_COMMIT_LIMIT "node_memory_CommitLimit_bytes" [] Kib Gauge "/proc/meminfo CommitLimit.";
        67 MEM_COMMITTED_AS "node_memory_Committed_AS_bytes" [] Kib Gauge "/proc/meminfo Committed_AS.";
        68 MEM_VMALLOC_TOTAL "node_memory_VmallocTotal_bytes" [] Kib Gauge "/proc/meminfo VmallocTotal.";
        69 MEM_VMALLOC_USED "node_memory_VmallocUsed_bytes" [] Kib Gauge "/proc/meminfo VmallocUsed.";
        70 MEM_VMALLOC_CHUNK "node_memory_VmallocChunk_bytes" [] Kib Gauge "/proc/meminfo VmallocChunk.";
        71 MEM_PERCPU "node_memory_Percpu_bytes" [] Kib Gauge "/proc/meminfo Percpu.";
        72 MEM_EARLY_MEMTEST_BAD "node_memory_EarlyMemtestBad_bytes" [] Kib Gauge "/proc/meminfo EarlyMemtestBad.";
        73 MEM_HARDWARE_CORRUPTED "node_memory_HardwareCorrupted_bytes" [] Kib Gauge "/proc/meminfo HardwareCorrupted.";
        74 MEM_ANON_HUGE_PAGES "node_memory_AnonHugePages_bytes" [] Kib Gauge "/proc/meminfo AnonHugePages.";
        75 MEM_SHMEM_HUGE_PAGES "node_memory_ShmemHugePages_bytes" [] Kib Gauge "/proc/meminfo ShmemHugePages.";
        76 MEM_SHMEM_PMD_MAPPED "node_memory_ShmemPmdMapped_bytes" [] Kib Gauge "/proc/meminfo ShmemPmdMapped.";
        77 MEM_FILE_HUGE_PAGES "node_memory_FileHugePages_bytes" [] Kib Gauge "/proc/meminfo FileHugePages.";
        78 MEM_FILE_PMD_MAPPED "node_memory_FilePmdMapped_bytes" [] Kib Gauge "/proc/meminfo FilePmdMapped.";
        79 MEM_CMA_TOTAL "node_memory_CmaTotal_bytes" [] Kib Gauge "/proc/meminfo CmaTotal.";
        80 MEM_CMA_FREE "node_memory_CmaFree_bytes" [] Kib Gauge "/proc/meminfo CmaFree.";
        81 MEM_UNACCEPTED "node_memory_Unaccepted_bytes" [] Kib Gauge "/proc/meminfo Unaccepted.";
        82 MEM_BALLOON "node_memory_Balloon_bytes" [] Kib Gauge "/proc/meminfo Balloon.";
        83 MEM_GPUACTIVE "node_memory_GPUActive_bytes" [] Kib Gauge "/proc/meminfo GPUActive.";
        84 MEM_GPURECLAIM "node_memory_GPUReclaim_bytes" [] Kib Gauge "/proc/meminfo GPUReclaim.";
        85 MEM_HUGE_PAGES_TOTAL "node_memory_HugePages_Total" [] Count Gauge "/proc/meminfo HugePages_Total: huge pages.";
        86 MEM_HUGE_PAGES_FREE "node_memory_HugePages_Free" [] Count Gauge "/proc/meminfo HugePages_Free: huge pages.";
        87 MEM_HUGE_PAGES_RSVD "node_memory_HugePages_Rsvd" [] Count Gauge "/proc/meminfo HugePages_Rsvd: huge pages.";
        88 MEM_HUGE_PAGES_SURP "node_memory_HugePages_Surp" [] Count Gauge "/proc/meminfo HugePages_Surp: huge pages.";
        89 MEM_HUGEPAGESIZE "node_memory_Hugepagesize_bytes" [] Kib Gauge "/proc/meminfo Hugepagesize.";
        90 MEM_HUGETLB "node_memory_Hugetlb_bytes" [] Kib Gauge "/proc/meminfo Hugetlb.";
        91 MEM_DIRECT_MAP4K "node_memory_DirectMap4k_bytes" [] Kib Gauge "/proc/meminfo DirectMap4k.";
        92 MEM_DIRECT_MAP2_M "node_memory_DirectMap2M_bytes" [] Kib Gauge "/proc/meminfo DirectMap2M.";
        93 MEM_DIRECT_MAP4_M "node_memory_DirectMap4M_bytes" [] Kib Gauge "/proc/meminfo DirectMap4M.";
        94 MEM_DIRECT_MAP1_G "node_memory_DirectMap1G_bytes" [] Kib Gauge "/proc/meminfo DirectMap1G.";
        95 VMSTAT_OOM_KILL "node_vmstat_oom_kill" [] Count Counter "/proc/vmstat oom_kill: processes killed for lack of memory.";
        96 VMSTAT_PGPGIN "node_vmstat_pgpgin" [] Count Counter "/proc/vmstat pgpgin: KiB read from disks.";
        97 VMSTAT_PGPGOUT "node_vmstat_pgpgout" [] Count Counter "/proc/vmstat pgpgout: KiB written to disks.";
        98 VMSTAT_PSWPIN "node_vmstat_pswpin" [] Count Counter "/proc/vmstat pswpin: pages swapped in.";
        99 VMSTAT_PSWPOUT "node_vmstat_pswpout" [] Count Counter "/proc/vmstat pswpout: pages swapped out.";
        100 VMSTAT_PGFAULT "node_vmstat_pgfault" [] Count Counter "/proc/vmstat pgfault: page faults.";
        101 VMSTAT_PGMAJFAULT "node_vmstat_pgmajfault" [] Count Counter "/proc/vmstat pgmajfault: page faults that needed I/O.";
        102 VMSTAT_PGSCAN_KSWAPD "node_vmstat_pgscan_kswapd" [] Count Counter "/proc/vmstat pgscan_kswapd: pages scanned by kswapd.";
        103 VMSTAT_PGSCAN_DIRECT "node_vmstat_pgscan_direct" [] Count Counter "/proc/vmstat pgscan_direct: pages scanned by tasks that wanted memory.";
        104 VMSTAT_PGSTEAL_KSWAPD "node_vmstat_pgsteal_kswapd" [] Count Counter "/proc/vmstat pgsteal_kswapd: pages reclaimed by kswapd.";
        105 VMSTAT_PGSTEAL_DIRECT "node_vmstat_pgsteal_direct" [] Count Counter "/proc/vmstat pgsteal_direct: pages reclaimed by tasks that wanted memory.";
        106 VMSTAT_ALLOCSTALL_NORMAL "node_vmstat_allocstall_normal" [] Count Counter "/proc/vmstat allocstall_normal: direct reclaims for the Normal zone.";
        107 VMSTAT_ALLOCSTALL_MOVABLE "node_vmstat_allocstall_movable" [] Count Counter "/proc/vmstat allocstall_movable: direct reclaims for the Movable zone.";
        108 VMSTAT_WORKINGSET_REFAULT_ANON "node_vmstat_workingset_refault_anon" [] Count Counter "/proc/vmstat workingset_refault_anon: anonymous pages faulted in soon after eviction.";
        109 VMSTAT_WORKINGSET_REFAULT_FILE "node_vmstat_workingset_refault_file" [] Count Counter "/proc/vmstat workingset_refault_file: file pages faulted in soon after eviction.";
        110 VMSTAT_WORKINGSET_NODES "node_vmstat_workingset_nodes" [] Count Gauge "/proc/vmstat workingset_nodes: shadow nodes of evicted pages.";
        111 VMSTAT_COMPACT_STALL "node_vmstat_compact_stall" [] Count Counter "/proc/vmstat compact_stall: tasks that waited for compaction.";
        112 VMSTAT_THP_FAULT_ALLOC "node_vmstat_thp_fault_alloc" [] Count Counter "/proc/vmstat thp_fault_alloc: huge pages given at faults.";
        113 VMSTAT_BALLOON_INFLATE "node_vmstat_balloon_inflate" [] Count Counter "/proc/vmstat balloon_inflate: pages given to the balloon.";
        114 VMSTAT_BALLOON_DEFLATE "node_vmstat_balloon_deflate" [] Count Counter "/proc/vmstat balloon_deflate: pages taken back from the balloon.";
        115 PAGED_IN "informant_paged_in_bytes_total" [] Kib Counter "Bytes read from disks (vmstat pgpgin, which counts KiB).";
        116 PAGED_OUT "informant_paged_out_bytes_total" [] Kib Counter "Bytes written to disks (vmstat pgpgout, which counts KiB).";
        117 AGENT_CPU "informant_agent_cpu_seconds_total" [] Micros Counter "CPU time of the agent, user and system.";
        118 AGENT_RESIDENT "informant_agent_resident_bytes" [] Bytes Gauge "Resident memory of the agent.";
        119 AGENT_SENT "informant_agent_sent_bytes_total" [] Bytes Counter "Bytes written to host sessions.";
        120 AGENT_INTERVAL "informant_agent_interval_seconds" [] Millis Gauge "The sample interval in force.";
        121 AGENT_SAMPLE_COST "informant_agent_sample_cost_seconds" [] Micros Gauge "CPU time of the previous sample.";
        122 AGENT_LOOP_LAG "informant_agent_loop_lag_seconds" [] Micros Gauge "The latest that the loop woke up since the previous sample.";
        123 AGENT_SAMPLES_LATE "informant_agent_samples_late_total" [] Count Counter "Samples taken more than half an interval late.";
        124 AGENT_SAMPLES_UNSENT "informant_agent_samples_unsent_total" [] Count Counter "Samples replaced by a newer one before they could be sent to the dialled host.";
        125 AGENT_EVENTS_DROPPED "informant_agent_events_dropped_total" [] Count Counter "Events lost because the outbox was full.";
        126 AGENT_SERIES_DROPPED "informant_series_dropped" [] Count Gauge "Series cut from the schema because there were too many.";
        127 AGENT_CGROUPS_SKIPPED "informant_agent_cgroups_skipped" [] Count Gauge "Cgroups above the watched number, or deeper than two levels.";
        128 AGENT_MOUNTS_HUNG "informant_agent_mounts_hung" [] Count Gauge "File systems that do not answer statvfs.";
        129 AGENT_READ_ERRORS "informant_agent_read_errors_total" [] Count Counter "Kernel files that existed but could not be read or understood.";
        130 AGENT_CONNECTS "informant_agent_connects_total" [] Count Counter "Sessions begun with a host.";
        131 AGENT_FRAMES_UNKNOWN "informant_agent_unknown_frames_total" [] Count Counter "Frames from hosts that were skipped.";
        132 AGENT_LOG_SUPPRESSED "informant_agent_log_lines_suppressed_total" [] Count Counter "Log lines over the rate limit.";
        133 AGENT_DEMANDS_GRANTED "informant_agent_demands_total" [("result", "granted")] Count Counter "Demands to hosts by answer: all of it is on its way.";
        134 AGENT_DEMANDS_PARTIAL "informant_agent_demands_total" [("result", "partial")] Count Counter "Demands to hosts by answer: some of it is on its way.";
        135 AGENT_DEMANDS_DENIED "informant_agent_demands_total" [("result", "denied")] Count Counter "Demands to hosts by answer: not now.";
        136 AGENT_DEMANDS_UNSUPPORTED "informant_agent_demands_total" [("result", "unsupported")] Count Counter "Demands to hosts by answer: not at that host.";
        137 AGENT_DEMANDS_AT_MAXIMUM "informant_agent_demands_total" [("result", "at_maximum")] Count Counter "Demands to hosts by answer: the VM is as large as it may be.";
        138 AGENT_DEMANDS_OTHER "informant_agent_demands_total" [("result", "other")] Count Counter "Demands to hosts by answer: one that the agent does not know.";
        139 AGENT_DEMANDS_UNANSWERED "informant_agent_demands_total" [("result", "unanswered")] Count Counter "Demands to hosts by answer: none in time, or the host's turn ended.";
        140 AGENT_COMMANDS_TAKEN "informant_agent_commands_total" [("result", "taken")] Count Counter "Commands of hosts about the size of the VM: by the host that decides.";
        141 AGENT_COMMANDS_STALE "informant_agent_commands_total" [("result", "stale")] Count Counter "Commands of hosts about the size of the VM: by one whose turn was over.";
        142 AGENT_TURNS_TAKEN "informant_agent_turns_total" [("result", "taken")] Count Counter "Turns to decide that were offered to hosts: taken.";
        143 AGENT_TURNS_FAILED "informant_agent_turns_total" [("result", "failed")] Count Counter "Turns to decide that were offered to hosts: not taken in time, or refused.";
        144 AGENT_ANSWERS_LATE "informant_agent_late_answers_total" [] Count Counter "Answers of hosts that nothing waited for any more.";
    }
    CPU {
        1000 CPU_USER "node_cpu_seconds_total" [("mode", "user")] Ticks Counter "CPU time by mode: user code.";
        1001 CPU_NICE "node_cpu_seconds_total" [("mode", "nice")] Ticks Counter "CPU time by mode: niced user code.";
        1002 CPU_SYSTEM "node_cpu_seconds_total" [("mode", "system")] Ticks Counter "CPU time by mode: the kernel.";
        1003 CPU_IDLE "node_cpu_seconds_total" [("mode", "idle")] Ticks Counter "CPU time by mode: idle.";
        1004 CPU_IOWAIT "node_cpu_seconds_total" [("mode", "iowait")] Ticks Counter "CPU time by mode: idle with I/O outstanding.";
        1005 CPU_IRQ "node_cpu_seconds_total" [("mode", "irq")] Ticks Counter "CPU time by mode: interrupts.";
        1006 CPU_SOFTIRQ "node_cpu_seconds_total" [("mode", "softirq")] Ticks Counter "CPU time by mode: soft interrupts.";
        1007 CPU_STEAL "node_cpu_seconds_total" [("mode", "steal")] Ticks Counter "CPU time by mode: taken by the host.";
        1008 CPU_GUEST_USER "node_cpu_guest_seconds_total" [("mode", "user")] Ticks Counter "CPU time given to guests of this VM; part of user and nice.";
        1009 CPU_GUEST_NICE "node_cpu_guest_seconds_total" [("mode", "nice")] Ticks Counter "CPU time given to guests of this VM; part of user and nice.";
    }
    DISK {
        1100 DISK_READS "node_disk_reads_completed_total" [] Count Counter "Reads completed.";
        1101 DISK_READS_MERGED "node_disk_reads_merged_total" [] Count Counter "Reads merged with others.";
        1102 DISK_READ_SECTORS "node_disk_read_bytes_total" [] Sectors Counter "Bytes read.";
        1103 DISK_READ_TIME "node_disk_read_time_seconds_total" [] Millis Counter "Time of all reads.";
        1104 DISK_WRITES "node_disk_writes_completed_total" [] Count Counter "Writes completed.";
        1105 DISK_WRITES_MERGED "node_disk_writes_merged_total" [] Count Counter "Writes merged with others.";
        1106 DISK_WRITTEN_SECTORS "node_disk_written_bytes_total" [] Sectors Counter "Bytes written.";
        1107 DISK_WRITE_TIME "node_disk_write_time_seconds_total" [] Millis Counter "Time of all writes.";
        1108 DISK_IO_NOW "node_disk_io_now" [] Count Gauge "I/O in flight.";
        1109 DISK_IO_TIME "node_disk_io_time_seconds_total" [] Millis Counter "Time in which I/O was in flight.";
        1110 DISK_IO_TIME_WEIGHTED "node_disk_io_time_weighted_seconds_total" [] Millis Counter "Time of I/O in flight, each counted.";
        1111 DISK_DISCARDS "node_disk_discards_completed_total" [] Count Counter "Discards completed.";
        1112 DISK_DISCARDS_MERGED "node_disk_discards_merged_total" [] Count Counter "Discards merged with others.";
        1113 DISK_DISCARDED_SECTORS "node_disk_discarded_sectors_total" [] Count Counter "Sectors of 512 bytes discarded.";
        1114 DISK_DISCARD_TIME "node_disk_discard_time_seconds_total" [] Millis Counter "Time of all discards.";
        1115 DISK_FLUSHES "node_disk_flush_requests_total" [] Count Counter "Flushes completed.";
        1116 DISK_FLUSH_TIME "node_disk_flush_requests_time_seconds_total" [] Millis Counter "Time of all flushes.";
        1117 DISK_SIZE "informant_disk_size_bytes" [] Sectors Gauge "Size of the device.";
    }
    NETWORK {
        1200 NET_RX_BYTES "node_network_receive_bytes_total" [] Bytes Counter "Bytes received.";
        1201 NET_RX_PACKETS "node_network_receive_packets_total" [] Count Counter "Packets received.";
        1202 NET_RX_ERRORS "node_network_receive_errs_total" [] Count Counter "Receive errors.";
        1203 NET_RX_DROPPED "node_network_receive_drop_total" [] Count Counter "Packets dropped on receive.";
        1204 NET_RX_FIFO "node_network_receive_fifo_total" [] Count Counter "Receive FIFO overruns.";
        1205 NET_RX_FRAME "node_network_receive_frame_total" [] Count Counter "Receive framing errors.";
        1206 NET_RX_COMPRESSED "node_network_receive_compressed_total" [] Count Counter "Compressed packets received.";
        1207 NET_RX_MULTICAST "node_network_receive_multicast_total" [] Count Counter "Multicast packets received.";
        1208 NET_TX_BYTES "node_network_transmit_bytes_total" [] Bytes Counter "Bytes sent.";
        1209 NET_TX_PACKETS "node_network_transmit_packets_total" [] Count Counter "Packets sent.";
        1210 NET_TX_ERRORS "node_network_transmit_errs_total" [] Count Counter "Transmit errors.";
        1211 NET_TX_DROPPED "node_network_transmit_drop_total" [] Count Counter "Packets dropped on transmit.";
        1212 NET_TX_FIFO "node_network_transmit_fifo_total" [] Count Counter "Transmit FIFO overruns.";
        1213 NET_TX_COLLISIONS "node_network_transmit_colls_total" [] Count Counter "Collisions.";
        1214 NET_TX_CARRIER "node_network_transmit_carrier_total" [] Count Counter "Carrier losses.";
        1215 NET_TX_COMPRESSED "node_network_transmit_compressed_total" [] Count Counter "Compressed packets sent.";
        1216 NET_UP "node_network_up" [] Count Gauge "1 when operstate is up, 0 for the other states; absent when the kernel says unknown.";
        1217 NET_CARRIER "node_network_carrier" [] Count Gauge "1 with a carrier, 0 without.";
        1218 NET_MTU "node_network_mtu_bytes" [] Bytes Gauge "Largest packet.";
        1219 NET_SPEED "node_network_speed_bytes" [] Mbits Gauge "Link speed, where the driver knows it.";
    }
    FILESYSTEM {
        1300 FS_SIZE "node_filesystem_size_bytes" [] Bytes Gauge "Size.";
        1301 FS_FREE "node_filesystem_free_bytes" [] Bytes Gauge "Free space.";
        1302 FS_AVAIL "node_filesystem_avail_bytes" [] Bytes Gauge "Free space for ordinary users.";
        1303 FS_FILES "node_filesystem_files" [] Count Gauge "Inodes.";
        1304 FS_FILES_FREE "node_filesystem_files_free" [] Count Gauge "Free inodes.";
        1305 FS_READONLY "node_filesystem_readonly" [] Count Gauge "1 when the mount or the file system is read-only.";
        1306 FS_DEVICE_ERROR "node_filesystem_device_error" [] Count Gauge "1 when statvfs failed or hangs.";
        1307 FS_HUNG "informant_filesystem_hung" [] Count Gauge "1 while statvfs does not answer.";
    }
    CGROUP {
        1400 CGROUP_MEMORY_CURRENT "container_memory_usage_bytes" [] Bytes Gauge "memory.current: all memory charged.";
        1401 CGROUP_MEMORY_WORKING_SET "container_memory_working_set_bytes" [] Bytes Gauge "memory.current less inactive_file, at least 0.";
        1402 CGROUP_MEMORY_PEAK "container_memory_max_usage_bytes" [] Bytes Gauge "memory.peak: the highest memory.current so far.";
        1403 CGROUP_MEMORY_MAX "container_spec_memory_limit_bytes" [] Bytes Limit "memory.max of this cgroup.";
        1404 CGROUP_MEMORY_LOW "container_spec_memory_reservation_limit_bytes" [] Bytes Limit "memory.low: best-effort protection.";
        1405 CGROUP_MEMORY_MIN "informant_cgroup_memory_min_bytes" [] Bytes Limit "memory.min: hard protection.";
        1406 CGROUP_MEMORY_HIGH "informant_cgroup_memory_high_bytes" [] Bytes Limit "memory.high: above it the cgroup is throttled.";
        1407 CGROUP_MEMORY_LIMIT "informant_cgroup_memory_limit_bytes" [] Bytes Limit "The lowest memory.max from here to the root.";
        1408 CGROUP_MEMORY_LIMIT_USAGE "informant_cgroup_memory_limit_usage_bytes" [] Bytes Gauge "memory.current of the cgroup that sets that limit.";
        1409 CGROUP_SWAP_CURRENT "container_memory_swap" [] Bytes Gauge "memory.swap.current.";
        1410 CGROUP_SWAP_MAX "container_spec_memory_swap_limit_bytes" [] Bytes Limit "memory.swap.max.";
        1411 CGROUP_STAT_ANON "container_memory_rss" [] Bytes Gauge "memory.stat anon.";
        1412 CGROUP_STAT_FILE "container_memory_cache" [] Bytes Gauge "memory.stat file.";
        1413 CGROUP_STAT_KERNEL "container_memory_kernel_usage" [] Bytes Gauge "memory.stat kernel.";
        1414 CGROUP_STAT_FILE_MAPPED "container_memory_mapped_file" [] Bytes Gauge "memory.stat file_mapped.";
        1415 CGROUP_STAT_ACTIVE_FILE "container_memory_total_active_file_bytes" [] Bytes Gauge "memory.stat active_file.";
        1416 CGROUP_STAT_INACTIVE_FILE "container_memory_total_inactive_file_bytes" [] Bytes Gauge "memory.stat inactive_file.";
        1417 CGROUP_STAT_ACTIVE_ANON "informant_cgroup_memory_stat_bytes" [("stat", "active_anon")] Bytes Gauge "Other amounts of memory.stat.";
        1418 CGROUP_STAT_INACTIVE_ANON "informant_cgroup_memory_stat_bytes" [("stat", "inactive_anon")] Bytes Gauge "Other amounts of memory.stat.";
        1419 CGROUP_STAT_UNEVICTABLE "informant_cgroup_memory_stat_bytes" [("stat", "unevictable")] Bytes Gauge "Other amounts of memory.stat.";
        1420 CGROUP_STAT_SHMEM "informant_cgroup_memory_stat_bytes" [("stat", "shmem")] Bytes Gauge "Other amounts of memory.stat.";
        1421 CGROUP_STAT_KERNEL_STACK "informant_cgroup_memory_stat_bytes" [("stat", "kernel_stack")] Bytes Gauge "Other amounts of memory.stat.";
        1422 CGROUP_STAT_PAGETABLES "informant_cgroup_memory_stat_bytes" [("stat", "pagetables")] Bytes Gauge "Other amounts of memory.stat.";
        1423 CGROUP_STAT_PERCPU "informant_cgroup_memory_stat_bytes" [("stat", "percpu")] Bytes Gauge "Other amounts of memory.stat.";
        1424 CGROUP_STAT_SOCK "informant_cgroup_memory_stat_bytes" [("stat", "sock")] Bytes Gauge "Other amounts of memory.stat.";
        1425 CGROUP_STAT_VMALLOC "informant_cgroup_memory_stat_bytes" [("stat", "vmalloc")] Bytes Gauge "Other amounts of memory.stat.";
        1426 CGROUP_STAT_ZSWAP "informant_cgroup_memory_stat_bytes" [("stat", "zswap")] Bytes Gauge "Other amounts of memory.stat.";
        1427 CGROUP_STAT_ZSWAPPED "informant_cgroup_memory_stat_bytes" [("stat", "zswapped")] Bytes Gauge "Other amounts of memory.stat.";
        1428 CGROUP_STAT_FILE_DIRTY "informant_cgroup_memory_stat_bytes" [("stat", "file_dirty")] Bytes Gauge "Other amounts of memory.stat.";
        1429 CGROUP_STAT_FILE_WRITEBACK "informant_cgroup_memory_stat_bytes" [("stat", "file_writeback")] Bytes Gauge "Other amounts of memory.stat.";
        1430 CGROUP_STAT_SWAPCACHED "informant_cgroup_memory_stat_bytes" [("stat", "swapcached")] Bytes Gauge "Other amounts of memory.stat.";
        1431 CGROUP_STAT_ANON_THP "informant_cgroup_memory_stat_bytes" [("stat", "anon_thp")] Bytes Gauge "Other amounts of memory.stat.";
        1432 CGROUP_STAT_SLAB_RECLAIMABLE "informant_cgroup_memory_stat_bytes" [("stat", "slab_reclaimable")] Bytes Gauge "Other amounts of memory.stat.";
        1433 CGROUP_STAT_SLAB_UNRECLAIMABLE "informant_cgroup_memory_stat_bytes" [("stat", "slab_unreclaimable")] Bytes Gauge "Other amounts of memory.stat.";
        1434 CGROUP_STAT_PGFAULT "container_memory_failures_total" [("failure_type", "pgfault"), ("scope", "hierarchy")] Count Counter "memory.stat pgfault.";
        1435 CGROUP_STAT_PGMAJFAULT "container_memory_failures_total" [("failure_type", "pgmajfault"), ("scope", "hierarchy")] Count Counter "memory.stat pgmajfault.";
        1436 CGROUP_STAT_WORKINGSET_REFAULT_ANON "informant_cgroup_memory_stat_total" [("stat", "workingset_refault_anon")] Count Counter "Counters of memory.stat, in pages.";
        1437 CGROUP_STAT_WORKINGSET_REFAULT_FILE "informant_cgroup_memory_stat_total" [("stat", "workingset_refault_file")] Count Counter "Counters of memory.stat, in pages.";
        1438 CGROUP_STAT_WORKINGSET_ACTIVATE_ANON "informant_cgroup_memory_stat_total" [("stat", "workingset_activate_anon")] Count Counter "Counters of memory.stat, in pages.";
        1439 CGROUP_STAT_WORKINGSET_ACTIVATE_FILE "informant_cgroup_memory_stat_total" [("stat", "workingset_activate_file")] Count Counter "Counters of memory.stat, in pages.";
        1440 CGROUP_STAT_PGSCAN "informant_cgroup_memory_stat_total" [("stat", "pgscan")] Count Counter "Counters of memory.stat, in pages.";
        1441 CGROUP_STAT_PGSTEAL "informant_cgroup_memory_stat_total" [("stat", "pgsteal")] Count Counter "Counters of memory.stat, in pages.";
        1442 CGROUP_STAT_PGSCAN_DIRECT "informant_cgroup_memory_stat_total" [("stat", "pgscan_direct")] Count Counter "Counters of memory.stat, in pages.";
        1443 CGROUP_STAT_PGSTEAL_DIRECT "informant_cgroup_memory_stat_total" [("stat", "pgsteal_direct")] Count Counter "Counters of memory.stat, in pages.";
        1444 CGROUP_EVENT_LOW "informant_cgroup_memory_events_total" [("event", "low")] Count Counter "memory.events of the cgroup and those below it.";
        1445 CGROUP_EVENT_HIGH "informant_cgroup_memory_events_total" [("event", "high")] Count Counter "memory.events of the cgroup and those below it.";
        1446 CGROUP_EVENT_MAX "informant_cgroup_memory_events_total" [("event", "max")] Count Counter "memory.events of the cgroup and those below it.";
        1447 CGROUP_EVENT_OOM "informant_cgroup_memory_events_total" [("event", "oom")] Count Counter "memory.events of the cgroup and those below it.";
        1448 CGROUP_EVENT_OOM_GROUP_KILL "informant_cgroup_memory_events_total" [("event", "oom_group_kill")] Count Counter "memory.events of the cgroup and those below it.";
        1449 CGROUP_EVENT_OOM_KILL "container_oom_events_total" [] Count Counter "memory.events oom_kill: processes killed in the cgroup and those below it.";
        1450 CGROUP_CPU_USAGE "container_cpu_usage_seconds_total" [] Micros Counter "cpu.stat usage_usec.";
        1451 CGROUP_CPU_USER "container_cpu_user_seconds_total" [] Micros Counter "cpu.stat user_usec.";
        1452 CGROUP_CPU_SYSTEM "container_cpu_system_seconds_total" [] Micros Counter "cpu.stat system_usec.";
        1453 CGROUP_CPU_THROTTLED "container_cpu_cfs_throttled_seconds_total" [] Micros Counter "cpu.stat throttled_usec.";
        1454 CGROUP_CPU_NR_PERIODS "container_cpu_cfs_periods_total" [] Count Counter "cpu.stat nr_periods.";
        1455 CGROUP_CPU_NR_THROTTLED "container_cpu_cfs_throttled_periods_total" [] Count Counter "cpu.stat nr_throttled.";
        1456 CGROUP_CPU_QUOTA "container_spec_cpu_quota" [] Count Limit "cpu.max quota, microseconds a period.";
        1457 CGROUP_CPU_PERIOD "container_spec_cpu_period" [] Count Gauge "cpu.max period, microseconds.";
        1458 CGROUP_CPU_LIMIT "informant_cgroup_cpu_limit_cores" [] Millionths Limit "cpu.max as CPUs: quota divided by period.";
        1459 CGROUP_CPU_LIMIT_EFFECTIVE "informant_cgroup_cpu_limit_effective_cores" [] Millionths Limit "The lowest cpu.max from here to the root, as CPUs.";
        1460 CGROUP_CPU_WEIGHT "informant_cgroup_cpu_weight" [] Count Gauge "cpu.weight, 1 to 10000.";
        1461 CGROUP_CPUSET_CPUS "informant_cgroup_cpuset_effective_cpus" [] Count Gauge "CPUs of cpuset.cpus.effective.";
        1462 CGROUP_PRESSURE_CPU_SOME "container_pressure_cpu_waiting_seconds_total" [] Micros Counter "cpu.pressure some total.";
        1463 CGROUP_PRESSURE_CPU_FULL "container_pressure_cpu_stalled_seconds_total" [] Micros Counter "cpu.pressure full total.";
        1464 CGROUP_PRESSURE_MEMORY_SOME "container_pressure_memory_waiting_seconds_total" [] Micros Counter "memory.pressure some total.";
        1465 CGROUP_PRESSURE_MEMORY_FULL "container_pressure_memory_stalled_seconds_total" [] Micros Counter "memory.pressure full total.";
        1466 CGROUP_PRESSURE_IO_SOME "container_pressure_io_waiting_seconds_total" [] Micros Counter "io.pressure some total.";
        1467 CGROUP_PRESSURE_IO_FULL "container_pressure_io_stalled_seconds_total" [] Micros Counter "io.pressure full total.";
        1468 CGROUP_PRESSURE_CPU_SOME_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "cpu"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1469 CGROUP_PRESSURE_CPU_FULL_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "cpu"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1470 CGROUP_PRESSURE_MEMORY_SOME_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "memory"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1471 CGROUP_PRESSURE_MEMORY_FULL_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "memory"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1472 CGROUP_PRESSURE_IO_SOME_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "io"), ("stall", "some")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1473 CGROUP_PRESSURE_IO_FULL_AVG10 "informant_cgroup_pressure_avg10_ratio" [("resource", "io"), ("stall", "full")] Permyriad Gauge "Share of the last 10 s lost to pressure (PSI avg10).";
        1474 CGROUP_THREADS "container_threads" [] Count Gauge "pids.current: tasks.";
        1475 CGROUP_THREADS_MAX "container_threads_max" [] Count Limit "pids.max.";
        1476 CGROUP_POPULATED "informant_cgroup_populated" [] Count Gauge "cgroup.events populated: 1 when it or one below has processes.";
        1477 CGROUP_FROZEN "informant_cgroup_frozen" [] Count Gauge "cgroup.events frozen: 1 when it really is frozen.";
        1478 CGROUP_FREEZE "informant_cgroup_freeze_requested" [] Count Gauge "cgroup.freeze: 1 when this cgroup itself was asked to freeze.";
    }
    CGROUP_DISK {
        1600 CGROUP_DISK_READ_BYTES "container_fs_reads_bytes_total" [] Bytes Counter "io.stat rbytes.";
        1601 CGROUP_DISK_WRITTEN_BYTES "container_fs_writes_bytes_total" [] Bytes Counter "io.stat wbytes.";
        1602 CGROUP_DISK_READS "container_fs_reads_total" [] Count Counter "io.stat rios.";
        1603 CGROUP_DISK_WRITES "container_fs_writes_total" [] Count Counter "io.stat wios.";
        1604 CGROUP_DISK_DISCARDED_BYTES "informant_cgroup_io_discarded_bytes_total" [] Bytes Counter "io.stat dbytes.";
        1605 CGROUP_DISK_DISCARDS "informant_cgroup_io_discards_total" [] Count Counter "io.stat dios.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_and_are_consecutive_within_a_kind() {
        for pair in TABLE.windows(2) {
            let [a, b] = pair else { unreachable!("windows of two") };
            assert!(a.id < b.id && a.subject <= b.subject, "{} and {}", a.name, b.name);
            assert!(a.subject != b.subject || a.id.0 + 1 == b.id.0, "{} and {}", a.name, b.name);
        }
        for kind in SubjectKind::ALL {
            assert!(!kind.rows().is_empty());
            assert!(kind.rows().iter().all(|row| row.subject == kind));
        }
        assert!(SubjectKind(200).rows().is_empty());
    }

    #[test]
    fn no_two_rows_publish_the_same_series_and_equal_names_agree() {
        for (i, a) in TABLE.iter().enumerate() {
            for b in &TABLE[i + 1..] {
                if a.name == b.name {
                    assert_ne!(a.labels, b.labels, "{}", a.name);
                    assert_eq!((a.kind, a.subject), (b.kind, b.subject), "{}", a.name);
                }
            }
        }
    }

    #[test]
    fn names_follow_prometheus() {
        for row in TABLE {
            let exempt = row.name.starts_with("node_vmstat_");
            assert!(exempt || row.name.ends_with("_total") == (row.kind == Kind::Counter), "{}", row.name);
            assert!(row.name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()));
        }
    }
}
