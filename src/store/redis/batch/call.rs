//! [`SharedCall`]: operations of several callers that travel together.

use std::{collections::VecDeque, future::poll_fn, iter, mem, pin::pin, task::Poll, vec};

use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    decision::Decision,
    error::StoreError,
    store::{CallId, Operation, Reply},
};

/// How many charges a call has at most, but for the one operation that has more.
///
/// Small calls overlap: while the server works on one, this process answers the callers of another.
const MAX_CHARGES: usize = 8;

/// How many callers share a call at most. Only those of identical checks are so many.
const MAX_CALLERS: usize = 1_024;

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
    /// Set when the call is sent.
    pub(super) call: CallId,
}

impl Request {
    pub(super) fn has_left(&self) -> bool {
        self.waiter.reply.is_closed()
    }
}

/// Operations that travel together, those of identical checks as one; and who waits for them.
pub(super) struct SharedCall {
    operations: Vec<Operation>,
    /// In the order in which they came, each with the place of the operation.
    waiters: Vec<(usize, Waiter)>,
    pub(super) runtime: Handle,
}

impl SharedCall {
    /// Takes the first who wait, as many as go in a call; `None` if all have left.
    pub(super) fn gather(waiting: &mut VecDeque<Request>) -> Option<Self> {
        let first = iter::from_fn(|| waiting.pop_front()).find(|it| !it.has_left())?;
        let mut charges = charges(&first.operation);
        let mut call = Self {
            operations: vec![first.operation],
            waiters: vec![(0, first.waiter)],
            runtime: first.runtime,
        };
        while let Some(next) = waiting.front() {
            if !next.has_left() {
                let place = call.place_of(&next.operation);
                if place == call.operations.len() {
                    charges += self::charges(&next.operation);
                }
                let is_full = charges > MAX_CHARGES || call.waiters.len() >= MAX_CALLERS;
                if is_full || next.runtime.id() != call.runtime.id() {
                    break;
                }
                if let Some(next) = waiting.pop_front() {
                    call.add(place, next);
                }
            } else {
                waiting.pop_front();
            }
        }
        Some(call)
    }

    /// Where an operation stands, or would stand. A check joins an identical one only where nothing between them may
    /// change what is decided, so that all is as if each had been done by itself, in this order.
    fn place_of(&self, operation: &Operation) -> usize {
        let end = self.operations.len();
        let Operation::Check(check) = operation else {
            return end;
        };
        for (place, other) in self.operations.iter().enumerate().rev() {
            match other {
                Operation::Check(other) if other.is_identical(check) => return place,
                Operation::Check(other) if !other.shares_counts(check) => {}
                _ => break,
            }
        }
        end
    }

    fn add(&mut self, place: usize, request: Request) {
        if place == self.operations.len() {
            self.operations.push(request.operation);
        }
        self.waiters.push((place, request.waiter));
    }

    /// Sends the operations of those who have not left, and waits for the reply, as long as one of them waits for it.
    pub(super) async fn send<F>(mut self, execute: impl FnOnce(Vec<Operation>) -> F) -> Returned
    where
        F: Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>>,
    {
        let operations = self.fold();
        if operations.is_empty() {
            return Returned::nobody();
        }
        let id = CallId::next();
        for (_, waiter) in &self.waiters {
            waiter.call.set(id);
        }
        let mut reply = pin!(execute(operations));
        let mut gone = 0;
        let replies = poll_fn(|cx| {
            if let Poll::Ready(replies) = reply.as_mut().poll(cx) {
                return Poll::Ready(Some(replies));
            }
            // Whoever is the first that still waits wakes this task by leaving.
            while let Some((_, waiter)) = self.waiters.get_mut(gone) {
                if waiter.reply.poll_closed(cx).is_pending() {
                    return Poll::Pending;
                }
                gone += 1;
            }
            Poll::Ready(None)
        });
        match replies.await {
            None => Returned::nobody(),
            Some(replies) => Returned {
                replies: replies.map_err(|error| error.in_call(Some(id))),
                waiters: self.waiters,
            },
        }
    }

    /// The operations, without those of callers who have left.
    fn fold(&mut self) -> Vec<Operation> {
        self.waiters.retain(|(_, waiter)| !waiter.reply.is_closed());
        let mut counts = vec![0_u16; self.operations.len()];
        for (place, _) in &self.waiters {
            counts[*place] += 1;
        }
        let mut places = Vec::new();
        let mut operations = Vec::with_capacity(self.operations.len());
        for (operation, count) in mem::take(&mut self.operations).into_iter().zip(counts) {
            places.push(operations.len());
            match operation {
                _ if count == 0 => {}
                Operation::Check(check) if count > 1 => {
                    operations.push(Operation::Fill { check, count });
                }
                operation => operations.push(operation),
            }
        }
        for (place, _) in &mut self.waiters {
            *place = places[*place];
        }
        operations
    }
}

/// How much work an operation is: the keys that it charges.
fn charges(operation: &Operation) -> usize {
    let check = operation.check();
    check.map_or(1, |it| it.all_charges().len())
}

/// What came of a call, for those who waited for it.
pub(super) struct Returned {
    replies: Result<Vec<Result<Reply, StoreError>>, StoreError>,
    waiters: Vec<(usize, Waiter)>,
}

impl Returned {
    fn nobody() -> Self {
        Self {
            replies: Ok(Vec::new()),
            waiters: Vec::new(),
        }
    }

    /// Answers each its own. An error of the call is everybody's.
    pub(super) fn answer(self) {
        match self.replies {
            Err(error) => {
                for (_, waiter) in self.waiters {
                    let _ = waiter.reply.send(Err(error.clone()));
                }
            }
            Ok(replies) => {
                let mut replies: Vec<_> = replies.into_iter().map(Answers::of).collect();
                for (place, waiter) in self.waiters {
                    let reply = replies.get_mut(place).and_then(Answers::next);
                    let _ = waiter.reply.send(reply.unwrap_or(Err(TOO_FEW)));
                }
            }
        }
    }
}

/// The answers to those who asked for one operation.
enum Answers {
    One(Option<Reply>),
    Fill(vec::IntoIter<Decision>),
    Failed(StoreError),
}

impl Answers {
    fn of(reply: Result<Reply, StoreError>) -> Self {
        match reply {
            Ok(Reply::Fill(decisions)) => Self::Fill(decisions.into_iter()),
            Ok(reply) => Self::One(Some(reply)),
            Err(error) => Self::Failed(error),
        }
    }

    fn next(&mut self) -> Option<Result<Reply, StoreError>> {
        match self {
            Self::One(reply) => reply.take().map(Ok),
            Self::Fill(decisions) => decisions.next().map(|it| Ok(Reply::Check(it))),
            Self::Failed(error) => Some(Err(error.clone())),
        }
    }
}

const TOO_FEW: StoreError =
    StoreError::protocol("the store has answered fewer operations than it was asked for");
