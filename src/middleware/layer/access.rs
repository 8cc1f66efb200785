//! The requests and keys that a [`RateLimitLayer`] leaves out, or denies.

use std::sync::Arc;

use http::request::Parts;

use super::RateLimitLayer;
#[cfg(doc)]
use crate::limiter::Limiter;
use crate::{domain::key::Key, extract::KeyExtractor, middleware::admit::AccessLists};

/// Exceptions, deny lists and blocks.
impl<R, E> RateLimitLayer<R, E> {
    /// Skips requests that this layer should ignore, such as health checks: no look-up, no charge, no header. A request
    /// is skipped when one of your closures returns `true`, unless a [deny list](Self::deny) matches.
    ///
    /// For a list of networks, use a closure that calls [`Cidr::contains`](crate::extract::Cidr::contains) with
    /// [`ForwardedIp::address`](crate::ForwardedIp::address).
    pub fn skip(self, skips: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.lists(|lists| lists.skipped.push(Arc::new(skips)))
    }

    /// Skips keys, such as those on an allow list: no policy of this layer charges them.
    ///
    /// Compare whole keys with those of the extractor, or the kind and value of keys that you create yourself.
    ///
    /// Other keys of the same request are still charged: a partner's skipped address does not free its user from the
    /// limit by API key. Use [`skip`](Self::skip) to let the whole request pass.
    pub fn skip_keys(self, skips: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.lists(|lists| lists.skipped_keys.push(Arc::new(skips)))
    }

    /// Rejects requests with a 403, before any key is extracted or charged.
    ///
    /// This takes precedence over [`skip`](Self::skip). The response is made from
    /// [`Rejection::OnDenyList`](crate::middleware::Rejection::OnDenyList).
    pub fn deny(self, denies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.lists(|lists| lists.denied.push(Arc::new(denies)))
    }

    /// Rejects requests with a 403 when an extractor returns a matching key, for instance one on a deny list. None of
    /// the request's keys is charged.
    ///
    /// This takes precedence over [`skip_keys`](Self::skip_keys), but not over [`skip`](Self::skip): a skipped request
    /// has no extracted keys.
    pub fn deny_keys(self, denies: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.lists(|lists| lists.denied_keys.push(Arc::new(denies)))
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

    fn lists(self, change: impl FnOnce(&mut AccessLists)) -> Self {
        self.change(|settings| change(&mut settings.config.access_lists))
    }
}
