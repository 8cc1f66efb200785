//! The state that all services of a layer share, and the path of a request through this state.

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
    admit::LayerConfig,
    respond::{self, DEFAULT_SLOT_WAIT, Headers, Respond, Sent, shown},
    response_end::{AtEnd, CostMeter, Ending},
    settle::{Settle, Settling},
};
use crate::{
    domain::{
        ActualCost,
        decision::{Decision, Usage},
    },
    limiter::{Limiter, Slot, SlotWatch},
    observe::Event,
};

/// Shared by all services of a layer.
pub(super) struct Shared<R> {
    pub(super) config: LayerConfig,
    pub(super) settle: Settle,
    /// Only of layers that follow their responses to the end.
    pub(super) at_end: Option<Arc<AtEnd>>,
    pub(super) headers: Headers,
    pub(super) jitter: Duration,
    /// How long a client waits that found no slot.
    pub(super) slot_wait: Duration,
    /// Whether a request that found no slot gets a 503.
    pub(super) unavailable_without_slot: bool,
    /// Whether all responses carry the decisions, not only rejections.
    pub(super) decisions_in_response: bool,
    pub(super) rejection: Arc<R>,
    /// Whether the policies were reported to the observer.
    introduced: AtomicBool,
}

/// In the extensions of a response, for the next outer layer: the values in the headers, and their decisions.
type SentBy = (Sent, Decisions);

/// In the extensions of a request, for inner layers: an outer layer that settles has passed the request undecided.
#[derive(Clone)]
struct PassedUndecided;

/// In the extensions of a response, for outer layers: an inner layer has seen the `ActualCost`.
#[derive(Clone)]
struct CostIsSeen;

impl<R> Shared<R> {
    pub(super) fn new(limiter: Limiter, rejection: R) -> Self {
        let config = LayerConfig::new(limiter);
        Self {
            headers: HeaderStyle::default().prepare(&config),
            config,
            settle: Settle::default(),
            at_end: None,
            jitter: Duration::ZERO,
            slot_wait: DEFAULT_SLOT_WAIT,
            unavailable_without_slot: false,
            decisions_in_response: false,
            rejection: Arc::new(rejection),
            introduced: AtomicBool::new(false),
        }
    }

    /// The same settings with other rejections.
    pub(super) fn with_rejection<M>(self, rejection: M) -> Shared<M> {
        Shared {
            config: self.config,
            settle: self.settle,
            at_end: self.at_end,
            headers: self.headers,
            jitter: self.jitter,
            slot_wait: self.slot_wait,
            unavailable_without_slot: self.unavailable_without_slot,
            decisions_in_response: self.decisions_in_response,
            rejection: Arc::new(rejection),
            introduced: AtomicBool::new(false),
        }
    }

    /// Prepares the headers once per layer: axum makes new services for each connection.
    pub(super) fn prepare(&mut self) {
        self.headers = self.headers.style.prepare(&self.config);
        *self.introduced.get_mut() = false;
    }

    /// Reports the policies to the observer, once for all services of the layer.
    pub(super) fn introduce_policies(&self) {
        if self.config.limiter.is_observed() && !self.introduced.swap(true, Ordering::Relaxed) {
            let policies = self.config.known_policies();
            policies.for_each(|policy| self.config.limiter.report(|| Event::Policy(&policy)));
        }
    }

    /// Puts the decision into the extensions of a request, for the handler.
    pub(super) fn admit(&self, extensions: &mut Extensions, decision: Decision) -> Decisions {
        let outer = extensions.remove::<Decisions>();
        let settles = self.settle.cost_of.is_some();
        let is_outermost =
            settles && outer.is_none() && extensions.get::<PassedUndecided>().is_none();
        let mut admitted = Decisions::within(outer, decision, self.decisions_in_response);
        admitted.set_outermost(is_outermost);
        extensions.insert(admitted.clone());
        admitted
    }

    /// Puts the meter into the extensions of a request. Returns the ending of a request that was admitted, if the layer
    /// follows its response.
    pub(super) fn meter(&self, head: &mut Parts, admitted: Option<&Decisions>) -> Option<Ending> {
        let Some(at_end) = &self.at_end else {
            return self.end_with_head(admitted?);
        };
        // An outer layer may be around the same handler.
        let mut meter: CostMeter = head.extensions.remove().unwrap_or_default();
        let ending = admitted.map(|admitted| {
            for name in at_end.metered.names() {
                if admitted.by_policy(name).is_none() {
                    self.config.warn_of_unknown("meter_costs_under", name);
                }
            }
            let usage = admitted.innermost().usage().clone();
            let slot = self.hold(&usage, &mut head.extensions);
            let reading = Arc::clone(meter.reading());
            let limiter = self.config.limiter.clone();
            let ending = Ending::of(limiter, usage, Arc::clone(at_end), reading, &head.method);
            let ending = ending.holding(slot, self.settle.refund_places());
            meter.add_ending(&ending);
            ending
        });
        head.extensions.insert(meter);
        ending
    }

    /// Holds the slots of an admitted request, and lets the handler watch them.
    fn hold(&self, usage: &Usage, extensions: &mut Extensions) -> Option<Slot> {
        if !usage.check().takes_slots() {
            return None;
        }
        let slot = self.config.limiter.hold_usage(usage);
        if let Some(slot) = &slot {
            // Also those of outer layers.
            let watch = match extensions.remove::<SlotWatch>() {
                Some(outer) => slot.watch().and(outer),
                None => slot.watch(),
            };
            extensions.insert(watch);
        }
        slot
    }

    /// For a layer that does not follow bodies: refunds a request without a response, and returns slots taken by
    /// a policy of which the layer learned too late.
    fn end_with_head(&self, admitted: &Decisions) -> Option<Ending> {
        let usage = admitted.innermost().usage();
        let (slot, places) = (self.hold_to_head(usage), self.settle.refund_places());
        if slot.is_none() && places.is_none() {
            return None;
        }
        let ending = Ending::of_head(&self.config.limiter, usage.clone());
        Some(ending.holding(slot, places))
    }

    fn hold_to_head(&self, usage: &Usage) -> Option<Slot> {
        if !usage.check().takes_slots() {
            return None;
        }
        self.config.warn_of_slots_at_head();
        self.config.limiter.hold_usage(usage)
    }

    /// Marks a request that passes without a decision.
    pub(super) fn pass(&self, extensions: &mut Extensions) {
        if self.settle.cost_of.is_some() {
            extensions.insert(PassedUndecided);
        }
    }

    /// The settlement that a response requires; `None` if the cost is unchanged.
    pub(super) fn settle<B>(
        &self,
        response: &mut Response<B>,
        admitted: &Decisions,
    ) -> Option<Settling> {
        let cost_of = self.settle.cost_of.as_ref()?;
        Settle::of_response(
            &**cost_of,
            &self.config.limiter,
            response,
            admitted.innermost(),
        )
    }

    /// Warns of a cost under an unknown policy. With several layers none can know: another layer may have the policy,
    /// but no limit of it may have applied to this request.
    pub(super) fn see_cost<B>(&self, response: &mut Response<B>, admitted: Option<&Decisions>) {
        let extensions = response.extensions_mut();
        let Some(cost) = extensions.get::<ActualCost>() else {
            return;
        };
        if let Some(admitted) = admitted.filter(|own| own.are_of_outermost())
            && extensions.get::<CostIsSeen>().is_none()
            && let Some(unknown) = cost.names().find(|name| admitted.by_policy(name).is_none())
        {
            self.config.warn_of_unknown("ActualCost", unknown);
        }
        extensions.insert(CostIsSeen);
    }

    /// Settles a response after its caller has gone.
    pub(super) fn continue_settling(&self, settling: Settling) {
        let settling = async move { drop(settling.await) };
        self.settle.in_background(&self.config.limiter, settling);
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
        let is_own = |decisions: &Decisions| decisions.has(admitted.innermost());
        let within = extensions.remove::<Decisions>();
        let is_foreign = within.is_some();
        let inner = within.filter(is_own);
        let sent = extensions.remove::<SentBy>();
        let sent = sent.filter(|(_, by)| is_own(by)).map(|(sent, _)| sent);
        let denied = match &inner {
            Some(inner) => !inner.innermost().is_allowed(),
            None => !is_foreign && respond::is_denial(response),
        };
        // Headers of a denial must not be mixed with the quota of this layer.
        if !denied {
            let now = settled.as_ref().unwrap_or_else(|| admitted.innermost());
            let sent = self.headers.add(response, &shown(now, self.jitter), sent);
            if let Some(sent) = sent.filter(|_| admitted.have_outer()) {
                let sent: SentBy = (sent, admitted.clone());
                response.extensions_mut().insert(sent);
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

    /// The response to a rejected request.
    pub(super) fn reject<B>(&self, rejection: Rejection, head: &Parts) -> Response<B>
    where
        R: MakeRejection<B>,
    {
        let respond = Respond {
            make: &*self.rejection,
            headers: &self.headers,
            jitter: self.jitter,
            slot_wait: self.slot_wait,
            unavailable_without_slot: self.unavailable_without_slot,
            retry_interval: self.config.limiter.retry_interval(),
        };
        respond.to(rejection, head)
    }
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            settle: self.settle.clone(),
            at_end: self.at_end.clone(),
            headers: self.headers.clone(),
            jitter: self.jitter,
            slot_wait: self.slot_wait,
            unavailable_without_slot: self.unavailable_without_slot,
            decisions_in_response: self.decisions_in_response,
            rejection: self.rejection.clone(),
            introduced: AtomicBool::new(false),
        }
    }
}
