//! [`Policy`]: a named set of rules, checked and charged together.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::domain::{
    FailurePolicy,
    block::{Ban, LOOK_UPS, STRIKES},
    error::{ConfigError, shown},
    marks::{Marks, VARIANTS},
    rule::{MAX_UNITS, Rule},
    unit::Unit,
};

/// The limit exists because a check takes longer with each rule.
const MAX_RULES: usize = 16;

/// Names become parts of Redis keys, header values and metric labels.
const MAX_NAME: usize = 64;

/// A named set of rules, checked and charged together.
///
/// Clients see the name in the `RateLimit` headers. Counts belong to the name: two policies of one name over one store
/// share their counts. A policy is cheap to clone.
///
/// ```
/// use sluicegate::{Policy, Rule};
///
/// let api = Policy::new("api", [Rule::per_second(10), Rule::per_day(100_000)])?;
/// assert_eq!(api, Policy::parse("api", "10/1s,100000/1d")?);
/// assert_eq!(api.to_string(), "10/1s,100000/1d");
///
/// let error = Policy::parse("api", "10/1s,20/1s").unwrap_err();
/// assert_eq!(error.to_string(), "policy `api`: rules `10/1s` and `20/1s` have the same window and kind: remove one");
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    inner: Arc<PolicyCore>,
    shadow: bool,
    on_failure: Option<FailurePolicy>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PolicyCore {
    name: Box<str>,
    rules: Box<[Rule]>,
    ban: Option<Ban>,
    unit: Option<Unit>,
    is_hidden: bool,
    marks: Marks,
}

impl Policy {
    /// Creates a policy of 1 to 16 rules.
    ///
    /// `name` is 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
    ///
    /// # Errors
    ///
    /// When the name or a rule is not valid, when there is no rule or more than 16, when two rules have the same window
    /// and kind, so that one of them would have no effect, or when a [concurrency rule](Rule::concurrent) is not the
    /// only one. If you want two buckets, write the refill of one for another window, as `60/1m` instead of `1/1s`.
    pub fn new(
        name: impl Into<String>,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Self, ConfigError> {
        let name = name.into();
        check_name(&name)?;
        // One too many is enough to report the error: an endless iterator must not fill the memory.
        let rules: Box<[Rule]> = rules.into_iter().take(MAX_RULES + 1).collect();
        if rules.is_empty() || rules.len() > MAX_RULES {
            return Err(ConfigError::new(format_args!(
                "policy `{name}` must have 1 to 16 rules"
            )));
        }
        for (index, rule) in rules.iter().enumerate() {
            if let Err(error) = rule.validate() {
                return Err(ConfigError::of_policy(&name, format_args!("{error}")));
            }
            if rule.is_concurrency() && rules.len() > 1 {
                let other = rules[usize::from(index == 0)];
                let problem = format_args!(
                    "`{rule}` must be the only rule of its policy: give it and `{other}` policies of two names"
                );
                return Err(ConfigError::of_policy(&name, problem));
            }
            if let Some(twin) = rules[..index].iter().find(|twin| twin.same_window(rule)) {
                let what = match twin.in_calendar() {
                    None => "window and kind",
                    Some(_) => "periods",
                };
                let problem =
                    format_args!("rules `{twin}` and `{rule}` have the same {what}: remove one");
                return Err(ConfigError::of_policy(&name, problem));
            }
        }
        Ok(Self::of(&name, rules))
    }

    fn of(name: &str, rules: impl Into<Box<[Rule]>>) -> Self {
        let inner = PolicyCore {
            name: name.into(),
            rules: rules.into(),
            ban: None,
            unit: None,
            is_hidden: false,
            marks: Marks::default(),
        };
        Self {
            inner: Arc::new(inner),
            shadow: false,
            on_failure: None,
        }
    }

    /// Creates a policy from rules in one string, separated by commas: `10/1s,120/1m,240/1h@1m`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and when a rule cannot be read.
    pub fn parse(name: impl Into<String>, rules: &str) -> Result<Self, ConfigError> {
        let name = name.into();
        let rules = parse_rules(&name, rules)?;
        Self::new(name, rules)
    }

    /// Makes this policy a shadow, which is decided, charged and reported, but never denies a request. See
    /// [`limiter`](crate::limiter).
    ///
    /// The counts belong to the name, and stay when you remove the shadow. To use a shadow together with the policy
    /// that you want to replace, give the shadow another name.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Returns whether this policy is a shadow, which never denies a request.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Sets the answer to a request under this policy when the store cannot decide. The default is the failure policy
    /// of the limiter or the layer.
    ///
    /// If several policies are checked together, [the strictest](FailurePolicy) applies to all. A shadow never denies a
    /// request.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(policy);
        self
    }

    /// Returns the failure policy; `None` if the limiter's or the layer's setting applies.
    #[must_use]
    #[doc(hidden)]
    pub const fn failure_policy(&self) -> Option<FailurePolicy> {
        self.on_failure
    }

    /// Blocks identities that this policy denies too often: see [bans](crate::block#bans). By default there is no ban.
    /// A shadow bans no identity.
    ///
    /// A [concurrency policy](Rule::concurrent) cannot ban, since a missing slot is no strike: a layer with such
    /// a policy is not built, and a configuration is an error.
    #[must_use]
    pub fn ban(mut self, ban: Ban) -> Self {
        Arc::make_mut(&mut self.inner).ban = Some(ban);
        self
    }

    /// Returns the ban of identities that this policy denies too often.
    #[must_use]
    #[doc(hidden)]
    pub fn ban_config(&self) -> Option<Ban> {
        self.inner.ban
    }

    /// Returns the error of a ban that no denial would strike for.
    pub(crate) fn idle_ban(&self) -> Option<ConfigError> {
        let is_idle = self.inner.ban.is_some() && self.is_concurrency();
        let problem = "a missing slot is no strike: give the ban to the policy of a rate";
        is_idle.then(|| ConfigError::of_policy(self.name(), format_args!("{problem}")))
    }

    /// Names the unit that the policy counts. The default is `requests`, and for a
    /// [concurrency policy](Rule::concurrent) `concurrent-requests`.
    ///
    /// Clients see the unit in the quota headers. It changes no decision: set costs by
    /// [`cost`](crate::RateLimitLayer::cost).
    ///
    /// ```
    /// use sluicegate::{Policy, policies::Unit};
    ///
    /// let tokens = Policy::parse("tokens", "10000/1m")?.unit(Unit::TOKENS);
    /// assert_eq!(tokens.counted_in(), "tokens");
    /// # Ok::<(), sluicegate::error::ConfigError>(())
    /// ```
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        Arc::make_mut(&mut self.inner).unit = Some(unit);
        self
    }

    /// Returns the name of the unit that the policy counts.
    #[must_use]
    pub fn counted_in(&self) -> &str {
        match &self.inner.unit {
            Some(unit) => unit.as_str(),
            None if self.is_concurrency() => "concurrent-requests",
            None => "requests",
        }
    }

    /// Returns the unit, if one was set.
    #[cfg(feature = "serde")]
    pub(crate) fn set_unit(&self) -> Option<&Unit> {
        self.inner.unit.as_ref()
    }

    /// Leaves the policy out of the quota headers, and out of the body of the default rejection: clients do not see its
    /// name, limit and remaining units. A denied request has its `Retry-After` nevertheless.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        Arc::make_mut(&mut self.inner).is_hidden = true;
        self
    }

    /// Returns whether the policy is left out of the quota headers.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.inner.is_hidden
    }

    /// Returns whether the policy blocks identities that are denied too often.
    pub(crate) fn bans(&self) -> bool {
        self.inner.ban.is_some() && !self.shadow
    }

    /// Returns the policy for identities that are not charged, but whose blocks are looked up. This policy has no
    /// rules.
    pub(crate) fn of_look_ups() -> &'static Self {
        static POLICY: LazyLock<Policy> = LazyLock::new(|| Policy::of(LOOK_UPS, []));
        &POLICY
    }

    /// Returns the policy that counts the strikes of a ban. The limit is doubled, so that strikes up to the ban's limit
    /// always fit, unless a ban is already due.
    pub(crate) fn of_strikes(strikes: Rule) -> Self {
        let limit = strikes.limit().saturating_mul(2).min(MAX_UNITS);
        Self::of(STRIKES, [strikes.with_limit(limit)])
    }

    /// Returns the policy with each limit divided by `of`, for one of `of` processes that count separately.
    pub(crate) fn share(&self, of: NonZeroU32) -> Self {
        let rules = self.rules().iter().map(|rule| rule.share(of));
        Self {
            inner: Arc::new(PolicyCore {
                rules: rules.collect(),
                ..PolicyCore::clone(&self.inner)
            }),
            ..*self
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns what was set besides the name, as text: first the rules.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let yes = |is: bool| is.then(|| "true".to_owned());
        let on_failure = self.on_failure.map(|it| it.as_str().to_owned());
        let settings = [
            ("rules", Some(self.to_string())),
            ("ban", self.inner.ban.map(|ban| ban.to_string())),
            ("shadow", yes(self.shadow)),
            ("on_failure", on_failure),
            ("unit", self.inner.unit.as_ref().map(Unit::to_string)),
            ("hidden", yes(self.is_hidden())),
        ];
        let settings = settings.into_iter();
        settings.filter_map(|(name, value)| Some((name, value?)))
    }

    /// Returns the rules, in the order in which you gave them.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.inner.rules
    }

    /// Returns whether units under this policy are [slots](Rule::concurrent).
    pub(crate) fn is_concurrency(&self) -> bool {
        self.rules().first().is_some_and(Rule::is_concurrency)
    }

    /// Returns the number of the limiter that saw this policy last; 0 if none did.
    pub(crate) fn seen_by(&self) -> u64 {
        self.mark().load(Relaxed)
    }

    /// Notes that the limiter of this number has seen the policy.
    pub(crate) fn mark_seen_by(&self, number: u64) {
        self.mark().store(number, Relaxed);
    }

    fn mark(&self) -> &AtomicU64 {
        let on_failure = self.on_failure.map_or(0, |policy| policy as usize + 1);
        let variant = on_failure << 1 | usize::from(self.shadow);
        &self.inner.marks.seen_by[variant % VARIANTS]
    }

    /// Returns the other marks of this policy and its clones.
    pub(crate) fn marks(&self) -> &Marks {
        &self.inner.marks
    }

    /// Returns whether both are the same policy: a pointer comparison for clones, else field by field.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.inner, &other.inner)
            && (self.shadow, self.on_failure) == (other.shadow, other.on_failure);
        same || self == other
    }
}

/// Writes the rules in the form that [`Policy::parse`] reads.
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
        for (name, value) in self.settings().skip(1) {
            write!(f, ", {name}={value}")?;
        }
        f.write_str(")")
    }
}

/// Checks the name of a policy.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ConfigError::new(format_args!(
        "policy name `{}` must be 1 to 64 characters of A-Z a-z 0-9 . _ -",
        shown(name)
    )))
}

/// Reads the rules of the policy of this name, separated by commas.
pub(crate) fn parse_rules(policy: &str, rules: &str) -> Result<Vec<Rule>, ConfigError> {
    let parsed: Result<_, ConfigError> = rules.split(',').map(str::parse).collect();
    parsed.map_err(|error| ConfigError::of_policy(policy, format_args!("{error}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_invalid_policy_is_an_error_that_names_the_rule() {
        let message = |result: Result<Policy, ConfigError>| result.unwrap_err().to_string();
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
        let many = (1..=17).map(|n| Rule::new(1, Duration::from_secs(n)));
        assert_eq!(
            message(Policy::new("p", many)),
            "policy `p` must have 1 to 16 rules"
        );
        assert_eq!(
            message(Policy::parse("p", "10/1s,"))
                .split(": write")
                .next()
                .unwrap(),
            "policy `p`: rule ``: there is no text, or a comma too many"
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
        assert!(Policy::parse("p", "10/1s,10/1s@fixed,10+10/1s@bucket").is_ok());
        assert!(Policy::parse("p", "10+1/1s@bucket,20+5/1s@bucket").is_err());
    }
}
