//! The scaling conversation, the guest's side: who decides, what is wanted, what may go, what has arrived.

pub mod asking;
pub mod brain;
pub mod controllers;
