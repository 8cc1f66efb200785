//! The records of refunds in a deny cache, under every order of the steps of two threads.

use loom::{
    sync::{Arc, Mutex},
    thread,
};
use refund_epochs::RefundEpochs;

mod sync {
    pub(super) use loom::sync::atomic;
}

#[path = "../../../src/limiter/refusals/refund_epochs.rs"]
#[allow(dead_code, reason = "the cache uses the rest")]
mod refund_epochs;

/// A store for one unit, and the cached refusal of one check.
struct Site {
    has_room: Mutex<bool>,
    refund_epochs: RefundEpochs,
    remembered: Mutex<Option<u64>>,
}

impl Site {
    /// Asks the store, and caches a refusal.
    fn check(&self) {
        let before = self.refund_epochs.last();
        if !*self.has_room.lock().unwrap() {
            *self.remembered.lock().unwrap() = Some(before);
        }
    }

    fn give_back(&self) {
        *self.has_room.lock().unwrap() = true;
        self.refund_epochs.note(0);
    }

    fn refuses(&self) -> bool {
        let remembered = *self.remembered.lock().unwrap();
        remembered.is_some_and(|number| self.refund_epochs.none_since(number, 0))
    }
}

#[test]
fn no_refusal_is_repeated_after_a_refund_in_every_order() {
    loom::model(|| {
        let site = Arc::new(Site {
            has_room: Mutex::new(false),
            refund_epochs: RefundEpochs::new(1),
            remembered: Mutex::new(None),
        });
        let other = site.clone();
        let checking = thread::spawn(move || other.check());
        site.give_back();
        assert!(!site.refuses());
        checking.join().unwrap();
        assert!(!site.refuses());
    });
}
