//! Hard inputs of the kernel's files, one test a pitfall, through `sample --root` as a person would run it.

mod cgroups;
mod disks;
mod garbage;
mod hotplug;
mod meminfo;
mod mounts;
mod network;
mod pressure;
mod reading;
mod stat;
mod tree;
mod vmstat;
