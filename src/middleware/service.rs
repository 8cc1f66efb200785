//! [`RateLimit`]: the middleware around a service.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{MakeRejection, ProblemJson, RateLimitLayer, ResponseFuture, shared::Shared};

/// Middleware that limits how often a client may call a service.
///
/// See the [module docs](super) for an example.
pub struct RateLimit<S, R = ProblemJson> {
    inner: S,
    shared: Arc<Shared<R>>,
}

impl<S, R> RateLimit<S, R> {
    /// Creates the middleware around `inner`, as [`Layer::layer`](tower_layer::Layer::layer) does.
    #[must_use]
    pub fn new(inner: S, layer: RateLimitLayer<R>) -> Self {
        layer.shared.introduce_policies();
        Self {
            inner,
            shared: layer.shared,
        }
    }

    /// Returns the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service. The limits do not apply to your calls.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Unwraps the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R, ReqB, ResB> Service<Request<ReqB>> for RateLimit<S, R>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    R: MakeRejection<ResB>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqB, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        ResponseFuture::new(&self.shared, &mut self.inner, request)
    }
}

impl<S: Clone, R> Clone for RateLimit<S, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for RateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("plan", &self.shared.plan)
            .finish_non_exhaustive()
    }
}
