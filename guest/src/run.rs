//! `informant-guest run`: builds the agent and runs it until it is told to end.
