//! A memory store that can be made to fail or to hang.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use sluicegate::{
    Decision, MemoryStore, Store,
    manual_clock::ManualClock,
    store::{CallFuture, Check, Operation, Reply, StoreFuture},
};

use super::{history::START_MS, scripted::unavailable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// Each call fails at once.
    Down,
    /// No call returns.
    Hanging,
    /// Executes a call at once, and answers a second later.
    Slow,
}

/// A memory store that can fail or hang. Clones share the memory and the state.
#[derive(Clone, Debug)]
pub struct Flaky {
    memory: MemoryStore,
    state: Arc<Mutex<State>>,
}

impl Flaky {
    pub fn new() -> (Self, ManualClock) {
        let clock = ManualClock::new(START_MS);
        let store = Self {
            memory: MemoryStore::new().clock(clock.clone()),
            state: Arc::new(Mutex::new(State::Up)),
        };
        (store, clock)
    }

    pub fn is_now(&self, state: State) {
        *self.state.lock().unwrap() = state;
    }

    fn answer<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&MemoryStore) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match *self.state.lock().unwrap() {
            State::Up => answer(&self.memory),
            State::Down => StoreFuture::ready(Err(unavailable())),
            State::Hanging => StoreFuture::pending(std::future::pending()),
            State::Slow => {
                let answer = answer(&self.memory);
                StoreFuture::pending(async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    answer.await
                })
            }
        }
    }
}

impl Store for Flaky {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.answer(|store| store.check(check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.answer(|store| store.execute(operation))
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.answer(|store| store.call(operations))
    }
}
