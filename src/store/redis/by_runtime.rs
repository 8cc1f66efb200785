//! [`ByRuntime`]: one value, which is cheap to clone, for each runtime that asks for it, until that runtime ends.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::background;

/// Tasks of one runtime must not wait for what lives in another, which may end or be blocked.
pub(super) struct ByRuntime<T> {
    lines: Lines<T>,
}

type Lines<T> = Arc<RwLock<Vec<Line<T>>>>;

/// The value of one runtime.
struct Line<T> {
    runtime: Id,
    value: T,
    /// Dropped with this: then the guard ends.
    _is_kept: oneshot::Sender<()>,
}

impl<T: Clone + Send + Sync + 'static> ByRuntime<T> {
    pub(super) fn new() -> Self {
        Self {
            lines: Arc::default(),
        }
    }

    /// The value of the current runtime, which is made if there is none; `None` outside of a runtime.
    pub(super) fn here(&self, make: impl FnOnce(&Handle) -> T) -> Option<T> {
        let runtime = Handle::try_current().ok()?;
        let known = {
            let lines = self.lines.read().unwrap_or_else(PoisonError::into_inner);
            find(&lines, runtime.id())
        };
        Some(known.unwrap_or_else(|| self.begin(&runtime, make(&runtime))))
    }

    #[cold]
    fn begin(&self, runtime: &Handle, value: T) -> T {
        let (is_kept, kept) = oneshot::channel();
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = find(&lines, runtime.id()) {
            return known; // another thread of the runtime was first
        }
        lines.push(Line {
            runtime: runtime.id(),
            value: value.clone(),
            _is_kept: is_kept,
        });
        drop(lines);
        let guard = Guard {
            lines: Arc::downgrade(&self.lines),
            runtime: runtime.id(),
        };
        background::spawn_in(runtime, async move {
            let _ = kept.await;
            drop(guard);
        });
        value
    }
}

fn find<T: Clone>(lines: &[Line<T>], runtime: Id) -> Option<T> {
    let line = lines.iter().find(|line| line.runtime == runtime)?;
    Some(line.value.clone())
}

/// Lives in a runtime, and removes its value when it ends.
struct Guard<T> {
    lines: Weak<RwLock<Vec<Line<T>>>>,
    runtime: Id,
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        let Some(lines) = self.lines.upgrade() else {
            return;
        };
        let mut lines = lines.write().unwrap_or_else(PoisonError::into_inner);
        let place = lines.iter().position(|it| it.runtime == self.runtime);
        let over = place.map(|place| lines.swap_remove(place));
        drop(lines);
        drop(over); // without the lock
    }
}
