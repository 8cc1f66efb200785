use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Extensions, Response, request::Parts};

use super::{
    Decisions, HeaderStyle, MakeRejection, Rejection,
    decide::Plan,
    respond::{Respond, shown},
    response::{self, Headers, Told},
    settle::{Settle, Settling},
};
use crate::{actual_cost::ActualCost, decision::Decision, limiter::Limiter};

/// What all services of a layer share.
pub(super) struct Shared<R> {
    pub(super) plan: Plan,
    pub(super) settle: Settle,
    pub(super) headers: Headers,
    pub(super) jitter: Duration,
    /// Whether all responses get the decisions, and not only rejections.
    pub(super) decisions_in_response: bool,
    pub(super) rejection: Arc<R>,
    /// Whether the observer knows the policies.
    introduced: AtomicBool,
}

/// In the extensions of a response for the next layer further out: what the headers tell, and by which decisions.
type ToldBy = (Told, Decisions);

/// In the extensions of a response for the layers further out: a layer has looked at its `ActualCost`.
#[derive(Clone)]
struct CostIsChecked;

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
            introduced: AtomicBool::new(false),
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
            introduced: AtomicBool::new(false),
        }
    }

    /// Prepares all that can be known before the first request: axum makes new services for each connection.
    pub(super) fn prepare(&mut self) {
        self.headers = self.headers.style.prepare(&self.plan);
        *self.introduced.get_mut() = false;
    }

    /// Tells the observer of the policies, once, however often a service is made.
    pub(super) fn introduce_policies(&self) {
        if !self.introduced.swap(true, Ordering::Relaxed) {
            let policies = self.plan.known_policies();
            policies.for_each(|it| self.plan.limiter.report_policy(&it));
        }
    }

    /// Tells the handler of the decision.
    pub(super) fn admit(&self, extensions: &mut Extensions, decision: Decision) -> Decisions {
        let outer = extensions.remove::<Decisions>();
        let admitted = Decisions::within(outer, decision, self.decisions_in_response);
        extensions.insert(admitted.clone());
        admitted
    }

    /// The settlement that a response requires; `None` when it costs what was charged.
    pub(super) fn settle<B>(
        &self,
        response: &mut Response<B>,
        admitted: &Decisions,
    ) -> Option<Settling> {
        let cost_of = self.settle.cost_of.as_ref()?;
        self.check_names(response.extensions_mut(), admitted);
        Settle::of_response(
            &**cost_of,
            &self.plan.limiter,
            response,
            admitted.innermost(),
        )
    }

    /// Looks for a cost under a policy that was not checked. The innermost layer that settles does, which knows the
    /// decisions of those around it.
    fn check_names(&self, extensions: &mut Extensions, admitted: &Decisions) {
        let Some(cost) = extensions.get::<ActualCost>() else {
            return;
        };
        let unknown = cost.names().find(|name| admitted.by_policy(name).is_none());
        if let Some(unknown) = unknown
            && extensions.get::<CostIsChecked>().is_none()
        {
            self.plan.warn_of_unknown(unknown, admitted);
        }
        if admitted.have_outer() {
            extensions.insert(CostIsChecked);
        }
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
        let within = extensions.remove::<Decisions>();
        let is_foreign = within.is_some();
        let inner = within.filter(is_own);
        let told = extensions.remove::<ToldBy>();
        let told = told.filter(|(_, by)| is_own(by)).map(|(told, _)| told);
        let denied = match &inner {
            Some(inner) => !inner.innermost().is_allowed(),
            None => !is_foreign && response::is_denial(response),
        };
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
            introduced: AtomicBool::new(false),
        }
    }
}
