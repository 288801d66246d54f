//! The informant agent. `main.rs` parses arguments and picks a command; everything else is here.

pub mod args;
pub mod collect;
pub mod doctor;
pub mod run;
pub mod sample;
