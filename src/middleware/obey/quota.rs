//! The fields that say how much is left, and when there will be more.

use std::time::Duration;

use http::HeaderMap;

use super::{
    meaning::Meaning,
    times::{SECOND, TheirClock, decimal, lines, longest, members, wait},
};

/// Fields that say how much is left, each with the fields for when there will be more, of which the first that can be
/// read counts. The page of `ObeyLayer` says which services send them.
const QUOTAS: [&str; 11] = [
    "ratelimit-remaining ratelimit-reset",
    "x-ratelimit-remaining x-ratelimit-reset-after x-ratelimit-reset",
    "x-rate-limit-remaining x-rate-limit-reset",
    "x-ratelimit-remaining-requests x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens x-ratelimit-reset-tokens",
    "x-ratelimit-requests-remaining x-ratelimit-requests-reset",
    "x-ratelimit-complexity-remaining x-ratelimit-complexity-reset",
    "anthropic-ratelimit-requests-remaining anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-remaining anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-input-tokens-remaining anthropic-ratelimit-input-tokens-reset",
    "anthropic-ratelimit-output-tokens-remaining anthropic-ratelimit-output-tokens-reset",
];

/// A quota that is used up: the time until there is more, and the field that names the time; `None` if no field does.
type UsedUp = Option<(Duration, &'static str)>;

/// The quota that is used up, and for the longest time if several are; `None` if none is.
pub(super) fn used_up(headers: &HeaderMap, clock: TheirClock, status: Meaning) -> Option<UsedUp> {
    let of_fields = |fields: &'static str| {
        let (remaining, resets) = fields.split_once(' ')?;
        let mut lefts = members(headers, remaining).peekable();
        let is_over = match lefts.peek() {
            Some(_) => lefts.any(|left| is_over(left, status)),
            None => status == Meaning::Refused,
        };
        let reset = |name| Some((longest(headers, name, SECOND, clock)?, name));
        is_over.then(|| resets.split(' ').find_map(reset))
    };
    let of_draft = lines(headers, "ratelimit").flat_map(|line| draft(line, clock, status));
    let of_fields = QUOTAS.into_iter().filter_map(of_fields);
    of_fields.chain(of_draft).max()
}

/// Whether no unit is left. After a refusal, a text that is no number above zero means that.
fn is_over(left: &str, status: Meaning) -> bool {
    match (decimal(left, SECOND), status) {
        (Some(number), _) => number.is_zero(),
        (None, Meaning::Refused) => true,
        (None, Meaning::MayRefuse) => left.starts_with('-'),
        // Such as -1, which services send when they do not know.
        (None, _) => false,
    }
}

/// Reads `RateLimit` in the form of draft 8 and later, `"default";r=0;t=30, "daily";r=9;t=99`, also with the names that
/// the draft is about to take, `"default";a=0;w=30`; or of draft 7, `limit=10, remaining=0, reset=5`.
fn draft(line: &str, clock: TheirClock, status: Meaning) -> impl Iterator<Item = UsedUp> {
    let members = split(line, ',').map(|member| split(member, ';'));
    let quotas = members.chain([split(line, ',')]);
    quotas.filter_map(move |pairs| {
        let value = |names: [&str; 3]| {
            let mut names = names.into_iter();
            names.find_map(|name| value(pairs.clone(), name))
        };
        let time = || wait(value(["t", "w", "reset"])?, SECOND, clock);
        let is_over = is_over(value(["r", "a", "remaining"])?, status);
        is_over.then(|| time().map(|time| (time, "ratelimit")))
    })
}

/// The value of `name=value` among these.
fn value<'a>(mut pairs: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The parts between separators that are in no string, without white space around them.
fn split(line: &str, separator: char) -> impl Iterator<Item = &str> + Clone {
    let (mut in_string, mut escaped) = (false, false);
    line.split(move |letter: char| {
        let is_escaped = escaped;
        escaped = in_string && !is_escaped && letter == '\\';
        if letter == '"' && !is_escaped {
            in_string = !in_string;
        }
        letter == separator && !in_string
    })
    .map(str::trim_ascii)
}
