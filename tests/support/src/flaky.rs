//! A memory store that can be made to fail or to hang.

use super::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    Down,
    Hanging,
    /// Executes a call at once, and answers a second later.
    Slow,
}

#[derive(Clone, Debug)]
pub struct Flaky {
    store: Fated,
    state: Arc<Mutex<State>>,
}

impl Flaky {
    pub fn new() -> (Self, ManualClock) {
        let ((memory, clock), state) = (memory(), Arc::new(Mutex::new(State::Up)));
        let now = Arc::clone(&state);
        let store = Fated::by_call(memory, move |_| match *now.lock().unwrap() {
            State::Up => Fate::Answered,
            State::Down => Fate::unavailable(),
            State::Hanging => Fate::Hangs,
            State::Slow => Fate::Late(SECOND),
        });
        (Self { store, state }, clock)
    }

    pub fn is_now(&self, state: State) {
        *self.state.lock().unwrap() = state;
    }
}

impl Store for Flaky {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.store.execute(operation)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.store.call(operations)
    }
}
