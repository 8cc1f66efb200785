#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/policies.md"))]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use crate::domain::{
    error::{ConfigError, shown},
    policy::Policy,
    rule::Rule,
    similar::most_similar,
};
pub use crate::domain::{published::PublishedPolicy, unit::Unit};

/// Policies by name; cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Policies {
    by_name: Arc<BTreeMap<Box<str>, Policy>>,
}

impl Policies {
    /// Creates a set of policies.
    ///
    /// # Errors
    ///
    /// When two policies have the same name.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, ConfigError> {
        let named = policies.into_iter().map(|it| (it.name().into(), it));
        Self::named(named)
    }

    /// Puts the policies of all plans into one set, under names such as `pro.requests`: the policy `requests` of the plan
    /// `pro`. Policies of one name have one count in all plans, so that an upgrade keeps the usage. With serde, write and
    /// read the plans and not this set.
    ///
    /// # Errors
    ///
    /// When two plans have the same name.
    pub fn of_plans<P: AsRef<str>>(
        plans: impl IntoIterator<Item = (P, Self)>,
    ) -> Result<Self, ConfigError> {
        Self::named(plans.into_iter().flat_map(|(plan, policies)| {
            let full = |name: &str| format!("{}.{name}", plan.as_ref()).into();
            let named = policies.iter().map(|it| (full(it.name()), it.clone()));
            named.collect::<Vec<_>>()
        }))
    }

    fn named(policies: impl Iterator<Item = (Box<str>, Policy)>) -> Result<Self, ConfigError> {
        let mut by_name = BTreeMap::new();
        for (name, policy) in policies {
            if by_name.insert(name.clone(), policy).is_some() {
                let name = shown(&name);
                return Err(ConfigError::new(format_args!(
                    "policy `{name}` is named twice"
                )));
            }
        }
        Ok(Self {
            by_name: Arc::new(by_name),
        })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Returns the policy of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.by_name.get(name)
    }

    /// Returns the policies, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.by_name.values()
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Policies that you can replace while the service runs, all in one step; clones are handles of the same set.
///
/// The store keeps the counts of a rule as long as the rule's window, precision and kind stay the same: a new limit
/// takes effect at once on earlier charges, and a rule with a new window starts at zero; so does a
/// [calendar rule](crate::Rule::per_month) with another period, zone or first day.
#[derive(Clone, Debug)]
pub struct ReloadablePolicies {
    current: Arc<RwLock<Policies>>,
}

impl ReloadablePolicies {
    /// Creates a set with these policies.
    #[must_use]
    pub fn new(policies: Policies) -> Self {
        Self {
            current: Arc::new(RwLock::new(policies)),
        }
    }

    fn current(&self) -> RwLockReadGuard<'_, Policies> {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current policy of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Policy> {
        self.current().get(name).cloned()
    }

    /// Returns all current policies.
    #[must_use]
    pub fn load(&self) -> Policies {
        self.current().clone()
    }

    /// Replaces all policies, and returns the calendar rules that start empty because of this.
    pub(crate) fn swap(&self, policies: Policies) -> Result<Vec<Restart>, ConfigError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(missing) = current.names().find(|name| policies.get(name).is_none()) {
            return Err(is_missing(missing, &policies));
        }
        let pairs = || {
            let old = current.by_name.iter();
            old.filter_map(|(name, old)| Some((old, policies.get(name)?)))
        };
        let restarts = pairs().filter_map(|(old, new)| Restart::of(old, new));
        let restarts = restarts.collect();
        let replaced = pairs().filter(|(old, new)| old != new);
        replaced.for_each(|(old, _)| old.marks().replace(true));
        policies.iter().for_each(|new| new.marks().replace(false));
        *current = policies;
        Ok(restarts)
    }

    /// Returns a handle of one policy, for a limit of a layer that follows each replacement.
    ///
    /// # Errors
    ///
    /// When the set has no policy of this name.
    pub fn policy(&self, name: &str) -> Result<PolicyHandle, ConfigError> {
        let current = self.current();
        let first = current.get(name).cloned();
        let first = first.ok_or_else(|| is_missing(name, &current))?;
        Ok(PolicyHandle {
            name: name.into(),
            first,
            all: self.clone(),
        })
    }
}

fn is_missing(policy: &str, among: &Policies) -> ConfigError {
    let similar = most_similar(policy, among.names());
    let hint = similar.map(|similar| format!(": is `{similar}` misspelled?"));
    let (policy, hint) = (shown(policy), hint.unwrap_or_default());
    ConfigError::new(format_args!("policy `{policy}` is missing{hint}"))
}

/// Calendar rules that replace others of the same policy: they start empty in the middle of their periods.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    pub(crate) policy: Box<str>,
    /// The old rules, separated by commas.
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Restart {
    fn of(old: &Policy, new: &Policy) -> Option<Self> {
        let (gone, begun) = (calendars_besides(old, new), calendars_besides(new, old));
        let is_replaced = !gone.is_empty() && !begun.is_empty();
        is_replaced.then(|| Self {
            policy: old.name().into(),
            old: gone.join(","),
            new: begun.join(","),
        })
    }
}

/// Returns the calendar rules of a policy for whose periods the other policy has no rule.
fn calendars_besides(policy: &Policy, other: &Policy) -> Vec<String> {
    let has_no = |rule: &&Rule| {
        let mut rules = other.rules().iter();
        rules.all(|other| other.in_calendar() != rule.in_calendar())
    };
    let rules = policy.rules().iter();
    let rules = rules.filter(|rule| rule.in_calendar().is_some());
    rules.filter(has_no).map(ToString::to_string).collect()
}

/// A policy of [`ReloadablePolicies`], which is read again at each use.
///
/// A layer reads all handles of one set at once for each request, so that a reload gives a request either the old
/// policies or the new ones; so it does for [`PolicySelector::by_name`](crate::middleware::PolicySelector::by_name). A
/// closure that selects a policy, or a look-up of `charge_async`, may read [`ReloadablePolicies`] at another moment. If
/// such code charges the same key under a policy of the same name as a handle, the two can differ for a request that is
/// decided during a reload, which is then rejected with status 500. Use only handles for policies of one name.
#[derive(Clone)]
pub struct PolicyHandle {
    /// In its set: of a plan, it is longer than the policy's.
    name: Box<str>,
    first: Policy,
    all: ReloadablePolicies,
}

impl PolicyHandle {
    /// Returns the current policy.
    #[must_use]
    pub fn load(&self) -> Policy {
        let all = self.all.current();
        // Names are never removed; if one were, the limit would still apply.
        all.get(&self.name).unwrap_or(&self.first).clone()
    }
}

/// A source of a policy: a [`Policy`], or a [`PolicyHandle`].
#[doc(hidden)] // An argument that you only pass.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no policy",
    note = "pass a `&Policy`, `&Policy::parse(\"name\", \"10/1s\")?`, or a `&PolicyHandle`"
)]
pub trait CurrentPolicy {
    /// Returns the current policy.
    fn current(&self) -> Policy;
}

impl CurrentPolicy for Policy {
    fn current(&self) -> Policy {
        self.clone()
    }
}

impl CurrentPolicy for PolicyHandle {
    fn current(&self) -> Policy {
        self.load()
    }
}

impl<P: CurrentPolicy + ?Sized> CurrentPolicy for &P {
    fn current(&self) -> Policy {
        (**self).current()
    }
}

/// The reloadable policies that one request has read.
///
/// Each set is read once, so that a reload during the request cannot give two limits different rules for one key.
#[derive(Debug, Default)]
pub(crate) struct PoliciesRead {
    sets: Vec<(ReloadablePolicies, Policies)>,
}

impl PoliciesRead {
    /// Returns the policy of the set as this request first read that set.
    pub(crate) fn load(&mut self, handle: &PolicyHandle) -> Policy {
        let policy = self.of(&handle.all).get(&handle.name);
        policy.unwrap_or(&handle.first).clone()
    }

    /// Returns the policies of the set as this request first read that set.
    pub(crate) fn of(&mut self, set: &ReloadablePolicies) -> &Policies {
        let is_read =
            |(read, _): &(ReloadablePolicies, _)| Arc::ptr_eq(&read.current, &set.current);
        let index = self.sets.iter().position(is_read).unwrap_or_else(|| {
            let current = set.current().clone();
            self.sets.push((set.clone(), current));
            self.sets.len() - 1
        });
        &self.sets[index].1
    }
}

impl PolicyHandle {
    /// Returns the name, which no reload changes.
    pub(crate) fn name(&self) -> &str {
        self.first.name()
    }

    /// Returns whether a reload changes both at the same time.
    pub(crate) fn is_of_same_set(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.all.current, &other.all.current)
    }
}

impl fmt::Debug for PolicyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(all: &[(&str, &str)]) -> Result<Policies, ConfigError> {
        Policies::new(
            all.iter()
                .map(|(name, rules)| Policy::parse(*name, rules).unwrap()),
        )
    }

    #[test]
    fn two_policies_of_one_name_are_an_error() {
        let error = policies(&[("ip", "1/1s"), ("ip", "1/1s")]).unwrap_err();
        assert_eq!(error.to_string(), "policy `ip` is named twice");
    }

    #[test]
    fn all_policies_are_replaced_or_none() {
        let live = ReloadablePolicies::new(policies(&[("ip", "1/1s"), ("user", "2/1s")]).unwrap());
        let ip = live.policy("ip").unwrap();
        let error = live.replace(policies(&[("ip", "7/1s")]).unwrap());
        assert_eq!(error.unwrap_err().to_string(), "policy `user` is missing");
        assert_eq!(ip.load().to_string(), "1/1s");

        let new = policies(&[("ip", "7/1s"), ("user", "8/1s"), ("tenant", "9/1s")]).unwrap();
        live.replace(new.clone()).unwrap();
        assert_eq!(live.load(), new);
        assert_eq!(ip.load().to_string(), "7/1s");
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn a_calendar_rule_that_replaces_another_starts_empty() {
        let restart = |old: &str, new: &str| {
            let live = ReloadablePolicies::new(policies(&[("quota", old)]).unwrap());
            let restarts = live.swap(policies(&[("quota", new), ("ip", "1/1s")]).unwrap());
            restarts
                .unwrap()
                .pop()
                .map(|restart| (restart.policy, restart.old, restart.new))
        };
        let quota = |old: &str, new: &str| Some(("quota".into(), old.to_owned(), new.to_owned()));
        for (old, new) in [
            ("9/month@UTC", "9/month@Europe/Berlin"),
            ("9/month@UTC", "9/month:15@UTC"),
            ("9/month@UTC", "5/week@UTC"),
        ] {
            assert_eq!(restart(old, new), quota(old, new));
            // Other rules are not named.
            let (with_old, with_new) = (format!("1/1s,{old}"), format!("{new},7/1s,5/1m"));
            assert_eq!(restart(&with_old, &with_new), quota(old, new));
        }
        for (old, new) in [
            ("9/month@UTC", "500/month@UTC"),
            ("9/month@UTC", "9/month@UTC,9/month@Europe/Berlin"),
            ("9/month@UTC,5/day@UTC", "9/month@UTC"),
            ("9/1h,9/month@UTC", "9/1d,9/month@UTC"),
        ] {
            assert_eq!(restart(old, new), None, "{old} {new}");
        }
    }

    #[test]
    fn a_handle_of_an_unknown_policy_is_an_error() {
        let live = ReloadablePolicies::new(policies(&[("ip", "1/1s")]).unwrap());
        let error = live.policy("pi").unwrap_err();
        assert_eq!(error.to_string(), "policy `pi` is missing");
    }

    #[test]
    fn a_missing_name_is_shown_beside_the_one_that_was_probably_meant() {
        let live = ReloadablePolicies::new(policies(&[("login", "1/1s")]).unwrap());
        let error = live.policy("logn").unwrap_err();
        let expected = "policy `logn` is missing: is `login` misspelled?";
        assert_eq!(error.to_string(), expected);
        let error = live.replace(policies(&[("logn", "2/1s")]).unwrap());
        let expected = "policy `login` is missing: is `logn` misspelled?";
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}
