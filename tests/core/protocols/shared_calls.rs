//! The line of shared calls, under every order of the steps of callers that come and leave, and of calls that end.

mod sync {
    pub(super) use loom::sync::*;
}
#[path = "../../../src/store/redis/shared_calls/call_queue.rs"]
mod call_queue;

use std::{
    cell::RefCell,
    iter,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use call_queue::{CallQueue, Waiting};
use loom::{sync::Arc, thread};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(1);

/// Uses plain flags instead of loom's: only the order in which threads reach the queue matters.
#[derive(Clone)]
struct Caller {
    ticket: Arc<AtomicU64>,
    sent: Arc<AtomicBool>,
}

impl Caller {
    fn new() -> Self {
        Self {
            ticket: Arc::default(),
            sent: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// At most two callers in a call.
fn gather(waiting: &mut Waiting<Caller>, _share: usize) -> Option<Vec<Caller>> {
    let call: Vec<_> = iter::from_fn(|| waiting.take_first()).take(2).collect();
    (!call.is_empty()).then_some(call)
}

/// The callers of a call, and the epoch.
type Call = (Vec<Caller>, u64);

/// Calls to a server. Each ends when this thread is about to do something else. In a runtime that was shut down, each
/// ends at once.
struct Calls {
    queue: CallQueue<Caller, Vec<Caller>>,
    start: Instant,
    shut_down: bool,
}

impl Calls {
    fn new(most: usize, shut_down: bool) -> Arc<Self> {
        Self::gathering(most, 0, shut_down)
    }

    fn gathering(most: usize, full: usize, shut_down: bool) -> Arc<Self> {
        let start = Instant::now();
        Arc::new(Self {
            queue: CallQueue::new(most, start, gather).gathering(full),
            start,
            shut_down,
        })
    }

    fn enter(&self, caller: &Caller) {
        if let Some(call) = self.enter_after(Duration::ZERO, caller) {
            self.run(call);
        }
    }

    fn enter_after(&self, time: Duration, caller: &Caller) -> Option<Call> {
        let now = self.start + time;
        let (ticket, call) = self.queue.enter(caller.clone(), 1, now, PATIENCE);
        caller.ticket.store(ticket, SeqCst);
        call
    }

    /// Sends and ends a call, and all calls that begin because of this.
    fn run(&self, (call, epoch): Call) {
        let begun = RefCell::new(vec![call]);
        loop {
            let call = begun.borrow_mut().pop();
            let Some(call) = call else { return };
            send(&call);
            self.queue.end(epoch, self.start, |call| {
                if self.shut_down {
                    self.run((call, epoch));
                } else {
                    begun.borrow_mut().push(call);
                }
            });
        }
    }

    fn leave(&self, caller: &Caller) {
        self.queue.leave(caller.ticket.load(SeqCst));
    }

    /// The number of callers that begin a call before another caller has to wait.
    fn free_places(&self) -> usize {
        let begin = || self.enter_after(Duration::ZERO, &Caller::new());
        iter::from_fn(begin)
            .inspect(|(call, _)| assert_eq!(call.len(), 1))
            .count()
    }
}

/// Tests all orders in which threads switch at most three times without waiting for each other.
fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn send(call: &[Caller]) {
    for caller in call {
        assert!(!caller.sent.swap(true, SeqCst), "sent twice");
    }
}

fn everybody_is_sent_once(calls: fn() -> Arc<Calls>, free: usize) {
    every_order(move || {
        let calls = calls();
        let callers = [(); 3].map(|()| Caller::new());
        let others = [0, 1].map(|it| {
            let (calls, caller) = (Arc::clone(&calls), callers[it].clone());
            thread::spawn(move || calls.enter(&caller))
        });
        calls.enter(&callers[2]);
        for other in others {
            other.join().unwrap();
        }
        assert!(callers.iter().all(|it| it.sent.load(SeqCst)));
        assert_eq!(calls.free_places(), free);
    });
}

#[test]
fn everybody_is_sent_once_however_calls_begin_and_end() {
    everybody_is_sent_once(|| Calls::new(1, false), 1);
    everybody_is_sent_once(|| Calls::new(2, false), 2);
}

#[test]
fn everybody_is_sent_once_where_callers_wait_for_others() {
    everybody_is_sent_once(|| Calls::gathering(2, 2, false), 1);
    everybody_is_sent_once(|| Calls::gathering(2, 9, true), 1);
}

#[test]
fn in_a_line_that_gathers_a_second_call_begins_when_enough_wait() {
    every_order(|| {
        let calls = Calls::gathering(2, 2, false);
        let enter = || calls.enter_after(Duration::ZERO, &Caller::new());
        let begun = [(); 6].map(|()| enter().map_or(0, |(call, _)| call.len()));
        assert_eq!(begun, [1, 0, 2, 0, 0, 0]);
    });
}

#[test]
fn everybody_is_taken_once_where_calls_end_as_they_begin() {
    everybody_is_sent_once(|| Calls::new(1, true), 1);
}

#[test]
fn who_leaves_keeps_nobody_else_waiting() {
    every_order(|| {
        let calls = Calls::new(1, false);
        let callers = [(); 3].map(|()| Caller::new());
        let leaves = {
            let (calls, caller) = (Arc::clone(&calls), callers[0].clone());
            thread::spawn(move || {
                calls.enter(&caller);
                calls.leave(&caller);
            })
        };
        // This caller leaves before the call is sent, and so is left out.
        let first = calls.enter_after(Duration::ZERO, &callers[1]);
        let (hasty, stays) = (Caller::new(), &callers[2]);
        if let Some(first) = first {
            let waits = calls.enter_after(Duration::ZERO, &hasty);
            assert!(waits.is_none());
            calls.leave(&hasty);
            calls.run(first);
            assert!(!hasty.sent.load(SeqCst));
        }
        calls.enter(stays);
        leaves.join().unwrap();
        assert!(callers[1..].iter().all(|it| it.sent.load(SeqCst)));
        assert_eq!(calls.free_places(), 1);
    });
}

#[test]
fn calls_that_never_end_give_up_all_their_places_when_the_patience_runs_out() {
    every_order(|| {
        let calls = Calls::new(2, false);
        let enter = |after| {
            let call = calls.enter_after(after, &Caller::new());
            call.map_or(0, |(call, _)| call.len())
        };
        let soon = PATIENCE - Duration::from_millis(1);
        assert_eq!([enter(Duration::ZERO), enter(Duration::ZERO)], [1, 1]);
        assert_eq!([enter(soon), enter(soon)], [0, 0]);
        assert_eq!([enter(PATIENCE), enter(PATIENCE)], [2, 2]);
        assert_eq!(enter(PATIENCE), 0);
        assert_eq!(enter(2 * PATIENCE), 2);
    });
}

#[test]
fn a_caller_whose_call_does_not_begin_begins_another_when_the_patience_runs_out() {
    every_order(|| {
        let calls = Calls::gathering(2, 9, false);
        let waits = Caller::new();
        let late = calls.enter_after(Duration::ZERO, &Caller::new()).unwrap();
        assert!(calls.enter_after(Duration::ZERO, &waits).is_none());
        let ends = {
            let calls = Arc::clone(&calls);
            thread::spawn(move || calls.run(late))
        };
        let revive = |after| calls.queue.revive(calls.start + after, PATIENCE);
        assert!(revive(PATIENCE - Duration::from_millis(1)).is_none());
        if let Some(call) = revive(PATIENCE) {
            calls.run(call);
        }
        ends.join().unwrap();
        assert!(waits.sent.load(SeqCst));
        assert_eq!(calls.free_places(), 1);
    });
}

#[test]
fn a_call_that_was_given_up_gives_its_place_to_nobody() {
    every_order(|| {
        let calls = Calls::new(1, false);
        let callers = [(); 3].map(|()| Caller::new());
        let late = calls.enter_after(Duration::ZERO, &Caller::new()).unwrap();
        assert!(calls.enter_after(Duration::ZERO, &callers[0]).is_none());
        let ends = {
            let calls = Arc::clone(&calls);
            thread::spawn(move || calls.run(late))
        };
        // Either the late call or its successor is given up, or both have ended.
        let call = calls.enter_after(PATIENCE, &callers[1]).unwrap();
        assert!(calls.enter_after(PATIENCE, &callers[2]).is_none());
        ends.join().unwrap();
        assert!(!callers[2].sent.load(SeqCst));
        calls.run(call);
        assert!(callers.iter().all(|it| it.sent.load(SeqCst)));
        assert_eq!(calls.free_places(), 1);
    });
}

/// A call with the given share, and that share.
fn gather_share(waiting: &mut Waiting<Caller>, share: usize) -> Option<(usize, Vec<Caller>)> {
    let mut call = Vec::new();
    while call.len() < share && waiting.first().is_some() {
        call.extend(waiting.take_first());
    }
    (!call.is_empty()).then_some((share, call))
}

#[test]
fn calls_share_what_waits_now_without_those_who_have_left() {
    every_order(|| {
        let now = Instant::now();
        let line = CallQueue::new(4, now, gather_share);
        let enter = |charges| line.enter(Caller::new(), charges, now, PATIENCE);
        for _ in 0..4 {
            let (_, call) = enter(3);
            assert_eq!(call.unwrap().0.0, 1, "three charges for four calls");
        }
        let tickets: Vec<_> = (0..100).map(|_| enter(3).0).collect();
        // At the front, in the middle and at the end; one of them twice.
        for place in (0..100).filter(|it| it % 3 != 1).chain([99]) {
            line.leave(tickets[place]);
        }
        let shares = RefCell::new(Vec::new());
        for _ in 0..4 {
            let next = |(share, call): (usize, Vec<Caller>)| {
                assert_eq!(call.len(), share);
                shares.borrow_mut().push(share);
            };
            line.end(0, now, next);
        }
        // 33 callers stay. Each call takes a fourth of the waiting charges, which is the same number of callers here.
        assert_eq!(shares.into_inner(), [25, 6, 2]);
    });
}
