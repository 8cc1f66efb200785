//! [`Late`]: a check that had no answer in time, as long as its request goes on without one.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The cost of such a check in the end, if the store has admitted it.
#[derive(Debug)]
pub(crate) enum LateCost {
    /// Nothing: the request was not served.
    Nothing,
    AsCharged,
    /// The final cost of each charge, and then of each shadow.
    Of(Box<[u64]>),
}

/// Says what the check costs in the end, once: at the latest when this is dropped.
pub(crate) struct Late {
    is_served: AtomicBool,
    end: Mutex<Option<End>>,
}

type End = Box<dyn FnOnce(LateCost) + Send>;

impl Late {
    pub(crate) fn new(end: impl FnOnce(LateCost) + Send + 'static) -> Self {
        Self {
            is_served: AtomicBool::new(false),
            end: Mutex::new(Some(Box::new(end))),
        }
    }

    /// Notes that the request is served, or that its caller keeps the charge in any case.
    pub(crate) fn serve(&self) {
        self.is_served.store(true, Relaxed);
    }

    /// Only the first call has an effect.
    pub(crate) fn end(&self, cost: LateCost) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let end_once = end.take();
        drop(end);
        if let Some(end) = end_once {
            end(cost);
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.end(match self.is_served.load(Relaxed) {
            true => LateCost::AsCharged,
            false => LateCost::Nothing,
        });
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Late")
    }
}
