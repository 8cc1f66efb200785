//! The parts of a check in several slots, how each part is asked, and what all of them say.

use std::time::Duration;

use redis::cluster_routing::Slot;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{RuleUsage, Usage},
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply},
    },
    store::{
        StoreFuture,
        ext::read,
        redis::{
            RedisStore, background,
            connection::PART_TIMEOUT,
            error::{NO_RUNTIME, SHUT_DOWN},
        },
        sent::Sent,
    },
    timer,
};

/// The charges of a check that count, in parts that are decided apart.
#[derive(Default)]
pub(super) struct Parts {
    /// The indices of the charges of each part.
    pub(super) charges: Vec<Vec<usize>>,
    /// Whether each part is a key of a slot that is being moved.
    pub(super) are_keys: bool,
}

impl Parts {
    /// The check of each part. That of a key reads no block, which is another key.
    pub(super) fn of(&self, check: &Check) -> impl Iterator<Item = Check> {
        let enforces_blocks = check.enforces_blocks() && !self.are_keys;
        let parts = self.charges.iter().map(|charges| check.pick(charges));
        parts.map(move |part| part.enforce_blocks(enforces_blocks))
    }

    /// Returns the first known decision time of the parts, and the usage of the whole check in the order of the charges.
    pub(super) fn join(&self, check: &Check, usages: &[Usage]) -> (u64, Vec<RuleUsage>) {
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
    /// The parts of a check by slot, if its keys, including shadows, are in several.
    pub(super) fn several_slots(&self, check: &Check) -> Option<Parts> {
        let may_be = self.transports.is_cluster() && check.all_charges().len() > 1;
        if !may_be || self.common_slot(check).is_some() {
            return None;
        }
        let (mut slots, mut parts) = (Vec::new(), Parts::default());
        for (index, charge) in check.charges().iter().enumerate() {
            let slot = self.slot(charge.key());
            match slots.iter().position(|other| *other == slot) {
                Some(part) => parts.charges[part].push(index),
                None => {
                    slots.push(slot);
                    parts.charges.push(vec![index]);
                }
            }
        }
        Some(parts)
    }

    /// Executes a part, unless the caller leaves before any of those that share the mark is sent. A part can share a call
    /// with others.
    pub(super) fn execute_part<T: Send + 'static>(
        &self,
        part: Operation,
        sent: &Sent,
        answer: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        if self.shared.is_none() {
            let reply = self.execute_alone(part, Some(sent.clone()));
            return read(StoreFuture::pending(reply), answer);
        }
        let mut answer = self.execute_one(part, answer);
        answer.share(sent);
        answer
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
    fn slot(&self, key: &Key) -> Slot {
        Slot::for_key(self.names.name("", key))
    }
}

/// Waits for the result of work that goes on when the caller leaves, and when the runtime ends, in the back room.
pub(super) async fn answered<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    Handle::try_current().map_err(|_| NO_RUNTIME)?;
    let (caller, answer) = oneshot::channel();
    background::outlive(async {
        let _ = caller.send(work.await);
    });
    answer.await.unwrap_or(Err(SHUT_DOWN))
}

/// Waits for the answer of one part. A part that was not sent by the end of that time is never sent.
pub(super) async fn in_time<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    within(PART_TIMEOUT, answer).await
}

/// The same within another time.
pub(super) async fn within<T>(time: Duration, mut answer: StoreFuture<T>) -> Result<T, StoreError> {
    match timer::within(time, &mut answer).await {
        Some(result) => result,
        None => Err(TOO_LATE.unsent_if(answer.is_never_sent())),
    }
}

pub(super) const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "a part of the Redis cluster did not answer in time",
);
