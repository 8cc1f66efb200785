//! The records of refunds in a deny cache, under every order of the steps of two threads.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use loom::{sync::Mutex, thread};

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
    fn check(&self, reads_late: bool) {
        let before = self.refund_epochs.last();
        let is_denied = !*self.has_room.lock().unwrap();
        if is_denied {
            let number = if reads_late {
                self.refund_epochs.last()
            } else {
                before
            };
            *self.remembered.lock().unwrap() = Some(number);
        }
    }

    fn give_back(&self, is_noted: bool) {
        *self.has_room.lock().unwrap() = true;
        if is_noted {
            self.refund_epochs.note(0);
        }
    }

    fn refuses(&self) -> bool {
        let remembered = *self.remembered.lock().unwrap();
        remembered.is_some_and(|number| self.refund_epochs.none_since(number, 0))
    }
}

/// Whether a refusal was repeated after a refund, in some order of the steps.
fn refuses_too_late(reads_late: bool, is_noted: bool) -> bool {
    let found = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&found);
    loom::model(move || {
        let site = loom::sync::Arc::new(Site {
            has_room: Mutex::new(false),
            refund_epochs: RefundEpochs::new(1),
            remembered: Mutex::new(None),
        });
        let other = site.clone();
        let checking = thread::spawn(move || other.check(reads_late));
        site.give_back(is_noted);
        let at_once = site.refuses();
        checking.join().unwrap();
        if at_once || site.refuses() {
            seen.store(true, Relaxed);
        }
    });
    found.load(Relaxed)
}

#[test]
fn what_was_given_back_is_seen_at_once_in_every_order() {
    assert!(!refuses_too_late(false, true));
}

#[test]
fn a_number_read_too_late_or_a_missing_note_is_found() {
    assert!(refuses_too_late(true, true));
    assert!(refuses_too_late(false, false));
}
