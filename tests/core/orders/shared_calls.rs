//! The line of shared calls, under every order of the steps of callers that come, and of calls that end.

mod sync {
    pub(super) use loom::sync::*;
}
#[path = "../../../src/store/redis/shared_calls/call_queue.rs"]
mod call_queue;

use std::{
    cell::RefCell,
    iter,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use call_queue::{CallQueue, Waiting};
use loom::{sync::Arc, thread};

use super::every_order;

/// Uses plain flags instead of loom's: only the order in which threads reach the queue matters.
#[derive(Clone, Default)]
struct Caller {
    sent: Arc<AtomicBool>,
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
        if let Some(call) = self.queue.enter(caller.clone(), 1) {
            self.run(call);
        }
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

    /// The number of callers that begin a call before another caller has to wait.
    fn free_places(&self) -> usize {
        iter::from_fn(|| self.queue.enter(Caller::default(), 1))
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
        let callers = [(); 3].map(|()| Caller::default());
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

/// A call with the given share, and that share.
fn gather_share(waiting: &mut Waiting<Caller>, share: usize) -> Option<(usize, Vec<Caller>)> {
    let mut call = Vec::new();
    while call.len() < share && waiting.first().is_some() {
        call.extend(waiting.take_first());
    }
    (!call.is_empty()).then_some((share, call))
}

#[test]
fn calls_share_what_waits_now() {
    every_order(|| {
        let line = CallQueue::new(4, gather_share);
        let enter = |charges| line.enter(Caller::default(), charges);
        for _ in 0..4 {
            let call = enter(3);
            assert_eq!(call.unwrap().0, 1, "three charges for four calls");
        }
        for _ in 0..33 {
            assert!(enter(3).is_none());
        }
        let shares = RefCell::new(Vec::new());
        for _ in 0..4 {
            let next = |(share, call): (usize, Vec<Caller>)| {
                assert_eq!(call.len(), share);
                shares.borrow_mut().push(share);
            };
            line.end(next);
        }
        // Each call takes a fourth of the waiting charges, which is the same number of callers here.
        assert_eq!(shares.into_inner(), [25, 6, 2]);
    });
}
