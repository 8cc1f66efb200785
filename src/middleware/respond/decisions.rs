use std::{iter, sync::Arc};

use crate::domain::decision::{Decision, Usage};

/// The decisions of all layers around each other, innermost first: in the extensions of requests; of the responses to
/// those that were denied; and of all responses, where one of the layers puts them there
/// ([`decisions_in_response`](crate::RateLimitLayer::decisions_in_response)).
///
/// Each is about the policies of its layer. Look for the one with a [policy](Self::by_policy) rather than for the
/// innermost: a layer adds none where no limit applies to the request, or where it could not be decided and passes.
/// Where that is so for all layers, there are no `Decisions` at all: with the feature `axum`, a handler takes an
/// `Option<Decisions>` as an argument.
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
    outer: Option<Arc<Self>>,
    /// Whether one of the layers puts them into every response.
    in_response: bool,
    /// Whether the innermost layer settles, and no layer further out has passed the request on before.
    of_outermost: bool,
}

impl Decisions {
    /// Adds the decision of a layer to those of the layers further out.
    pub(in crate::middleware) fn within(
        outer: Option<Self>,
        innermost: Decision,
        in_response: bool,
    ) -> Self {
        Self {
            innermost,
            in_response: in_response || outer.as_ref().is_some_and(|it| it.in_response),
            outer: outer.map(Arc::new),
            of_outermost: false,
        }
    }

    pub(in crate::middleware) const fn set_outermost(&mut self, of_outermost: bool) {
        self.of_outermost = of_outermost;
    }

    /// Whether they are of a layer that settles, around which there is no other one that does.
    pub(in crate::middleware) const fn are_of_outermost(&self) -> bool {
        self.of_outermost
    }

    /// The decision of the innermost layer that has checked a policy of this name, also as a
    /// [shadow](crate::Usage::shadow). `None` when no layer has: the limit does not apply to the request, or could not be
    /// decided.
    #[must_use]
    pub fn by_policy(&self, name: &str) -> Option<&Decision> {
        self.iter().find(|it| {
            let shadow = it.usage().shadow().map(Decision::usage);
            has_policy(it.usage(), name) || shadow.is_some_and(|usage| has_policy(usage, name))
        })
    }

    /// All decisions, innermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Decision> {
        iter::successors(Some(self), |it| it.outer.as_deref()).map(Self::innermost)
    }

    pub(in crate::middleware) const fn innermost(&self) -> &Decision {
        &self.innermost
    }

    pub(in crate::middleware) const fn are_in_response(&self) -> bool {
        self.in_response
    }

    /// Whether a layer further out has decided, too.
    pub(in crate::middleware) const fn have_outer(&self) -> bool {
        self.outer.is_some()
    }

    /// Whether this decision is one of them, and not one like it.
    pub(in crate::middleware) fn has(&self, decision: &Decision) -> bool {
        self.iter().any(|it| it.usage().is_same(decision.usage()))
    }

    /// Replaces a decision by what it is after its settlement.
    pub(in crate::middleware) fn replace(&mut self, old: &Decision, new: Decision) {
        if self.innermost.usage().is_same(old.usage()) {
            self.innermost = new;
        } else if let Some(outer) = &mut self.outer {
            Arc::make_mut(outer).replace(old, new);
        }
    }
}

/// `None` where no layer has decided about the request.
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
    policies.any(|it| it.policy().name() == name)
}
