//! Groups the charges of a check by slot, and joins the answers of several slots.

use std::time::Duration;

use redis::cluster_routing::Slot;
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{RuleUsage, Usage},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::Operation,
    },
    store::{
        StoreFuture,
        redis::{
            RedisStore, background,
            connection::PART_TIMEOUT,
            error::{NO_RUNTIME, SHUT_DOWN},
        },
    },
};

/// The charges of a check in each slot: their indices.
pub(super) type Slots = Vec<(Slot, Vec<usize>)>;

impl RedisStore {
    /// The charges that count in each slot, if the keys of the check, including shadows, are in several.
    pub(super) fn several_slots(&self, check: &Check) -> Option<Slots> {
        let may_be = self.transports.is_cluster() && check.all_charges().len() > 1;
        if !may_be || self.common_slot(check).is_some() {
            return None;
        }
        let mut slots = Slots::new();
        for (index, charge) in check.charges().iter().enumerate() {
            let slot = self.slot(charge.key());
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, charges)) => charges.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        Some(slots)
    }

    /// The slot of all keys of a check, including shadows; `None` for keys in several, or no keys.
    fn common_slot(&self, check: &Check) -> Option<Slot> {
        let mut slots = check
            .all_charges()
            .iter()
            .map(|charge| self.slot(charge.key()));
        let first = slots.next()?;
        slots.all(|slot| slot == first).then_some(first)
    }

    /// The slot of an operation; `None` for keys in several, or no keys.
    pub(super) fn only_slot(&self, operation: &Operation) -> Option<Slot> {
        match operation.check() {
            Some(check) => self.common_slot(check),
            None => operation.key().map(|key| self.slot(key)),
        }
    }

    /// The name of a key in the only slot of an operation; empty without keys.
    pub(in crate::store::redis) fn routing_key(&self, operation: Option<&Operation>) -> Vec<u8> {
        let check = operation.and_then(Operation::check);
        check.map_or_else(
            || self.name_of(operation.and_then(Operation::key)),
            |check| self.routing_key_of_check(check),
        )
    }

    /// The same of a check.
    pub(in crate::store::redis) fn routing_key_of_check(&self, check: &Check) -> Vec<u8> {
        self.name_of(check.all_charges().first().map(Charge::key))
    }

    fn name_of(&self, key: Option<&Key>) -> Vec<u8> {
        key.map(|key| self.names.name("", key)).unwrap_or_default()
    }

    /// The slot of all keys of an identity, whatever the policy.
    pub(super) fn slot(&self, key: &Key) -> Slot {
        Slot::for_key(self.names.name("", key))
    }
}

/// Runs a task that answers, and waits for the answer. When the caller leaves, the task goes on; when the runtime ends, in
/// the back room.
pub(super) async fn answered<T, F>(
    task: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = ()> + Send + 'static,
{
    Handle::try_current().map_err(|_| NO_RUNTIME)?;
    let (caller, answer) = oneshot::channel();
    background::outlive(task(caller));
    answer.await.unwrap_or(Err(SHUT_DOWN))
}

/// Waits for the answer of one part. A part that was not sent by the end of that time is never sent.
pub(super) async fn in_time<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    within(PART_TIMEOUT, answer).await
}

/// The same within another time.
pub(super) async fn within<T>(time: Duration, mut answer: StoreFuture<T>) -> Result<T, StoreError> {
    match timeout(time, &mut answer).await {
        Ok(result) => result,
        Err(_) => Err(TOO_LATE.unsent_if(answer.is_never_sent())),
    }
}

pub(super) const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "a part of the Redis cluster did not answer in time",
);

/// Returns the first known decision time of the parts, and the usage of the whole check in the order of the charges.
pub(super) fn join_usages<'a>(
    check: &Check,
    slots: &Slots,
    usages: impl Iterator<Item = &'a Usage> + Clone,
) -> (u64, Vec<RuleUsage>) {
    let mut times = usages.clone().map(Usage::decided_at_ms);
    let decided_at_ms = times.find(|time| *time > 0).unwrap_or(0);
    let mut rules: Vec<&[RuleUsage]> = vec![&[]; check.charges().len()];
    for ((_, charges), usage) in slots.iter().zip(usages) {
        for (index, of_policy) in charges.iter().zip(usage.policies()) {
            rules[*index] = of_policy.rules();
        }
    }
    (decided_at_ms, rules.concat())
}
