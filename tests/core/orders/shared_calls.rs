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
};

use call_queue::{CallQueue, Waiting};
use loom::{sync::Arc, thread};

use super::every_order;

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

/// Calls to a server. Each ends when this thread is about to do something else. In a runtime that was shut down, each
/// ends at once.
struct Calls {
    queue: CallQueue<Caller, Vec<Caller>>,
    shut_down: bool,
}

impl Calls {
    fn new(most: usize, shut_down: bool) -> Arc<Self> {
        Arc::new(Self {
            queue: CallQueue::new(most, gather),
            shut_down,
        })
    }

    fn enter(&self, caller: &Caller) {
        if let Some(call) = self.begin(caller) {
            self.run(call);
        }
    }

    /// The call that begins with this caller, if one does.
    fn begin(&self, caller: &Caller) -> Option<Vec<Caller>> {
        let (ticket, call) = self.queue.enter(caller.clone(), 1);
        caller.ticket.store(ticket, SeqCst);
        call
    }

    /// Sends and ends a call, and all calls that begin because of this.
    fn run(&self, call: Vec<Caller>) {
        let begun = RefCell::new(vec![call]);
        loop {
            let call = begun.borrow_mut().pop();
            let Some(call) = call else { return };
            send(&call);
            self.queue.end(|call| {
                if self.shut_down {
                    self.run(call);
                } else {
                    begun.borrow_mut().push(call);
                }
            });
        }
    }

    fn leave(&self, caller: &Caller) {
        let ticket = caller.ticket.load(SeqCst);
        self.queue.leave(ticket);
    }

    /// The number of callers that begin a call before another caller has to wait.
    fn free_places(&self) -> usize {
        iter::from_fn(|| self.begin(&Caller::new()))
            .inspect(|call| assert_eq!(call.len(), 1))
            .count()
    }
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
        let first = calls.begin(&callers[1]);
        let (hasty, stays) = (Caller::new(), &callers[2]);
        if let Some(first) = first {
            let waits = calls.begin(&hasty);
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
        let line = CallQueue::new(4, gather_share);
        let enter = |charges| line.enter(Caller::new(), charges);
        for _ in 0..4 {
            let (_, call) = enter(3);
            assert_eq!(call.unwrap().0, 1, "three charges for four calls");
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
            line.end(next);
        }
        // 33 callers stay. Each call takes a fourth of the waiting charges, which is the same number of callers here.
        assert_eq!(shares.into_inner(), [25, 6, 2]);
    });
}
