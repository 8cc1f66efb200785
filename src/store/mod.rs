#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/stores.md"))]
//!
//! ```
#![doc = include_str!("../../examples/custom_store.rs")]
//! ```

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

#[cfg(feature = "redis")]
use self::redis::Queued;
pub use crate::domain::{
    check::{Check, CheckBatch},
    decision::Count,
    operation::{Operation, Reply},
    settlement::Settlement,
    slot_id::SlotId,
    slots::{HeldSlots, Slots},
};
use crate::{
    domain::{
        decision::Decision,
        error::{StoreError, StoreErrorKind},
    },
    store::{maybe_ready::MaybeReady, sent::Sent},
};

pub mod engine;
mod entry;
mod leases;
pub(crate) mod maybe_ready;
mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub(crate) mod sent;

pub use leases::Leases;
pub use memory::MemoryStore;

/// Keeps the counts and decides atomically.
///
/// The contract, which one test suite checks for every store:
///
/// - A check is all or nothing, also against checks that run at the same time: either the store adds every charge to
///   every rule of its policy, or nothing changes.
/// - The store decides [shadow charges](Check::shadow_charges) after the others, only if those were admitted, and all
///   or nothing among themselves. [`Decision::with_shadow`] reports that decision. A failure of the shadows changes
///   nothing else.
/// - The store's own clock decides, in whole milliseconds. Callers' clocks have no effect.
/// - `Err` means that the store could not decide. It is never a denial, and a denial is never an `Err`.
/// - If you drop a future, the store has executed each operation either completely or not at all.
/// - A store need not limit its waiting time: the [`Limiter`](crate::Limiter) has a timeout. Afterwards, it keeps a future
///   whose operation may have been executed, and polls it on in [another runtime](self#the-life-of-a-future).
/// - A poll does not block: all limiters of a process share the thread that polls late futures.
///
/// Futures own their data, so you can keep them longer than the store.
///
/// Services call a [`Limiter`](crate::Limiter), which has a method for each operation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "a store has to be connected: `RedisStore::connect(url).await?`; for counts in memory, `MemoryStore::new()`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides a check, and charges if all charges fit. The same as [`Operation::Check`], without the detour by
    /// `execute`.
    fn check(&self, check: &Check) -> StoreFuture<Decision>;

    /// Executes one operation of any kind. Return [`unsupported`](Operation::unsupported) for operations that your
    /// store does not know.
    fn execute(&self, operation: Operation) -> StoreFuture<Reply>;

    /// Executes several operations in this order. Each is all or nothing separately, and has its own result.
    ///
    /// After an error of the whole call you know nothing about the operations: the store may have executed each of them
    /// or not. The default [executes](Self::execute) one after the other: it creates all futures, and then awaits them
    /// in this order.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        one_by_one(self, operations)
    }

    /// The store that this layer wraps. The default is `None`: not a layer.
    ///
    /// A [`Limiter`](crate::Limiter) looks through this chain for what it has to know of the stores of this crate.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Whether only this process can read what the store keeps. By default, the answer of the store that this layer wraps.
    #[doc(hidden)]
    fn is_private(&self) -> bool {
        self.inner().is_some_and(Store::is_private)
    }

    /// Whether the store has several parts that fail independently, so that a failure of one says nothing about the
    /// others. By default, the answer of the store that this layer wraps.
    #[doc(hidden)]
    fn fails_apart(&self) -> bool {
        self.inner().is_some_and(Store::fails_apart)
    }
}

/// Executes operations one after the other.
fn one_by_one(store: &(impl Store + ?Sized), operations: Vec<Operation>) -> CallFuture {
    let replies = operations.into_iter().map(|it| store.execute(it));
    let replies: Vec<_> = replies.collect();
    StoreFuture::pending(async move {
        let mut results = Vec::with_capacity(replies.len());
        for reply in replies {
            results.push(reply.await);
        }
        Ok(results)
    })
}

/// You can use a shared store as a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        (**self).check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        (**self).execute(operation)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        (**self).call(operations)
    }

    fn inner(&self) -> Option<&dyn Store> {
        (**self).inner()
    }

    fn is_private(&self) -> bool {
        (**self).is_private()
    }

    fn fails_apart(&self) -> bool {
        (**self).fails_apart()
    }
}

/// The future of a call: a result for each operation, in their order.
pub type CallFuture = StoreFuture<Vec<Result<Reply, StoreError>>>;

/// The future of a store's answer. It may be ready from the start.
///
/// A store that answers without waiting allocates nothing for the future. One that has to wait may be polled by [another
/// runtime](self#the-life-of-a-future) in the end.
pub struct StoreFuture<T>(Answer<T>);

enum Answer<T> {
    /// With a mark, if the operation may wait for its turn.
    Any(MaybeReady<Result<T, StoreError>>, Option<Sent>),
    #[cfg(feature = "redis")]
    Queued(Queued<T>),
}

/// The fate of an operation whose caller leaves.
pub(crate) enum Left<T> {
    /// The caller has taken the answer.
    Answered,
    /// It is never sent.
    Unsent,
    /// It may have been sent: this is the rest of the wait.
    Late(StoreFuture<T>),
}

/// The error of a caller that has waited for its timeout.
pub(crate) const TIMED_OUT: StoreError =
    StoreError::new(StoreErrorKind::Timeout, "no answer within the timeout");

impl<T> StoreFuture<T> {
    /// An answer that is ready.
    #[must_use]
    pub const fn ready(result: Result<T, StoreError>) -> Self {
        Self::any(MaybeReady::ready(result))
    }

    /// An answer that you have to wait for.
    #[must_use]
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self::any(MaybeReady::pending(future))
    }

    const fn any(answer: MaybeReady<Result<T, StoreError>>) -> Self {
        Self(Answer::Any(answer, None))
    }

    /// The answer to an operation that waits in a line.
    #[cfg(feature = "redis")]
    pub(crate) const fn in_line(queued: Queued<T>) -> Self {
        Self(Answer::Queued(queued))
    }

    /// The same answer to an operation that may wait for its turn.
    #[cfg(feature = "redis")]
    pub(crate) fn queued(self, sent: Option<Sent>) -> Self {
        match self.0 {
            Answer::Any(answer, _) => Self(Answer::Any(answer, sent)),
            queued @ Answer::Queued(_) => Self(queued),
        }
    }

    /// Takes the answer if it is ready.
    #[allow(clippy::result_large_err, reason = "the caller keeps the future")]
    pub(crate) fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            Answer::Any(answer, sent) => answer
                .into_ready()
                .map_err(|answer| Self(Answer::Any(answer, sent))),
            #[cfg(feature = "redis")]
            queued @ Answer::Queued(_) => Err(Self(queued)),
        }
    }

    /// Sets how long the caller waits, before it waits. A store that looks after that itself answers late by a few
    /// milliseconds at most: that has a [`deadline`](Self::deadline). For another, the caller needs a timer.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "only a store over a network has a line")
    )]
    pub(crate) const fn set_timeout(&mut self, timeout: Duration) {
        match &mut self.0 {
            Answer::Any(..) => {}
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => queued.set_timeout(timeout),
        }
    }

    /// The end of the timeout that the store looks after, now that the caller waits.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Answer::Any(..) => None,
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => queued.deadline(),
        }
    }

    /// Returns the mark by which the sender or a leaving caller decides whether the operation is sent.
    pub(crate) fn sent(&mut self) -> Option<&Sent> {
        match &mut self.0 {
            Answer::Any(_, sent) => sent.as_ref(),
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => queued.sent(),
        }
    }

    /// Sees to it that the operation is not sent, if it was not. Otherwise, the answer can still be waited for.
    pub(crate) fn is_never_sent(&mut self) -> bool {
        match &mut self.0 {
            Answer::Any(_, sent) => sent.as_ref().is_some_and(Sent::leave),
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => queued.is_never_sent(),
        }
    }

    /// Leaves, and says what becomes of the operation.
    pub(crate) fn leave(&mut self) -> Left<T> {
        let is_over = match &self.0 {
            Answer::Any(answer, _) => matches!(answer, MaybeReady::Ready(None)),
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => queued.is_over(),
        };
        if is_over {
            return Left::Answered;
        }
        if self.is_never_sent() {
            return Left::Unsent;
        }
        let taken = Self::any(MaybeReady::Ready(None));
        Left::Late(mem::replace(self, taken))
    }
}

impl<T: Send + 'static> StoreFuture<T> {
    /// Converts the answer, and leaves an error unchanged.
    #[must_use]
    #[doc(hidden)]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> StoreFuture<U> {
        self.then(|result| result.map(change))
    }

    /// Converts the answer or the error.
    pub(crate) fn then<U>(
        mut self,
        change: impl FnOnce(Result<T, StoreError>) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        let sent = self.sent().cloned();
        let answer = match self.0 {
            Answer::Any(MaybeReady::Ready(result), _) => MaybeReady::Ready(result.map(change)),
            Answer::Any(MaybeReady::Pending(future), _) => {
                MaybeReady::pending(async { change(future.await) })
            }
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => MaybeReady::pending(async { change(queued.await) }),
        };
        StoreFuture(Answer::Any(answer, sent))
    }
}

impl StoreFuture<Reply> {
    /// Extracts the answer from the reply with `read`. A reply to another operation is an error.
    pub(crate) fn read<T: Send + 'static>(self, read: fn(Reply) -> Option<T>) -> StoreFuture<T> {
        self.then(move |reply| read(reply?).ok_or(ANOTHER_REPLY))
    }
}

#[cfg(feature = "redis")]
impl CallFuture {
    /// The reply to the only operation of the call.
    pub(crate) fn only(self) -> StoreFuture<Reply> {
        self.then(|replies| replies?.pop().unwrap_or(Err(ANOTHER_REPLY)))
    }
}

pub(crate) const ANOTHER_REPLY: StoreError =
    StoreError::protocol("the store answered another operation");

impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answer::Any(answer, _) => {
                let result = ready!(Pin::new(&mut *answer).poll(cx));
                *answer = MaybeReady::Ready(None);
                Poll::Ready(result)
            }
            #[cfg(feature = "redis")]
            Answer::Queued(queued) => Pin::new(queued).poll(cx),
        }
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = matches!(self.0, Answer::Any(MaybeReady::Ready(_), _));
        f.debug_struct("StoreFuture")
            .field("ready", &ready)
            .finish_non_exhaustive()
    }
}
