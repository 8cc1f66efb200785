//! Slots that a check takes although its caller has left: they are returned at once.

use tokio::{runtime::Handle, sync::oneshot};

use super::Limiter;
use crate::{
    domain::error::{StoreError, StoreErrorKind},
    limiter::Resolution,
    store::eventual::Eventual,
};

/// The resolution of a check that takes slots. Dropping it before the caller has it returns them.
struct Unclaimed {
    limiter: Limiter,
    resolution: Option<Resolution>,
}

impl Unclaimed {
    fn claim(mut self) -> Option<Resolution> {
        self.resolution.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(Resolution::Decided(decision)) = &self.resolution {
            drop(self.limiter.hold(decision));
        }
    }
}

impl Limiter {
    /// Waits for a resolution in a task, which goes on when the caller leaves. Without a runtime, slots then expire.
    pub(in crate::limiter) fn claimed(
        &self,
        resolving: impl Future<Output = Resolution> + Send + 'static,
    ) -> Eventual<Resolution> {
        let Ok(runtime) = Handle::try_current() else {
            return Eventual::pending(resolving);
        };
        let (sender, receiver) = oneshot::channel();
        let limiter = self.clone();
        runtime.spawn(async move {
            let resolution = Some(resolving.await);
            // What is not received is dropped.
            let _ = sender.send(Unclaimed {
                limiter,
                resolution,
            });
        });
        Eventual::pending(async {
            let claimed = receiver.await.ok().and_then(Unclaimed::claim);
            claimed.unwrap_or(Resolution::Closed(STOPPED))
        })
    }
}

const STOPPED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "the runtime stopped while a check was under way",
);
