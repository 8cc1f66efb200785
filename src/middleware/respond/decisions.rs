//! [`Decisions`]: the decisions of nested layers, in the extensions of requests and responses.

use std::{iter, sync::Arc};

use crate::domain::decision::{Decision, Report, Usage};

/// The decisions of nested layers, innermost first. You find them in the extensions of requests, of responses to denied
/// requests, and of all responses if one of the layers is set to
/// [`decisions_in_response`](crate::RateLimitLayer::decisions_in_response).
///
/// Each decision is about the policies of its layer. Look for one by [policy](Self::by_policy) rather than for the
/// innermost: a layer adds none if no limit applies to the request, or if the request passes undecided. If no layer
/// adds one, there are no `Decisions`: with the feature `axum`, use an `Option<Decisions>` as the handler's argument.
///
/// ```
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use sluicegate::{Key, Limiter, MemoryStore, Policy, RateLimitLayer, middleware::Decisions};
/// use tower::ServiceExt;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let limiter = Limiter::new(MemoryStore::new());
/// let requests = RateLimitLayer::new(limiter.clone())
///     .limit(Policy::parse("requests", "9/1h")?, Key::new("user", "alice"));
/// let tokens = RateLimitLayer::new(limiter.clone())
///     .limit(Policy::parse("tokens", "10000/1h")?, Key::new("user", "alice"))
///     .cost(|_, _| 500)
///     .decisions_in_response();
///
/// // Charged 500 tokens when it comes, and settled when it is known how many they were.
/// let settling = limiter.clone();
/// let chat = async move |decisions: Option<Decisions>| {
///     let Some(decisions) = decisions else {
///         return "not limited: the store is down";
///     };
///     if let Some(decision) = decisions.by_policy("tokens") {
///         let _ = settling.settle(decision.usage(), |_| 1_300).await;
///     }
///     "hello"
/// };
/// let app: Router = Router::new().route("/", get(chat)).layer(tokens).layer(requests);
///
/// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
/// let decisions: &Decisions = response.extensions().get().unwrap();
/// assert_eq!(decisions.iter().count(), 2);
/// assert_eq!(decisions.by_policy("requests").unwrap().usage().rules().next().unwrap().remaining(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decisions {
    innermost: Decision,
    pub(in crate::middleware) outer: Option<Arc<Self>>,
    /// Whether one of the layers puts the decisions into every response.
    pub(in crate::middleware) in_response: bool,
    /// Whether the innermost layer settles, and is the outermost to do so.
    pub(in crate::middleware) of_outermost: bool,
    /// In a response: whether a layer, and no handler, has rejected the request.
    pub(in crate::middleware) is_of_rejection: bool,
}

impl Decisions {
    /// The decision of a layer alone.
    pub(in crate::middleware) const fn new(
        decision: Decision,
        in_response: bool,
        of_outermost: bool,
    ) -> Self {
        Self {
            innermost: decision,
            outer: None,
            in_response,
            of_outermost,
            is_of_rejection: false,
        }
    }

    /// Adds the decisions of the outer layers.
    pub(in crate::middleware) fn within(self, outer: Self) -> Self {
        Self {
            in_response: self.in_response || outer.in_response,
            outer: Some(Arc::new(outer)),
            of_outermost: false,
            ..self
        }
    }

    /// Returns the decision of the innermost layer that has checked a policy of this name, also as a
    /// [shadow](crate::Usage::shadow). `None` if no layer has: the limit does not apply to the request, or could not be
    /// decided.
    #[must_use]
    pub fn by_policy(&self, name: &str) -> Option<&Decision> {
        self.iter().find(|decision| {
            let usage = decision.usage();
            let shadow = usage.shadow().map(Decision::usage);
            has_policy(usage, name) || shadow.is_some_and(|usage| has_policy(usage, name))
        })
    }

    /// Reports the usage of this request's identities under all policies that layers have checked, innermost first.
    /// Return the report from a handler of a route with a [weight](crate::middleware::Route::weight) of 0: see
    /// [a user's own usage](crate::quotas#a-users-own-usage).
    ///
    /// The report has only the one of several [alternatives](crate::RateLimitLayer::limit_first_of) that was charged.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(self.iter())
    }

    /// Iterates over all decisions, innermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Decision> {
        iter::successors(Some(self), |inner| inner.outer.as_deref()).map(Self::innermost)
    }

    pub(in crate::middleware) const fn innermost(&self) -> &Decision {
        &self.innermost
    }

    /// Whether the decision with this very usage is among them, not just with an equal one.
    pub(in crate::middleware) fn has(&self, usage: &Usage) -> bool {
        self.iter().any(|own| own.usage().is_same(usage))
    }

    /// Replaces a decision by the settled one.
    pub(in crate::middleware) fn replace(&mut self, old: &Decision, new: Decision) {
        if self.innermost.usage().is_same(old.usage()) {
            self.innermost = new;
        } else if let Some(outer) = &mut self.outer {
            Arc::make_mut(outer).replace(old, new);
        }
    }
}

/// `None` if no layer has decided about the request.
#[cfg(feature = "axum")]
impl<S: Send + Sync> axum::extract::OptionalFromRequestParts<S> for Decisions {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        head: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Option<Self>, Self::Rejection> {
        Ok(head.extensions.get().cloned())
    }
}

fn has_policy(usage: &Usage, name: &str) -> bool {
    let mut policies = usage.policies();
    policies.any(|usage| usage.policy().name() == name)
}
