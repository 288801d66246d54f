//! `informant-guest doctor`: what this image lacks, a line a finding.
