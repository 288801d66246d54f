//! Command line, environment and kernel command line: one table for all three.
