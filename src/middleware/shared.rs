//! The state that all services of a layer share, and the path of a request through this state.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Extensions, Method, Response, request::Parts, response};

use super::{
    admit::{LayerConfig, PolicySelector},
    respond::{self, Answers, Decisions, HeaderStyle, MakeRejection, Rejection, Shown},
    response_end::{AtEnd, Followed, RequestGuard},
};
use crate::{
    domain::{
        ActualCost,
        charge::Charge,
        decision::{Decision, Usage},
    },
    limiter::{Limiter, Slot, SlotWatch, meter::CostMeter},
    observe::Event,
};

type CostOf = dyn Fn(&response::Parts, &Charge) -> u64 + Send + Sync;

/// Shared by all services of a layer.
pub(super) struct Shared<R> {
    pub(super) settings: Settings,
    pub(super) rejection: Arc<R>,
    /// Whether the policies were reported to the observer.
    introduced: AtomicBool,
}

/// The settings of a layer. Its rejections have a type of their own.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: LayerConfig,
    /// The final cost of a charge, by the head of the response.
    pub(super) settles: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    /// Only of layers that follow their responses to the end.
    pub(super) at_end: Option<Arc<AtEnd>>,
    pub(super) answers: Answers,
    /// Whether all responses carry the decisions, not only rejections.
    pub(super) decisions_in_response: bool,
}

/// Shared by layers around each other, besides their decisions: in the extensions of requests and responses.
#[derive(Clone, Default)]
struct Nested {
    /// In a request: an outer layer that settles has passed the request undecided.
    passed_undecided: bool,
    /// In a response: an inner layer has seen the `ActualCost`.
    cost_is_seen: bool,
    /// In a response: the rules that headers show, and their decisions.
    shown: Option<(Shown, Decisions)>,
}

impl<R> Shared<R> {
    pub(super) fn new(limiter: Limiter, rejection: R) -> Self {
        let config = LayerConfig::new(limiter);
        let settings = Settings {
            answers: Answers {
                are_of_layer: true,
                ..Answers::new(HeaderStyle::default().prepare(Some(&config)))
            },
            config,
            settles: None,
            refunds_unanswered: false,
            at_end: None,
            decisions_in_response: false,
        };
        Self::of(settings, Arc::new(rejection))
    }

    pub(super) const fn of(settings: Settings, rejection: Arc<R>) -> Self {
        Self {
            settings,
            rejection,
            introduced: AtomicBool::new(false),
        }
    }

    /// Changes the settings, and prepares the headers once per layer: axum makes new services for each connection.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Settings)) {
        let settings = &mut self.settings;
        change(settings);
        let at_end = settings.at_end.as_ref();
        settings.config.learns_costs =
            settings.settles.is_some() || at_end.is_some_and(|it| it.settles());
        if let Some(at_end) = &mut settings.at_end {
            Arc::make_mut(at_end).config = Some(settings.config.clone());
        }
        let headers = &mut settings.answers.headers;
        *headers = headers.style.prepare(Some(&settings.config));
        *self.introduced.get_mut() = false;
    }

    /// Reports the policies to the observer, once for all services of the layer.
    pub(super) fn introduce_policies(&self) {
        let config = &self.settings.config;
        if config.limiter.events().is_observed() && !self.introduced.swap(true, Ordering::Relaxed) {
            for policy in config.selectors().flat_map(PolicySelector::known) {
                let policy = config.as_charged(policy);
                config.limiter.events().report(|| Event::Policy(&policy));
            }
        }
    }

    /// The response to a rejected request.
    pub(super) fn reject<B>(&self, rejection: Rejection, head: &Parts) -> Response<B>
    where
        R: MakeRejection<B>,
    {
        let Settings {
            answers, config, ..
        } = &self.settings;
        let interval = config.limiter.retry_interval();
        if answers.headers.style.sends_ms()
            && let Rejection::Denied(denial) = &rejection
        {
            config.warnings.see_wait(denial);
        }
        answers.rejection(rejection, head, &*self.rejection, interval)
    }
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self::of(self.settings.clone(), self.rejection.clone())
    }
}

impl Settings {
    /// Puts the decision into the extensions of a request, for the handler.
    pub(super) fn admit(&self, extensions: &mut Extensions, decision: Decision) -> Decisions {
        let settles = self.settles.is_some();
        let passed_undecided = |nested: &Nested| nested.passed_undecided;
        let may_be_outermost = settles && !extensions.get().is_some_and(passed_undecided);
        let in_response = self.decisions_in_response;
        let mut admitted = Decisions::new(decision, in_response, may_be_outermost);
        // One look-up for the usual request, which has no outer layer.
        if let Some(outer) = extensions.insert(admitted.clone()) {
            admitted = admitted.within(outer);
            extensions.insert(admitted.clone());
        }
        admitted
    }

    /// Marks a request that passes without a decision.
    pub(super) fn pass(&self, extensions: &mut Extensions) {
        if self.settles.is_some() {
            extensions
                .get_or_insert_default::<Nested>()
                .passed_undecided = true;
        }
    }

    /// Puts the meter into the extensions of a request, if the layer follows its response. Returns the guard of a
    /// request that was admitted, or may be admitted late, if there is something to settle, to return or to refund.
    pub(super) fn guard(
        &self,
        head: &mut Parts,
        admitted: Option<&Decisions>,
        late: Option<&Usage>,
    ) -> Option<RequestGuard> {
        let usage = admitted.map(|admitted| admitted.innermost().usage());
        let usage = usage.or(late);
        let Some(at_end) = &self.at_end else {
            let usage = usage?;
            let takes_slots = usage.facts().asked_at_ms.is_some();
            let is_needed = takes_slots || self.refunds_unanswered || self.settles.is_some();
            return is_needed.then(|| self.guard_to(None, head, usage));
        };
        // An outer layer may be around the same handler.
        let outer: Option<CostMeter> = head.extensions.remove();
        let nest = |outer: &CostMeter| outer.readings.nest();
        let mut meter = outer.inspect(nest).unwrap_or_default();
        let ending = usage.map(|usage| {
            for name in &at_end.metered {
                if admitted.is_some_and(|admitted| admitted.by_policy(name).is_none()) {
                    self.config.warn_of_unknown("meter_costs_under", name);
                }
            }
            let followed = Followed {
                at_end: at_end.clone(),
                readings: meter.readings.clone(),
                answers_head: head.method == Method::HEAD,
            };
            let ending = self.guard_to(Some(followed), head, usage);
            meter.delay(Arc::downgrade(&ending.request) as _);
            ending
        });
        head.extensions.insert(meter);
        ending
    }

    /// The guard to the end of a response that is followed, or else to its head. Not inlined, because most requests need
    /// none.
    #[inline(never)]
    fn guard_to(
        &self,
        followed: Option<Followed>,
        head: &mut Parts,
        usage: &Usage,
    ) -> RequestGuard {
        let slot = self.hold(usage, &mut head.extensions);
        let (limiter, usage) = (self.config.limiter.clone(), usage.clone());
        RequestGuard::new(limiter, usage, slot, followed, self.refunds_unanswered)
    }

    /// Holds the slots of an admitted request, if there are any, and lets the handler watch them. A layer that does not
    /// follow bodies returns the slots of a policy of which it learned too late with the head.
    fn hold(&self, usage: &Usage, extensions: &mut Extensions) -> Option<Slot> {
        let slot = self.config.limiter.hold_usage(usage)?;
        if self.at_end.is_none() {
            self.config.warnings.slots_at_head();
        }
        // Also those of outer layers.
        let watch = match extensions.remove::<SlotWatch>() {
            Some(outer) => slot.watch().and(outer),
            None => slot.watch(),
        };
        extensions.insert(watch);
        Some(slot)
    }

    /// Warns of a cost under an unknown policy. With several layers none can know: another layer may have the policy,
    /// but no limit of it may have applied to this request.
    pub(super) fn see_cost<B>(&self, response: &mut Response<B>, admitted: Option<&Decisions>) {
        let extensions = response.extensions_mut();
        let Some(cost) = extensions.get::<ActualCost>() else {
            return;
        };
        let nested: Option<&Nested> = extensions.get();
        if let Some(admitted) = admitted.filter(|own| own.of_outermost)
            && !nested.is_some_and(|it| it.cost_is_seen)
            && let Some(unknown) = cost.names().find(|name| admitted.by_policy(name).is_none())
        {
            self.config.warn_of_unknown("ActualCost", unknown);
        }
        extensions.get_or_insert_default::<Nested>().cost_is_seen = true;
    }

    /// Adds the decision to the inner service's response, as of its settlement.
    pub(super) fn complete<B>(
        &self,
        response: &mut Response<B>,
        admitted: &Decisions,
        settled: Option<Decision>,
    ) {
        let extensions = response.extensions_mut();
        // A service may forward the response of a rate-limited client: those headers do not describe this request.
        let is_own = |decisions: &Decisions| decisions.has(admitted.innermost().usage());
        let decisions = extensions.remove::<Decisions>();
        let is_foreign = decisions.is_some();
        let inner = decisions.filter(is_own);
        let nested = extensions.get_mut::<Nested>();
        let within = nested.and_then(|nested| nested.shown.take());
        let within = within.filter(|(_, by)| is_own(by));
        let denied = match &inner {
            Some(inner) => !inner.innermost().is_allowed(),
            None => !is_foreign && respond::is_denial(response),
        };
        let now = settled.as_ref().unwrap_or_else(|| admitted.innermost());
        let shown = self.answers.shown(now);
        let (status, headers) = (response.status(), response.headers_mut());
        if denied {
            // Headers of a denial by a handler or another service must not be mixed with the quota of this layer, and a
            // block has none.
            let is_denied = |it: &Decisions| {
                it.is_of_rejection && matches!(it.innermost(), Decision::Denied(_))
            };
            if inner.as_ref().is_some_and(is_denied) {
                self.answers.headers.add_to_denial(headers, status, &shown);
            }
        } else {
            let mut all = within.map(|(shown, _)| shown);
            self.answers.headers.add(headers, status, &shown, &mut all);
            if let Some(all) = all.filter(|_| admitted.outer.is_some()) {
                let nested: &mut Nested = response.extensions_mut().get_or_insert_default();
                nested.shown = Some((all, admitted.clone()));
            }
        }
        if inner.is_none() && !admitted.in_response {
            return;
        }
        let mut decisions = inner.unwrap_or_else(|| admitted.clone());
        if let Some(settled) = settled {
            decisions.replace(admitted.innermost(), settled);
        }
        response.extensions_mut().insert(decisions);
    }
}
