//! The settings of a [`RateLimitLayer`] that fewer services need.

use std::{sync::Arc, time::Duration};

use http::request::Parts;

use super::RateLimitLayer;
use crate::{
    domain::key::Key,
    extract::KeyExtractor,
    limiter::{FOR_EVER, Limiter},
};

/// Deny lists, blocks, waiting, shadows.
impl<R, E> RateLimitLayer<R, E> {
    /// Rejects requests with a 403, before any key is extracted or charged.
    ///
    /// This takes precedence over [`skip`](Self::skip). The response is made from
    /// [`Rejection::OnDenyList`](crate::middleware::Rejection::OnDenyList).
    pub fn deny(self, denies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.config.access_lists.denied.push(Arc::new(denies)))
    }

    /// Rejects requests with a 403 when an extractor returns a matching key, for instance one on a deny list. None of
    /// the request's keys is charged.
    ///
    /// This takes precedence over [`skip_keys`](Self::skip_keys), but not over [`skip`](Self::skip): a skipped request
    /// has no extracted keys.
    pub fn deny_keys(self, denies: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| {
            settings
                .config
                .access_lists
                .denied_keys
                .push(Arc::new(denies))
        })
    }

    /// Denies [blocked](crate::block#blocks) identities without limiting them: the keys that `extractor` finds join the
    /// layer's check to be looked up as blocks, but are not charged and appear in no header.
    ///
    /// You can deny blocked addresses everywhere with one line around a whole router:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, body::Body, http::Request, routing::get};
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, MemoryStore, PeerIp, RateLimitLayer};
    /// use tower::ServiceExt;
    ///
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(RateLimitLayer::new(limiter.clone()).deny_blocked(PeerIp));
    /// # let app = http.serve(app);
    ///
    /// limiter.block(&PeerIp.key("127.0.0.1".parse()?), Duration::from_secs(60)).await?;
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// assert_eq!(response.status(), 403);
    /// # Ok(())
    /// # });
    /// # }
    /// ```
    ///
    /// A layer that also has limits makes one check for both. A separate layer around other layers makes a separate
    /// check: see [where blocks hold](crate::block#where-blocks-hold).
    ///
    /// A request without a key is rejected, as under a [`limit`](Self::limit), unless you add
    /// [`or_skip`](KeyExtractor::or_skip) to the extractor. [`skip`](Self::skip) and [`skip_keys`](Self::skip_keys)
    /// apply. Blocked identities are denied also in a [shadow layer](Self::shadow), and whatever the value of
    /// [`Limiter::enforce_blocks`]. When the store cannot decide and no limit applies to a request, the
    /// limiter's [failure policy](Limiter::on_failure) does; a shadow layer lets the request pass, unless this process
    /// [knows](crate::block#when-the-store-cannot-decide) the block.
    pub fn deny_blocked(self, extractor: impl KeyExtractor) -> Self {
        self.change(|settings| settings.config.deny_blocked.push(Arc::new(extractor)))
    }

    /// Lets requests wait for room, up to this time; a request that would be denied for longer even if no other waited is
    /// denied at once. By default, requests do not wait.
    ///
    /// Requests under the same policies and keys go in order of arrival: see [`Limiter::acquire`], and [around a
    /// client](crate::middleware#around-a-client). The timeout then limits each store call.
    ///
    /// If the store cannot be reached or does not answer, a request under [`Closed`](crate::FailurePolicy::Closed)
    /// keeps asking until its time is over. Under [`Open`](crate::FailurePolicy::Open) the request passes at once: an
    /// outage must not slow down each request by the longest wait.
    pub fn max_wait(self, most: Duration) -> Self {
        self.change(|settings| settings.config.max_wait = Some(most))
    }

    /// Makes every policy of this layer a [shadow](crate::Policy::shadow): policies decide, charge and report, but
    /// never reject a request. The [deny lists](Self::deny) still reject, since they are not policies.
    pub fn shadow(self) -> Self {
        self.change(|settings| {
            settings.config.limiter = Limiter::pass_undecided(settings.config.limiter.clone());
            settings.config.shadow = true;
        })
    }

    /// Sets how long all [look-ups](Self::charge_async) of a request together may take. The default is 1 s, and the
    /// maximum a year.
    ///
    /// The default is longer than the [timeout](Limiter::timeout) of a decision because a database is slower than the
    /// store: a look-up of 150 ms must not switch the limit off. If a look-up takes longer, its limit follows the
    /// failure policy.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero.
    #[track_caller]
    pub fn look_up_timeout(self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to look up"
        );
        let timeout = timeout.min(FOR_EVER);
        self.change(|settings| settings.config.look_up_timeout = timeout)
    }
}
