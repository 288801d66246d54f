//! The name that was probably meant. Knows only text.

/// The nearest of `known` to `wanted`, if it is near enough to have been meant: a third of its letters may differ.
#[must_use]
pub(super) fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (wanted.chars().count().max(3)) / 3;
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(wanted, name), name))
        .filter(|(distance, name)| *distance <= allowed || name.starts_with(wanted))
        .min()
        .map(|(_, name)| name)
}

/// How a suggestion is put behind a message.
#[must_use]
pub(super) fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_and_beginnings_are_suggested_and_far_ones_are_not() {
        let known = ["web-1", "web-2", "database"];
        assert_eq!(nearest("wbe-1", known), Some("web-1"));
        assert_eq!(nearest("data", known), Some("database"));
        assert_eq!(nearest("cache", known), None);
        assert_eq!(nearest("x", []), None);
    }
}
