//! The limits of a layer, and how the head of a request becomes a check.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    AccessLists, PolicySelector,
    look_ups::{Found, LookUps},
    warnings::Warnings,
};
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBuilder},
        contributors::label,
        error::{ExtractError, ExtractErrorKind},
        key::Key,
        policies::{PoliciesRead, PolicyHandle},
        policy::Policy,
    },
    extract::{ChargesFuture, KeyExtractor, Keys},
    limiter::Limiter,
    middleware::Rejection,
};

type Cost = dyn Fn(&Parts, &Policy) -> u64 + Send + Sync;
type LookUpCharges = dyn Fn(&Parts) -> ChargesFuture + Send + Sync;

/// Longer than the store's timeout: a database is slower.
const DEFAULT_LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(in crate::middleware) struct Plan {
    pub(in crate::middleware) limiter: Limiter,
    pub(in crate::middleware) limits: Vec<Limit>,
    pub(in crate::middleware) newest: Newest,
    /// Extractors of identities whose blocks deny the request, but which are not charged.
    pub(in crate::middleware) deny_blocked: Vec<Arc<dyn KeyExtractor>>,
    /// Look-ups of policy, key and cost together.
    pub(in crate::middleware) charge_look_ups: Vec<ChargeLookUp>,
    /// The timeout of all look-ups of a request together.
    pub(in crate::middleware) look_up_timeout: Duration,
    pub(in crate::middleware) cost: Option<Arc<Cost>>,
    pub(in crate::middleware) access_lists: AccessLists,
    /// Whether every policy is a shadow.
    pub(in crate::middleware) shadow: bool,
    pub(in crate::middleware) max_wait: Option<Duration>,
    pub(super) warnings: Warnings,
}

/// The list that holds the limit added last.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::middleware) enum Newest {
    #[default]
    Limits,
    ChargeLookUps,
}

/// A look-up of policy, key and cost, with the contributor for charges that name none.
#[derive(Clone)]
pub(in crate::middleware) struct ChargeLookUp {
    look_up: Arc<LookUpCharges>,
    contributor: Option<Arc<dyn KeyExtractor>>,
}

impl ChargeLookUp {
    pub(in crate::middleware) fn new(
        look_up: impl Fn(&Parts) -> ChargesFuture + Send + Sync + 'static,
    ) -> Self {
        Self {
            look_up: Arc::new(look_up),
            contributor: None,
        }
    }
}

/// One limit: its policy, the extractor of its identities, and that of their contributors, if any.
#[derive(Clone)]
pub(in crate::middleware) struct Limit {
    selector: PolicySelector,
    extractor: Arc<dyn KeyExtractor>,
    contributor: Option<Arc<dyn KeyExtractor>>,
}

/// The contributor of this request; `None` if the extractor finds no key.
fn contributor(extractor: Option<&Arc<dyn KeyExtractor>>, head: &Parts) -> Option<Arc<Key>> {
    let keys = extractor?.extract(head).ok()?;
    keys.into_iter().next().map(label::bounded)
}

impl Limit {
    pub(in crate::middleware) const fn new(
        selector: PolicySelector,
        extractor: Arc<dyn KeyExtractor>,
    ) -> Self {
        Self {
            selector,
            extractor,
            contributor: None,
        }
    }
}

/// The unfinished check of one request.
#[derive(Default)]
pub(in crate::middleware) struct Draft {
    charges: CheckBuilder,
    read: PoliciesRead,
}

impl Draft {
    /// The check; `None` if no limit applies to the request.
    pub(super) fn build(self) -> Option<Check> {
        (!self.charges.is_empty()).then(|| self.charges.build())
    }
}

impl Plan {
    pub(in crate::middleware) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            limits: Vec::new(),
            newest: Newest::default(),
            deny_blocked: Vec::new(),
            charge_look_ups: Vec::new(),
            look_up_timeout: DEFAULT_LOOK_UP_TIMEOUT,
            cost: None,
            access_lists: AccessLists::default(),
            shadow: false,
            max_wait: None,
            warnings: Warnings::default(),
        }
    }

    /// Sets the contributor of the limit added last; returns `false` if there is no limit.
    pub(in crate::middleware) fn set_contributor(
        &mut self,
        extractor: Arc<dyn KeyExtractor>,
    ) -> bool {
        let newest = match self.newest {
            Newest::Limits => self.limits.last_mut().map(|limit| &mut limit.contributor),
            Newest::ChargeLookUps => self
                .charge_look_ups
                .last_mut()
                .map(|limit| &mut limit.contributor),
        };
        newest.is_some_and(|newest| {
            *newest = Some(extractor);
            true
        })
    }

    /// Warns of a final cost for a policy that was not checked, if the layer has no such policy.
    #[cold]
    pub(in crate::middleware) fn warn_of_unknown(&self, name: &str) {
        if self.warnings.has_misnamed() {
            return;
        }
        if !self.charge_look_ups.is_empty() || !self.selectors().all(PolicySelector::is_known) {
            return;
        }
        let known: Vec<Policy> = self.selectors().flat_map(PolicySelector::known).collect();
        if !known.iter().any(|policy| policy.name() == name) {
            self.warnings
                .unknown_policy(name, known.iter().map(Policy::name));
        }
    }

    /// Warns of slots that are returned too early.
    #[cold]
    pub(in crate::middleware) fn warn_of_slots_at_head(&self) {
        self.warnings.slots_at_head();
    }

    /// The selectors, in the order of their charges.
    pub(in crate::middleware) fn selectors(&self) -> impl Iterator<Item = &PolicySelector> {
        self.limits.iter().map(|limit| &limit.selector)
    }

    /// Whether every policy is known before the first request.
    pub(in crate::middleware) fn is_fixed(&self) -> bool {
        self.charge_look_ups.is_empty()
            && self.selectors().all(|selector| selector.fixed().is_some())
    }

    /// The policies that do not depend on the request, as they are charged.
    pub(in crate::middleware) fn fixed_policies(&self) -> impl Iterator<Item = Policy> {
        let fixed = self.selectors().filter_map(PolicySelector::fixed);
        fixed.map(|policy| self.as_charged(policy.clone()))
    }

    /// All policies that are known before the first request, as they are charged.
    pub(in crate::middleware) fn known_policies(&self) -> impl Iterator<Item = Policy> {
        let known = self.selectors().flat_map(PolicySelector::known);
        known.map(|policy| self.as_charged(policy))
    }

    fn as_charged(&self, policy: Policy) -> Policy {
        if self.shadow { policy.shadow() } else { policy }
    }

    /// The policies that can be replaced while the service runs.
    pub(in crate::middleware) fn handles(&self) -> impl Iterator<Item = &PolicyHandle> {
        self.selectors().filter_map(PolicySelector::handle)
    }

    /// Whether a list exempts the request from all limits.
    pub(super) fn skips(&self, head: &Parts) -> Result<bool, Rejection> {
        let skips = self.access_lists.skips(head);
        skips.inspect_err(|_| self.limiter.report_blocked(None))
    }

    pub(super) fn draft(&self) -> Draft {
        Draft {
            charges: CheckBuilder::with_capacity(self.limits.len()),
            read: PoliciesRead::default(),
        }
    }

    /// Adds the charges of all limits whose keys come from the head alone.
    pub(super) fn charge_known(&self, draft: &mut Draft, head: &Parts) -> Result<(), Rejection> {
        let mut reads_peer = false;
        let mut extract = |extractor: &dyn KeyExtractor| {
            let found = extractor.extract(head);
            reads_peer |= found.as_ref().is_ok_and(Keys::are_of_peer);
            found
        };
        for limit in &self.limits {
            let found = extract(&*limit.extractor);
            self.charge(draft, limit, found, head)?;
        }
        for extractor in &self.deny_blocked {
            let found = extract(&**extractor);
            self.look_up_blocks(draft, found)?;
        }
        self.warnings.watch(head, reads_peer);
        Ok(())
    }

    /// Adds the identities whose blocks deny the request.
    fn look_up_blocks(
        &self,
        draft: &mut Draft,
        found: Result<Keys, ExtractError>,
    ) -> Result<(), Rejection> {
        let mut keys = match found {
            Ok(keys) => keys,
            Err(error) => return self.fail(None, Rejection::MissingKey(error)),
        };
        if let Err(rejection) = self.access_lists.filter(&mut keys) {
            return self.fail(None, rejection);
        }
        for key in keys {
            if let Err(error) = draft.charges.look_up(key) {
                return self.fail(None, Rejection::Undecided(error));
            }
        }
        Ok(())
    }

    /// Whether there are look-ups.
    pub(super) fn looks_up(&self) -> bool {
        !self.charge_look_ups.is_empty()
    }

    pub(super) fn look_up(&self, head: &Parts) -> LookUps {
        let look_ups = self.charge_look_ups.iter();
        LookUps::new(
            look_ups.map(|limit| (limit.look_up)(head)),
            self.look_up_timeout,
        )
    }

    /// Adds the charges of all look-ups.
    pub(super) fn charge_found(
        &self,
        draft: &mut Draft,
        found: Vec<Found>,
        head: &Parts,
    ) -> Result<(), Rejection> {
        for (limit, charges) in self.charge_look_ups.iter().zip(found) {
            let contributor = || contributor(limit.contributor.as_ref(), head);
            self.charge_as_found(draft, charges, contributor)?;
        }
        Ok(())
    }

    /// Charges the keys of one limit. Selects the policy once, and only if the limit may apply.
    fn charge(
        &self,
        draft: &mut Draft,
        limit: &Limit,
        found: Result<Keys, ExtractError>,
        head: &Parts,
    ) -> Result<(), Rejection> {
        let selector = &limit.selector;
        let mut keys = match found {
            Ok(keys) => keys,
            Err(error) => {
                let rejection = Rejection::MissingKey(error);
                return self.fail_without_keys(draft, selector, head, rejection);
            }
        };
        if let Err(rejection) = self.access_lists.filter(&mut keys) {
            return self.fail_without_keys(draft, selector, head, rejection);
        }
        // The extractor skips the request: no policy may be selected, since the selector could fail.
        if keys.is_empty() {
            return Ok(());
        }
        let (policy, weight) = match selector.choose(head, &mut draft.read) {
            Ok(Some(choice)) => choice,
            Ok(None) => return Ok(()),
            Err(error) => {
                return self.fail_without_policy(selector, Rejection::MissingKey(error));
            }
        };
        let policy = if self.shadow {
            Cow::Owned(policy.into_owned().shadow())
        } else {
            policy
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(head, &policy));
        let cost = cost.saturating_mul(weight);
        let contributor = contributor(limit.contributor.as_ref(), head);
        for key in keys {
            let charge = Charge::labelled(&policy, key, cost, contributor.clone());
            self.add(draft, &policy, charge)?;
        }
        Ok(())
    }

    /// Charges the result of one look-up, which has already chosen policies and costs.
    fn charge_as_found(
        &self,
        draft: &mut Draft,
        found: Found,
        contributor: impl Fn() -> Option<Arc<Key>>,
    ) -> Result<(), Rejection> {
        let charges = match found {
            Ok(charges) => charges,
            Err(error) => return self.fail(None, Rejection::MissingKey(error)),
        };
        for charge in charges {
            match self.access_lists.charges(charge.key()) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(rejection) => return self.fail(Some(charge.policy()), rejection),
            }
            let charge = charge.or_label(&contributor);
            let charge = if self.shadow {
                charge.with_policy(&charge.policy().clone().shadow())
            } else {
                charge
            };
            let policy = charge.policy().clone();
            self.add(draft, &policy, charge)?;
        }
        Ok(())
    }

    fn add(&self, draft: &mut Draft, policy: &Policy, charge: Charge) -> Result<(), Rejection> {
        match draft.charges.add(charge) {
            Ok(()) => Ok(()),
            Err(error) => self.fail(Some(policy), Rejection::Undecided(error)),
        }
    }

    /// Cold, like [`fail`](Self::fail), to keep the code out of the path of every request.
    #[cold]
    fn fail_without_keys(
        &self,
        draft: &mut Draft,
        selector: &PolicySelector,
        head: &Parts,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        match selector.choose(head, &mut draft.read) {
            Ok(Some((policy, _))) => self.fail(Some(&policy), rejection),
            // A limit that does not apply needs no key; a deny list still applies.
            Ok(None) if matches!(rejection, Rejection::MissingKey(_)) => Ok(()),
            Err(error) if error.kind() == ExtractErrorKind::Misconfigured => {
                self.fail_without_policy(selector, Rejection::MissingKey(error))
            }
            Ok(None) | Err(_) => self.fail_without_policy(selector, rejection),
        }
    }

    /// Rejects no request if the selector can choose only shadows.
    #[cold]
    fn fail_without_policy(
        &self,
        selector: &PolicySelector,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let known = selector.known();
        let shadow = !known.is_empty() && known.iter().all(Policy::is_shadow);
        self.leave_out(None, shadow, rejection)
    }

    #[cold]
    fn fail(&self, policy: Option<&Policy>, rejection: Rejection) -> Result<(), Rejection> {
        let shadow = policy.is_some_and(Policy::is_shadow);
        self.leave_out(policy, shadow, rejection)
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
