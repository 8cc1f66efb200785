//! [`Answer`]: yes or no, and so the exit code of a verb that succeeded.

/// The answer of a verb that succeeded.
pub(crate) enum Answer {
    /// Done, or "yes".
    Yes,
    /// Done, and the answer is "no": exit code 1.
    No,
}

impl From<bool> for Answer {
    fn from(is_yes: bool) -> Self {
        if is_yes { Self::Yes } else { Self::No }
    }
}
