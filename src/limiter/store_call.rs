//! Makes one store call, through the breaker, under the timeout, and within the observer's scope.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{Limiter, breaker::Permit, timeout::LazySleep};
use crate::{
    domain::{
        block::Block,
        contributors::Contributors,
        decision::Decision,
        denials::DeniedIdentity,
        error::{StoreError, StoreErrorKind},
        slots::Renewed,
    },
    observe::{CallInfo, PollScope, Timing},
    store::maybe_ready::MaybeReady,
    store::{Store, StoreFuture},
};

pin_project! {
    /// A store call that has to wait.
    struct Call<T> {
        limiter: Limiter,
        // `None` for calls that skip the breaker.
        permit: Option<Permit>,
        answer: StoreFuture<T>,
        #[pin]
        timeout: LazySleep,
        scope: Option<Box<dyn PollScope>>,
        // `None` without an observer, to save reading the clock.
        start: Option<Instant>,
    }
}

/// The result of a call, and its timing; `None` without an observer.
pub(super) struct Answer<T> {
    pub(super) result: Result<T, StoreError>,
    pub(super) timing: Option<Timing>,
}

impl Limiter {
    /// Calls the store within the timeout, if the breaker permits it.
    pub(super) fn call<'a, T: StoreAnswer>(
        &self,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> MaybeReady<Answer<T>> {
        self.call_within(self.inner.timeout, info, begin)
    }

    /// The same with another timeout, for calls that no request waits for.
    pub(super) fn call_within<'a, T: StoreAnswer>(
        &self,
        timeout: Duration,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> MaybeReady<Answer<T>> {
        match self.inner.breaker.permit() {
            Some(permit) => {
                let begin = || begin(&*self.inner.store);
                self.begin(Some(permit), timeout, info, begin)
            }
            None => MaybeReady::ready(Answer {
                result: Err(circuit_open()),
                timing: self.start().map(Timing::since),
            }),
        }
    }

    /// Calls the memory of this process, which needs no permit.
    pub(super) fn call_local<'a, T: StoreAnswer>(
        &self,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> MaybeReady<Answer<T>> {
        let begin = || begin(&self.inner.local.store);
        self.begin(None, self.inner.timeout, info, begin)
    }

    fn begin<'a, T: StoreAnswer>(
        &self,
        permit: Option<Permit>,
        timeout: Duration,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce() -> StoreFuture<T>,
    ) -> MaybeReady<Answer<T>> {
        let start = self.start();
        let observer = self.inner.observer.as_ref();
        let mut scope = observer.and_then(|observer| observer.on_call(&info()));
        let mut answer = in_scope(&mut scope, begin);
        match answer.take_ready() {
            // An answer that is ready needs neither a timer nor a task.
            Some(result) => {
                let timing = self.note(&result, permit, start);
                MaybeReady::ready(Answer { result, timing })
            }
            None => MaybeReady::pending(Call {
                limiter: self.clone(),
                permit: permit.map(|permit| self.inner.breaker.begin_wait(permit)),
                answer,
                timeout: LazySleep::new(timeout),
                scope,
                start,
            }),
        }
    }

    fn start(&self) -> Option<Instant> {
        self.inner.observer.as_ref().map(|_| Instant::now())
    }

    /// Reports the result to the breaker, and returns the timing.
    fn note<T: StoreAnswer>(
        &self,
        result: &Result<T, StoreError>,
        permit: Option<Permit>,
        start: Option<Instant>,
    ) -> Option<Timing> {
        let spares_call = result.as_ref().is_ok_and(T::spares_call);
        if let Some(permit) = permit.filter(|_| !spares_call) {
            let error = match result {
                Ok(answer) => answer.failure(),
                Err(error) => Some(error),
            };
            let (breaker, timeout) = (&self.inner.breaker, self.inner.timeout);
            breaker.note(permit, error, timeout, &self.inner.observer);
        }
        start.map(Timing::since)
    }
}

/// The result types of store calls.
pub(super) trait StoreAnswer: Send + 'static {
    /// Whether the answer came without calling the store, and so says nothing about the store's health.
    fn spares_call(&self) -> bool {
        false
    }

    /// The failure that all parts of the answer are, so that the breaker counts one.
    fn failure(&self) -> Option<&StoreError> {
        None
    }
}

impl StoreAnswer for Decision {
    fn spares_call(&self) -> bool {
        self.usage().spares_call()
    }
}

impl StoreAnswer for () {}
impl StoreAnswer for Block {}
impl StoreAnswer for Contributors {}
impl StoreAnswer for Vec<DeniedIdentity> {}
impl StoreAnswer for Renewed {}

impl<T: Send + 'static> StoreAnswer for Vec<Result<T, StoreError>> {
    fn failure(&self) -> Option<&StoreError> {
        let first = self.first()?.as_ref().err();
        first.filter(|_| self.iter().all(Result::is_err))
    }
}

impl<T: StoreAnswer> Future for Call<T> {
    type Output = Answer<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<T>> {
        let mut this = self.project();
        let answer = this.answer;
        let result = match in_scope(this.scope, || Pin::new(&mut *answer).poll(cx)) {
            Poll::Ready(result) => result,
            Poll::Pending if this.timeout.as_mut().poll(cx).is_ready() => {
                // A process too busy to notice its timer may have missed an answer as well: that is no failure.
                if this.timeout.is_noticed_late() {
                    *this.permit = None;
                }
                let is_unsent = in_scope(this.scope, || answer.leave());
                Err(timed_out().unsent_if(is_unsent))
            }
            Poll::Pending => return Poll::Pending,
        };
        let limiter = this.limiter;
        let timing = limiter.note(&result, this.permit.take(), *this.start);
        Poll::Ready(Answer { result, timing })
    }
}

/// Runs `run` within the scope, or after the scope if an observer's scope forgets to run it.
fn in_scope<T>(scope: &mut Option<Box<dyn PollScope>>, run: impl FnOnce() -> T) -> T {
    let Some(scope) = scope else {
        return run();
    };
    let (mut run, mut output) = (Some(run), None);
    scope.enter(&mut || {
        if let Some(run) = run.take() {
            output = Some(run());
        }
    });
    match (output, run) {
        (Some(output), _) => output,
        (None, Some(run)) => run(),
        (None, None) => unreachable!("it was run, and so there is an output"),
    }
}

const fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "no answer within the timeout")
}

const fn circuit_open() -> StoreError {
    StoreError::new(
        StoreErrorKind::CircuitOpen,
        "the store was not called, since it has failed several times in a row",
    )
}
