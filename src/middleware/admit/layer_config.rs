//! [`LayerConfig`]: the settings of a layer by which requests are admitted.

use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;

use super::{AccessLists, PolicySelector, look_ups::LookUps, warnings::Warnings};
use crate::{
    domain::{policies::PolicyHandle, policy::Policy},
    extract::{ChargesFuture, KeyExtractor},
    limiter::Limiter,
    middleware::Rejection,
    observe::Event,
};

type Cost = dyn Fn(&Parts, &Policy) -> u64 + Send + Sync;
type LookUpCharges = dyn Fn(&Parts) -> ChargesFuture + Send + Sync;

/// Longer than the store's timeout: a database is slower.
const DEFAULT_LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(in crate::middleware) struct LayerConfig {
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
    pub(super) contributor: Option<Arc<dyn KeyExtractor>>,
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
    pub(super) selector: PolicySelector,
    pub(super) extractor: Arc<dyn KeyExtractor>,
    pub(super) contributor: Option<Arc<dyn KeyExtractor>>,
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

impl LayerConfig {
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
    pub(in crate::middleware) fn warn_of_unknown(&self, setter: &str, name: &str) {
        if self.warnings.has_misnamed() {
            return;
        }
        if !self.charge_look_ups.is_empty() || !self.selectors().all(PolicySelector::is_known) {
            return;
        }
        let known: Vec<Policy> = self.selectors().flat_map(PolicySelector::known).collect();
        if !known.iter().any(|policy| policy.name() == name) {
            self.warnings
                .unknown_policy(setter, name, known.iter().map(Policy::name));
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
        let (policy, source) = (None, None);
        skips.inspect_err(|_| {
            self.limiter
                .events()
                .report(|| Event::Blocked { policy, source })
        })
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
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig")
            .field("limiter", &self.limiter)
            .field("policies", &self.selectors().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
