//! [`Call`]: one call of the store, through the breaker, under the timeout, and within the observer's scope.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{Limiter, breaker::Permit, timeout::LazySleep};
use crate::{
    block::Block,
    contributors::Contributors,
    decision::Decision,
    error::{StoreError, StoreErrorKind},
    observe::{CallInfo, PollScope, Timing},
    store::{Store, StoreFuture},
};

pin_project! {
    /// One call of the store, begun when it is made.
    pub(super) struct Call<T> {
        limiter: Limiter,
        // `None` when the store is not called.
        permit: Option<Permit>,
        answer: StoreFuture<T>,
        #[pin]
        timeout: LazySleep,
        scope: Option<Box<dyn PollScope>>,
        // `None` without an observer: then nobody asks for the time.
        start: Option<Instant>,
    }
}

/// What came of a call, and how long it took; `None` without an observer.
pub(super) struct Answer<T> {
    pub(super) result: Result<T, StoreError>,
    pub(super) timing: Option<Timing>,
}

impl Limiter {
    /// Calls the store, if the breaker permits it.
    pub(super) fn call<'a, T>(
        &self,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> Call<T> {
        let Some(permit) = self.inner.breaker.permit() else {
            let start = self.inner.observer.as_ref().map(|_| Instant::now());
            return Call {
                start,
                ..Call::new(self, StoreFuture::ready(Err(circuit_open())))
            };
        };
        self.begin(Some(permit), info, || begin(&*self.inner.store))
    }

    /// Calls the memory of this process, which needs no permit.
    pub(super) fn call_local<'a, T>(
        &self,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> Call<T> {
        self.begin(None, info, || begin(&self.inner.local))
    }

    fn begin<'a, T>(
        &self,
        permit: Option<Permit>,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce() -> StoreFuture<T>,
    ) -> Call<T> {
        let observer = self.inner.observer.as_ref();
        let start = observer.map(|_| Instant::now());
        let mut scope = observer.and_then(|it| it.on_call(&info()));
        let answer = within(&mut scope, begin);
        Call {
            permit,
            scope,
            start,
            ..Call::new(self, answer)
        }
    }
}

impl<T> Call<T> {
    /// A call whose answer does not come from the store.
    pub(super) fn new(limiter: &Limiter, answer: StoreFuture<T>) -> Self {
        Self {
            limiter: limiter.clone(),
            permit: None,
            answer,
            timeout: LazySleep::new(limiter.inner.timeout),
            scope: None,
            start: None,
        }
    }

    pub(super) const fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

/// What a store answers.
pub(super) trait StoreAnswer {
    /// Whether it was given without calling the store, and says nothing about whether that answers.
    fn spares_call(&self) -> bool {
        false
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
impl<T> StoreAnswer for Vec<T> {}

impl<T: StoreAnswer> Future for Call<T> {
    type Output = Answer<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<T>> {
        let this = self.project();
        let answer = this.answer;
        let result = match within(this.scope, || Pin::new(&mut *answer).poll(cx)) {
            Poll::Ready(result) => result,
            Poll::Pending if this.timeout.poll(cx).is_ready() => {
                Err(timed_out().in_call(answer.call()))
            }
            Poll::Pending => return Poll::Pending,
        };
        let spares_call = result.as_ref().is_ok_and(T::spares_call);
        if let Some(permit) = this.permit.take_if(|_| !spares_call) {
            let limiter = &this.limiter.inner;
            let error = result.as_ref().err();
            limiter.breaker.note(permit, error, &limiter.observer);
        }
        let timing = this.start.map(Timing::since);
        Poll::Ready(Answer { result, timing })
    }
}

/// Runs `run` within the scope; after it, if the scope has not run it.
fn within<T>(scope: &mut Option<Box<dyn PollScope>>, run: impl FnOnce() -> T) -> T {
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
