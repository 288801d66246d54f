//! One contract for all actuators: the same cases over each backend, against peers that answer as the real programs do,
//! and over the fake. What only one of them has is in its own file.

mod cloud_hypervisor;
mod command;
mod fake;
mod firecracker;
mod http;
mod qemu;
mod suite;
