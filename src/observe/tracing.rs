use std::{
    error::Error,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::time::{Duration, Instant};
use tracing::{Level, debug, debug_span, event_enabled, trace, warn};

use super::{
    BanEvent, BlockEvent, CallInfo, CompletionEvent, DecisionEvent, ErrorEvent, MissingKey,
    Observer, PollScope,
};
use crate::domain::{
    error::StoreErrorKind,
    policy::Policy,
    rule::{micros, millis},
};

/// One kind of failure is written at most this often, even if answers come in between.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes spans and events of the crate `tracing` (feature `tracing`), all with the target `sluicegate`.
///
/// | what | level | fields |
/// |---|---|---|
/// | span `sluicegate`, around each call of the store | debug | `call`, `policies`, `shadow` |
/// | event `allowed` | trace | `policies`, `shadow`, `local`, `latency_us` |
/// | event `denied`, of the rule that denies for longest | debug | `policy`, `rule`, `shadow`, `local`, `repeated` (by a [`DenyCache`](crate::store::DenyCache)), `retry_after_ms` (none for never), `latency_us` |
/// | event `missing key` | debug | `policy`, `shadow`, `kind`, `error`, `outcome` |
/// | event `blocked` | debug | `policy` (none but for keys on a list), `by`: `list`, `operator`, `ban` |
/// | event `banned` | debug | `policy`, `until_ms` |
/// | event `failed` | warn | `call`, `policies`, `shadow`, `kind`, `error`, `cause`, `outcome`, `latency_us`, `suppressed` |
///
/// That the breaker [has opened or closed](crate::limiter#when-the-store-cannot-decide) is written without an
/// observer, too.
///
/// `policies` are names, separated by commas. What clients can cause at will has the level debug or trace, so that
/// they cannot fill a log. Failures are warnings, but each kind is written **once** until the store has answered
/// something, and then at most once a second: a server that is down, or rejects the password, fills no log.
/// `suppressed` is the number of failures of the kind since the last one that was written. Calls that were not made,
/// since the breaker is open, are not written. For numbers, use `MetricsObserver`.
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
    /// Whether the store has answered since.
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

    /// Whether to write of a failure now, and then how many were suppressed before it.
    fn suppressed(&self, kind: StoreErrorKind) -> Option<u64> {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(|it| it.into_inner());
        if self.answered.swap(false, Relaxed) {
            warned.iter_mut().for_each(|it| it.over = true);
        }
        let Some(last) = warned.iter_mut().find(|it| it.kind == kind) else {
            warned.push(Warned {
                kind,
                at: now,
                over: false,
                suppressed: 0,
            });
            return Some(0);
        };
        if !last.over || now.saturating_duration_since(last.at) < PAUSE {
            last.suppressed += 1;
            return None;
        }
        last.at = now;
        last.over = false;
        Some(std::mem::take(&mut last.suppressed))
    }
}

impl Observer for TracingObserver {
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        let span = debug_span!(
            target: "sluicegate",
            "sluicegate",
            call = call.kind().as_str(),
            policies = %call.names(),
            shadow = call.is_shadow(),
        );
        (!span.is_disabled()).then(|| Box::new(SpanScope(span)) as _)
    }

    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let (call, local) = (event.call(), event.is_local());
        let repeated = event.is_repeated();
        self.answered(local || event.decision.usage().spares_call());
        let shadow = call.is_shadow();
        let latency_us = micros(event.latency());
        match event.denied_by() {
            None => {
                trace!(target: "sluicegate", policies = %call.names(), shadow, local, latency_us, "allowed");
            }
            Some((policy, usage)) => debug!(
                target: "sluicegate",
                policy = policy.name(),
                rule = %usage.rule(),
                shadow,
                local,
                repeated,
                retry_after_ms = usage.retry_after().map(millis),
                latency_us,
                "denied"
            ),
        }
    }

    fn on_completion(&self, event: &CompletionEvent<'_>) {
        self.answered(event.is_local());
    }

    fn on_error(&self, event: &ErrorEvent<'_>) {
        let (call, error) = (event.call(), event.error());
        if error.kind() == StoreErrorKind::CircuitOpen
            || !event_enabled!(target: "sluicegate", Level::WARN)
        {
            return;
        }
        let Some(suppressed) = self.suppressed(error.kind()) else {
            return;
        };
        warn!(
            target: "sluicegate",
            call = call.kind().as_str(),
            policies = %call.names(),
            shadow = call.is_shadow(),
            kind = error.kind().as_str(),
            %error,
            cause = error.source().map(ToString::to_string),
            outcome = event.outcome().as_str(),
            latency_us = micros(event.latency()),
            suppressed,
            "failed"
        );
    }

    fn on_missing_key(&self, missing: &MissingKey<'_>) {
        let (policy, error) = (missing.policy(), missing.error());
        debug!(
            target: "sluicegate",
            policy = policy.map(Policy::name),
            shadow = missing.is_shadow(),
            kind = error.kind().as_str(),
            %error,
            outcome = missing.outcome().as_str(),
            "missing key"
        );
    }

    fn on_blocked(&self, event: &BlockEvent<'_>) {
        debug!(
            target: "sluicegate",
            policy = event.policy().map(Policy::name),
            by = event.source().as_str(),
            "blocked"
        );
    }

    fn on_ban(&self, event: &BanEvent<'_>) {
        debug!(
            target: "sluicegate",
            policy = event.policy().name(),
            until_ms = event.block().until_ms(),
            "banned"
        );
    }
}

/// Entered for each poll and left after it, since other tasks run in between.
struct SpanScope(tracing::Span);

impl PollScope for SpanScope {
    fn enter(&mut self, poll: &mut dyn FnMut()) {
        self.0.in_scope(poll);
    }
}
