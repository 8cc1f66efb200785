//! [`BlockRequest`] and [`BlockDetails`]: the reason, the author and the origin of a block.

use std::time::Duration;

use super::{BlockedBy, Until, held::Level};
use crate::domain::{policy::Policy, rule::Rule};

/// The longest reason and the longest other text, in bytes; longer ones are cut.
const MAX_REASON: usize = 200;
const MAX_OTHER: usize = 100;

/// The longest pause, unless another is chosen.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(300);

/// A request for a block: the end, and the reason. You can pass a time alone if there is no reason.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::block::BlockRequest;
///
/// let request = BlockRequest::new(Duration::from_secs(3600)).reason("scrapes prices").author("kim");
/// assert_eq!(request.details().reason(), Some("scrapes prices"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// For a ban that grows: the end if it is the first ban of the identity.
    pub(super) until: Until,
    pub(super) by: BlockedBy,
    /// Boxed, so that a request adds little to the size of each operation.
    pub(super) details: Box<BlockDetails>,
    /// How long a ban that grows lasts, in ms; empty for any other block.
    pub(crate) times_ms: Box<[u64]>,
    /// Whether a ban leaves its strikes, since another ban needs them that begins with the same denial.
    pub(crate) keeps_strikes: bool,
}

impl BlockRequest {
    /// Requests an operator's block until then, without a reason.
    #[must_use]
    pub fn new(until: impl Into<Until>) -> Self {
        Self {
            until: until.into(),
            by: BlockedBy::Operator,
            details: Box::default(),
            times_ms: Box::default(),
            keeps_strikes: false,
        }
    }

    /// Requests a ban until then by this policy, whose `rule` has denied the identity. If the policy's ban grows, the
    /// end is that of a first ban. For the limiter, which counts the strikes.
    #[doc(hidden)]
    #[must_use]
    pub fn ban(until: impl Into<Until>, policy: &Policy, rule: &Rule) -> Self {
        let mut request = Self::new(until);
        request.by = BlockedBy::Ban;
        request.details.policy = clean(policy.name(), MAX_OTHER);
        request.details.rule = clean(&rule.to_string(), MAX_OTHER);
        if let Some(ban) = policy.ban_config()
            && let times_ms @ [_, _, ..] = ban.times_ms()
        {
            request.times_ms = times_ms.into();
        }
        request
    }

    /// Requests a [pause](crate::block#pauses) of this length from now, and of 5 minutes at most: callers that may wait
    /// then wait until the end.
    #[must_use]
    pub fn pause(length: Duration) -> Self {
        Self::pause_up_to(length, MAX_PAUSE)
    }

    /// Requests a [pause](crate::block#pauses) of this length from now, and of `most` at most. The length comes from
    /// another service, which may be wrong.
    #[must_use]
    #[doc(hidden)]
    pub fn pause_up_to(length: Duration, most: Duration) -> Self {
        let mut request = Self::new(length.min(most));
        request.by = BlockedBy::Pause;
        request
    }

    /// Sets the reason. Everyone with access to the list of blocks can read it. The text is cut after 200 bytes, and
    /// each control character becomes a blank.
    #[must_use]
    pub fn reason(mut self, reason: &str) -> Self {
        self.details.reason = clean(reason, MAX_REASON);
        self
    }

    /// Sets the author. Everyone with access to the list of blocks can read it. The text is cut after 100 bytes, and
    /// each control character becomes a blank.
    #[must_use]
    pub fn author(mut self, author: &str) -> Self {
        self.details.author = clean(author, MAX_OTHER);
        self
    }

    /// Returns the end of the block. A store chooses the end of a [ban that grows](crate::block#bans-that-grow): this one
    /// if it is the first ban of the identity.
    #[must_use]
    #[doc(hidden)]
    pub const fn until(&self) -> Until {
        self.until
    }

    /// Returns the origin of the block.
    #[must_use]
    #[doc(hidden)]
    pub const fn source(&self) -> BlockedBy {
        self.by
    }

    /// Returns the details.
    #[must_use]
    #[doc(hidden)]
    pub const fn details(&self) -> &BlockDetails {
        &self.details
    }
}

impl<U: Into<Until>> From<U> for BlockRequest {
    fn from(until: U) -> Self {
        Self::new(until)
    }
}

/// Reason, author and origin of a block. Checks do not read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockDetails {
    pub(super) created_ms: Option<u64>,
    reason: Box<str>,
    author: Box<str>,
    policy: Box<str>,
    rule: Box<str>,
    pub(crate) level: Option<Level>,
}

impl BlockDetails {
    /// Returns when the block was made, in ms since the Unix epoch by the store's clock.
    #[must_use]
    pub const fn created_ms(&self) -> Option<u64> {
        self.created_ms
    }

    /// Returns the reason, in the words of the author.
    #[must_use]
    pub const fn reason(&self) -> Option<&str> {
        known(&self.reason)
    }

    /// Returns the author.
    #[must_use]
    pub const fn author(&self) -> Option<&str> {
        known(&self.author)
    }

    /// Returns the name of the policy that banned the identity.
    #[must_use]
    pub const fn policy(&self) -> Option<&str> {
        known(&self.policy)
    }

    /// Returns the rule of that policy that denied the identity: `10/1m`.
    #[must_use]
    pub const fn rule(&self) -> Option<&str> {
        known(&self.rule)
    }

    /// Returns how many [bans that grow](crate::block#bans-that-grow) the identity has had in a row: 1 after the first
    /// one. `None` if there was none, or if [that](Self::ban_level_until_ms) had passed when the block was made.
    #[must_use]
    pub fn ban_level(&self) -> Option<u8> {
        Some(self.level?.number.get())
    }

    /// Returns until when the level counts, in ms since the Unix epoch by the store's clock: a ban before that time is of
    /// the next level, and a later one of the first.
    #[must_use]
    #[doc(hidden)]
    pub fn ban_level_until_ms(&self) -> Option<u64> {
        Some(self.level?.kept_until_ms)
    }
}

impl BlockDetails {
    /// Writes the texts of the stored form: for each the length in one byte, and the bytes.
    pub(crate) fn write_texts(&self, bytes: &mut Vec<u8>) {
        for text in [&self.reason, &self.author, &self.policy, &self.rule] {
            let length = u8::try_from(text.len()).unwrap_or(0);
            bytes.push(length);
            bytes.extend_from_slice(&text.as_bytes()[..length.into()]);
        }
    }

    /// Reads the output of [`write_texts`](Self::write_texts); `None` for any other bytes. Leaves the bytes behind it.
    pub(crate) fn read_texts(created_ms: u64, bytes: &mut &[u8]) -> Option<Self> {
        let mut next = |most| {
            let (length, rest) = bytes.split_first()?;
            let (text, rest) = rest.split_at_checked((*length).into())?;
            *bytes = rest;
            Some(clean(&String::from_utf8_lossy(text), most))
        };
        Some(Self {
            created_ms: Some(created_ms),
            reason: next(MAX_REASON)?,
            author: next(MAX_OTHER)?,
            policy: next(MAX_OTHER)?,
            rule: next(MAX_OTHER)?,
            level: None,
        })
    }
}

const fn known(text: &str) -> Option<&str> {
    if text.is_empty() { None } else { Some(text) }
}

/// Makes a text safe to store and to show.
fn clean(text: &str, most: usize) -> Box<str> {
    let end = (0..=most.min(text.len())).rev();
    let end = end.into_iter().find(|end| text.is_char_boundary(*end));
    let text = &text[..end.unwrap_or(0)];
    text.replace(char::is_control, " ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_have_no_control_characters() {
        let request = BlockRequest::new(Until::Forever);
        let request = request.reason(&"ä".repeat(300)).author("a\x1b[31m\nb");
        let details = request.details();
        assert_eq!(details.reason(), Some(&*"ä".repeat(100)));
        assert_eq!(details.author(), Some("a [31m b"));
        assert_eq!((details.policy(), details.created_ms()), (None, None));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let policy = Policy::parse("login", "10/1m").unwrap();
        let ban = BlockRequest::ban(Until::Forever, &policy, &policy.rules()[0]);
        let details = ban.reason("why").author("kim").details().clone();
        let mut bytes = Vec::new();
        details.write_texts(&mut bytes);
        bytes.push(9);
        let mut rest = &bytes[..];
        let read = BlockDetails::read_texts(7, &mut rest);
        let created_ms = Some(7);
        let details = BlockDetails {
            created_ms,
            ..details
        };
        assert_eq!(read, Some(details.clone()));
        assert_eq!((details.rule(), rest), (Some("10/1m"), &[9][..]));
        for end in 0..bytes.len() - 1 {
            let mut cut = &bytes[..end];
            assert_eq!(BlockDetails::read_texts(7, &mut cut), None, "{end}");
        }
    }
}
