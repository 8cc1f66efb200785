//! Finds the name that a misspelled one was probably meant to be.

/// More differences than this mean another name, not a typo.
const MAX_SLIPS: usize = 2;

/// The most similar name, with at most two letters added, removed or replaced.
pub(crate) fn most_similar<'a>(
    name: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let distances = names
        .into_iter()
        .map(|other| (distance(name, other), other));
    let near = distances.filter(|(slips, other)| *slips <= MAX_SLIPS && *slips < other.len());
    near.min().map(|(_, other)| other)
}

/// How many letters have to be added, removed or replaced (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, left) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, right) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_from_another_name() {
        for (name, expected) in [
            ("token", Some("tokens")),
            ("Tokens", Some("tokens")),
            ("tokesn", Some("tokens")),
            ("requests", Some("requests")),
            ("requets", Some("requests")),
            ("uploads", None),
            ("", None),
        ] {
            assert_eq!(
                most_similar(name, ["requests", "tokens"]),
                expected,
                "{name}"
            );
        }
        assert_eq!(most_similar("x", ["a"]), None);
    }
}
