//! `informant-guest sample`: the collectors' values as JSON lines on standard output.
