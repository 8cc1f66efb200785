use std::{borrow::Cow, sync::Arc, time::Duration};

use http::{HeaderValue, Response, StatusCode, header, request::Parts};

use super::{
    HeaderStyle, MakeRejection, Rejection,
    decide::Plan,
    response::Headers,
    settle::{Settle, Settling},
};
use crate::{decision::Decision, jitter, limiter::Limiter};

/// What all services of a layer share.
pub(super) struct Shared<R> {
    pub(super) plan: Plan,
    pub(super) settle: Settle,
    pub(super) style: HeaderStyle,
    /// The style, prepared for the plan.
    pub(super) headers: Headers,
    pub(super) jitter: Duration,
    pub(super) rejection: Arc<R>,
}

impl<R> Shared<R> {
    pub(super) fn new(limiter: Limiter, rejection: R) -> Self {
        let (style, plan) = (HeaderStyle::default(), Plan::new(limiter));
        Self {
            headers: headers(style, &plan),
            plan,
            settle: Settle::default(),
            style,
            jitter: Duration::ZERO,
            rejection: Arc::new(rejection),
        }
    }

    /// The same with other rejections.
    pub(super) fn with_rejection<M>(self, rejection: M) -> Shared<M> {
        Shared {
            plan: self.plan,
            settle: self.settle,
            style: self.style,
            headers: self.headers,
            jitter: self.jitter,
            rejection: Arc::new(rejection),
        }
    }

    /// Prepares all that can be known before the first request: axum makes new services for each connection.
    pub(super) fn prepare(&mut self) {
        self.headers = headers(self.style, &self.plan);
    }

    /// The settlement that a response requires; `None` when it costs what was charged.
    pub(super) fn settling<B>(
        &self,
        response: &mut Response<B>,
        decision: &Decision,
    ) -> Option<Settling> {
        self.settle
            .of_response(&self.plan.limiter, response, decision)
    }

    /// There will be no response to a request that was admitted.
    pub(super) fn unanswered(&self, decision: &Decision) {
        self.settle.unanswered(&self.plan.limiter, decision);
    }

    /// Adds to the inner service's response what the decision was.
    pub(super) fn complete<B>(&self, response: &mut Response<B>, decision: Decision) {
        // A limit further in has rejected the request: its headers must not be mixed with what is left here.
        if response.extensions().get::<Rejection>().is_none() {
            self.headers.add(response, &self.told(&decision));
            response.extensions_mut().insert(decision);
        }
    }

    /// The user's response, with headers that are added last, so that they cannot be lost.
    pub(super) fn reject<B>(&self, mut rejection: Rejection, head: &Parts) -> Response<B>
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
        if response.status() == StatusCode::UNAUTHORIZED
            && let Rejection::MissingKey(error) = &rejection
            && let Some(challenge) = error.challenge()
            && let Ok(challenge) = HeaderValue::from_str(challenge)
        {
            // The user's response may have a better one. RFC 9110 requires one with each 401.
            let headers = response.headers_mut();
            headers.entry(header::WWW_AUTHENTICATE).or_insert(challenge);
        }
        if let Some(told) = told {
            self.headers.add(&mut response, &told);
        }
        if let Some(decision) = decision {
            response.extensions_mut().insert(decision);
        }
        response.extensions_mut().insert(rejection);
        response
    }

    /// The decision as the client sees it.
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
            settle: self.settle.clone(),
            style: self.style,
            headers: self.headers.clone(),
            jitter: self.jitter,
            rejection: self.rejection.clone(),
        }
    }
}

/// The headers of a style, with all that is known of the policies.
fn headers(style: HeaderStyle, plan: &Plan) -> Headers {
    style.prepare(plan.fixed_policies(), plan.is_fixed())
}
