//! How large a VM should be: pure functions of what is known of it, without a clock, a file or a socket. Total for any
//! numbers: what a guest says is not trusted to make sense.
//!
//! Once a second, for each VM: [`Trend::saw`] what there is, then [`Policy::decide`]. Going up the caller tells the VMM
//! and then the guest; going down it asks the guest first, and a "no" comes back as [`Denied`].

mod ahead;
pub mod compute_unit;
mod config;
pub mod goal;
mod inputs;
mod number;
pub mod pressure;
mod reason;
pub mod replay;
mod rules;
mod trend;
pub mod working_set;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod vectors;

pub use ahead::Ahead;
pub use compute_unit::ComputeUnit;
pub use config::{PolicyError, parse};
pub use inputs::{Bounds, Decision, Denied, Inputs, Sample, Wanted};
pub use pressure::Pressure;
pub use reason::{Amount, Reason};
pub use rules::Rules;
pub use trend::Trend;

/// Names of policies, as `scaling.policy` has them.
pub const NAMES: [&str; 2] = ["compute-unit", "pressure"];

/// Which rules decide, and their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// See [`compute_unit`].
    ComputeUnit(ComputeUnit),
    /// See [`pressure`].
    Pressure(Pressure),
}

impl Default for Policy {
    fn default() -> Self {
        Self::ComputeUnit(ComputeUnit::default())
    }
}

impl Policy {
    /// One of [`NAMES`].
    #[must_use]
    pub const fn name(&self) -> &'static str {
        let [compute_unit, pressure] = NAMES;
        match self {
            Self::ComputeUnit(_) => compute_unit,
            Self::Pressure(_) => pressure,
        }
    }

    /// How large the VM should be. `None`: nothing speaks for any change, as far as is known.
    #[must_use]
    pub fn decide(&self, inputs: &Inputs) -> Option<Decision> {
        match self {
            Self::ComputeUnit(policy) => policy.decide(inputs),
            Self::Pressure(policy) => policy.decide(inputs),
        }
    }
}
