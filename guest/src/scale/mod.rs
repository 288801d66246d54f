//! The scaling conversation, the guest's side: who decides, what is wanted, what may go, what has arrived.

pub mod act;
pub mod apply;
pub mod ask;
pub mod asking;
pub mod brain;
pub mod controllers;
pub mod decide;
pub mod local;
pub mod need;
pub mod record;
pub mod scaling;
pub mod sense;
pub mod trigger;
pub mod tripwire;
pub mod usage;
