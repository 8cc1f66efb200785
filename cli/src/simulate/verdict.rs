//! Compares the outcome with the bounds of `--max-refused`.

use super::{
    super::error::{Error, Result},
    bound::{Bound, WHOLE},
    result::{Outcome, Verdict},
};

/// Compares each bound with the outcome.
///
/// # Errors
///
/// When a verdict would rest on too little: the tool could not judge enough lines, or a full store forgot counts, so that
/// there may be more refusals than were counted.
pub(super) fn verdicts(bounds: &[Bound], outcome: &Outcome) -> Result<Vec<Verdict>> {
    let verdicts = bounds.iter().map(|bound| {
        let verdict = bound.verdict(outcome);
        verdict.map_err(|problem| {
            let text = &bound.text;
            Error::usage(format_args!("--max-refused {text}: {problem}"))
        })
    });
    verdicts.collect()
}

impl Bound {
    fn verdict(&self, outcome: &Outcome) -> Result<Verdict, String> {
        let own = |name: &str| outcome.policies.iter().find(|policy| policy.name == name);
        let all = outcome.requests;
        let (requests, judged, refused) = match self.policy.as_deref().and_then(own) {
            // Requests without a user are no sign that the log is misread.
            Some(own) if own.key == "user" && own.requests > 0 => (own.requests, all, own.refused),
            Some(own) => (own.requests, own.requests, own.refused),
            None => (all, all - outcome.unlimited, outcome.refused),
        };
        if judged == 0 {
            return Err("no request has a key for it, so that there is nothing to judge".into());
        }
        let lines = outcome.lines.read - outcome.lines.filtered;
        if u128::from(judged) * 10 < u128::from(lines) * 9 {
            let unreadable = outcome.lines.unreadable;
            return Err(format!(
                "a verdict needs nine tenths of the lines: of {lines}, {unreadable} cannot be read, and {} have no key \
                 for it",
                lines - unreadable - judged
            ));
        }
        // In integers, since a float could miss a bound that is met exactly.
        let most = u128::from(requests) * u128::from(self.parts) / u128::from(WHOLE);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        // A store that forgets counts refuses too few, so a broken bound is broken all the same.
        if outcome.full && refused <= most {
            return Err(
                "a store was full and may have forgotten counts: give it more --keys".into(),
            );
        }
        Ok(Verdict {
            policy: self.policy.clone(),
            max_refused: self.text.clone(),
            requests,
            refused,
            most,
            kept: refused <= most,
        })
    }
}
