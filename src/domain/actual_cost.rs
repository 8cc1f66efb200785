//! [`ActualCost`]: the final cost of a request, for each policy.

use std::borrow::Cow;

use crate::domain::charge::Charge;

/// The final cost of a request. A handler puts this into the extensions of the response, or
/// [settles](crate::Limiter::settle) with it.
///
/// A layer with several policies counts different units under them: name the policies that the cost is for; the others
/// keep their charge. A name that no policy has settles nothing. You get one warning about such a name if a single
/// layer is around the handler, and if the layer knows all policies before the first request, so that no closure or
/// look-up chooses one.
///
/// ```
/// use http::{Request, Response};
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::ActualCost};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
/// # over_http::run(async |http| {
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("requests", "100/1h")?, Key::new("user", "alice"))
///     .limit(Policy::parse("tokens", "10000/1h")?, Key::new("user", "alice"))
///     .settle(ActualCost::or_charged);
///
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<String>| {
///     let mut response = Response::new("a long answer".to_owned());
///     response.extensions_mut().insert(ActualCost::of("tokens", 1_300));
///     Ok::<_, std::convert::Infallible>(response)
/// });
/// # let service = http.serve(service);
/// let response = service.oneshot(Request::new(String::new())).await?;
/// let left = response.headers()["ratelimit"].to_str()?;
/// assert!(left.starts_with(r#""requests";r=99;"#) && left.contains(r#""tokens";r=8700;"#));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActualCost {
    /// The cost under all policies that are not named.
    others: Option<u64>,
    named: Vec<(Cow<'static, str>, u64)>,
}

impl ActualCost {
    /// Sets the cost under every policy.
    #[must_use]
    pub const fn new(cost: u64) -> Self {
        Self {
            others: Some(cost),
            named: Vec::new(),
        }
    }

    /// Sets the cost under the policy of this name; other policies keep their charge.
    #[must_use]
    pub fn of(policy: impl Into<Cow<'static, str>>, cost: u64) -> Self {
        Self {
            others: None,
            named: vec![(policy.into(), cost)],
        }
    }

    /// Adds the cost under another policy, or replaces an earlier one.
    #[must_use]
    pub fn and(mut self, policy: impl Into<Cow<'static, str>>, cost: u64) -> Self {
        let policy = policy.into();
        self.named.retain(|(name, _)| *name != policy);
        self.named.push((policy, cost));
        self
    }

    /// Returns the names of the policies that have a separate cost.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| &**name)
    }

    /// Returns the final cost of this charge: the cost set for its policy, or else the cost that was charged. Use it
    /// with [`Limiter::settle`](crate::Limiter::settle).
    #[must_use]
    pub fn under(&self, charge: &Charge) -> u64 {
        let policy = charge.policy().name();
        let named = self.named.iter().find(|(name, _)| name == policy);
        let cost = named.map(|(_, cost)| *cost).or(self.others);
        cost.unwrap_or_else(|| charge.cost())
    }
}
