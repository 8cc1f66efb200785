//! [`WaitQueues`]: which queue a caller joins, and which queues wake when units are given back.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::{
    line::{LastDenial, Line},
    turns::Turns,
};
use crate::domain::{
    check::Check, decision::Denial, key::Key, policy::Policy, settlement::Settlement,
};

/// The queues with waiting callers, each listed once under every key that it charges or looks up.
#[derive(Debug, Default)]
pub(in crate::limiter) struct WaitQueues {
    by_key: Mutex<HashMap<Key, Vec<Arc<WaitQueue>>>>,
}

#[derive(Debug)]
pub(super) struct WaitQueue {
    /// The check of the first caller; the others have the same policies and keys in the same order.
    check: Check,
    /// Written under the lock of all queues.
    tickets: AtomicUsize,
    pub(super) turns: Turns,
    line: Mutex<Line>,
    /// How often units were given back. Written under the lock of the line.
    given_back: AtomicUsize,
    /// Notified when units are given back.
    pub(super) room: Notify,
    /// Notified when the store denies a caller: the denial may show that others come too late.
    pub(super) denied: Notify,
}

/// A place in a queue, given up when dropped.
pub(super) struct Ticket<'a> {
    queues: &'a WaitQueues,
    pub(super) queue: Arc<WaitQueue>,
    pub(super) check: Check,
    number: u64,
}

impl WaitQueues {
    /// Takes the last place in the queue of the check; returns the queue if it is full.
    pub(super) fn join(
        &self,
        check: &Check,
        deadline: Instant,
        max_queue: usize,
    ) -> Result<Ticket<'_>, Arc<WaitQueue>> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = check.deniable_keys();
        let known = keys.next().and_then(|key| by_key.get(key));
        let known = known.and_then(|queues| queues.iter().find(|queue| queue.is_for(check)));
        let queue = known.cloned().unwrap_or_else(|| {
            let queue = Arc::new(WaitQueue::new(check));
            for key in check.deniable_keys() {
                let queues = by_key.entry(key.clone()).or_default();
                queues.push(Arc::clone(&queue));
            }
            queue
        });
        // The first caller waits for no other, so admit one even if `max_queue` is 0.
        if queue.tickets.load(Relaxed) >= max_queue.max(1) {
            return Err(queue);
        }
        queue.tickets.fetch_add(1, Relaxed);
        let number = queue.line().join(check, deadline);
        Ok(Ticket {
            queues: self,
            queue,
            check: check.clone(),
            number,
        })
    }

    /// Wakes the callers that wait for this key under a policy of this name, after units were given back.
    pub(in crate::limiter) fn wake(&self, policy: &Policy, key: &Key) {
        self.wake_queues(key, |queue| {
            let mut charges = queue.check.charges().iter();
            charges.any(|charge| charge.policy().name() == policy.name() && charge.key() == key)
        });
    }

    /// Wakes the callers that wait for a key, under any policy.
    pub(in crate::limiter) fn wake_all(&self, key: &Key) {
        self.wake_queues(key, |_| true);
    }

    fn wake_queues(&self, key: &Key, is_meant: impl Fn(&WaitQueue) -> bool) {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = by_key.get(key).into_iter().flatten();
        for queue in queues.filter(|queue| is_meant(queue)) {
            let mut line = queue.line();
            line.forget_denial();
            queue.given_back.fetch_add(1, Relaxed);
            drop(line);
            queue.room.notify_waiters();
        }
    }

    /// Wakes the callers that wait for any charge that the settlement reduces.
    pub(in crate::limiter) fn wake_settled(&self, settlement: &Settlement) {
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            if *cost < charge.cost() {
                self.wake(charge.policy(), charge.key());
            }
        }
    }
}

impl Ticket<'_> {
    /// If this caller comes too late: the denial that shows it, and the earliest admission.
    pub(super) fn too_late(&self) -> Option<(LastDenial, Instant)> {
        self.queue.line().too_late(self.number)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queue.line().leave(self.number);
        let Self { queues, queue, .. } = self;
        let mut by_key = queues.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.tickets.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        for key in queue.check.deniable_keys() {
            if let Some(queues) = by_key.get_mut(key) {
                queues.retain(|it| !Arc::ptr_eq(it, queue));
                if queues.is_empty() {
                    by_key.remove(key);
                }
            }
        }
    }
}

impl WaitQueue {
    fn new(check: &Check) -> Self {
        Self {
            check: check.clone(),
            tickets: AtomicUsize::new(0),
            turns: Turns::new(),
            line: Mutex::default(),
            given_back: AtomicUsize::new(0),
            room: Notify::new(),
            denied: Notify::new(),
        }
    }

    fn is_for(&self, check: &Check) -> bool {
        parts(&self.check).eq(parts(check)) && self.check.look_ups() == check.look_ups()
    }

    pub(super) fn given_back(&self) -> usize {
        self.given_back.load(Relaxed)
    }

    pub(super) fn was_given_since(&self, given_back: usize) -> bool {
        self.given_back() != given_back
    }

    /// Stores a denial, unless units were given back during the call: then the denial is out of date for other callers.
    pub(super) fn remember(&self, check: &Check, denial: &Denial, given_back: usize) -> LastDenial {
        let last = LastDenial::new(check, denial);
        let mut line = self.line();
        let is_news = !self.was_given_since(given_back) && line.learn(&last);
        drop(line);
        if is_news {
            self.denied.notify_waiters();
        }
        last
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parts(check: &Check) -> impl Iterator<Item = (&Policy, &Key)> {
    let charges = check.charges().iter();
    charges.map(|it| (it.policy(), it.key()))
}

#[cfg(test)]
mod tests;
