#![doc = include_str!("../../docs/guide/stores.md")]
//!
//! ```
#![doc = include_str!("../../examples/custom_store.rs")]
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
    time::Duration,
};

pub use self::ext::StoreExt;
pub use crate::domain::{
    check::Check,
    decision::Count,
    operation::{Operation, Reply},
    settlement::Settlement,
};
use crate::{
    domain::{
        decision::Decision,
        error::StoreError,
        sent_call::{Blame, Journey},
    },
    store::eventual::{Eventual, join_all},
};

mod entry;
pub(crate) mod eventual;
pub(crate) mod ext;
mod layers;
mod memory;
#[cfg(feature = "redis")]
pub mod redis;

pub use layers::{DenyCache, Leases};
pub use memory::MemoryStore;

/// Keeps the counts and decides atomically.
///
/// The contract, which one test suite holds every store to:
///
/// - A check is all or nothing, also against checks that run at the same time: either every charge is added to every
///   rule of its policy, or nothing changes.
/// - [Shadow charges](Check::shadow_charges) are decided after the others, only if those were admitted, and all or
///   nothing among themselves. [`Decision::with_shadow`] tells what they decided; whatever goes wrong with them
///   changes nothing else.
/// - The store's own clock decides, in whole milliseconds; no caller's.
/// - `Err` means that the store could not decide. It is never a denial, and a denial is never an `Err`.
/// - A future that is dropped leaves each operation either wholly done or not at all.
/// - A store need not bound its waiting: the [`Limiter`](crate::Limiter) has a timeout.
///
/// Futures own what they need, so that a caller can keep them without keeping the store.
///
/// [`StoreExt`] has a method for each operation that you may want to call yourself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "a store has to be connected: `RedisStore::connect(url).await?`; for counts in memory, `MemoryStore::new()`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides a check and charges it if it is allowed: [`Operation::Check`], by the shortest way.
    fn check(&self, check: &Check) -> StoreFuture<Decision>;

    /// Does one operation, of any kind. One that the store does not know is answered
    /// [`unsupported`](Operation::unsupported).
    fn execute(&self, operation: Operation) -> StoreFuture<Reply>;

    /// Does several operations, in this order, each all or nothing on its own and answered on its own.
    ///
    /// An error of the call as a whole means that nothing is known of any of them: each may or may not have been done.
    /// The default [executes](Self::execute) one after the other: it makes the futures of all, and then awaits them in
    /// this order.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        one_by_one(self, operations)
    }

    /// The store within, of a layer around a store. The default is `None`.
    ///
    /// A [`Limiter`](crate::Limiter) looks through it for what it has to know about the stores of this crate.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// For the stores of this crate: what a limiter has to know about this one, apart from those within.
    #[doc(hidden)]
    fn properties(&self) -> Properties<'_> {
        Properties::default()
    }
}

/// What a [`Limiter`](crate::Limiter) has to know about a store. It asks each layer itself, so that none has to forward
/// it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Properties<'a> {
    /// Whether the store has several parts that fail apart, so that a failure of one says nothing about the others.
    pub(crate) fails_apart: bool,
    /// Where the store wants to know how long a limiter waits for one call, in ms.
    pub(crate) timeout_ms: Option<&'a AtomicU64>,
}

/// The properties of a store and of all stores within it, the outermost first.
pub(crate) fn properties(store: &dyn Store) -> impl Iterator<Item = Properties<'_>> {
    let layers = std::iter::successors(Some(store), |layer| layer.inner());
    layers.map(Store::properties)
}

/// Executes operations one after the other; answers at once if all answers are known.
fn one_by_one(store: &(impl Store + ?Sized), operations: Vec<Operation>) -> CallFuture {
    let mut results = Vec::with_capacity(operations.len());
    let replies = operations.into_iter().map(|it| store.execute(it));
    let mut replies = replies.collect::<Vec<_>>().into_iter();
    while let Some(mut reply) = replies.next() {
        if let Some(result) = reply.known() {
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

/// A shared store is a store.
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

    fn properties(&self) -> Properties<'_> {
        (**self).properties()
    }
}

/// The future of a call: a result for each of its operations, in their order.
pub type CallFuture = StoreFuture<Vec<Result<Reply, StoreError>>>;

/// The future of a store's answer: known at once, or to be waited for.
///
/// A store that answers at once allocates nothing for it.
pub struct StoreFuture<T> {
    answer: Eventual<Result<T, StoreError>>,
    /// Of an operation that may share its call with others.
    journey: Option<Journey>,
}

impl<T> StoreFuture<T> {
    /// An answer that is known already.
    #[must_use]
    pub const fn ready(result: Result<T, StoreError>) -> Self {
        Self {
            answer: Eventual::ready(result),
            journey: None,
        }
    }

    /// An answer that has to be waited for.
    #[must_use]
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self {
            answer: Eventual::pending(future),
            journey: None,
        }
    }

    /// The same answer, which comes from a call that others may share.
    #[cfg(feature = "redis")]
    pub(crate) fn travelling(mut self, journey: Journey) -> Self {
        self.journey = Some(journey);
        self
    }

    /// The call that a caller may blame after it has waited this long in vain: none that was in flight for less than
    /// half of it.
    /// `None` if the call is the caller's alone.
    pub(crate) fn blame(&self, waited: Duration) -> Option<Blame> {
        self.journey.as_ref().map(|it| it.blame(waited / 2))
    }

    /// Takes the answer if it is known already.
    pub(crate) const fn known(&mut self) -> Option<Result<T, StoreError>> {
        self.answer.known()
    }
}

impl<T: Send + 'static> StoreFuture<T> {
    /// The same answer in another form.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> StoreFuture<U> {
        self.then(|result| result.map(change))
    }

    /// What `change` makes of the answer or the error.
    pub(crate) fn then<U>(
        self,
        change: impl FnOnce(Result<T, StoreError>) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        let answer = match self.answer {
            Eventual::Known(result) => Eventual::Known(result.map(change)),
            Eventual::Pending(future) => Eventual::pending(async { change(future.await) }),
        };
        StoreFuture {
            answer,
            journey: self.journey,
        }
    }

    /// The answers of both, which are begun and waited for at the same time.
    pub(crate) fn both(self, other: Self) -> StoreFuture<Vec<Result<T, StoreError>>> {
        let journey = self.journey.clone();
        let answers = join_all(vec![self, other]);
        StoreFuture {
            answer: Eventual::pending(async { Ok(answers.await) }),
            journey,
        }
    }

    /// The same answer. The guard, which is to be made before the call begins, is dropped when the answer is there,
    /// whatever it is, or when nobody waits for it any more.
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
        let ready = matches!(self.answer, Eventual::Known(_));
        f.debug_struct("StoreFuture")
            .field("ready", &ready)
            .finish_non_exhaustive()
    }
}
