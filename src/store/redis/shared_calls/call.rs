//! [`SharedCall`]: operations of several callers that travel together.

use std::{
    future::poll_fn,
    iter,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use smallvec::{SmallVec, smallvec};

use super::{Slab, call_queue::Waiting, queued::Task};
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBatch},
        error::StoreError,
        key::Key,
    },
    store::{Operation, Reply, sent::Sent},
    timer::{self, LazySleep},
};

/// The work of one charge. That of an id of a slot is 1.
const CHARGE: usize = 8;

/// The maximum work of a call while few operations wait. A single operation may have more.
///
/// Small calls overlap: while the server works on one, this process answers the callers of another.
const FEW_CHARGES: usize = 8 * CHARGE;

/// The maximum work while many wait. The server serves no other client during a call, so this bounds their delay.
const MAX_CHARGES: usize = 256 * CHARGE;

/// The maximum number of callers of a call. Only identical checks reach it, because they share their charges.
const MAX_CALLERS: usize = 1_024;

/// The number of earlier operations that a check is compared with.
const COMPARED: usize = 16;

/// An operation, and the caller that waits for its reply.
pub(super) struct Request {
    pub(super) task: Task,
    pub(super) waiter: Waiter,
}

/// The way to answer a caller.
pub(super) struct Waiter {
    pub(super) seat: Seat,
    /// Set if others than the caller have to know whether the operation is sent.
    pub(super) sent: Option<Sent>,
    /// The check of one caller of several, if it takes slots: each has ids of its own.
    pub(super) check: Option<Check>,
}

/// The hold of a call on the seat of a caller. A caller whose seat is dropped without an answer gets an error.
pub(super) struct Seat {
    slab: Arc<Slab>,
    number: usize,
    is_held: bool,
}

impl Seat {
    pub(super) fn new(slab: &Arc<Slab>, number: usize) -> Self {
        Self {
            slab: Arc::clone(slab),
            number,
            is_held: true,
        }
    }

    /// Call this once.
    fn answer(&mut self, reply: Result<Reply, StoreError>) {
        self.is_held = false;
        self.slab.end(self.number, Some(reply));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_held {
            self.slab.end(self.number, None);
        }
    }
}

impl Waiter {
    /// Notes that the operation is sent now. Returns `false` if the caller has left.
    fn begin(&mut self) -> bool {
        self.seat.is_held = self.seat.slab.begin(self.seat.number);
        self.seat.is_held && self.sent.as_ref().is_none_or(Sent::begin)
    }
}

impl Request {
    /// The amount of work, by the keys that the operation charges and the ids of its slots.
    pub(super) fn charges(&self) -> usize {
        let charges = self.task.check().map_or(1, |it| it.all_charges().len());
        let (charges, ids) = match &self.task {
            Task::Check(check) => (charges, ids(check)),
            Task::Other(operation) => match &**operation {
                Operation::CheckBatch(batch) => (
                    charges,
                    ids(batch.check()).saturating_mul(batch.count().into()),
                ),
                // A separate operation settles its shadows.
                Operation::Settle(settlement) => (settlement.costs().len(), 0),
                Operation::Renew(slots) | Operation::Return(slots) => (charges, slots.ids().len()),
                _ => (charges, 0),
            },
        };
        (charges * CHARGE).saturating_add(ids)
    }

    fn takes_slots(&self) -> bool {
        matches!(&self.task, Task::Check(check) if check.takes_slots())
    }
}

/// How many ids of slots a check has.
fn ids(check: &Check) -> usize {
    let taking = check.all_charges().iter().filter(|it| it.takes_slots());
    let ids = taking.map(Charge::cost).sum::<u64>();
    usize::try_from(ids).unwrap_or(usize::MAX)
}

/// Operations that travel together, in order of arrival.
pub(super) struct SharedCall {
    operations: Vec<Operation>,
    /// The callers of each.
    waiters: Vec<Waiters>,
    /// A trace of each.
    traces: Vec<u64>,
    /// The bits of all traces.
    seen: u64,
}

/// The callers that wait for one operation. Identical checks are one operation with several callers.
type Waiters = SmallVec<[Waiter; 2]>;

impl SharedCall {
    /// Takes as many operations from the front as fit into a call; `None` if none waits.
    pub(super) fn gather(waiting: &mut Waiting<Request>, share: usize) -> Option<Self> {
        let first = waiting.take_first()?;
        let most_work = share.clamp(FEW_CHARGES, MAX_CHARGES);
        let (mut work, mut callers, most) = (first.charges(), 1, most_work / CHARGE);
        let mut call = Self {
            operations: Vec::with_capacity(most),
            waiters: Vec::with_capacity(most),
            traces: Vec::with_capacity(most),
            seen: 0,
        };
        call.push(trace(&first.task), first.task, first.waiter);
        while let Some(next) = waiting.first() {
            let trace = trace(&next.task);
            let identical = call.identical(&next.task, trace);
            work = work.saturating_add(match identical {
                Some(_) if !next.takes_slots() => 0,
                _ => next.charges(),
            });
            callers += 1;
            if work > most_work || callers > MAX_CALLERS {
                break;
            }
            call.add(identical, trace, waiting.take_first()?);
        }
        Some(call)
    }

    /// The index of an identical check that this operation can join. No operation behind that check may change the
    /// decision, so the outcome is the same as if each had been executed separately, in this order.
    fn identical(&self, task: &Task, trace: u64) -> Option<usize> {
        let Task::Check(check) = task else {
            return None;
        };
        if self.seen & trace == 0 {
            return None;
        }
        let others = self.traces.iter().enumerate().rev().take(COMPARED);
        for (place, _) in others.filter(|(_, other)| *other & trace != 0) {
            match &self.operations[place] {
                Operation::Check(other) if other.is_identical(check) => return Some(place),
                Operation::Check(other) if !other.shares_counts(check) => {}
                _ => return None,
            }
        }
        None
    }

    fn add(&mut self, identical: Option<usize>, trace: u64, request: Request) {
        let Request { task, mut waiter } = request;
        match (identical, task) {
            (Some(place), Task::Check(check)) => {
                waiter.check = Some(check).filter(Check::takes_slots);
                self.waiters[place].push(waiter);
            }
            (_, task) => self.push(trace, task, waiter),
        }
    }

    fn push(&mut self, trace: u64, task: Task, waiter: Waiter) {
        self.operations.push(task.into_operation());
        self.waiters.push(smallvec![waiter]);
        self.traces.push(trace);
        self.seen |= trace;
    }

    /// Waits for a connection, and then sends the operations of the callers that still wait. Returns with the reply, if not
    /// all callers have left.
    ///
    /// `place` is the place of the call among those in flight. It is dropped as soon as no caller waits for the reply in
    /// time, or after `longest`: then other calls go over another connection.
    pub(super) async fn send<C, F>(
        mut self,
        place: impl Sized,
        longest: Duration,
        connect: impl Future<Output = Result<C, StoreError>>,
        execute: impl FnOnce(C, Vec<Operation>) -> F,
    ) -> Returned
    where
        F: Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>>,
    {
        let (mut place, mut end) = (Some(place), pin!(LazySleep::new(longest)));
        let connected = wait(&self.waiters, &mut place, end.as_mut(), pin!(connect)).await;
        let connection = match connected {
            None => return Returned::default(),
            Some(Err(error)) => return Returned::failed(error, self.waiters),
            Some(Ok(connection)) => connection,
        };
        self.fold();
        let (operations, waiters) = (self.operations, self.waiters);
        if operations.is_empty() {
            return Returned::default();
        }
        let mut reply = pin!(execute(connection, operations));
        match wait(&waiters, &mut place, end, reply.as_mut()).await {
            None => {
                drop(waiters);
                // The reply shows that the connection is not lost.
                timer::within(longest, reply).await;
                Returned::default()
            }
            Some(Ok(replies)) => Returned { replies, waiters },
            Some(Err(error)) => Returned::failed(error, waiters),
        }
    }

    /// Leaves out the callers that have left, and the operations of which no caller waits. Makes a batch of the check
    /// of several callers.
    fn fold(&mut self) {
        for (operation, waiters) in self.operations.iter_mut().zip(&mut self.waiters) {
            if let (Operation::Check(check), [first, _, ..]) = (&*operation, &mut waiters[..]) {
                first.check = Some(check.clone()).filter(Check::takes_slots);
                waiters.retain(Waiter::begin);
                *operation = fold_check(check.clone(), waiters);
            } else {
                waiters.retain(Waiter::begin);
            }
        }
        if self.waiters.iter().any(SmallVec::is_empty) {
            let mut waiters = self.waiters.iter();
            let is_wanted = |_: &Operation| waiters.next().is_some_and(|it| !it.is_empty());
            self.operations.retain(is_wanted);
            self.waiters.retain(|it| !it.is_empty());
        }
    }
}

/// The output of `work`, or `None` as soon as all of these callers have left. Drops `place` when none of them waits in
/// time any more, or at the `end`.
async fn wait<T>(
    waiters: &[Waiters],
    place: &mut Option<impl Sized>,
    mut end: Pin<&mut LazySleep>,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut in_time = waiters.iter().flatten().peekable();
    let mut staying = in_time.clone();
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if place.is_some() {
            // Look only at the first caller that still waits. When that caller leaves, this task wakes and looks for the
            // next, but not again at those that have left.
            let waits = |it: &Waiter| {
                it.seat
                    .slab
                    .poll_wait(it.seat.number, cx.waker())
                    .is_pending()
            };
            while in_time.next_if(|it| !waits(it)).is_some() {}
            if in_time.peek().is_some() && end.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            *place = None;
        }
        let stays = |it: &Waiter| {
            let left = it.seat.slab.poll_wait(it.seat.number, cx.waker());
            left != Poll::Ready(true)
        };
        while staying.next_if(|it| !stays(it)).is_some() {}
        match staying.peek() {
            Some(_) => Poll::Pending,
            None => Poll::Ready(None),
        }
    })
    .await
}

/// The check of these callers; if it takes slots, each has its own.
fn fold_check(check: Check, waiters: &mut Waiters) -> Operation {
    let mut own = waiters.iter_mut().filter_map(|it| it.check.take());
    let check = own.next().unwrap_or(check);
    let others = own.collect();
    match u16::try_from(waiters.len()) {
        Ok(1) => Operation::Check(check),
        count => Operation::CheckBatch(CheckBatch {
            check,
            count: count.unwrap_or(0),
            others,
        }),
    }
}

/// A bit for each identity that a check charges: checks without a common bit share no counts. An operation of another
/// kind has all bits.
fn trace(task: &Task) -> u64 {
    match task {
        Task::Check(check) => {
            let keys = check.all_charges().iter().map(Charge::key);
            keys.fold(0, |trace, key| trace | bit(key))
        }
        Task::Other(_) => u64::MAX,
    }
}

fn bit(key: &Key) -> u64 {
    // The golden ratio, as in Fibonacci hashing. Identities mostly differ near the end.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let value = key.value();
    let end = match value.last_chunk() {
        Some(end) => u64::from_le_bytes(*end),
        None => value
            .iter()
            .fold(0, |end, byte| end << 8 | u64::from(*byte)),
    };
    1 << (end.wrapping_mul(FACTOR) >> 58)
}

/// The outcome of each operation of a call, and the callers that wait for it.
#[derive(Default)]
pub(super) struct Returned {
    replies: Vec<Result<Reply, StoreError>>,
    waiters: Vec<Waiters>,
}

impl Returned {
    fn failed(error: StoreError, waiters: Vec<Waiters>) -> Self {
        let replies = iter::repeat_n(Err(error), waiters.len()).collect();
        Self { replies, waiters }
    }

    /// Gives each caller its own reply.
    pub(super) fn answer(mut self) {
        for (reply, waiters) in self.replies.into_iter().zip(&mut self.waiters) {
            match reply {
                // With one waiter, the caller asked for a batch. With more, `fold` made the batch from their checks.
                Ok(Reply::CheckBatch(decisions)) if waiters.len() > 1 => {
                    for (waiter, decision) in waiters.iter_mut().zip(decisions) {
                        waiter.seat.answer(Ok(Reply::Check(decision)));
                    }
                }
                reply => {
                    let Some((last, others)) = waiters.split_last_mut() else {
                        continue;
                    };
                    for waiter in others {
                        waiter.seat.answer(reply.clone());
                    }
                    last.seat.answer(reply);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::task::yield_now;

    use super::*;
    use crate::domain::policy::Policy;

    /// A call with this number of callers, their seats, and a place that is free when it ends.
    fn call(callers: usize) -> (SharedCall, Arc<Slab>, Vec<usize>) {
        let policy = Policy::parse("api", "9/1d").unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let slab = Arc::new(Slab::new());
        let enter = || slab.enter(Waker::noop().clone(), None).0;
        let seats: Vec<_> = (0..callers).map(|_| enter()).collect();
        let waiter = |seat: &usize| Waiter {
            seat: Seat::new(&slab, *seat),
            sent: None,
            check: None,
        };
        let call = SharedCall {
            operations: vec![Operation::Check(check)],
            waiters: vec![seats.iter().map(waiter).collect()],
            traces: vec![0],
            seen: 0,
        };
        (call, slab, seats)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_many_callers_have_left_ends_without_a_reply() {
        for is_connected in [false, true] {
            let (call, slab, seats) = call(1_000);
            let connect = async {
                match is_connected {
                    true => Ok(()),
                    false => std::future::pending().await,
                }
            };
            let hour = Duration::from_secs(3_600);
            let sent = call.send((), hour, connect, |(), _| std::future::pending());
            let leave = async {
                yield_now().await;
                for seat in &seats {
                    slab.leave(*seat);
                }
            };
            let (returned, ()) = tokio::join!(sent, leave);
            assert!(returned.replies.is_empty());
        }
    }

    async fn others_run() {
        for _ in 0..3 {
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_no_caller_waits_for_in_time_gives_its_place_back_and_goes_on() {
        let (call, slab, seats) = call(2);
        let place = Arc::new(());
        let (answer, answered) = tokio::sync::oneshot::channel();
        let hour = Duration::from_secs(3_600);
        let sent = call.send(Arc::clone(&place), hour, async { Ok(()) }, |(), _| async {
            let _ = answered.await;
            Ok(vec![Err(crate::store::TIMED_OUT)])
        });
        let late = async {
            others_run().await;
            assert!(!slab.is_never_sent(seats[0]));
            others_run().await;
            assert_eq!(Arc::strong_count(&place), 2, "one waits in time");
            assert!(!slab.is_never_sent(seats[1]));
            others_run().await;
            assert_eq!(Arc::strong_count(&place), 1);
            answer.send(()).unwrap();
        };
        let (returned, ()) = tokio::join!(sent, late);
        returned.answer();
        for seat in seats {
            assert!(slab.poll(seat, Waker::noop()).is_ready());
        }
    }
}
