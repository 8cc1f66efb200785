//! Compares a [`Bound`] with the outcome.

use super::bound::{Bound, Verdict, WHOLE};
use super::result::Outcome;
use crate::Result;

const NO_KEY: &str = "no request has a key for it, so that there is nothing to judge";

/// The decisions that the store of a replay may have made.
pub(super) const FULL: &str = "a store was full and may have forgotten counts: give it more --keys";

/// Compares the bound with the outcome.
///
/// # Errors
///
/// When a verdict would rest on too little: the tool could not judge enough lines, or a full store forgot counts, so
/// that there may be more refusals than were counted.
pub(super) fn verdict(bound: &Bound, outcome: &Outcome) -> Result<Verdict> {
    let tally = &outcome.tally;
    let own = |name: &str| outcome.policies.iter().find(|policy| policy.name == name);
    let all = tally.requests;
    let (requests, judged, refused) = match bound.policy.as_deref().and_then(own) {
        // Requests without a user are no sign that the log is misread.
        Some(own) if own.key == "user" && own.requests > 0 => (own.requests, all, own.refused),
        Some(own) => (own.requests, own.requests, own.refused),
        None => (all, all - tally.unlimited, tally.refused),
    };
    let lines = &outcome.lines;
    if lines.filtered > 0 && all == 0 {
        return Err(bound.wrong("--path leaves all lines out"));
    }
    if judged == 0 {
        return Err(bound.wrong(NO_KEY));
    }
    let unreadable = lines.unreadable + lines.loose;
    let lines = lines.read - lines.filtered - lines.left_out;
    let judged = judged.saturating_sub(outcome.lines.loose);
    if u128::from(judged) * 10 < u128::from(lines) * 9 {
        let keyless = lines.saturating_sub(unreadable + judged);
        return Err(bound.wrong(&format!(
            "a verdict needs nine tenths of the lines: of {lines}, {unreadable} cannot be read, and {keyless} have no \
             key for it"
        )));
    }
    // In integers, since a float could miss a bound that is met exactly.
    let most = u128::from(requests) * u128::from(bound.parts) / u128::from(WHOLE);
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    // A store that forgets counts refuses too few, so a broken bound is broken all the same.
    if tally.full && refused <= most {
        return Err(bound.wrong(FULL));
    }
    Ok(Verdict {
        policy: bound.policy.clone(),
        max_refused: bound.text.clone(),
        requests,
        refused,
        most,
        kept: refused <= most,
    })
}
