//! [`RateLimit`]: the middleware around a service.

use std::{
    fmt,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    future::ResponseFuture,
    layer::RateLimitLayer,
    respond::{MakeRejection, ProblemJson},
    response_end::{AtHead, Follow},
};

/// Middleware that limits how often a client may call a service.
///
/// See the [module docs](super) for an example.
pub struct RateLimit<S, R = ProblemJson, E = AtHead> {
    inner: S,
    layer: RateLimitLayer<R, E>,
}

impl<S, R, E> RateLimit<S, R, E> {
    /// Creates the middleware around `inner`, as [`Layer::layer`] does.
    #[must_use]
    #[doc(hidden)]
    pub fn new(inner: S, layer: RateLimitLayer<R, E>) -> Self {
        layer.shared.introduce_policies();
        Self { inner, layer }
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

impl<S, R, E> Layer<S> for RateLimitLayer<R, E> {
    type Service = RateLimit<S, R, E>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.clone())
    }
}

impl<S, R, E, ReqB, ResB> Service<Request<ReqB>> for RateLimit<S, R, E>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    R: MakeRejection<ResB>,
    E: Follow<ResB>,
{
    type Response = Response<E::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqB, R, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        ResponseFuture::new(&self.layer.shared, &mut self.inner, request)
    }
}

impl<S: Clone, R, E> Clone for RateLimit<S, R, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, R, E> fmt::Debug for RateLimit<S, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}
