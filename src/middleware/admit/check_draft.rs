//! [`CheckDraft`]: the check of a request while the charges of its limits are gathered.

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;

use super::{ChargeSource, LayerConfig, Limit, PolicySelector, look_ups::LookedUp};
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBuilder},
        contributors::label,
        error::{ExtractError, ExtractErrorKind},
        first_of::{Choice, FirstOf},
        key::Key,
        policies::PoliciesRead,
        policy::Policy,
    },
    extract::{KeyExtractor, Keys},
    middleware::respond::Rejection,
};

/// The unfinished check of one request.
#[derive(Default)]
pub(in crate::middleware) struct CheckDraft {
    charges: CheckBuilder,
    read: PoliciesRead,
    /// Empty for most requests, which have no alternatives.
    choices: Vec<Choice>,
}

/// The check of one request.
pub(super) enum Drafted {
    /// No limit applies to the request.
    Nothing,
    Check(Check),
    FirstOf(FirstOf),
}

impl CheckDraft {
    pub(super) fn build(self) -> Drafted {
        if !self.choices.is_empty() {
            return Drafted::FirstOf(FirstOf::new(self.charges, self.choices));
        }
        self.charges
            .build()
            .map_or(Drafted::Nothing, Drafted::Check)
    }

    /// Adds the charges of all limits whose keys come from the head alone.
    pub(super) fn charge_known(
        &mut self,
        config: &LayerConfig,
        head: &Parts,
    ) -> Result<(), Rejection> {
        self.charges = config.limiter.begin_check();
        let mut reads_peer = false;
        let mut extract = |extractor: &dyn KeyExtractor| {
            let found = extractor.extract(head);
            reads_peer |= found.as_ref().is_ok_and(Keys::are_of_peer);
            found
        };
        for limit in &config.limits {
            let contributor = || contributor(limit.contributor.as_ref(), head);
            match &limit.source {
                ChargeSource::FirstOf(alternatives) => match &alternatives[..] {
                    [(selector, extractor)] => {
                        let found = extract(&**extractor);
                        self.charge(config, selector, found, contributor, head)?;
                    }
                    several => {
                        let found = several.iter().map(|(it, of)| (it, extract(&**of)));
                        self.charge_first(config, found.collect(), contributor, head)?;
                    }
                },
                ChargeSource::LookUp(_) => {}
            }
        }
        for extractor in &config.deny_blocked {
            let found = extract(&**extractor);
            self.look_up_blocks(config, found)?;
        }
        config.warnings.watch(head, reads_peer);
        Ok(())
    }

    /// Adds the identities whose blocks deny the request.
    fn look_up_blocks(
        &mut self,
        config: &LayerConfig,
        found: Result<Keys, ExtractError>,
    ) -> Result<(), Rejection> {
        let keys = match config.access_lists.filter(found) {
            Ok(keys) => keys,
            Err(rejection) => return config.fail(None, rejection),
        };
        for key in keys {
            if let Err(error) = self.charges.look_up(key) {
                return config.fail(None, Rejection::Undecided(error));
            }
        }
        Ok(())
    }

    /// Adds the charges of all look-ups.
    pub(super) fn charge_found(
        &mut self,
        config: &LayerConfig,
        found: Vec<LookedUp>,
        head: &Parts,
    ) -> Result<(), Rejection> {
        let is_looked_up = |limit: &&Limit| matches!(limit.source, ChargeSource::LookUp(_));
        let limits = config.limits.iter().filter(is_looked_up);
        for (limit, charges) in limits.zip(found) {
            let contributor = || contributor(limit.contributor.as_ref(), head);
            self.charge_as_found(config, charges, contributor)?;
        }
        Ok(())
    }

    /// Charges the keys of one limit.
    fn charge(
        &mut self,
        config: &LayerConfig,
        selector: &PolicySelector,
        found: Result<Keys, ExtractError>,
        contributor: impl FnOnce() -> Option<Arc<Key>>,
        head: &Parts,
    ) -> Result<(), Rejection> {
        let keys = match config.access_lists.filter(found) {
            // The extractor skips the request: no policy may be selected, since the selector could fail.
            Ok(keys) if keys.is_empty() => return Ok(()),
            Ok(keys) => keys,
            Err(rejection) => return self.fail_without_keys(config, selector, head, rejection),
        };
        let (policy, cost) = match self.chosen(config, selector, head) {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return Ok(()),
            Err(rejection) => return config.fail_without_policy(selector, rejection),
        };
        let contributor = contributor();
        for key in keys {
            let charge = Charge::of(policy.as_ref().clone(), key, cost, contributor.clone());
            self.add(config, &policy, charge)?;
        }
        Ok(())
    }

    /// The policy as it is charged, and the cost of the request under it; `None` if the limit does not apply.
    #[inline(always)] // in the path of every request
    fn chosen<'a>(
        &mut self,
        config: &LayerConfig,
        selector: &'a PolicySelector,
        head: &Parts,
    ) -> Result<Option<(Cow<'a, Policy>, u64)>, Rejection> {
        let choice = selector.choose(head, &mut self.read);
        let Some((policy, weight)) = choice.map_err(Rejection::MissingKey)? else {
            return Ok(None);
        };
        let policy = match config.shadow {
            true => Cow::Owned(policy.into_owned().shadow()),
            false => policy,
        };
        let cost = match &config.cost {
            // A request holds one slot at any cost.
            _ if policy.is_concurrency() => 1,
            Some(cost) => {
                let cost = cost(head, &policy);
                config.warnings.see_cost(cost, config.learns_costs);
                cost.saturating_mul(weight)
            }
            None => weight,
        };
        Ok(Some((policy, cost)))
    }

    /// Adds alternatives, of which the limiter finds the first that has room. One without a key or a policy is passed over.
    /// If none is left for want of these, the limit fails as a limit without a key does.
    #[cold]
    fn charge_first(
        &mut self,
        config: &LayerConfig,
        found: Vec<(&PolicySelector, Result<Keys, ExtractError>)>,
        contributor: impl FnOnce() -> Option<Arc<Key>>,
        head: &Parts,
    ) -> Result<(), Rejection> {
        let contributor = contributor();
        // A client with the second identity alone, such as credits, must be served: so a missing one is no failure yet.
        let mut missing = Vec::new();
        let mut alternatives = Vec::with_capacity(found.len());
        for (selector, keys) in found {
            let chosen = config.access_lists.filter(keys).and_then(|keys| {
                // An extractor that skips the request asks no selector, which could fail.
                let applies = !keys.is_empty();
                let chosen = applies.then(|| self.chosen(config, selector, head));
                Ok((keys, chosen.transpose()?.flatten()))
            });
            match chosen {
                Ok((_, None)) => {}
                Ok((keys, Some((policy, cost)))) => {
                    let contributor = || contributor.clone();
                    let charge =
                        |key| Charge::of(policy.as_ref().clone(), key, cost, contributor());
                    alternatives.push(keys.into_iter().map(charge).collect());
                }
                Err(rejection) if is_missing(&rejection) => missing.push((selector, rejection)),
                Err(rejection) => self.fail_without_keys(config, selector, head, rejection)?,
            }
        }
        if alternatives.is_empty() {
            // The failure policy of each decides, as if it were the only one.
            return missing.into_iter().try_for_each(|(selector, rejection)| {
                self.fail_without_keys(config, selector, head, rejection)
            });
        }
        match Choice::new(alternatives) {
            Ok(choice) => {
                self.choices.push(choice);
                Ok(())
            }
            Err(error) => config.fail(None, Rejection::Undecided(error)),
        }
    }

    /// Charges the result of one look-up, which has already chosen policies and costs.
    fn charge_as_found(
        &mut self,
        config: &LayerConfig,
        found: LookedUp,
        contributor: impl Fn() -> Option<Arc<Key>>,
    ) -> Result<(), Rejection> {
        let charges = match found {
            Ok(charges) => charges,
            Err(error) => return config.fail(None, Rejection::MissingKey(error)),
        };
        for charge in charges {
            match config.access_lists.charges(charge.key()) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(rejection) => return config.fail(Some(charge.policy()), rejection),
            }
            let policy = config.as_charged(charge.policy().clone());
            let charge = charge.or_label(&contributor);
            let charge = match config.shadow {
                true => charge.with_policy(&policy),
                false => charge,
            };
            self.add(config, &policy, charge)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        config: &LayerConfig,
        policy: &Policy,
        charge: Charge,
    ) -> Result<(), Rejection> {
        match self.charges.add(charge) {
            Ok(()) => Ok(()),
            Err(error) => config.fail(Some(policy), Rejection::Undecided(error)),
        }
    }

    /// Cold, like [`fail`](LayerConfig::fail), to keep the code out of the path of every request.
    #[cold]
    fn fail_without_keys(
        &mut self,
        config: &LayerConfig,
        selector: &PolicySelector,
        head: &Parts,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        match selector.choose(head, &mut self.read) {
            Ok(Some((policy, _))) => config.fail(Some(&policy), rejection),
            // A limit that does not apply needs no key; a deny list still applies.
            Ok(None) if matches!(rejection, Rejection::MissingKey(_)) => Ok(()),
            Err(error) if error.kind() == ExtractErrorKind::Misconfigured => {
                config.fail_without_policy(selector, Rejection::MissingKey(error))
            }
            Ok(None) | Err(_) => config.fail_without_policy(selector, rejection),
        }
    }
}

fn is_missing(rejection: &Rejection) -> bool {
    matches!(rejection, Rejection::MissingKey(error) if error.kind() == ExtractErrorKind::Missing)
}

/// The contributor of this request; `None` if the extractor finds no key.
fn contributor(extractor: Option<&Arc<dyn KeyExtractor>>, head: &Parts) -> Option<Arc<Key>> {
    let keys = extractor?.extract(head).ok()?;
    keys.into_iter().next().map(label::bounded)
}
