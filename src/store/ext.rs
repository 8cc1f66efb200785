//! [`StoreExt`]: a method for each operation, in one place.

use crate::{
    domain::{
        block::{Block, BlockRequest, BlockedIdentity},
        contributors::Contributors,
        decision::Usage,
        denials::DeniedIdentity,
        error::StoreError,
        key::Key,
        operation::{Operation, Reply, answer_of},
        policy::Policy,
        report::{Account, Ranking},
        rule::Rule,
        settlement::Settlement,
        slots::{HeldSlots, Slots},
    },
    store::{Store, StoreFuture},
};

/// [Executes](Store::execute) operations on any [`Store`], and reads their replies.
///
/// Each method returns the store's error, such as [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) if
/// the store does not know the operation.
pub trait StoreExt: Store {
    /// [`Operation::Settle`]; returns the usage after settling.
    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        let settle = Operation::Settle(settlement.clone());
        read(self.execute(settle), answer_of!(Settle))
    }

    /// [`Operation::Renew`].
    fn renew(&self, slots: &Slots) -> StoreFuture<HeldSlots> {
        let renew = Operation::Renew(slots.clone());
        read(self.execute(renew), answer_of!(Renew))
    }

    /// [`Operation::Return`].
    fn give_back(&self, slots: &Slots) -> StoreFuture<HeldSlots> {
        let give_back = Operation::Return(slots.clone());
        read(self.execute(give_back), answer_of!(Return))
    }

    /// [`Operation::Reset`].
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), key.clone());
        let reset = self.execute(Operation::Reset { policy, key });
        reset.map(drop)
    }

    /// [`Operation::Block`]; returns the block that is in force.
    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        let key = key.clone();
        let block = self.execute(Operation::Block { key, request });
        read(block, answer_of!(Block))
    }

    /// [`Operation::Ban`]; returns the block that is in force, or `None` if there are too few strikes.
    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        let key = key.clone();
        let ban = Operation::Ban {
            key,
            strikes,
            request,
        };
        read(self.execute(ban), answer_of!(Ban))
    }

    /// [`Operation::Unblock`].
    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        let key = key.clone();
        self.execute(Operation::Unblock { key }).map(drop)
    }

    /// [`Operation::ListBlocks`].
    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        let blocks = self.execute(Operation::ListBlocks { most });
        read(blocks, answer_of!(ListBlocks))
    }

    /// Reads the [contributors](crate::contributors) to the charges of a key under a policy, in the current window.
    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        let (policy, key) = (policy.clone(), key.clone());
        let account = Account::Contributors { policy, key };
        rankings(self, account).map(Contributors::of)
    }

    /// Lists the identities that were [denied](crate::denials) within the last hour.
    fn denials(&self) -> StoreFuture<Vec<DeniedIdentity>> {
        rankings(self, Account::Denials).map(DeniedIdentity::list)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// [`Operation::Rankings`].
pub(crate) fn rankings(
    store: &(impl Store + ?Sized),
    account: Account,
) -> StoreFuture<Vec<Ranking>> {
    read(
        store.execute(Operation::Rankings(account)),
        answer_of!(Rankings),
    )
}

/// Extracts the answer from the reply with `read`. A reply to another operation is an error.
pub(crate) fn read<T: Send + 'static>(
    reply: StoreFuture<Reply>,
    read: fn(Reply) -> Option<T>,
) -> StoreFuture<T> {
    reply.then(move |reply| read(reply?).ok_or(ANOTHER_REPLY))
}

pub(crate) const ANOTHER_REPLY: StoreError =
    StoreError::protocol("the store answered another operation");
