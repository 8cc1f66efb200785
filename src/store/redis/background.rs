//! The one place of this room that spawns: connections, calls and roll-backs go on when their callers leave.

use tokio::runtime::Handle;

/// Spawns work in the runtime of the caller.
///
/// # Panics
///
/// Outside of a runtime.
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(work));
}

/// Spawns work in this runtime, which drops the work if it has been shut down.
pub(super) fn spawn_in(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    drop(runtime.spawn(work));
}
