//! The fields that say how much is left, and when there will be more.

use std::time::Duration;

use http::HeaderMap;

use super::times::{Clock, any_form, decimal, longest};

/// A field that says how much is left, and fields for when there will be more: the first that can be read counts.
type Quota = (&'static str, &'static [&'static str]);

/// `docs/guide/outbound.md` says which services send them.
const QUOTAS: &[Quota] = &[
    ("ratelimit-remaining", &["ratelimit-reset"]),
    (
        "x-ratelimit-remaining",
        &["x-ratelimit-reset-after", "x-ratelimit-reset"],
    ),
    ("x-rate-limit-remaining", &["x-rate-limit-reset"]),
    (
        "x-ratelimit-remaining-requests",
        &["x-ratelimit-reset-requests"],
    ),
    (
        "x-ratelimit-remaining-tokens",
        &["x-ratelimit-reset-tokens"],
    ),
    (
        "x-ratelimit-requests-remaining",
        &["x-ratelimit-requests-reset"],
    ),
    (
        "anthropic-ratelimit-requests-remaining",
        &["anthropic-ratelimit-requests-reset"],
    ),
    (
        "anthropic-ratelimit-tokens-remaining",
        &["anthropic-ratelimit-tokens-reset"],
    ),
    (
        "anthropic-ratelimit-input-tokens-remaining",
        &["anthropic-ratelimit-input-tokens-reset"],
    ),
    (
        "anthropic-ratelimit-output-tokens-remaining",
        &["anthropic-ratelimit-output-tokens-reset"],
    ),
];

/// The longest time after which something is left of a quota of which nothing is left now, and the field that says so.
/// After a refusal, a quota counts also if its remaining part is unknown.
pub(super) fn exhausted(
    headers: &HeaderMap,
    clock: Clock,
    is_refused: bool,
) -> Option<(Duration, &'static str)> {
    let of_quota = |(remaining, resets): &Quota| {
        let is_over = match headers.get(*remaining) {
            Some(left) => is_zero(left.to_str().ok()?),
            None => is_refused,
        };
        let reset = |name: &&'static str| {
            Some((longest(headers, name, |text| any_form(text, clock))?, *name))
        };
        resets.iter().find_map(reset).filter(|_| is_over)
    };
    let draft = headers.get_all("ratelimit").into_iter();
    let draft = draft.filter_map(|line| Some((structured(line.to_str().ok()?)?, "ratelimit")));
    let waits = QUOTAS.iter().filter_map(of_quota).chain(draft);
    waits.max_by_key(|(wait, _)| *wait)
}

fn is_zero(text: &str) -> bool {
    decimal(text.trim_ascii(), Duration::from_secs(1)).is_some_and(|number| number.is_zero())
}

/// Reads `RateLimit` in the form of draft 8 and later, `"default";r=0;t=30, "daily";r=9;t=99`, or of draft 7,
/// `limit=10, remaining=0, reset=5`.
fn structured(line: &str) -> Option<Duration> {
    let members = split(line, ',');
    let later = members.clone().filter_map(|member| {
        let parameters = split(member, ';').skip(1);
        time_if_none_left(|name| value(parameters.clone(), name), "r", "t")
    });
    let seventh = time_if_none_left(|name| value(members.clone(), name), "remaining", "reset");
    later.chain(seventh).max().filter(|wait| !wait.is_zero())
}

fn time_if_none_left<'a>(
    value: impl Fn(&str) -> Option<&'a str>,
    left: &str,
    time: &str,
) -> Option<Duration> {
    let time = decimal(value(time)?, Duration::from_secs(1))?;
    is_zero(value(left)?).then_some(time)
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
