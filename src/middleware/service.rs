use std::{
    borrow::Cow,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header, request::Parts};
use tower_service::Service;

use super::{
    HeaderStyle, MakeRejection, ProblemJson, Rejection, ResponseFuture, plan::Plan,
    response::Headers,
};
use crate::{decision::Decision, jitter};

/// Middleware that limits how often somebody may call a service.
///
/// See the [module docs](super) for an example.
pub struct RateLimit<S, R = ProblemJson> {
    inner: S,
    shared: Arc<Shared<R>>,
}

/// What all services of a layer share.
pub(super) struct Shared<R> {
    pub(super) plan: Plan,
    pub(super) style: HeaderStyle,
    /// The style, prepared for the plan.
    pub(super) headers: Headers,
    pub(super) jitter: Duration,
    pub(super) rejection: Arc<R>,
}

impl<S, R> RateLimit<S, R> {
    pub(super) const fn new(inner: S, shared: Arc<Shared<R>>) -> Self {
        Self { inner, shared }
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
        // The clone may not be ready: it stays, and the one that is goes with the request. See
        // https://docs.rs/tower-service/0.3/tower_service/trait.Service.html#be-careful-when-cloning-inner-services
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        let (head, body) = request.into_parts();
        let deciding = self.shared.plan.decide(&head);
        ResponseFuture::new(deciding, (ready, head, body), self.shared.clone())
    }
}

impl<R> Shared<R> {
    /// Adds to the inner service's response what the decision was.
    pub(super) fn complete<B>(&self, response: &mut Response<B>, decision: Decision) {
        // A limit further in has refused: what it says must not be mixed with what is left here.
        if response.extensions().get::<Rejection>().is_none() {
            self.headers.add(response, &self.told(&decision));
            response.extensions_mut().insert(decision);
        }
    }

    /// The user's response, with headers that are added last, so that they cannot be lost.
    pub(super) fn refuse<B>(&self, mut rejection: Rejection, head: &Parts) -> Response<B>
    where
        R: MakeRejection<B>,
    {
        let decision = match &rejection {
            Rejection::Denied(denial) => Some(Decision::Denied(denial.clone())),
            _ => None,
        };
        let told = decision.as_ref().map(|decision| self.told(decision));
        if let Some(Cow::Owned(Decision::Denied(denial))) = &told {
            rejection = Rejection::Denied(denial.clone());
        }
        let mut response = self.rejection.make_rejection(&rejection, head);
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(told) = told {
            self.headers.add(&mut response, &told);
        }
        if let Some(decision) = decision {
            response.extensions_mut().insert(decision);
        }
        response.extensions_mut().insert(rejection);
        response
    }

    /// The decision as the client is told it.
    fn told<'a>(&self, decision: &'a Decision) -> Cow<'a, Decision> {
        if self.jitter.is_zero() {
            return Cow::Borrowed(decision);
        }
        Cow::Owned(decision.later(jitter::up_to(self.jitter)))
    }
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self {
            plan: self.plan.clone(),
            style: self.style,
            headers: self.headers.clone(),
            jitter: self.jitter,
            rejection: self.rejection.clone(),
        }
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
