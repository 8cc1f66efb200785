//! What a limiter does when somebody watches, or when there are shadows: one thing after the other.

use tokio::time::Instant;

use super::{Limiter, Undecided, ask::Answered};
use crate::{
    check::Check,
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

    /// Decides a check.
    pub(crate) async fn decide(&self, check: &Check) -> Result<Decision, Undecided> {
        if self.is_plain() {
            let (pass, result) = self.answer(self.ask(check)).await;
            return self.conclude(check, pass, result);
        }
        let answer = async { self.answer(self.ask(check)).await };
        let instead = |error| self.instead(check, error);
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
        let observer = observer.filter(|_| !check.is_empty());
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
    if let Some(shadow) = decision.usage().shadow() {
        watch.shadow_decided(shadow);
    }
}
