//! The one place of this room that spawns: connections, calls and roll-backs go on when their callers leave.

use tokio::sync::oneshot;

use super::error::SHUT_DOWN;
use crate::domain::error::StoreError;

/// Spawns work in the runtime of the caller.
///
/// # Panics
///
/// Outside of a runtime.
#[cfg(feature = "cluster")]
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(work));
}

/// Spawns work that answers, and waits for the answer. When the caller leaves, the work goes on, and finds its sender
/// closed. When the runtime ends, the caller gets an error at once.
///
/// # Panics
///
/// Outside of a runtime.
#[cfg(feature = "cluster")]
pub(super) async fn answered<T, F>(
    work: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    spawn(work(caller));
    answer.await.unwrap_or(Err(SHUT_DOWN))
}
