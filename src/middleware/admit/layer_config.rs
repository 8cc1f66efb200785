//! [`LayerConfig`]: the settings of a layer by which requests are admitted.

use std::{sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    AccessLists, PolicySelector, PolicySource,
    look_ups::{self, LookedUp},
    warnings::Warnings,
};
use crate::{
    domain::policy::Policy,
    extract::{ChargesFuture, KeyExtractor},
    limiter::Limiter,
    middleware::respond::Rejection,
    observe::Event,
};

type Cost = dyn Fn(&Parts, &Policy) -> u64 + Send + Sync;
type LookUpCharges = dyn Fn(&Parts) -> ChargesFuture + Send + Sync;

/// Longer than the store's timeout: a database is slower.
const DEFAULT_LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(in crate::middleware) struct LayerConfig {
    pub(in crate::middleware) limiter: Limiter,
    /// In the order in which they were added. Those that have to be looked up are charged last.
    pub(in crate::middleware) limits: Vec<Limit>,
    /// Extractors of identities whose blocks deny the request, but which are not charged.
    pub(in crate::middleware) deny_blocked: Vec<Arc<dyn KeyExtractor>>,
    /// Whether a limit has to be looked up.
    pub(in crate::middleware) looks_up: bool,
    /// The timeout of all look-ups of a request together.
    pub(in crate::middleware) look_up_timeout: Duration,
    pub(in crate::middleware) cost: Option<Arc<Cost>>,
    /// Whether costs are also known later, so that requests may begin at 0.
    pub(in crate::middleware) learns_costs: bool,
    pub(in crate::middleware) access_lists: AccessLists,
    /// Whether every policy is a shadow.
    pub(in crate::middleware) shadow: bool,
    pub(in crate::middleware) max_wait: Option<Duration>,
    pub(in crate::middleware) warnings: Warnings,
}

/// One limit, and the extractor of the contributors, if any.
#[derive(Clone)]
pub(in crate::middleware) struct Limit {
    pub(in crate::middleware) source: ChargeSource,
    pub(in crate::middleware) contributor: Option<Arc<dyn KeyExtractor>>,
}

/// How a limit finds its charges.
#[derive(Clone)]
pub(in crate::middleware) enum ChargeSource {
    /// From the head: the first of these that has room, mostly of one.
    FirstOf(Arc<[Alternative]>),
    /// A look-up of policy, key and cost together.
    LookUp(Arc<LookUpCharges>),
}

/// A policy, and the extractor of the identities.
pub(in crate::middleware) type Alternative = (PolicySelector, Arc<dyn KeyExtractor>);

impl LayerConfig {
    pub(in crate::middleware) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            limits: Vec::new(),
            looks_up: false,
            deny_blocked: Vec::new(),
            look_up_timeout: DEFAULT_LOOK_UP_TIMEOUT,
            cost: None,
            learns_costs: false,
            access_lists: AccessLists::default(),
            shadow: false,
            max_wait: None,
            warnings: Warnings::default(),
        }
    }

    /// Warns of a final cost for a policy that was not checked, if the layer has no such policy.
    #[cold]
    pub(in crate::middleware) fn warn_of_unknown(&self, setter: &str, name: &str) {
        let all = self.selectors().flat_map(PolicySelector::sources);
        // `None` if only a request says which policy is meant.
        let known: Option<Vec<Policy>> = all.map(PolicySource::load).collect();
        let Some(known) = known.filter(|_| !self.looks_up) else {
            return;
        };
        let names = || known.iter().map(Policy::name);
        if names().all(|known| known != name) {
            self.warnings.unknown_policy(setter, name, names());
        }
    }

    /// The alternatives of each limit; none of one that is looked up.
    pub(in crate::middleware) fn alternatives(&self) -> impl Iterator<Item = &[Alternative]> {
        self.limits.iter().map(|limit| match &limit.source {
            ChargeSource::FirstOf(alternatives) => &**alternatives,
            ChargeSource::LookUp(_) => &[],
        })
    }

    /// The selectors, in the order of their charges.
    pub(in crate::middleware) fn selectors(&self) -> impl Iterator<Item = &PolicySelector> {
        self.alternatives().flatten().map(|(selector, _)| selector)
    }

    /// A policy of this layer as it is charged.
    pub(in crate::middleware) fn as_charged(&self, policy: Policy) -> Policy {
        if self.shadow { policy.shadow() } else { policy }
    }

    /// Whether a list exempts the request from all limits.
    pub(super) fn skips(&self, head: &Parts) -> Result<bool, Rejection> {
        let (policy, source) = (None, None);
        self.access_lists.skips(head).inspect_err(|_| {
            let events = self.limiter.events();
            events.report(|| Event::Blocked { policy, source });
        })
    }

    /// Begins all look-ups of a request.
    pub(super) fn look_up(
        &self,
        head: &Parts,
    ) -> impl Future<Output = Vec<LookedUp>> + Send + use<> {
        let look_ups = self.limits.iter().filter_map(|limit| match &limit.source {
            ChargeSource::LookUp(look_up) => Some(look_up(head)),
            ChargeSource::FirstOf(_) => None,
        });
        look_ups::all(look_ups.collect(), self.look_up_timeout)
    }
}
