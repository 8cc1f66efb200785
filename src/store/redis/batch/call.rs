//! [`SharedCall`]: operations of several callers that travel together.

use std::{future::poll_fn, iter, pin::pin, task::Poll};

use smallvec::{SmallVec, smallvec};
use tokio::{runtime::Handle, sync::oneshot};

use super::line::Waiting;
use crate::{
    domain::error::StoreError,
    domain::sent_call::{Blame, Journey, SentCall},
    store::{Operation, Reply},
};

/// How many charges a call has at most while few wait, but for the one operation that has more.
///
/// Small calls overlap: while the server works on one, this process answers the callers of another.
const FEW_CHARGES: usize = 8;

/// How many it has at most, however many wait: the server does nothing else meanwhile.
const MAX_CHARGES: usize = 256;

/// How many callers share a call at most. Only those of identical checks are so many.
const MAX_CALLERS: usize = 1_024;

/// How many operations before it a check is compared with.
const COMPARED: usize = 16;

/// What a caller asks for who waits for a call.
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) waiter: Waiter,
    /// Where the caller waits: a call is made there.
    pub(super) runtime: Handle,
}

/// Who is to be answered.
pub(super) struct Waiter {
    pub(super) reply: oneshot::Sender<Result<Reply, StoreError>>,
    pub(super) journey: Journey,
}

impl Request {
    /// How much work it is: the keys that it charges.
    pub(super) fn charges(&self) -> usize {
        match &self.operation {
            // Its shadows are settled by an operation of their own.
            Operation::Settle(settlement) => settlement.costs().len(),
            operation => operation
                .check()
                .map_or(1, |check| check.all_charges().len()),
        }
    }
}

/// Operations that travel together, in the order in which they came.
pub(super) struct SharedCall {
    operations: Vec<(Operation, Waiters)>,
    pub(super) runtime: Handle,
}

/// The callers that wait for one operation: several for that of identical checks.
type Waiters = SmallVec<[Waiter; 2]>;

impl SharedCall {
    /// Takes the first who wait, as many as go in a call; `None` if there are none.
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
            charges += identical.map_or(next.charges(), |_| 0);
            callers += 1;
            let is_full = charges > most_charges || callers > MAX_CALLERS;
            if is_full || next.runtime.id() != call.runtime.id() {
                break;
            }
            call.add(identical, waiting.take_first()?);
        }
        Some(call)
    }

    /// The place of an identical check that this operation can join: one where nothing behind it may change what is
    /// decided, so that all is as if each had been done by itself, in this order.
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
            operation, waiter, ..
        } = request;
        match identical {
            Some(place) => self.operations[place].1.push(waiter),
            None => self.operations.push((operation, smallvec![waiter])),
        }
    }

    /// Sends the operations of those who have not left, and waits for the reply, as long as one of them waits for it.
    pub(super) async fn send<F>(self, execute: impl FnOnce(Vec<Operation>) -> F) -> Returned
    where
        F: Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>>,
    {
        let (operations, mut waiters) = self.fold();
        if operations.is_empty() {
            return Returned::default();
        }
        let sent = SentCall::now();
        for waiter in waiters.iter().flatten() {
            waiter.journey.begin(&sent);
        }
        let mut reply = pin!(execute(operations));
        let replies = poll_fn(|cx| {
            if let Poll::Ready(replies) = reply.as_mut().poll(cx) {
                return Poll::Ready(Some(replies));
            }
            // Whoever is the first that still waits wakes this task by leaving.
            let mut all = waiters.iter_mut().flatten();
            match all.any(|it| it.reply.poll_closed(cx).is_pending()) {
                true => Poll::Pending,
                false => Poll::Ready(None),
            }
        });
        match replies.await {
            None => Returned::default(),
            Some(Ok(replies)) => Returned { replies, waiters },
            Some(Err(error)) => {
                let error = error.blaming(Some(Blame::Call(sent)));
                let replies = iter::repeat_n(Err(error), waiters.len()).collect();
                Returned { replies, waiters }
            }
        }
    }

    /// The operations and those who wait for each, without callers who have left.
    fn fold(self) -> (Vec<Operation>, Vec<Waiters>) {
        let operations = self.operations.into_iter();
        let wanted = operations.filter_map(|(operation, mut waiters)| {
            waiters.retain(|it| !it.reply.is_closed());
            let count = u16::try_from(waiters.len()).ok().filter(|it| *it > 0)?;
            Some(match operation {
                Operation::Check(check) if count > 1 => (Operation::Fill { check, count }, waiters),
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
    /// Answers each its own.
    pub(super) fn answer(self) {
        for (reply, waiters) in self.replies.into_iter().zip(self.waiters) {
            match reply {
                // A fill for one waiter is what that caller asked for, and not folded from checks.
                Ok(Reply::Fill(decisions)) if waiters.len() > 1 => {
                    let decisions = decisions.into_iter().map(|it| Ok(Reply::Check(it)));
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
