#![doc = include_str!("../../docs/guide/stores.md")]
//!
//! ```
#![doc = include_str!("../../examples/own_store.rs")]
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

pub use crate::domain::{
    check::Check,
    decision::Count,
    operation::{Operation, Reply},
    settlement::Settlement,
};
use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedIdentity},
        contributors::{Contribution, Contributors, Kept},
        decision::{Decision, Usage},
        denials::{DenialReport, Denials},
        error::StoreError,
        key::Key,
        policies::PublishedPolicy,
        policy::Policy,
        rule::Rule,
        sent_call::{Blame, Journey},
    },
    store::eventual::{Eventual, join_all},
};

pub(crate) mod eventual;
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "a store has to be connected: `RedisStore::connect(url).await?`; for counts in memory, `MemoryStore::new()`"
)]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides a check and charges it if it is allowed.
    fn check(&self, check: &Check) -> StoreFuture<Decision>;

    /// Gives each charge of an admitted check its final cost, in the step that it was charged to, and answers what is
    /// left.
    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage>;

    /// Forgets everything that was charged to this key under this policy.
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()>;

    /// Blocks an identity, unless it is blocked for longer, and answers the block that holds; its
    /// [details](BlockRequest::details) are kept with it for [`blocks`](Self::blocks). Checks that
    /// [enforce blocks](Check::enforces_blocks) are then answered [`Decision::Blocked`], if one of their
    /// [keys](Check::keys) is blocked at the store's time, with the latest of their blocks.
    ///
    /// The default is an error: the store keeps no blocks.
    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        let _ = (key, request);
        StoreFuture::ready(Err(NO_BLOCKS))
    }

    /// Blocks an identity by a [ban](crate::block#bans), unless it is blocked for longer, and forgets its strikes; but
    /// only if they still reach the limit of this rule. Answers the block that holds, or `None` if they do not.
    ///
    /// [Unblocking](Store::unblock) comes wholly before it, and then there are no strikes, or wholly after it. The
    /// default is an error: the store keeps no blocks.
    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        let _ = (key, strikes, request);
        StoreFuture::ready(Err(NO_BLOCKS))
    }

    /// Ends all blocks of an identity, and forgets the strikes of its [bans](crate::block#bans).
    ///
    /// The default is an error: the store keeps no blocks.
    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        let _ = key;
        StoreFuture::ready(Err(NO_BLOCKS))
    }

    /// Lists who is blocked now: at most so many, in no order. It may have to look at all that the store keeps.
    ///
    /// The default is an error: the store keeps no blocks.
    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        let _ = most;
        StoreFuture::ready(Err(NO_BLOCKS))
    }

    /// Does several operations, in this order, each all or nothing on its own and answered on its own.
    ///
    /// An error of the call as a whole means that nothing is known of any of them: each may or may not have been done.
    /// The default makes the futures of all, of a fill one for each of its checks, and then awaits one after the other.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let replies: Vec<_> = operations.iter().map(|it| call_one(self, it)).collect();
        StoreFuture::pending(async move {
            let mut results = Vec::with_capacity(replies.len());
            for reply in replies {
                results.push(reply.await);
            }
            Ok(results)
        })
    }

    /// Whether a store that fails one check would fail the others too. The default is yes.
    ///
    /// A store of several parts that fail apart, such as a cluster, says no: then the limiter's
    /// [breaker](crate::limiter#when-the-store-cannot-decide) does not open, unless the limiter is given an interval
    /// for it.
    fn single_failure_domain(&self) -> bool {
        true
    }

    /// Adds what processes have admitted, by [those who contributed](crate::contributors). Answers one by one, in their
    /// order.
    ///
    /// Of the labels of one account in one sixth of a window, those are kept that have most. What cannot be added is
    /// lost, and no check waits for it. The default is an error: the store keeps no contributors.
    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        let _ = contributions;
        StoreFuture::ready(Err(NO_CONTRIBUTORS))
    }

    /// Tells who has contributed most to what was charged to this key under this policy, in the current window. The
    /// default is an error: the store keeps no contributors.
    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        let _ = (policy, key);
        StoreFuture::ready(Err(NO_CONTRIBUTORS))
    }

    /// Adds what a process has counted of [denied identities](crate::denials), a report for each span of ten seconds.
    ///
    /// What cannot be added is lost, and no check waits for it. The default is an error: the store keeps no denials.
    /// Then the limiter counts none.
    fn report_denials(&self, reports: &[DenialReport]) -> StoreFuture<()> {
        let _ = reports;
        StoreFuture::ready(Err(NO_DENIALS))
    }

    /// Lists the identities that were denied within the last hour. The default is an error: the store keeps no denials.
    fn denials(&self) -> StoreFuture<Denials> {
        StoreFuture::ready(Err(NO_DENIALS))
    }

    /// Publishes these policies beside what the processes of other services publish, for operators' tools, and keeps
    /// them for a day. `None` where the store publishes nothing, which is the default.
    fn publish(&self, policies: &[PublishedPolicy]) -> Option<StoreFuture<()>> {
        let _ = policies;
        None
    }

    /// Tells how long a [`Limiter`](crate::Limiter) over this store waits for one call, so that timeouts of the store's
    /// own are no shorter. The default does nothing.
    fn set_timeout(&self, timeout: Duration) {
        let _ = timeout;
    }
}

const NO_BLOCKS: StoreError = StoreError::invalid_request("the store keeps no blocks");
const NO_CONTRIBUTORS: StoreError = StoreError::invalid_request("this store keeps no contributors");
const NO_DENIALS: StoreError = StoreError::invalid_request("this store keeps no denials");

/// One operation by the method for it.
fn call_one(store: &(impl Store + ?Sized), operation: &Operation) -> StoreFuture<Reply> {
    match operation {
        Operation::Check(check) => store.check(check).map(Reply::Check),
        Operation::Fill { check, count } => {
            let decisions: Vec<_> = (0..*count).map(|_| store.check(check)).collect();
            StoreFuture::pending(async move {
                let mut fill = Vec::with_capacity(decisions.len());
                for decision in decisions {
                    fill.push(decision.await?);
                }
                Ok(Reply::Fill(fill))
            })
        }
        Operation::Settle(settlement) => store.settle(settlement).map(Reply::Settle),
        Operation::Reset { policy, key } => store.reset(policy, key).map(|()| Reply::Reset),
        Operation::Block { key, request } => store.block(key, request.clone()).map(Reply::Block),
        Operation::Ban {
            key,
            strikes,
            request,
        } => store.ban(key, *strikes, request.clone()).map(Reply::Ban),
        Operation::Unblock { key } => store.unblock(key).map(|()| Reply::Unblock),
    }
}

/// A shared store is a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        (**self).check(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        (**self).settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        (**self).reset(policy, key)
    }

    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        (**self).block(key, request)
    }

    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        (**self).ban(key, strikes, request)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        (**self).unblock(key)
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        (**self).blocks(most)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        (**self).call(operations)
    }

    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        (**self).contribute(contributions)
    }

    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        (**self).contributors(policy, key)
    }

    fn report_denials(&self, reports: &[DenialReport]) -> StoreFuture<()> {
        (**self).report_denials(reports)
    }

    fn denials(&self) -> StoreFuture<Denials> {
        (**self).denials()
    }

    fn publish(&self, policies: &[PublishedPolicy]) -> Option<StoreFuture<()>> {
        (**self).publish(policies)
    }

    fn single_failure_domain(&self) -> bool {
        (**self).single_failure_domain()
    }

    fn set_timeout(&self, timeout: Duration) {
        (**self).set_timeout(timeout);
    }
}

/// The future of a call: a result for each of its operations, in their order.
pub type CallFuture = StoreFuture<Vec<Result<Reply, StoreError>>>;

/// The future of [`Store::contribute`]: what was kept of each contribution, in their order.
pub type ContributeFuture = StoreFuture<Vec<Result<Kept, StoreError>>>;

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

    /// The call that a caller may blame after it has waited this long in vain: none that was in flight for less than half
    /// of it.
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
