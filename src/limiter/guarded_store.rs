//! [`GuardedStore`]: makes store calls, through the breaker, under the timeout, and within the observer's scope.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    breaker::{Breaker, DEFAULT_INTERVAL, Permit},
    events::Events,
    timeout::DEFAULT_TIMEOUT,
};
use crate::{
    background::is_first_look,
    domain::{
        decision::Decision,
        error::{StoreError, StoreErrorKind},
        operation::Reply,
    },
    observe::{CallInfo, PollScope, RequestOutcome, Timing},
    store::{ANOTHER_REPLY, Left, Store, StoreFuture, TIMED_OUT},
    timer::LazySleep,
};

/// A store, and how to call it.
#[derive(Clone)]
pub(super) struct GuardedStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) breaker: Arc<Breaker>,
    /// At most [`FOR_EVER`](super::FOR_EVER).
    pub(super) timeout: Duration,
    pub(super) events: Events,
}

/// The target of a call.
#[derive(Clone, Copy)]
pub(super) enum To<'a> {
    /// To the store, for so long. If that is zero, nothing is called.
    Store(Duration),
    /// To the memory of this process, which needs no permit.
    Local(&'a dyn Store),
}

/// A store call, which is ready or has to wait.
pub(super) enum Calling<T> {
    Ready(Answer<T>),
    Waits(Call<T>),
}

/// A store call that has to wait.
pub(super) struct Call<T> {
    guarded: Arc<GuardedStore>,
    // `None` for calls that skip the breaker.
    permit: Option<Permit>,
    answer: StoreFuture<T>,
    timeout: Duration,
    /// Whether it goes on in another runtime than it was begun in.
    has_moved: bool,
    /// Set while the store does not look after the timeout, or does so in another runtime.
    timer: Option<Pin<Box<LazySleep>>>,
    scope: Option<Box<dyn PollScope>>,
    // `None` without an observer, to save reading the clock.
    start: Option<Instant>,
}

/// The result of a call, and its timing; `None` without an observer.
pub(super) struct Answer<T> {
    pub(super) result: Result<T, StoreError>,
    pub(super) timing: Option<Timing>,
}

impl GuardedStore {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        // A part that fails says nothing about the others, so that the breaker must not stop calls to these.
        let interval = if store.fails_apart() {
            Duration::ZERO
        } else {
            DEFAULT_INTERVAL
        };
        Self {
            store,
            breaker: Arc::new(Breaker::new(interval)),
            timeout: DEFAULT_TIMEOUT,
            events: Events::default(),
        }
    }

    /// Calls the store if the breaker permits it.
    pub(super) fn call<'a, T: StoreAnswer>(
        self: &Arc<Self>,
        to: To<'_>,
        info: impl Fn() -> CallInfo<'a>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> Calling<T> {
        let (store, timeout, permit) = match to {
            To::Local(store) => (store, self.timeout, None),
            To::Store(Duration::ZERO) => {
                return Calling::Ready(self.uncalled(Err(TIMED_OUT.unsent_if(true))));
            }
            To::Store(timeout) => match self.breaker.permit() {
                None => return Calling::Ready(self.uncalled(Err(CIRCUIT_OPEN))),
                permit => (&*self.store, timeout, permit),
            },
        };
        let start = self.start();
        let observer = self.events.0.as_ref();
        let mut scope = observer.and_then(|observer| observer.on_call(&info()));
        let mut answer = match in_scope(&mut scope, || begin(store)).into_ready() {
            // It needs neither a timer nor a task.
            Ok(result) => {
                let timing = self.note(&result, permit, start);
                return Calling::Ready(Answer { result, timing });
            }
            Err(answer) => answer,
        };
        answer.set_timeout(timeout);
        Calling::Waits(Call {
            guarded: Arc::clone(self),
            permit,
            answer,
            timeout,
            has_moved: false,
            timer: None,
            scope,
            start,
        })
    }

    /// An answer without a call.
    #[cold]
    pub(super) fn uncalled<T>(&self, result: Result<T, StoreError>) -> Answer<T> {
        let timing = self.start().map(Timing::since);
        Answer { result, timing }
    }

    /// Makes a call that no request waits for, and reports its end.
    pub(super) async fn ask<T>(
        self: &Arc<Self>,
        to: To<'_>,
        info: CallInfo<'_>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<Reply>,
        read: fn(Reply) -> Option<T>,
    ) -> Result<T, StoreError> {
        let (events, local) = (&self.events, matches!(to, To::Local(_)));
        let Answer { result, timing } = self.answer(to, info, begin, read).await;
        match &result {
            Ok(_) => events.completion(info, local, timing),
            Err(error) => events.error(info, error, RequestOutcome::Failed, timing),
        }
        result
    }

    /// Calls the store, and waits for the answer. A reply to another operation is an error.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        to: To<'_>,
        info: CallInfo<'_>,
        begin: impl FnOnce(&dyn Store) -> StoreFuture<Reply>,
        read: fn(Reply) -> Option<T>,
    ) -> Answer<T> {
        let Answer { result, timing } = match self.call(to, || info, begin) {
            Calling::Ready(answer) => answer,
            Calling::Waits(call) => call.await,
        };
        let result = result.and_then(|reply| read(reply).ok_or(ANOTHER_REPLY));
        Answer { result, timing }
    }

    fn start(&self) -> Option<Instant> {
        self.events.is_observed().then(Instant::now)
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
            let error = result.as_ref().err();
            self.breaker
                .note(permit, error, self.timeout, &self.events.0);
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
}

impl StoreAnswer for Decision {
    fn spares_call(&self) -> bool {
        self.usage().spares_call()
    }
}

impl StoreAnswer for Reply {}

impl<T> Call<T> {
    /// Leaves the call.
    pub(super) fn leave(&mut self) -> Left<T> {
        self.answer.leave()
    }
}

impl<T> Unpin for Call<T> {}

impl<T: StoreAnswer> Future for Call<T> {
    type Output = Answer<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<T>> {
        let this = &mut *self;
        let answer = &mut this.answer;
        let result = match in_scope(&mut this.scope, || Pin::new(&mut *answer).poll(cx)) {
            Poll::Ready(result) => result,
            Poll::Pending if answer.deadline().is_some() && !this.has_moved => {
                this.has_moved = is_first_look();
                return Poll::Pending;
            }
            Poll::Pending => {
                let timer = this.timer.get_or_insert_with(|| {
                    let rest = |at: Instant| at.saturating_duration_since(Instant::now());
                    let rest = answer.deadline().map_or(this.timeout, rest);
                    Box::pin(LazySleep::new(rest))
                });
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let answer = &mut this.answer;
                let is_unsent = in_scope(&mut this.scope, || answer.is_never_sent());
                Err(TIMED_OUT.unsent_if(is_unsent))
            }
        };
        let timing = this.guarded.note(&result, this.permit.take(), this.start);
        Poll::Ready(Answer { result, timing })
    }
}

/// Runs `run` within the scope, or after the scope if an observer's scope forgets to run it.
fn in_scope<T>(scope: &mut Option<Box<dyn PollScope>>, run: impl FnOnce() -> T) -> T {
    let Some(scope) = scope else {
        return run();
    };
    let (mut run, mut output) = (Some(run), None);
    let mut run_once = || {
        if let Some(run) = run.take() {
            output = Some(run());
        }
    };
    scope.enter(&mut run_once);
    run_once();
    output.unwrap_or_else(|| unreachable!("it was run, and so there is an output"))
}

const CIRCUIT_OPEN: StoreError = StoreError::new(
    StoreErrorKind::CircuitOpen,
    "the store was not called, since it has failed several times in a row",
);
