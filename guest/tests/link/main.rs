//! The agent's link: the real binary as a child process against a host that a test scripts, over unix sockets.

mod agent;
mod control;
mod delivery;
mod faults;
mod host;
mod session;
mod stalls;
