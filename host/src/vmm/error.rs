//! Why a VMM could not be asked or did not do it, and the one line of its text that people see.

/// Columns of a VMM's own text that are kept.
const MAX_TEXT: usize = 300;

/// See the module. Each has one line that names the VMM, where it is and what it said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmmError {
    /// Nobody is there: not started yet, ended, or not for this user.
    #[error("{0}")]
    Unreachable(String),
    /// It is there and does not answer. What came of a command is open.
    #[error("{0}")]
    Timeout(String),
    /// Later: the guest's driver is not up, or the VM has not started.
    #[error("{0}")]
    NotYet(String),
    /// Not this size, ever: beyond what the VM has room for, or the VMM says no.
    #[error("{0}")]
    Refused(String),
    /// This VM has no way to do it.
    #[error("{0}")]
    Unsupported(String),
    /// It answers what is no answer. What came of a command is open.
    #[error("{0}")]
    Protocol(String),
}

impl VmmError {
    /// Whether the same call may succeed later without anybody changing the VM's definition.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Timeout(_) | Self::NotYet(_) | Self::Protocol(_) => true,
            Self::Refused(_) | Self::Unsupported(_) => false,
        }
    }

    /// Whether a command may have taken effect all the same.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Timeout(_) | Self::Protocol(_))
    }

    /// One word, for counters.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::NotYet(_) => "not_yet",
            Self::Refused(_) => "refused",
            Self::Unsupported(_) => "unsupported",
            Self::Protocol(_) => "protocol",
        }
    }
}

/// A VMM's words as they may stand in one line: the first line that says something, nothing that a terminal obeys.
pub(super) fn line(text: &str) -> String {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
    first
        .chars()
        .take(MAX_TEXT)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_is_for_ever_and_only_silence_leaves_a_command_open() {
        for (error, transient, open) in [
            (VmmError::Unreachable("text".into()), true, true),
            (VmmError::Timeout("text".into()), true, true),
            (VmmError::NotYet("text".into()), true, false),
            (VmmError::Refused("text".into()), false, false),
            (VmmError::Unsupported("text".into()), false, false),
            (VmmError::Protocol("text".into()), true, true),
        ] {
            assert_eq!((error.is_transient(), error.is_open()), (transient, open), "{}", error.kind());
            assert_eq!(error.to_string(), "text");
        }
    }

    #[test]
    fn a_text_is_one_line_without_control_characters() {
        assert_eq!(line("\n  it \u{1b}[31mfailed\n   0: a::b\n"), "it \\u{1b}[31mfailed");
        assert_eq!(line(""), "no reason given");
        assert_eq!(line(&"x".repeat(5000)).len(), MAX_TEXT);
    }
}
