//! The local socket, advisors and `demand`: processes of the guest and the agent.

mod advice;
#[expect(dead_code, reason = "shared with the tests of the link")]
#[path = "../link/agent.rs"]
mod agent;
mod demand;
mod guest;
#[expect(dead_code, reason = "shared with the tests of the link")]
#[path = "../link/host.rs"]
mod host;
mod inside;
mod programs;
mod socket;
