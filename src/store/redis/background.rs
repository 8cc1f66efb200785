//! The one place of this room that spawns: connections, calls and roll-backs go on when their callers leave.

#[cfg(feature = "cluster")]
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

#[cfg(feature = "cluster")]
use crate::background;

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

/// Spawns work in the runtime of the caller. If that ends, the work goes on in the back room.
///
/// # Panics
///
/// Outside of a runtime.
#[cfg(feature = "cluster")]
pub(super) fn outlive(work: impl Future<Output = ()> + Send + 'static) {
    spawn(Outliving(Some(Box::pin(work))));
}

/// `None` when the work has ended.
#[cfg(feature = "cluster")]
struct Outliving(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

#[cfg(feature = "cluster")]
impl Future for Outliving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(work) = &mut self.0 {
            ready!(work.as_mut().poll(cx));
        }
        self.0 = None;
        Poll::Ready(())
    }
}

#[cfg(feature = "cluster")]
impl Drop for Outliving {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            background::spawn(work);
        }
    }
}
