use std::{sync::Arc, time::Duration};

use http::{Extensions, Response, request::Parts};

use super::{
    Decisions, HeaderStyle, MakeRejection, Rejection,
    decide::Plan,
    respond::{Respond, shown},
    response::{Headers, Told},
    settle::Settle,
};
use crate::{decision::Decision, limiter::Limiter};

/// What all services of a layer share.
pub(super) struct Shared<R> {
    pub(super) plan: Plan,
    pub(super) settle: Settle,
    pub(super) headers: Headers,
    pub(super) jitter: Duration,
    /// Whether all responses get the decisions, and not only rejections.
    pub(super) decisions_in_response: bool,
    pub(super) rejection: Arc<R>,
}

/// In the extensions of a response for the next layer further out: what the headers tell, and by which decisions.
type ToldBy = (Told, Decisions);

impl<R> Shared<R> {
    pub(super) fn new(limiter: Limiter, rejection: R) -> Self {
        let plan = Plan::new(limiter);
        Self {
            headers: HeaderStyle::default().prepare(&plan),
            plan,
            settle: Settle::default(),
            jitter: Duration::ZERO,
            decisions_in_response: false,
            rejection: Arc::new(rejection),
        }
    }

    /// The same with other rejections.
    pub(super) fn with_rejection<M>(self, rejection: M) -> Shared<M> {
        Shared {
            plan: self.plan,
            settle: self.settle,
            headers: self.headers,
            jitter: self.jitter,
            decisions_in_response: self.decisions_in_response,
            rejection: Arc::new(rejection),
        }
    }

    /// Prepares all that can be known before the first request: axum makes new services for each connection.
    pub(super) fn prepare(&mut self) {
        self.headers = self.headers.style.prepare(&self.plan);
    }

    /// Tells the handler of the decision.
    pub(super) fn admit(&self, extensions: &mut Extensions, decision: Decision) -> Decisions {
        let outer = extensions.remove::<Decisions>();
        let admitted = Decisions::within(outer, decision, self.decisions_in_response);
        extensions.insert(admitted.clone());
        admitted
    }

    /// There will be no response to a request that was admitted.
    pub(super) fn unanswered(&self, decision: &Decision) {
        self.settle.unanswered(&self.plan.limiter, decision);
    }

    /// Adds to the inner service's response what the decision was, and the one after its settlement.
    pub(super) fn complete<B>(
        &self,
        response: &mut Response<B>,
        admitted: &Decisions,
        settled: Option<Decision>,
    ) {
        let extensions = response.extensions_mut();
        // The service may have passed on the response of a client that is limited, too: what it was told says nothing
        // about this request.
        let is_own = |decisions: &Decisions| decisions.has(admitted.innermost());
        let inner = extensions.remove::<Decisions>().filter(is_own);
        let told = extensions.remove::<ToldBy>();
        let told = told.filter(|(_, by)| is_own(by)).map(|(told, _)| told);
        let denied = inner
            .as_ref()
            .is_some_and(|it| !it.innermost().is_allowed());
        // The headers of a denial must not be mixed with what is left here.
        if !denied {
            let now = settled.as_ref().unwrap_or_else(|| admitted.innermost());
            let told = self.headers.add(response, &shown(now, self.jitter), told);
            if let Some(told) = told.filter(|_| admitted.have_outer()) {
                let told: ToldBy = (told, admitted.clone());
                response.extensions_mut().insert(told);
            }
        }
        if inner.is_none() && !admitted.are_in_response() {
            return;
        }
        let mut decisions = inner.unwrap_or_else(|| admitted.clone());
        if let Some(settled) = settled {
            decisions.replace(admitted.innermost(), settled);
        }
        response.extensions_mut().insert(decisions);
    }

    /// The response to a request that is not passed on.
    pub(super) fn reject<B>(&self, rejection: Rejection, head: &Parts) -> Response<B>
    where
        R: MakeRejection<B>,
    {
        let respond = Respond {
            make: &*self.rejection,
            headers: &self.headers,
            jitter: self.jitter,
            retry_interval: self.plan.limiter.retry_interval(),
        };
        respond.to(rejection, head)
    }
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self {
            plan: self.plan.clone(),
            settle: self.settle.clone(),
            headers: self.headers.clone(),
            jitter: self.jitter,
            decisions_in_response: self.decisions_in_response,
            rejection: self.rejection.clone(),
        }
    }
}
