//! How large VMs should be, and the way there. `policy` and `desk` are pure: time, samples and answers are arguments;
//! the daemon carries out what they say with the actuators of `vmm`.

pub mod desk;
pub mod policy;
pub mod settings;
