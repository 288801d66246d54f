//! The informant agent. `main.rs` parses arguments and picks a command; everything else is here.

pub mod advise;
pub mod agent;
pub mod args;
pub mod clock;
pub mod collect;
pub mod control;
pub mod demand;
pub mod doctor;
pub mod hosts;
pub mod kfile;
pub mod link;
pub mod local;
pub mod log;
pub mod outbox;
pub mod own;
pub mod pace;
pub mod parse;
pub mod process;
pub mod random;
pub mod reactor;
pub mod run;
pub mod sample;
pub mod scale;
