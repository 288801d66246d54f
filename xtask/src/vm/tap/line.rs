//! What passes the tap, and what it asks the VM to become.

use std::time::{Instant, SystemTime};

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Commands.
    ToQemu,
    /// Greeting, answers, events.
    FromQemu,
}

/// A line that came.
#[derive(Clone, Debug)]
pub struct Line {
    pub at: Instant,
    /// The same moment, as status files and logs have it.
    pub time: SystemTime,
    /// Counts connections from 1.
    pub connection: u32,
    pub way: Way,
    /// `null` for what is not JSON.
    pub json: Value,
}

/// A command that changes the VM's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The virtio-mem device's `requested-size`, bytes.
    Memory(u64),
    /// The balloon's target, bytes.
    Balloon(u64),
    /// `device_add` and `device_del`, with the CPU's id.
    PlugCpu(String),
    UnplugCpu(String),
}

impl Line {
    /// The command's name.
    pub fn command(&self) -> Option<&str> {
        (self.way == Way::ToQemu).then(|| self.json["execute"].as_str())?
    }

    /// What the command asks the VM to become, if it does.
    pub fn resize(&self) -> Option<Resize> {
        let arguments = &self.json["arguments"];
        let id = || Some(arguments["id"].as_str()?.to_owned());
        match self.command()? {
            "qom-set" if arguments["property"] == "requested-size" => {
                Some(Resize::Memory(arguments["value"].as_u64()?))
            }
            "balloon" => Some(Resize::Balloon(arguments["value"].as_u64()?)),
            "device_add" => id().map(Resize::PlugCpu),
            "device_del" => id().map(Resize::UnplugCpu),
            _ => None,
        }
    }

    /// The event's name.
    pub fn event(&self) -> Option<&str> {
        (self.way == Way::FromQemu).then(|| self.json["event"].as_str())?
    }
}

impl Resize {
    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    pub(super) fn is_balloon(&self) -> bool {
        matches!(self, Self::Balloon(_))
    }

    pub(super) fn is_cpu(&self) -> bool {
        matches!(self, Self::PlugCpu(_) | Self::UnplugCpu(_))
    }
}
