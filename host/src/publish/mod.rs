//! What the daemon tells the world: status files, event logs, the JSON API. All of it is read from one snapshot.

pub mod event;
pub mod log;
pub mod scaling;
pub mod snapshot;
pub mod status;
pub mod status_file;
