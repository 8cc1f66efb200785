//! [`SharedCall`]: operations of several callers that travel together.

use std::{future::poll_fn, iter, pin::pin, task::Poll};

use smallvec::{SmallVec, smallvec};
use tokio::{runtime::Handle, sync::oneshot};

use super::call_queue::Waiting;
use crate::{
    domain::{
        check::{Check, CheckBatch},
        error::StoreError,
    },
    store::{Operation, Reply, sent::Sent},
};

/// The maximum number of charges of a call while few operations wait. A single operation may have more.
///
/// Small calls overlap: while the server works on one, this process answers the callers of another.
const FEW_CHARGES: usize = 8;

/// The maximum number of charges while many wait. The server serves no other client during a call, so this bounds their
/// delay.
const MAX_CHARGES: usize = 256;

/// The maximum number of callers of a call. Only identical checks reach it, because they share their charges.
const MAX_CALLERS: usize = 1_024;

/// The number of earlier operations that a check is compared with.
const COMPARED: usize = 16;

/// An operation, and the caller that waits for its reply.
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) waiter: Waiter,
    /// The runtime of the caller. A call runs in the runtime of its first caller.
    pub(super) runtime: Handle,
}

/// The way to answer a caller.
pub(super) struct Waiter {
    pub(super) reply: oneshot::Sender<Result<Reply, StoreError>>,
    pub(super) sent: Sent,
    /// The check of one caller of several, if it takes slots: each has ids of its own.
    pub(super) check: Option<Check>,
}

impl Request {
    /// The amount of work: the number of keys that the operation charges.
    pub(super) fn charges(&self) -> usize {
        match &self.operation {
            // A separate operation settles its shadows.
            Operation::Settle(settlement) => settlement.costs().len(),
            operation => operation
                .check()
                .map_or(1, |check| check.all_charges().len()),
        }
    }

    fn takes_slots(&self) -> bool {
        matches!(&self.operation, Operation::Check(check) if check.takes_slots())
    }
}

/// Operations that travel together, in order of arrival.
pub(super) struct SharedCall {
    operations: Vec<(Operation, Waiters)>,
    pub(super) runtime: Handle,
}

/// The callers that wait for one operation. Identical checks are one operation with several callers.
type Waiters = SmallVec<[Waiter; 2]>;

impl SharedCall {
    /// Takes as many operations from the front as fit into a call; `None` if none waits.
    pub(super) fn gather(waiting: &mut Waiting<Request>, share: usize) -> Option<Self> {
        let first = waiting.take_first()?;
        let (mut charges, mut callers) = (first.charges(), 1);
        let mut call = Self {
            operations: vec![(first.operation, smallvec![first.waiter])],
            runtime: first.runtime,
        };
        let most_charges = share.clamp(FEW_CHARGES, MAX_CHARGES);
        while let Some(next) = waiting.first() {
            let identical = call.identical(&next.operation);
            charges += match identical {
                Some(_) if !next.takes_slots() => 0,
                _ => next.charges(),
            };
            callers += 1;
            if charges > most_charges || callers > MAX_CALLERS {
                break;
            }
            call.add(identical, waiting.take_first()?);
        }
        Some(call)
    }

    /// The index of an identical check that this operation can join. No operation behind that check may change the
    /// decision, so the outcome is the same as if each had been executed separately, in this order.
    fn identical(&self, operation: &Operation) -> Option<usize> {
        let Operation::Check(check) = operation else {
            return None;
        };
        let others = self.operations.iter().enumerate().rev().take(COMPARED);
        for (place, (other, _)) in others {
            match other {
                Operation::Check(other) if other.is_identical(check) => return Some(place),
                Operation::Check(other) if !other.shares_counts(check) => {}
                _ => return None,
            }
        }
        None
    }

    fn add(&mut self, identical: Option<usize>, request: Request) {
        let Request {
            operation,
            mut waiter,
            ..
        } = request;
        match (identical, operation) {
            (Some(place), Operation::Check(check)) => {
                waiter.check = Some(check).filter(Check::takes_slots);
                self.operations[place].1.push(waiter);
            }
            (_, operation) => self.operations.push((operation, smallvec![waiter])),
        }
    }

    /// Sends the operations of the callers that still wait. Returns with the reply, or as soon as all callers have
    /// left.
    pub(super) async fn send<F>(self, execute: impl FnOnce(Vec<Operation>) -> F) -> Returned
    where
        F: Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>>,
    {
        let (operations, mut waiters) = self.fold();
        if operations.is_empty() {
            return Returned::default();
        }
        let mut reply = pin!(execute(operations));
        let mut waiting = waiters.iter_mut().flatten().peekable();
        let replies = poll_fn(|cx| {
            if let Poll::Ready(replies) = reply.as_mut().poll(cx) {
                return Poll::Ready(Some(replies));
            }
            // Poll only the first caller that still waits. When that caller leaves, this task wakes and looks for the
            // next, but not again at those that have left: each costs a unit of the budget of this task.
            while let Some(first) = waiting.peek_mut() {
                if first.reply.poll_closed(cx).is_pending() {
                    return Poll::Pending;
                }
                waiting.next();
            }
            Poll::Ready(None)
        });
        match replies.await {
            None => Returned::default(),
            Some(Ok(replies)) => Returned { replies, waiters },
            Some(Err(error)) => {
                let replies = iter::repeat_n(Err(error), waiters.len()).collect();
                Returned { replies, waiters }
            }
        }
    }

    /// The operations of this call and their callers, without the callers that have left.
    fn fold(self) -> (Vec<Operation>, Vec<Waiters>) {
        let operations = self.operations.into_iter();
        let wanted = operations.filter_map(|(operation, mut waiters)| {
            if let (Operation::Check(check), [first, _, ..]) = (&operation, &mut waiters[..]) {
                first.check = Some(check.clone()).filter(Check::takes_slots);
            }
            waiters.retain(|waiter| !waiter.reply.is_closed() && waiter.sent.begin());
            let count = u16::try_from(waiters.len())
                .ok()
                .filter(|count| *count > 0)?;
            Some(match operation {
                Operation::Check(check) => {
                    let mut own = waiters.iter_mut().filter_map(|it| it.check.take());
                    let check = own.next().unwrap_or(check);
                    let others = own.collect();
                    let operation = match count {
                        1 => Operation::Check(check),
                        _ => Operation::CheckBatch(CheckBatch::of(check, count, others)),
                    };
                    (operation, waiters)
                }
                other => (other, waiters),
            })
        });
        wanted.unzip()
    }
}

/// The outcome of each operation of a call, and the callers that wait for it.
#[derive(Default)]
pub(super) struct Returned {
    replies: Vec<Result<Reply, StoreError>>,
    waiters: Vec<Waiters>,
}

impl Returned {
    /// Sends each caller its own reply.
    pub(super) fn answer(self) {
        for (reply, waiters) in self.replies.into_iter().zip(self.waiters) {
            match reply {
                // With one waiter, the caller asked for a batch. With more, `fold` made the batch from their checks.
                Ok(Reply::CheckBatch(decisions)) if waiters.len() > 1 => {
                    let decisions = decisions
                        .into_iter()
                        .map(|decision| Ok(Reply::Check(decision)));
                    answer(waiters, decisions);
                }
                Ok(reply) => answer(waiters, [Ok(reply)]),
                Err(error) => answer(waiters, iter::repeat(Err(error))),
            }
        }
    }
}

fn answer(waiters: Waiters, replies: impl IntoIterator<Item = Result<Reply, StoreError>>) {
    for (waiter, reply) in waiters.into_iter().zip(replies) {
        let _ = waiter.reply.send(reply);
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;
    use crate::domain::{charge::Charge, key::Key, policy::Policy};

    #[tokio::test]
    async fn a_call_whose_many_callers_have_left_ends_without_a_reply() {
        let policy = Policy::parse("api", "9/1d").unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let (mut waiters, mut callers) = (Waiters::new(), Vec::new());
        for _ in 0..1_000 {
            let (reply, caller) = oneshot::channel();
            let sent = Sent::queued();
            let check = None;
            waiters.push(Waiter { reply, sent, check });
            callers.push(caller);
        }
        let call = SharedCall {
            operations: vec![(Operation::Check(check), waiters)],
            runtime: Handle::current(),
        };
        let leave = async {
            yield_now().await;
            drop(callers);
        };
        let (returned, ()) = tokio::join!(call.send(|_| std::future::pending()), leave);
        assert!(returned.replies.is_empty());
    }
}
