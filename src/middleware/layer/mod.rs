//! [`RateLimitLayer`]: the settings of the middleware.

// The page of the layer shows their methods in this order.
mod limits;

mod costs;

mod answers;

mod access;

use std::{fmt, marker::PhantomData, sync::Arc};

use super::{
    admit::{ChargeSource, Limit, PolicySelector},
    respond::ProblemJson,
    response_end::{AtEnd, AtHead, ToBodyEnd},
    shared::{Settings, Shared},
};
use crate::domain::{error::ConfigError, policy::Policy};

/// Layer that applies the [`RateLimit`](crate::middleware::RateLimit) middleware, which limits how often a client may call a service.
///
/// In axum, add the layer *after* the routes: `Router::layer` covers only the routes added before.
///
/// See the [module docs](crate::middleware) for an example. `R` makes the responses to rejected requests.
#[must_use]
pub struct RateLimitLayer<R = ProblemJson, E = AtHead> {
    pub(super) shared: Arc<Shared<R>>,
    pub(super) end: PhantomData<fn() -> E>,
}

impl<R, E> RateLimitLayer<R, E> {
    fn add_limit(self, source: ChargeSource) -> Self {
        self.change(|settings| {
            settings.config.looks_up |= matches!(source, ChargeSource::LookUp(_));
            let contributor = None;
            settings.config.limits.push(Limit {
                source,
                contributor,
            });
        })
    }

    /// Checks the selector: its own errors, and policies that differ from another one of the same name.
    fn without_mistake(&self, selector: PolicySelector) -> Result<PolicySelector, ConfigError> {
        let Settings { config, at_end, .. } = &self.shared.settings;
        selector.mistake().map_or(Ok(()), Err)?;
        let mut others = config.selectors();
        others.try_for_each(|other| other.agrees_with(&selector))?;
        for policy in selector.known().filter(Policy::is_concurrency) {
            if at_end.is_none() {
                let problem = format_args!(
                    "policy `{}` limits concurrency: add it by `limit_concurrent`, so that its slots are held to the \
                     end of the response",
                    policy.name()
                );
                return Err(ConfigError::new(problem));
            }
            let too_early = config.limiter.expires_too_early(&policy);
            if let Some(error) = too_early.or_else(|| policy.idle_ban()) {
                return Err(error);
            }
        }
        Ok(selector)
    }

    pub(super) fn change(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        Arc::make_mut(&mut self.shared).change(change);
        self
    }

    /// Changes how the layer follows responses to the end of their bodies.
    fn at_end(self, change: impl FnOnce(&mut AtEnd)) -> RateLimitLayer<R, ToBodyEnd> {
        let layer =
            self.change(|settings| change(Arc::make_mut(settings.at_end.get_or_insert_default())));
        RateLimitLayer {
            shared: layer.shared,
            end: PhantomData,
        }
    }
}

impl<R, E> Clone for RateLimitLayer<R, E> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            end: PhantomData,
        }
    }
}

impl<R, E> fmt::Debug for RateLimitLayer<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            config, answers, ..
        } = &self.shared.settings;
        f.debug_struct("RateLimitLayer")
            .field("limiter", &config.limiter)
            .field("policies", &config.selectors().collect::<Vec<_>>())
            .field("headers", &answers.headers.style)
            .finish_non_exhaustive()
    }
}
