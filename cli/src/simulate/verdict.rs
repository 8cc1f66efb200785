//! [`Bound`]: an argument of `--max-refused`, the share of refused requests above which the [`Verdict`] is "no".

use serde::Serialize;
use sluicegate::Policy;

use super::lines::LineCounts;
use super::tally::{FULL, Tally};
use crate::{Error, Result};

/// Parts of a whole: a hundredth of a percent has 10 000, so that six decimals of a percentage are exact.
pub(super) const WHOLE: u64 = 100_000_000;

const NO_KEY: &str = "no request has a key for it, so that there is nothing to judge";

const FORM: &str = "write a share of 0% to 100%, as 0.5% or POLICY=0.1%, with at most six decimals";

/// An argument of `--max-refused`.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// `None`: all requests.
    pub(super) policy: Option<String>,
    pub(super) parts: u64,
    pub(super) text: String,
}

/// A bound, compared with the outcome.
#[derive(Serialize)]
pub(super) struct Verdict {
    /// Null: all requests.
    pub(super) policy: Option<String>,
    /// As you wrote it.
    pub(super) max_refused: String,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The most refusals that the bound allows.
    pub(super) most: u64,
    pub(super) kept: bool,
}

/// Reads `0.5%` and `POLICY=0.1%`.
pub(super) fn parse(text: &str) -> Result<Bound, String> {
    let (policy, share) = match text.rsplit_once('=') {
        Some(("", _)) => return Err(FORM.into()),
        Some((policy, share)) => (Some(policy.to_owned()), share),
        None => (None, text),
    };
    let parts = share.strip_suffix('%').and_then(parts_of_percent);
    Ok(Bound {
        policy,
        parts: parts.ok_or(FORM)?,
        text: text.to_owned(),
    })
}

/// Reads a decimal number exactly, which a float would not.
fn parts_of_percent(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || whole.len() > 3 || decimals.len() > 6 {
        return None;
    }
    let parts: u64 = format!("{whole}{decimals:0<6}").parse().ok()?;
    (parts <= WHOLE).then_some(parts)
}

/// Refuses a bound of a policy that is not replayed, and a second bound of the same requests.
pub(super) fn check(bounds: &[Bound], policies: &[Policy]) -> Result<()> {
    for (index, bound) in bounds.iter().enumerate() {
        if let Some(name) = &bound.policy
            && !policies.iter().any(|policy| policy.name() == name)
        {
            return Err(bound.wrong(&format!("no policy `{name}` is replayed")));
        }
        if bounds[..index].iter().any(|it| it.policy == bound.policy) {
            return Err(bound.wrong("this is the second bound of the same requests"));
        }
    }
    Ok(())
}

impl Bound {
    /// Compares the bound with the outcome.
    ///
    /// # Errors
    ///
    /// When a verdict would rest on too little: the tool could not judge enough lines, or a full store forgot counts, so
    /// that there may be more refusals than were counted.
    pub(super) fn verdict(&self, tally: &Tally, lines: &LineCounts) -> Result<Verdict> {
        let own = |name: &str| tally.policies.iter().find(|policy| policy.name == name);
        let all = tally.requests;
        let (requests, judged, refused) = match self.policy.as_deref().and_then(own) {
            // Requests without a user are no sign that the log is misread.
            Some(own) if own.key == "user" && own.requests > 0 => (own.requests, all, own.refused),
            Some(own) => (own.requests, own.requests, own.refused),
            None => (all, all - tally.unlimited, tally.refused),
        };
        if lines.filtered > 0 && all == 0 {
            return Err(self.wrong("--path leaves all lines out"));
        }
        if judged == 0 {
            return Err(self.wrong(NO_KEY));
        }
        let unreadable = lines.unreadable + lines.loose;
        let judged = judged.saturating_sub(lines.loose);
        let lines = lines.read - lines.filtered - lines.left_out;
        if u128::from(judged) * 10 < u128::from(lines) * 9 {
            let keyless = lines.saturating_sub(unreadable + judged);
            return Err(self.wrong(&format!(
                "a verdict needs nine tenths of the lines: of {lines}, {unreadable} cannot be read, and {keyless} have no \
                 key for it"
            )));
        }
        // In integers, since a float could miss a bound that is met exactly.
        let most = u128::from(requests) * u128::from(self.parts) / u128::from(WHOLE);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        // A store that forgets counts refuses too few, so a broken bound is broken all the same.
        if tally.full && refused <= most {
            return Err(self.wrong(FULL));
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

    fn wrong(&self, problem: &str) -> Error {
        let text = &self.text;
        Error::usage(format_args!("--max-refused {text}: {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_exactly_or_refused() {
        for (text, policy, parts) in [
            ("0%", None, 0),
            ("0.5%", None, 500_000),
            ("0.29%", None, 290_000),
            ("ip=0.000001%", Some("ip"), 1),
            ("a=b=100%", Some("a=b"), WHOLE),
            ("007.50%", None, 7_500_000),
        ] {
            let bound = parse(text).unwrap();
            assert_eq!((bound.policy.as_deref(), bound.parts), (policy, parts));
        }
        for text in [
            "",
            "%",
            "0.5",
            "=1%",
            "ip=",
            "ip=%",
            "-1%",
            "+1%",
            "100.1%",
            "101%",
            "1.%",
            ".5%",
            "1e1%",
            "NaN%",
            "0.0000001%",
            "0,5%",
            "1 %",
            "99999999999999999999%",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
