//! Operations whose keys are in several hash slots of a cluster, each on some node: each part of the charges is executed
//! apart, at the same time.

mod check;
mod moving;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use redis::cluster_routing::Slot as HashSlot;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    RedisStore,
    background::{self, Outliving},
    connection::PART_TIMEOUT,
    error::{NO_RUNTIME, SHUT_DOWN},
};
use crate::{
    background::Task as Job,
    domain::{
        charge::Charge,
        check::{Check, CheckBatch},
        decision::{Decision, RuleUsage, Usage},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply, answer_of},
        settlement::Settlement,
    },
    store::{StoreFuture, maybe_ready::join_all, sent::Sent},
    timer,
};

/// The charges of a check that count, in parts that are decided apart.
#[derive(Default)]
struct Parts {
    /// The indices of the charges of each part.
    charges: Vec<Vec<usize>>,
    /// Whether each part is a key of a hash slot that is being moved.
    are_keys: bool,
    /// One of the jobs that a store may have, until the last roll-back.
    job: Option<Arc<Job>>,
}

impl Parts {
    /// The check of each part. That of a key reads no block, which is another key.
    fn of(&self, check: &Check) -> impl Iterator<Item = Check> {
        let enforces_blocks = check.enforces_blocks() && !self.are_keys;
        let parts = self.charges.iter().map(|charges| check.pick(charges));
        parts.map(move |part| part.enforce_blocks(enforces_blocks))
    }

    /// Returns the first known decision time of the parts, and the usage of the whole check in the order of the charges.
    fn join(&self, check: &Check, usages: &[Usage]) -> (u64, Vec<RuleUsage>) {
        let mut times = usages.iter().map(Usage::decided_at_ms);
        let decided_at_ms = times.find(|time| *time > 0).unwrap_or(0);
        let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
        for (charges, usage) in self.charges.iter().zip(usages) {
            for (index, of_policy) in charges.iter().zip(usage.policies()) {
                rules[*index] = of_policy.rules();
            }
        }
        (decided_at_ms, rules.concat())
    }
}

impl RedisStore {
    /// Whether all keys of these operations are in one hash slot.
    pub(super) fn are_in_one_hash_slot(&self, operations: &[Operation]) -> bool {
        self.common_hash_slot(operations.iter().flat_map(keys))
            .is_some()
    }

    /// The answer to an operation with the keys of this check, if they are in several hash slots.
    pub(super) fn in_several_hash_slots(
        &self,
        check: Option<&Check>,
        operation: impl FnOnce() -> Operation,
    ) -> Option<StoreFuture<Reply>> {
        let parts = self.several_hash_slots(check?)?;
        let sent = Sent::queued();
        let reply = StoreFuture::pending(self.execute_apart(operation(), parts, &sent));
        Some(reply.queued(Some(sent)))
    }

    /// Executes an operation on each part of the charges that count, in a task: a caller that does not poll this future
    /// delays no roll-back. `sent` is for all parts.
    fn execute_apart(
        &self,
        operation: Operation,
        mut parts: Parts,
        sent: &Sent,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send + 'static {
        let (store, mark) = (self.clone(), sent.clone());
        async move {
            Handle::try_current().map_err(|_| NO_RUNTIME)?;
            parts.job = Some(Arc::new(store.room.begin().ok_or(TOO_MANY)?));
            let room = Arc::clone(&store.room);
            let (mut reply, answer) = oneshot::channel();
            let part_mark = mark.clone();
            let work = async move { store.do_apart(operation, &parts, &part_mark).await };
            let work = Outliving::new(&room, work, Some(mark.clone()));
            background::spawn(async move {
                // The work of a caller that leaves goes on in the back room, unless nothing was sent.
                let Either::Left((done, _)) = select(work, pin!(reply.closed())).await else {
                    return;
                };
                let _ = reply.send(done);
            });
            let answer = answer.await;
            answer.unwrap_or_else(|_| Err(SHUT_DOWN.unsent_if(mark.leave())))
        }
    }

    async fn do_apart(
        &self,
        operation: Operation,
        parts: &Parts,
        sent: &Sent,
    ) -> Result<Reply, StoreError> {
        Ok(match operation {
            Operation::Check(check) => Reply::Check(self.check_apart(&check, parts, sent).await?),
            Operation::CheckBatch(batch) => {
                Reply::CheckBatch(self.check_one_by_one(&batch, parts, sent).await?)
            }
            Operation::Settle(settlement) => {
                Reply::Settle(self.settle_apart(&settlement, parts, sent).await?)
            }
            other => self.execute_one(other, None, Some).await?,
        })
    }

    /// Decides the checks of a batch one after another. Behind the first that is not admitted, none is.
    async fn check_one_by_one(
        &self,
        batch: &CheckBatch,
        parts: &Parts,
        sent: &Sent,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut decisions = Vec::new();
        for place in 0..batch.count() {
            let decision = self.check_apart(batch.nth(place), parts, sent).await?;
            if !decision.is_allowed() {
                decisions.resize(batch.count().into(), decision);
                break;
            }
            decisions.push(decision);
        }
        Ok(decisions)
    }

    /// Settles all parts at the same time. If one fails, others may have been settled, unless all fail before they are
    /// sent.
    async fn settle_apart(
        &self,
        settlement: &Settlement,
        parts: &Parts,
        sent: &Sent,
    ) -> Result<Usage, StoreError> {
        let settle = |charges: &Vec<usize>| {
            let part = Operation::Settle(settlement.pick(charges));
            let answer = self.execute_one(part, Some(sent.clone()), answer_of!(Settle));
            Box::pin(within(PART_TIMEOUT, answer))
        };
        let answers = join_all(parts.charges.iter().map(settle).collect()).await;
        let mut errors = answers.iter().map(|answer| answer.as_ref().err());
        let is_unsent = errors.all(|error| error.is_some_and(StoreError::is_unsent));
        let usages: Result<Vec<_>, _> = answers.into_iter().collect();
        let usages = usages.map_err(|error| error.maybe_sent().unsent_if(is_unsent))?;
        let check = settlement.check();
        let (decided_at_ms, rules) = parts.join(check, &usages);
        Ok(Usage::of(check, decided_at_ms, rules, false))
    }

    /// The parts of a check by hash slot, if its keys, including shadows, are in several.
    fn several_hash_slots(&self, check: &Check) -> Option<Parts> {
        let may_be = self.transports.is_cluster() && check.all_charges().len() > 1;
        let keys = check.all_charges().iter().map(Charge::key);
        if !may_be || self.common_hash_slot(keys).is_some() {
            return None;
        }
        let (mut hash_slots, mut parts) = (Vec::new(), Parts::default());
        for (index, charge) in check.charges().iter().enumerate() {
            let hash_slot = self.hash_slot(charge.key());
            match hash_slots.iter().position(|other| *other == hash_slot) {
                Some(part) => parts.charges[part].push(index),
                None => {
                    hash_slots.push(hash_slot);
                    parts.charges.push(vec![index]);
                }
            }
        }
        Some(parts)
    }

    /// The hash slot of all these keys; `None` for keys in several, or no keys.
    fn common_hash_slot<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Option<HashSlot> {
        let first = self.hash_slot(keys.next()?);
        keys.all(|key| self.hash_slot(key) == first)
            .then_some(first)
    }

    /// The name of a key in the only hash slot of an operation; empty without keys.
    pub(super) fn routing_key(&self, check: Option<&Check>, key: Option<&Key>) -> Vec<u8> {
        let charge = check.and_then(|check| check.all_charges().first());
        let key = charge.map(Charge::key).or(key);
        key.map(|key| self.names.name("", key)).unwrap_or_default()
    }

    /// The hash slot of all keys of an identity, whatever the policy.
    fn hash_slot(&self, key: &Key) -> HashSlot {
        HashSlot::for_key(self.names.name("", key))
    }
}

/// The keys of an operation, including those of shadows.
fn keys(operation: &Operation) -> impl Iterator<Item = &Key> {
    let charges = operation.check().map_or(&[][..], Check::all_charges);
    charges.iter().map(Charge::key).chain(operation.key())
}

/// Waits for the answer of one part. A part that was not sent by the end of the time is never sent.
async fn within<T>(time: Duration, mut answer: StoreFuture<T>) -> Result<T, StoreError> {
    match timer::within(time, &mut answer).await {
        Some(result) => result,
        None => Err(TOO_LATE.unsent_if(answer.is_never_sent())),
    }
}

const TOO_MANY: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "too many operations over several hash slots are under way",
)
.unsent();

const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "a part of the Redis cluster did not answer in time",
);
