#![doc = include_str!("../../docs/guide/stores.md")]
//!
//! ```
#![doc = include_str!("../../examples/custom_store.rs")]
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

#[doc(hidden)] // The limiter has these methods for users; tests call stores directly.
pub use self::ext::StoreExt;
pub use crate::domain::{
    check::{Check, CheckBatch},
    decision::Count,
    operation::{Operation, Reply},
    settlement::Settlement,
    slots::{HeldSlots, SlotId, Slots},
};
use crate::{
    domain::{decision::Decision, error::StoreError},
    store::{
        maybe_ready::{MaybeReady, join_all},
        sent::Sent,
    },
};

mod engine;
mod entry;
pub(crate) mod ext;
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
/// - A store need not limit its waiting time: the [`Limiter`](crate::Limiter) has a timeout.
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

    /// Whether the store has several parts that fail independently, so that a failure of one says nothing about the
    /// others. By default, the answer of the store that this layer wraps.
    #[doc(hidden)]
    fn fails_apart(&self) -> bool {
        self.inner().is_some_and(Store::fails_apart)
    }
}

/// Executes operations one after the other. The returned future is ready if all replies are.
fn one_by_one(store: &(impl Store + ?Sized), operations: Vec<Operation>) -> CallFuture {
    let mut results = Vec::with_capacity(operations.len());
    let replies = operations
        .into_iter()
        .map(|operation| store.execute(operation));
    let mut replies = replies.collect::<Vec<_>>().into_iter();
    while let Some(mut reply) = replies.next() {
        if let Some(result) = reply.take_ready() {
            results.push(result);
            continue;
        }
        return StoreFuture::pending(async move {
            results.push(reply.await);
            for reply in replies {
                results.push(reply.await);
            }
            Ok(results)
        });
    }
    StoreFuture::ready(Ok(results))
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

    fn fails_apart(&self) -> bool {
        (**self).fails_apart()
    }
}

/// The future of a call: a result for each operation, in their order.
pub type CallFuture = StoreFuture<Vec<Result<Reply, StoreError>>>;

/// The future of a store's answer. It may be ready from the start.
///
/// A store that answers without waiting allocates nothing for the future.
pub struct StoreFuture<T> {
    answer: MaybeReady<Result<T, StoreError>>,
    /// Set for an operation that may wait for its turn.
    sent: Option<Sent>,
}

impl<T> StoreFuture<T> {
    /// An answer that is ready.
    #[must_use]
    pub const fn ready(result: Result<T, StoreError>) -> Self {
        Self {
            answer: MaybeReady::ready(result),
            sent: None,
        }
    }

    /// An answer that you have to wait for.
    #[must_use]
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self {
            answer: MaybeReady::pending(future),
            sent: None,
        }
    }

    /// The same answer to an operation that may wait for its turn.
    #[cfg(feature = "redis")]
    pub(crate) fn queued(mut self, sent: Option<Sent>) -> Self {
        self.sent = sent;
        self
    }

    /// Takes the answer if it is ready.
    pub(crate) const fn take_ready(&mut self) -> Option<Result<T, StoreError>> {
        self.answer.take_ready()
    }

    /// Returns the mark by which the sender or a leaving caller decides whether the operation is sent.
    pub(crate) const fn sent(&self) -> Option<&Sent> {
        self.sent.as_ref()
    }

    /// Leaves without the answer. Returns whether the operation is never sent.
    pub(crate) fn leave(&mut self) -> bool {
        self.answer = MaybeReady::Ready(None);
        self.sent.as_ref().is_some_and(Sent::leave)
    }
}

impl<T: Send + 'static> StoreFuture<T> {
    /// Converts the answer, and leaves an error unchanged.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> StoreFuture<U> {
        self.then(|result| result.map(change))
    }

    /// Converts the answer or the error.
    pub(crate) fn then<U>(
        self,
        change: impl FnOnce(Result<T, StoreError>) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        let answer = match self.answer {
            MaybeReady::Ready(result) => MaybeReady::Ready(result.map(change)),
            MaybeReady::Pending(future) => MaybeReady::pending(async { change(future.await) }),
        };
        StoreFuture {
            answer,
            sent: self.sent,
        }
    }

    /// Waits for all answers at the same time.
    pub(crate) fn all(answers: Vec<Self>) -> StoreFuture<Vec<Result<T, StoreError>>> {
        let sent: Option<Arc<[_]>> = answers.iter().map(|answer| answer.sent.clone()).collect();
        let answers = join_all(answers);
        StoreFuture {
            answer: MaybeReady::pending(async { Ok(answers.await) }),
            sent: sent.map(Sent::All),
        }
    }

    /// The same answer, with a guard that the caller made before the call began. The guard is dropped when the answer
    /// or an error arrives, or with this future.
    pub(crate) fn holding(self, guard: impl Send + 'static) -> Self {
        self.then(move |result| {
            drop(guard);
            result
        })
    }
}

impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx)
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = matches!(self.answer, MaybeReady::Ready(_));
        f.debug_struct("StoreFuture")
            .field("ready", &ready)
            .finish_non_exhaustive()
    }
}
