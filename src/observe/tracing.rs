//! [`TracingObserver`]: spans and events for logs.

use std::{
    error::Error,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::time::{Duration, Instant};
use tracing::{Level, Span, debug, debug_span, event_enabled, trace, warn};

use super::{
    CallInfo, DecisionView, Event, Observer, PollScope, RequestOutcome, Timing, event::DENY_LIST,
};
use crate::domain::{
    block::BlockedBy,
    error::{StoreError, StoreErrorKind},
    policy::Policy,
    rule::{micros, millis},
};

/// The shortest time between two warnings of one kind, even if the store answers in between.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes spans and events of the crate `tracing` (feature `tracing`), all with the target `sluicegate`.
///
/// | record | level | fields |
/// |---|---|---|
/// | span `sluicegate`, around each call of the store | debug | `call`, `policies`, `shadow` |
/// | event `allowed` | trace | `policies`, `shadow`, `local`, `latency_us` |
/// | event `denied`, for the rule that denies for the longest time | debug | `policy`, `rule`, `shadow`, `local`, `cached` (denied by a [deny cache](crate::Limiter::cache_denials)), `retry_after_ms` (none for never), `latency_us` |
/// | event `missing key` | debug | `policy`, `shadow`, `kind`, `error`, `outcome` |
/// | event `blocked` | debug | `policy` (only for keys on a list), `by`: `list`, `operator`, `ban` |
/// | event `near limit`, when an identity has used [a share](crate::Limiter::near_limit_at) of a limit | debug | `policy`, `rule`, `shadow`, `remaining` |
/// | event `banned` | debug | `policy`, `until_ms` |
/// | event `failed` | warn | `call`, `policies`, `shadow`, `kind`, `error`, `cause`, `outcome`, `latency_us`, `suppressed` |
///
/// You need no observer for the warnings that the store [cannot decide, or decides
/// again](crate::limiter#when-the-store-cannot-decide), and that an account is [paused](crate::block#pauses).
///
/// `policies` are names, separated by commas. Events that clients can cause at will have the level debug or trace, so
/// that clients cannot fill a log. Failures are warnings, but each kind is written **once** until the store has
/// answered a call, and then at most once a second: a server that is down, or rejects the password, fills no log.
/// `suppressed` is the number of failures of this kind since the last warning. Calls that the open breaker prevented
/// are not written. For numbers, use `MetricsObserver`.
///
/// ```
/// use sluicegate::{Limiter, MemoryStore, observe::TracingObserver};
///
/// let limiter = Limiter::new(MemoryStore::new()).observer(TracingObserver::new());
/// # assert!(format!("{limiter:?}").contains("Limiter"));
/// ```
#[derive(Debug, Default)]
pub struct TracingObserver {
    warned: Mutex<Vec<Warned>>,
    /// Whether the store has answered since the last failure.
    answered: AtomicBool,
}

/// When a kind of failure was last written.
#[derive(Debug)]
struct Warned {
    kind: StoreErrorKind,
    at: Instant,
    /// Whether the store has answered since then.
    over: bool,
    suppressed: u64,
}

impl TracingObserver {
    /// Creates the observer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn answered(&self, local: bool) {
        if !local && !self.answered.load(Relaxed) {
            self.answered.store(true, Relaxed);
        }
    }

    /// Returns how many failures were suppressed, if this one is to be written now.
    fn suppressed(&self, kind: StoreErrorKind) -> Option<u64> {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if self.answered.swap(false, Relaxed) {
            warned.iter_mut().for_each(|last| last.over = true);
        }
        // The first failure of a kind is always written.
        let Some(last) = warned.iter_mut().find(|last| last.kind == kind) else {
            warned.push(Warned {
                kind,
                at: now,
                over: false,
                suppressed: 0,
            });
            return Some(0);
        };
        // Be silent until the store has answered and a second has passed: a flapping store must not fill the log.
        if !last.over || now.saturating_duration_since(last.at) < PAUSE {
            last.suppressed += 1;
            return None;
        }
        last.at = now;
        last.over = false;
        Some(std::mem::take(&mut last.suppressed))
    }

    fn decided(&self, call: &CallInfo<'_>, timing: Timing, decision: DecisionView<'_>) {
        let (shadow, local) = (call.shadow, decision.is_local());
        // An answer without a call says nothing about the store.
        self.answered(local || decision.0.usage().spares_call());
        let latency_us = micros(timing.latency);
        match decision.denied_by() {
            None => {
                trace!(target: "sluicegate", policies = %call.names(), shadow, local, latency_us, "allowed");
            }
            Some((policy, usage)) => debug!(
                target: "sluicegate",
                policy = policy.name(),
                rule = %usage.rule(),
                shadow,
                local,
                cached = decision.is_cached(),
                retry_after_ms = usage.retry_after().map(millis),
                latency_us,
                "denied"
            ),
        }
    }

    fn failed(
        &self,
        call: &CallInfo<'_>,
        timing: Timing,
        error: &StoreError,
        outcome: RequestOutcome,
    ) {
        if error.kind() == StoreErrorKind::CircuitOpen
            || !event_enabled!(target: "sluicegate", Level::WARN)
        {
            return;
        }
        // One warning stands for many failures: a failing store fails every request.
        let Some(suppressed) = self.suppressed(error.kind()) else {
            return;
        };
        warn!(
            target: "sluicegate",
            call = call.kind.as_str(),
            policies = %call.names(),
            shadow = call.shadow,
            kind = error.kind().as_str(),
            %error,
            cause = error.source().map(ToString::to_string),
            outcome = outcome.as_str(),
            latency_us = micros(timing.latency),
            suppressed,
            "failed"
        );
    }
}

impl Observer for TracingObserver {
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        let span = debug_span!(
            target: "sluicegate",
            "sluicegate",
            call = call.kind.as_str(),
            policies = %call.names(),
            shadow = call.shadow,
        );
        (!span.is_disabled()).then(|| Box::new(SpanScope(span)) as _)
    }

    /// Levels: see [`TracingObserver`].
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decision {
                call,
                timing,
                decision,
            } => self.decided(call, *timing, *decision),
            Event::Completion { local, .. } => self.answered(*local),
            Event::Error {
                call,
                timing,
                error,
                outcome,
            } => self.failed(call, *timing, error, *outcome),
            Event::MissingKey {
                policy,
                shadow,
                error,
                outcome,
            } => debug!(
                target: "sluicegate",
                policy = policy.map(Policy::name),
                shadow,
                kind = error.kind().as_str(),
                %error,
                outcome = outcome.as_str(),
                "missing key"
            ),
            Event::Blocked { policy, source } => debug!(
                target: "sluicegate",
                policy = policy.map(Policy::name),
                by = source.map_or(DENY_LIST, BlockedBy::as_str),
                "blocked"
            ),
            Event::NearLimit { policy, rule } => debug!(
                target: "sluicegate",
                policy = policy.name(),
                rule = %rule.rule(),
                shadow = policy.is_shadow(),
                remaining = rule.remaining(),
                "near limit"
            ),
            Event::Ban { policy, block } => {
                debug!(target: "sluicegate", policy = policy.name(), until_ms = block.until_ms(), "banned");
            }
            _ => {}
        }
    }
}

/// Enters the span for each poll and leaves it afterwards, since other tasks run in between.
struct SpanScope(Span);

impl PollScope for SpanScope {
    fn enter(&mut self, poll: &mut dyn FnMut()) {
        self.0.in_scope(poll);
    }
}
