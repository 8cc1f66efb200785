//! What a limiter does when somebody watches, or when there are shadows: one thing after the other.

use std::future::ready;

use tokio::time::Instant;

use super::{
    Limiter, Undecided,
    ask::Answered,
    failing::{circuit_open, lost},
    timeout::{by, too_late},
};
use crate::{
    charge::Check,
    decision::Decision,
    error::{ExtractError, StoreError},
    observe::{Blocked, Call, MissingKey, Watch},
    policy::Policy,
};

impl Limiter {
    /// When a call that begins now ends.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Decides what counts, and then the shadows.
    pub(crate) async fn decide(&self, check: &Check) -> Result<Decision, Undecided> {
        if self.is_plain(check) {
            let (pass, result) = self.answer(self.ask(check)).await;
            return self.conclude(check, pass, result);
        }
        let (counting, shadows) = (check.only(false), check.only(true));
        self.in_turn(counting, ready(shadows), self.until()).await
    }

    /// Decides what counts, and then, if that is allowed, the shadows, which change nothing about it: not even by taking
    /// too long: `shadows` are known by `until`, and whoever waits for this gives up no earlier.
    pub(crate) async fn in_turn(
        &self,
        counting: Check,
        shadows: impl Future<Output = Check> + Send,
        until: Instant,
    ) -> Result<Decision, Undecided> {
        let instead = |error| self.instead(&counting, error);
        let decision = self.decide_until(&counting, until, instead).await?;
        self.with_shadows(decision, shadows, until).await
    }

    /// A decision, and beside it, if it is an admission, that of the shadows.
    pub(super) async fn with_shadows(
        &self,
        decision: Decision,
        shadows: impl Future<Output = Check> + Send,
        until: Instant,
    ) -> Result<Decision, Undecided> {
        let Decision::Allowed(usage) = decision else {
            return Ok(decision);
        };
        let shadows = shadows.await;
        let shadow = if shadows.charges().is_empty() {
            None
        } else if usage.is_local() {
            // The store is not asked: the time may be over, and that would not be its fault.
            let answer = ready((None, Err(circuit_open())));
            let instead = |error| self.instead(&shadows, error);
            let decision = self.watched(Call::Check, &shadows, answer, instead, tell_decided);
            decision.await.ok()
        } else {
            self.decide_until(&shadows, until, lost).await.ok()
        };
        Ok(Decision::Allowed(match shadow {
            Some(decision) => usage.with_shadow(decision),
            None => usage,
        }))
    }

    async fn decide_until(
        &self,
        check: &Check,
        until: Instant,
        instead: impl FnOnce(StoreError) -> Result<Decision, Undecided>,
    ) -> Result<Decision, Undecided> {
        let answer = async {
            let time = until.saturating_duration_since(Instant::now());
            let (pass, answer) = self.ask(check);
            match by(until, answer).await {
                Some(answer) => (pass, answer),
                // Shadows have what the others have left of the time: too little of it is no failure of the store.
                None => (
                    pass.filter(|_| time > self.timeout / 16 * 15),
                    Err(too_late()),
                ),
            }
        };
        self.watched(Call::Check, check, answer, instead, tell_decided)
            .await
    }

    /// Tells the observer of a decision that the store was not asked for, since it follows from one before.
    pub(super) fn tell_repeated(&self, check: &Check, decision: &Decision) {
        if let Some(observer) = &self.observer {
            Watch::new(&**observer, Call::Check, check).decided(decision);
        }
    }

    /// Waits for an answer, or for what stands in for it, and tells the observer and the breaker.
    pub(super) async fn watched<T>(
        &self,
        call: Call,
        check: &Check,
        answer: impl Future<Output = Answered<T>>,
        instead: impl FnOnce(StoreError) -> Result<T, Undecided>,
        tell: impl FnOnce(&Watch<'_>, &T),
    ) -> Result<T, Undecided> {
        let observer = self.observer.as_deref();
        let observer = observer.filter(|_| !check.charges().is_empty());
        let watch = observer.map(|it| Watch::new(it, call, check));
        let (pass, result) = match &watch {
            Some(watch) => watch.wait(answer).await,
            None => answer.await,
        };
        let error = result.as_ref().err().cloned();
        let result = result.or_else(instead);
        if let Some(watch) = &watch {
            if let Some(error) = &error {
                match &result {
                    Ok(_) => watch.replaced(error),
                    Err(undecided) => watch.failed(error, undecided.passes),
                }
            }
            if let Ok(answer) = &result {
                tell(watch, answer);
            }
        }
        self.note(pass, error.as_ref());
        result
    }

    /// Tells the observer of a request without a key.
    pub(crate) fn tell_missing_key(
        &self,
        policy: Option<&Policy>,
        shadow: bool,
        error: &ExtractError,
        passes: bool,
    ) {
        if let Some(observer) = &self.observer {
            observer.on_missing_key(&MissingKey::new(policy, shadow, error, passes));
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
            Watch::of(&**observer, policy.as_ref()).failed(error, false);
        }
    }
}

fn tell_decided(watch: &Watch<'_>, decision: &Decision) {
    watch.decided(decision);
}
