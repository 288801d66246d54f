//! The agent's link: the real binary as a child process against a host that a test scripts, over unix sockets.

mod agent;
mod brain;
mod control;
mod delivery;
mod faults;
mod host;
mod scaling;
mod session;
mod stalls;
