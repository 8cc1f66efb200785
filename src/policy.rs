//! [`Policy`]: a named set of rules, checked and charged together.
//!
//! ```
//! use sluicegate::{Policy, Rule};
//!
//! let api = Policy::new("api", [Rule::per_second(10), Rule::per_day(100_000)])?;
//! assert_eq!(api, Policy::parse("api", "10/1s,100000/1d")?);
//! assert_eq!(api.to_string(), "10/1s,100000/1d");
//!
//! let error = Policy::parse("api", "10/1s,20/1s").unwrap_err();
//! assert_eq!(error.to_string(), "policy `api`: rules `10/1s` and `20/1s` have the same window and kind");
//! # Ok::<(), sluicegate::PolicyError>(())
//! ```

use std::{fmt, num::NonZeroU32, sync::Arc};

use crate::{error::PolicyError, failure::FailurePolicy, rule::Rule};

/// More rules than anybody has needed; what a check costs grows with them.
const MAX_RULES: usize = 16;

/// Names become parts of Redis keys, header values and metric labels.
const MAX_NAME: usize = 64;

/// A named set of rules, checked and charged together.
///
/// The name is what clients see in the `RateLimit` headers and what separates this policy's counts from another's: two
/// policies of one name over one store share their counts. A policy is cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    inner: Arc<Inner>,
    shadow: bool,
    on_failure: Option<FailurePolicy>,
}

#[derive(PartialEq, Eq, Hash)]
struct Inner {
    name: Box<str>,
    rules: Box<[Rule]>,
}

impl Policy {
    /// Creates a policy of 1 to 16 rules.
    ///
    /// `name` is 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
    ///
    /// # Errors
    ///
    /// When the name or a rule is not valid, when there is no rule or more than 16, or when two rules have the same
    /// window and kind.
    pub fn new(
        name: impl Into<String>,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        if !is_name(&name) {
            return Err(PolicyError::Name {
                name: name.chars().take(MAX_NAME).collect(),
            });
        }
        let rules: Box<[Rule]> = rules.into_iter().take(MAX_RULES + 1).collect();
        if rules.is_empty() || rules.len() > MAX_RULES {
            return Err(PolicyError::RuleCount { policy: name });
        }
        for (index, rule) in rules.iter().enumerate() {
            rule.validate().map_err(|source| PolicyError::Rule {
                policy: name.clone(),
                source,
            })?;
            if let Some(twin) = rules[..index].iter().find(|twin| twin.same_window(rule)) {
                return Err(PolicyError::SameWindow {
                    policy: name,
                    rules: [*twin, *rule],
                });
            }
        }
        Ok(Self {
            inner: Arc::new(Inner {
                name: name.into(),
                rules,
            }),
            shadow: false,
            on_failure: None,
        })
    }

    /// Creates a policy from rules in one string, separated by commas: `10/1s,120/1m,240/1h@1m`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and when a rule cannot be read.
    pub fn parse(name: impl Into<String>, rules: &str) -> Result<Self, PolicyError> {
        let name = name.into();
        let parsed: Result<Vec<Rule>, _> = rules.split(',').map(str::parse).collect();
        match parsed {
            Ok(rules) => Self::new(name, rules),
            Err(source) => Err(PolicyError::Rule {
                policy: name,
                source,
            }),
        }
    }

    /// Makes this policy a shadow: it decides, charges and reports, and never refuses. See [`limiter`](crate::limiter).
    ///
    /// It counts under its name, so that what it counted is there when it is no shadow any more. Beside the policy that it
    /// may replace, it needs a name of its own.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Whether this policy only pretends to refuse.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Sets what to do with a request under this policy when the store cannot decide. The default is what the limiter or the
    /// layer says.
    ///
    /// Of policies that are checked together, [the strictest](FailurePolicy) speaks for all. A shadow refuses nobody.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(policy);
        self
    }

    /// What to do when the store cannot decide; `None` when that is for others to say.
    #[must_use]
    pub const fn failure_policy(&self) -> Option<FailurePolicy> {
        self.on_failure
    }

    /// The same policy with a share of each limit, as one of so many processes that each count alone.
    pub(crate) fn share(&self, of: NonZeroU32) -> Self {
        let rules = self.rules().iter().map(|rule| rule.share(of));
        Self {
            inner: Arc::new(Inner {
                name: self.name().into(),
                rules: rules.collect(),
            }),
            ..*self
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The rules, in the order in which they were given.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.inner.rules
    }

    /// Whether both handles are clones of one policy: a cheap test that may say no to equals.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.inner, &other.inner)
            && (self.shadow, self.on_failure) == (other.shadow, other.on_failure);
        same || self == other
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Writes the rules, as [`Policy::parse`] reads them.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules().iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({}: {self}", self.name())?;
        if self.shadow {
            f.write_str(", shadow")?;
        }
        if let Some(policy) = self.on_failure {
            write!(f, ", {} on failure", policy.as_str())?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_with_the_rule_that_is_wrong() {
        let message = |result: Result<Policy, PolicyError>| result.unwrap_err().to_string();
        assert_eq!(
            message(Policy::new("", [])),
            "policy name `` must be 1 to 64 characters of A-Z a-z 0-9 . _ -"
        );
        assert!(
            message(Policy::new("a b", [Rule::per_second(1)]))
                .starts_with("policy name `a b` must be")
        );
        assert!(
            message(Policy::new("{a}", [Rule::per_second(1)]))
                .starts_with("policy name `{a}` must be")
        );
        assert!(
            message(Policy::new("a".repeat(65), [Rule::per_second(1)]))
                .starts_with("policy name `aaaa")
        );
        assert_eq!(
            message(Policy::new("p", [])),
            "policy `p` must have 1 to 16 rules"
        );
        let many = (1..=17).map(|n| Rule::new(1, std::time::Duration::from_secs(n)));
        assert_eq!(
            message(Policy::new("p", many)),
            "policy `p` must have 1 to 16 rules"
        );
        assert_eq!(
            message(Policy::parse("p", "10/1s,"))
                .split(": write")
                .next()
                .unwrap(),
            "policy `p`: rule ``"
        );
        assert_eq!(
            message(Policy::new(
                "p",
                [Rule::per_second(1), Rule::per_second(1 << 53)]
            )),
            "policy `p`: rule `9007199254740992/1s`: the limit must be at most 9007199254740991"
        );
    }

    #[test]
    fn one_window_may_be_sliding_and_fixed_but_not_sliding_twice() {
        assert!(Policy::parse("p", "10/1s,10/1s@fixed").is_ok());
        assert!(Policy::parse("p", "10/1s,20/1s@exact").is_err());
        assert!(Policy::parse("p", "10/60s@fixed,20/1m@fixed").is_err());
    }
}
