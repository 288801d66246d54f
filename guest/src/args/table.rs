//! The table of commands and options, and the texts made of it: help, and what was probably meant.

pub(super) const RUN: u8 = 1;
pub(super) const SAMPLE: u8 = 2;
pub(super) const DOCTOR: u8 = 4;
pub(super) const DEMAND: u8 = 8;

pub(super) struct Spec {
    pub(super) name: &'static str,
    /// What kind of value; empty: it is a switch, `on` or `off` where it is no argument.
    pub(super) value: &'static str,
    /// Commands that have it.
    pub(super) of: u8,
    /// Whether environment and kernel command line may give it.
    pub(super) anywhere: bool,
    /// What the option alone means; `None`: a value is needed. Such a value stands behind `=` only.
    pub(super) alone: Option<&'static str>,
    help: &'static str,
}

/// Every option, in the order of the help texts.
pub(super) const OPTIONS: [Spec; 21] = [
    Spec {
        name: "connect",
        value: "ADDRESS",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Dial the host there: vsock:CID:PORT or unix:PATH [default: vsock:2:5252]",
    },
    Spec {
        name: "listen",
        value: "ADDRESS",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Wait for the host to dial instead: vsock:PORT or unix:PATH",
    },
    Spec {
        name: "control",
        value: "ADDRESS",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Accept further host sessions there: vsock:PORT, unix:PATH or off\n\
               [default: vsock:1022 when the host is reached over vsock, else off]",
    },
    Spec {
        name: "root",
        value: "DIR",
        of: RUN | SAMPLE | DOCTOR,
        anywhere: true,
        alone: None,
        help: "Read DIR/proc and DIR/sys instead of the running system's; no link\n\
               leads out of DIR [default: /]",
    },
    Spec {
        name: "interval",
        value: "TIME",
        of: RUN | SAMPLE,
        anywhere: true,
        alone: None,
        help: "From one sample to the next, 100ms to 1h: 500ms, 1s, 2m [default: 1s]",
    },
    Spec { name: "count", value: "N", of: SAMPLE, anywhere: false, alone: None, help: "How many samples [default: 1]" },
    Spec {
        name: "cgroup",
        value: "PATH",
        of: RUN | SAMPLE,
        anywhere: true,
        alone: None,
        help: "Watch this cgroup, relative to the cgroup2 mount, and its children\n\
               first [default: none, the VM as a whole]",
    },
    Spec {
        name: "tripwire",
        value: "",
        of: RUN,
        anywhere: true,
        alone: Some("on"),
        help: "Set memory.high of the watched cgroup just below what it may have, to be\n\
               told at once; lifted to max when it is met",
    },
    Spec {
        name: "clear-memory-high",
        value: "",
        of: RUN,
        anywhere: true,
        alone: Some("on"),
        help: "Lift a memory.high that the watched cgroup is found with",
    },
    Spec {
        name: "thaw",
        value: "",
        of: RUN,
        anywhere: true,
        alone: Some("on"),
        help: "Thaw the watched cgroup when it is found frozen",
    },
    Spec {
        name: "name",
        value: "NAME",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "A name for people, at most 64 bytes; the host never takes it for an\n\
               identity [default: the host name]",
    },
    Spec {
        name: "state",
        value: "DIR",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Keep undelivered events in DIR, on a tmpfs [default: /run/informant]",
    },
    Spec {
        name: "local",
        value: "PATH",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Hear processes of this VM (advisors, reporters, demand) at this unix\n\
               socket, or off [default: agent.sock in the directory of --state]",
    },
    Spec {
        name: "advisors",
        value: "DIR",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "Ask the executables in DIR before the VM becomes smaller: exit code 0\n\
               for, 1 against, with a line why [default: /etc/informant/advisors.d]",
    },
    Spec {
        name: "memory",
        value: "SIZE",
        of: DEMAND,
        anywhere: false,
        alone: None,
        help: "Memory of the VM in all: 2GiB, 512MiB, or plain bytes",
    },
    Spec {
        name: "cpu",
        value: "N",
        of: DEMAND,
        anywhere: false,
        alone: None,
        help: "CPUs of the VM in all: 2, 1.5 or 500m",
    },
    Spec {
        name: "disk",
        value: "MOUNT=SIZE",
        of: DEMAND,
        anywhere: false,
        alone: None,
        help: "Size of the file system mounted there: /data=20GiB",
    },
    Spec {
        name: "urgency",
        value: "N",
        of: DEMAND,
        anywhere: false,
        alone: None,
        help: "From 0 (would be good) to 100 (fails without) [default: 50]",
    },
    Spec {
        name: "wait",
        value: "SECONDS",
        of: DEMAND,
        anywhere: false,
        alone: Some("60"),
        help: "--wait=SECONDS: ask again every second until the VM has it, 60 s with\n\
               --wait alone [default: take the first answer]",
    },
    Spec {
        name: "socket",
        value: "PATH",
        of: DEMAND,
        anywhere: false,
        alone: None,
        help: "Where the agent hears [default: /run/informant/agent.sock]",
    },
    Spec {
        name: "log",
        value: "LEVEL",
        of: RUN,
        anywhere: true,
        alone: None,
        help: "error, warn, info, debug or trace, on standard error [default: info]",
    },
];

pub(super) const COMMANDS: [(&str, u8, &str); 4] = [
    ("run", RUN, "Report this VM to its host until told to end (SIGTERM)"),
    ("sample", SAMPLE, "Print what the collectors see as JSON lines; opens no socket"),
    ("demand", DEMAND, "Ask the host, through the agent, for more CPU, memory or disk"),
    ("doctor", DOCTOR, "Say what this image lacks and what would bring it; opens no socket"),
];

/// The known word that is at most two edits (and less than half its length) away.
pub(super) fn nearest(word: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    known
        .map(|known| (edits(word.as_bytes(), known.as_bytes()), known))
        .filter(|(edits, known)| *edits <= 2 && edits * 2 < known.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, known)| known)
}

/// Insertions, deletions and replacements that turn `a` into `b`; words longer than 32 bytes are never near.
fn edits(a: &[u8], b: &[u8]) -> usize {
    if a.len() > 32 || b.len() > 32 {
        return usize::MAX / 4;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(b) {
            let here = (diagonal + usize::from(from != to)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

pub(super) fn help() -> String {
    let mut text = String::from(
        "informant-guest: tells a VM's host what the VM uses and needs, over virtio-vsock\n\n\
         Usage: informant-guest COMMAND [OPTIONS]\n\nCommands:\n",
    );
    for (name, _, what) in COMMANDS {
        text.push_str(&format!("  {name:<8} {what}\n"));
    }
    text.push_str(
        "\nOptions:\n  -h, --help     This text; COMMAND --help lists a command's options\n  \
         -V, --version  Name and version\n",
    );
    text
}

pub(super) fn command_help(command: &str, commands: u8) -> String {
    let what = COMMANDS.iter().find(|(name, ..)| *name == command).map(|(.., what)| *what).unwrap_or_default();
    let mut text = format!("{what}.\n\nUsage: informant-guest {command} [OPTIONS]\n\nOptions:\n");
    for spec in OPTIONS.iter().filter(|spec| spec.of & commands != 0) {
        let head = format!("--{} {}", spec.name, spec.value).trim_end().to_owned();
        for (i, line) in spec.help.lines().enumerate() {
            let head = if i == 0 { head.as_str() } else { "" };
            text.push_str(&format!("  {head:<19} {line}\n"));
        }
    }
    text.push_str(&format!("  {:<19} This text\n", "-h, --help"));
    if commands == DEMAND {
        text.push_str(
            "\nWhat was answered is printed in a line. Exit codes: 0 granted, or with --wait there;\n\
             1 denied, only in part, or at the maximum; 2 not understood; 3 no agent, or no\n\
             answer in time. Amounts are totals: asking twice asks for no more.\n\n\
             Examples:\n  informant-guest demand --memory 2GiB --wait\n  \
             informant-guest demand --cpu 4 --urgency 80 --wait=300\n",
        );
        return text;
    }
    let only_here = OPTIONS.iter().find(|spec| spec.of & commands != 0 && !spec.anywhere);
    let except = only_here.map(|spec| format!(" but --{}", spec.name)).unwrap_or_default();
    text.push_str(&format!(
        "\nEach option{except} can also be given as the environment variable\n\
         INFORMANT_<OPTION> or, for the running system, as informant.<option>=VALUE on the\n\
         kernel command line (--root excepted); an argument goes before the environment,\n\
         and that before the kernel command line.\n",
    ));
    if commands == RUN {
        text.push_str(
            "\nExamples:\n  informant-guest run --interval 500ms\n  \
             informant-guest run --connect unix:/tmp/host.sock --control off --state /tmp/state\n",
        );
    }
    text
}
