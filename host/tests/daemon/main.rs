//! The daemon as a child process against scripted guests over unix sockets: real frames, real files, real signals.

mod api;
mod descriptors;
mod events;
mod flood;
mod folders;
mod handshake;
mod hostile;
mod proof;
mod scaling;
mod support;
mod take_over;
mod take_over_faults;
