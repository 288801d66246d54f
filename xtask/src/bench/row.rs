//! A line of the result, and whether its goal was reached.

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What was measured.
    pub(super) what: String,
    /// The goal, as DESIGN has it; empty for a figure that only stands beside another.
    pub(super) goal: String,
    /// What came out, with its unit.
    pub(super) measured: String,
    /// The same of something else, in the same run.
    pub(super) beside: String,
    pub(super) verdict: Verdict,
    /// The test that fails when the goal is missed.
    pub(super) enforced: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// There is no goal.
    Shown,
}

impl Verdict {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Shown => "",
        }
    }
}

/// No test looks at the figure.
pub(super) const BENCH_ONLY: &str = "bench only";

impl Row {
    /// A figure without a goal.
    pub(super) fn shown(what: impl Into<String>, measured: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            goal: String::new(),
            measured: measured.into(),
            beside: String::new(),
            verdict: Verdict::Shown,
            enforced: BENCH_ONLY,
        }
    }

    /// A figure that should be at most `goal`; `shown` prints either.
    pub(super) fn at_most(what: impl Into<String>, value: f64, goal: f64, shown: impl Fn(f64) -> String) -> Self {
        Self {
            goal: format!("<= {}", shown(goal)),
            verdict: if value <= goal { Verdict::Met } else { Verdict::Missed },
            ..Self::shown(what, shown(value))
        }
    }

    /// A figure that should be at least `goal`.
    pub(super) fn at_least(what: impl Into<String>, value: f64, goal: f64, shown: impl Fn(f64) -> String) -> Self {
        Self {
            goal: format!(">= {}", shown(goal)),
            verdict: if value >= goal { Verdict::Met } else { Verdict::Missed },
            ..Self::shown(what, shown(value))
        }
    }

    pub(super) fn beside(mut self, text: impl Into<String>) -> Self {
        self.beside = text.into();
        self
    }

    pub(super) fn enforced(mut self, test: &'static str) -> Self {
        self.enforced = test;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_at_its_bound_and_missed_beyond_it() {
        let shown = |value: f64| format!("{value} B");
        assert_eq!(Row::at_most("x", 64.0, 64.0, shown).verdict, Verdict::Met);
        let missed = Row::at_most("x", 64.5, 64.0, shown);
        assert_eq!(
            (missed.verdict, missed.goal.as_str(), missed.measured.as_str()),
            (Verdict::Missed, "<= 64 B", "64.5 B")
        );
        assert_eq!(Row::at_least("x", 9.0, 10.0, shown).verdict, Verdict::Missed);
        assert_eq!(Row::at_least("x", 10.0, 10.0, shown).verdict, Verdict::Met);
    }
}
