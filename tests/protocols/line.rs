//! The line of shared calls, under every order of the steps of those who come, leave, and whose calls end.

mod sync {
    pub(super) use loom::sync::*;
}
#[path = "../../src/store/redis/batch/line.rs"]
#[expect(clippy::module_inception, reason = "the name of the file in src")]
mod line;

use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use line::Line;
use loom::{sync::Arc, thread};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(1);

/// Its flags are not loom's: what matters is in which order threads come to the line.
#[derive(Clone)]
struct Caller {
    left: Arc<AtomicBool>,
    sent: Arc<AtomicBool>,
}

impl Caller {
    fn new() -> Self {
        Self {
            left: Arc::new(AtomicBool::new(false)),
            sent: Arc::new(AtomicBool::new(false)),
        }
    }

    fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }
}

/// At most two in a call.
fn gather(waiting: &mut VecDeque<Caller>) -> Option<Vec<Caller>> {
    let mut call = Vec::new();
    while call.len() < 2
        && let Some(caller) = waiting.pop_front()
    {
        if !caller.has_left() {
            call.push(caller);
        }
    }
    (!call.is_empty()).then_some(call)
}

/// A call, which ends when this thread is about to do something else, or, in a runtime that was shut down, at once.
struct Calls {
    line: Line<Caller>,
    start: Instant,
    shut_down: bool,
}

impl Calls {
    fn new(most: usize, shut_down: bool) -> Arc<Self> {
        let start = Instant::now();
        Arc::new(Self {
            line: Line::new(most, start),
            start,
            shut_down,
        })
    }

    fn enter(&self, caller: &Caller) {
        if let Some(call) = self
            .line
            .enter(caller.clone(), self.start, PATIENCE, gather)
        {
            self.run(call);
        }
    }

    fn run(&self, call: Vec<Caller>) {
        let begun = RefCell::new(vec![call]);
        loop {
            let call = begun.borrow_mut().pop();
            let Some(call) = call else { return };
            send(&call);
            self.line.end(self.start, gather, |call| {
                if self.shut_down {
                    self.run(call);
                } else {
                    begun.borrow_mut().push(call);
                }
            });
        }
    }

    fn leave(&self, caller: &Caller) {
        caller.left.store(true, SeqCst);
        if !caller.sent.load(SeqCst) {
            self.line.leave(Caller::has_left);
        }
    }

    /// Whether the next to come does not wait.
    fn is_idle(&self) -> bool {
        let call = self.line.enter(Caller::new(), self.start, PATIENCE, gather);
        call.is_some_and(|call| call.len() == 1)
    }
}

/// Of all orders in which threads change places at most three times without waiting for each other.
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

fn everybody_is_sent_once(most: usize, shut_down: bool) {
    every_order(move || {
        let calls = Calls::new(most, shut_down);
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
        assert!(calls.is_idle());
    });
}

#[test]
fn everybody_is_sent_once_however_calls_begin_and_end() {
    everybody_is_sent_once(1, false);
    everybody_is_sent_once(2, false);
}

#[test]
fn everybody_is_taken_once_where_calls_end_as_they_begin() {
    everybody_is_sent_once(1, true);
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
        // Leaves before it can be sent, and so is not.
        let first = calls
            .line
            .enter(callers[1].clone(), calls.start, PATIENCE, gather);
        let (hasty, stays) = (Caller::new(), &callers[2]);
        if let Some(first) = first {
            let waits = calls
                .line
                .enter(hasty.clone(), calls.start, PATIENCE, gather);
            assert!(waits.is_none());
            calls.leave(&hasty);
            calls.run(first);
            assert!(!hasty.sent.load(SeqCst));
        }
        calls.enter(stays);
        leaves.join().unwrap();
        assert!(callers[1..].iter().all(|it| it.sent.load(SeqCst)));
        assert!(calls.is_idle());
    });
}

#[test]
fn calls_that_never_end_keep_nobody_waiting_longer_than_the_patience() {
    every_order(|| {
        let calls = Calls::new(1, false);
        let enter = |after| {
            let now = calls.start + after;
            let call = calls.line.enter(Caller::new(), now, PATIENCE, gather);
            call.map_or(0, |it| it.len())
        };
        assert_eq!(enter(Duration::ZERO), 1);
        assert_eq!(enter(PATIENCE - Duration::from_millis(1)), 0);
        assert_eq!(enter(PATIENCE), 2);
        assert_eq!(enter(PATIENCE), 0);
        // The one that was begun beyond the number gives its place to nobody.
        calls
            .line
            .end(calls.start + PATIENCE, gather, |_| panic!("two places"));
        calls
            .line
            .end(calls.start + PATIENCE, gather, |call| send(&call));
    });
}
