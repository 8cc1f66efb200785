//! What a limiter does when somebody watches, or when there are shadows: one thing after the other.

use tokio::time::Instant;

use super::{
    FailurePolicy, Limiter,
    deadline::{by, too_late},
};
use crate::{
    charge::Check,
    decision::Decision,
    error::{ExtractError, ExtractErrorKind, StoreError, StoreErrorKind},
    observe::{Blocked, Call, Unidentified, Watch},
    policy::Policy,
};

impl Limiter {
    /// When a call that begins now ends.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Whether a request passes that could not be decided.
    pub(super) fn passes(&self, error: &StoreError) -> bool {
        error.kind() != StoreErrorKind::Misuse && self.failure_policy == FailurePolicy::Open
    }

    /// Decides what counts, and then, if that is allowed, the shadows, which change nothing about it: not even by taking
    /// too long: `shadows` are known by `until`, and whoever waits for this gives up no earlier.
    pub(crate) async fn in_turn(
        self,
        counting: Check,
        shadows: impl Future<Output = Check> + Send,
        until: Instant,
    ) -> Result<Decision, StoreError> {
        let decision = self.decide_until(&counting, until).await?;
        let Decision::Allowed(usage) = decision else {
            return Ok(decision);
        };
        let shadows = shadows.await;
        let shadow = if shadows.charges().is_empty() {
            None
        } else {
            self.decide_until(&shadows, until).await.ok()
        };
        Ok(Decision::Allowed(match shadow {
            Some(decision) => usage.with_shadow(decision),
            None => usage,
        }))
    }

    async fn decide_until(&self, check: &Check, until: Instant) -> Result<Decision, StoreError> {
        let answer = async {
            let answer = by(until, self.ask(check)).await;
            answer.unwrap_or(Err(too_late()))
        };
        self.watched(Call::Check, check, answer, |watch, decision| {
            watch.decided(decision)
        })
        .await
    }

    /// Waits for an answer, and tells the observer of it.
    pub(super) async fn watched<T>(
        &self,
        call: Call,
        check: &Check,
        answer: impl Future<Output = Result<T, StoreError>>,
        tell: impl FnOnce(&Watch<'_>, &T),
    ) -> Result<T, StoreError> {
        let observer = match &self.observer {
            Some(observer) if !check.charges().is_empty() => observer,
            _ => return answer.await,
        };
        let watch = Watch::new(&**observer, call, check);
        let result = watch.wait(answer).await;
        match &result {
            Ok(answer) => tell(&watch, answer),
            Err(error) => watch.failed(error, self.passes(error)),
        }
        result
    }

    /// Tells the observer of a request without a key.
    pub(crate) fn tell_unidentified(
        &self,
        policy: Option<&Policy>,
        shadow: bool,
        error: &ExtractError,
    ) {
        if let Some(observer) = &self.observer {
            let failed = error.kind() == ExtractErrorKind::Unavailable;
            let passes = shadow || failed && self.failure_policy == FailurePolicy::Open;
            observer.unidentified(&Unidentified::new(policy, shadow, error, passes));
        }
    }

    /// Tells the observer of a request on a deny list.
    pub(crate) fn tell_blocked(&self, policy: Option<&Policy>, passes: bool) {
        if let Some(observer) = &self.observer {
            observer.blocked(&Blocked::new(policy, passes));
        }
    }

    /// Tells the observer of a check that could not be asked.
    pub(crate) fn tell_undecided(&self, policy: Option<&Policy>, shadow: bool, error: &StoreError) {
        if let Some(observer) = &self.observer {
            let policy = policy.cloned();
            let policy = policy.map(|it| if shadow { it.shadow() } else { it });
            Watch::of(&**observer, policy.as_ref()).failed(error, self.passes(error));
        }
    }
}
