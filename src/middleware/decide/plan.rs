//! What a layer limits, and how the head of a request becomes a check.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    AccessLists, PolicySelector,
    extract_failure::ExtractFailure,
    key_look_ups::{Found, KeyLookUps},
};
use crate::{
    charge::Charge,
    check::CheckBuilder,
    extract::{AsyncKeyExtractor, KeyExtractor},
    limiter::Limiter,
    middleware::Rejection,
    policy::Policy,
};

type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

#[derive(Clone)]
pub(in crate::middleware) struct Plan {
    pub(in crate::middleware) limiter: Limiter,
    pub(in crate::middleware) limits: Vec<(PolicySelector, Arc<dyn KeyExtractor>)>,
    pub(in crate::middleware) look_ups: Vec<(PolicySelector, Arc<dyn AsyncKeyExtractor>)>,
    pub(in crate::middleware) cost: Option<Arc<Cost>>,
    pub(in crate::middleware) access_lists: AccessLists,
    /// Whether every policy is a shadow.
    pub(in crate::middleware) shadow: bool,
    pub(in crate::middleware) max_wait: Option<Duration>,
}

impl Plan {
    pub(in crate::middleware) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            limits: Vec::new(),
            look_ups: Vec::new(),
            cost: None,
            access_lists: AccessLists::default(),
            shadow: false,
            max_wait: None,
        }
    }

    /// In the order in which their policies are charged.
    pub(in crate::middleware) fn selectors(&self) -> impl Iterator<Item = &PolicySelector> {
        let limits = self.limits.iter().map(|(selector, _)| selector);
        limits.chain(self.look_ups.iter().map(|(selector, _)| selector))
    }

    /// The policies that do not depend on the request, as they are charged.
    pub(in crate::middleware) fn fixed_policies(&self) -> impl Iterator<Item = Policy> {
        let fixed = self.selectors().filter_map(PolicySelector::fixed).cloned();
        fixed.map(|policy| if self.shadow { policy.shadow() } else { policy })
    }

    /// Whether no limit applies to the request: it is on a list.
    pub(super) fn skips(&self, head: &Parts) -> Result<bool, Rejection> {
        let skips = self.access_lists.skips(head);
        skips.inspect_err(|_| self.limiter.report_blocked(None, self.shadow))
    }

    pub(super) fn cost(&self, head: &Parts) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(head))
    }

    /// The charges of all limits whose keys are known from the head alone.
    pub(super) fn charges(&self, head: &Parts, cost: u64) -> Result<CheckBuilder, Rejection> {
        let mut charges = CheckBuilder::with_capacity(self.limits.len());
        for (selector, extractor) in &self.limits {
            let found = extractor.extract(head);
            self.charge(&mut charges, selector, found, head, cost)?;
        }
        Ok(charges)
    }

    pub(super) fn look_up(&self, head: &Parts) -> KeyLookUps {
        let look_ups = self.look_ups.iter();
        let look_ups = look_ups.map(|(_, extractor)| extractor.extract(head));
        KeyLookUps::new(look_ups, self.limiter.timeout_of_calls())
    }

    /// Adds the charges of all limits whose keys were looked up.
    pub(super) fn charge_found(
        &self,
        charges: &mut CheckBuilder,
        found: Vec<Found>,
        head: &Parts,
        cost: u64,
    ) -> Result<(), Rejection> {
        let mut look_ups = self.look_ups.iter().zip(found);
        look_ups.try_for_each(|((selector, _), found)| {
            self.charge(charges, selector, found, head, cost)
        })
    }

    /// Charges what one limit has found. The policy is chosen once, and only where the limit may apply.
    fn charge(
        &self,
        charges: &mut CheckBuilder,
        selector: &PolicySelector,
        found: Found,
        head: &Parts,
        cost: u64,
    ) -> Result<(), Rejection> {
        let keys = match self.access_lists.charged(found) {
            Ok(keys) if keys.is_empty() => return Ok(()),
            Ok(keys) => keys,
            Err(rejection) => return self.fail_without_keys(selector, head, rejection),
        };
        let (policy, weight) = match selector.choose(head) {
            Ok(Some(choice)) => choice,
            Ok(None) => return Ok(()),
            Err(error) => return self.fail(None, error.into()),
        };
        let policy = if self.shadow {
            Cow::Owned(policy.into_owned().shadow())
        } else {
            policy
        };
        for key in keys {
            let charge = Charge::new(&policy, key, cost.saturating_mul(weight));
            if let Err(error) = charges.add(charge) {
                return self.fail(Some(&policy), Rejection::Undecided(error));
            }
        }
        Ok(())
    }

    /// Cold, as [`fail`](Self::fail): apart from what every request runs through, which then stays in the cache.
    #[cold]
    fn fail_without_keys(
        &self,
        selector: &PolicySelector,
        head: &Parts,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        match selector.choose(head) {
            Ok(Some((policy, _))) => self.fail(Some(&policy), rejection),
            // The limit does not apply, and lacks no key; a deny list applies all the same.
            Ok(None) if matches!(rejection, Rejection::MissingKey(_)) => Ok(()),
            Ok(None) | Err(_) => self.fail(None, rejection),
        }
    }

    #[cold]
    fn fail(&self, policy: Option<&Policy>, rejection: Rejection) -> Result<(), Rejection> {
        let failure = ExtractFailure {
            policy,
            shadow_layer: self.shadow,
        };
        failure.resolve(&self.limiter, rejection)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("limiter", &self.limiter)
            .field("policies", &self.selectors().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
