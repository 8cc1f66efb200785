//! [`ByRuntime`]: one value, which is cheap to clone, for each runtime that asks for it, until that runtime ends.

use std::sync::{PoisonError, RwLock};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::background;

/// Tasks of one runtime must not wait for what lives in another, which may end or be blocked.
pub(super) struct ByRuntime<T> {
    lines: RwLock<Vec<Line<T>>>,
}

/// The value of one runtime.
struct Line<T> {
    runtime: Id,
    value: T,
    /// To a task of that runtime: closed when the runtime has ended.
    task: oneshot::Sender<()>,
}

impl<T: Clone> ByRuntime<T> {
    pub(super) const fn new() -> Self {
        Self {
            lines: RwLock::new(Vec::new()),
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

    /// Also removes the values of runtimes that have ended.
    #[cold]
    fn begin(&self, runtime: &Handle, value: T) -> T {
        let (task, ends) = oneshot::channel();
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = find(&lines, runtime.id()) {
            return known; // another thread of the runtime was first
        }
        let over: Vec<_> = lines.extract_if(.., |it| it.task.is_closed()).collect();
        lines.push(Line {
            runtime: runtime.id(),
            value: value.clone(),
            task,
        });
        drop(lines);
        drop(over); // without the lock
        background::spawn_in(runtime, async { drop(ends.await) });
        value
    }
}

fn find<T: Clone>(lines: &[Line<T>], runtime: Id) -> Option<T> {
    let line = lines.iter().find(|line| line.runtime == runtime)?;
    Some(line.value.clone())
}
