//! How informant is built, booted, shown, tested and measured. One file a command; the list of commands is main.rs.
//!
//! Whole-system tests (xtask/tests) use [`vm`] for real VMs, [`child`] for processes, [`project`] for the programs.

pub mod bench;
pub mod child;
pub mod demo;
pub mod elf;
pub mod fake_vmm;
pub mod guest;
pub mod host;
pub mod image;
pub mod initramfs;
pub mod load;
pub mod lock;
pub mod project;
pub mod run;
pub mod setup;
pub mod simulate;
pub mod system;
pub mod test;
pub mod tidy;
pub mod vm;
