//! Requests without a break while something happens to a server.

use std::{collections::HashMap, sync::atomic::Ordering::Relaxed};

use tokio::task::JoinHandle;

use crate::prelude::*;

#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) admitted: HashMap<String, u64>,
    pub(crate) errors: Vec<StoreErrorKind>,
}

/// Requests of several users, one after another for each.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Story>>,
}

impl Load {
    pub(crate) fn start<const N: usize>(
        limiter: &Limiter,
        policies: [&Policy; N],
        users: &[String],
    ) -> Self {
        let (is_over, decided) = (Arc::default(), Arc::default());
        let tasks = users.iter().map(|name| {
            let charges = policies.map(|policy| charge(policy, name, 1)).to_vec();
            let (is_over, decided) = (Arc::clone(&is_over), Arc::clone(&decided));
            let story = story(limiter.clone(), charges, name.clone(), is_over, decided);
            tokio::spawn(story)
        });
        let tasks = tasks.collect();
        Self {
            is_over,
            decided,
            tasks,
        }
    }

    /// Waits until requests are decided again. This must take less than a second.
    pub(crate) async fn recovers(&self) {
        let enough = self.decided.load(Relaxed) + 100;
        let are_decided = || self.decided.load(Relaxed) >= enough;
        assert!(eventually("requests are decided", are_decided).await < SOON);
    }

    /// Ends the load and returns the results. Fails if a request panicked.
    pub(crate) async fn end(self) -> Story {
        self.is_over.store(true, Relaxed);
        let mut all = Story::default();
        for task in self.tasks {
            let story = task.await.unwrap();
            all.admitted.extend(story.admitted);
            all.errors.extend(story.errors);
        }
        all
    }
}

/// Each request must end in time, although a busy machine adds to its timeout, and fail only while a server is away.
async fn story(
    limiter: Limiter,
    charges: Vec<Charge>,
    name: String,
    is_over: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
) -> Story {
    let (mut admitted, mut errors) = (0, Vec::new());
    while !is_over.load(Relaxed) {
        match in_time(SOON, limiter.check(charges.clone())).await {
            Ok(decision) => {
                decided.fetch_add(1, Relaxed);
                admitted += u64::from(decision.is_allowed());
            }
            Err(error) => errors.push(error.kind()),
        }
        sleep(Duration::from_millis(2)).await;
    }
    let are_outages = errors.iter().copied().all(is_outage);
    assert!(are_outages, "{errors:?}");
    Story {
        admitted: [(name, admitted)].into(),
        errors,
    }
}

/// Whether this is the error of a server that is away.
pub(crate) fn is_outage(kind: StoreErrorKind) -> bool {
    use StoreErrorKind::{CircuitOpen, Refused, Timeout, Unavailable};
    matches!(kind, Unavailable | Refused | Timeout | CircuitOpen)
}

impl Story {
    pub(crate) fn suffered(&self) {
        assert!(!self.errors.is_empty());
    }

    /// There were no errors, and the server counts the admissions.
    pub(crate) async fn counts(&self, limiter: &Limiter, policy: &Policy) {
        assert_eq!(self.errors, []);
        for (name, admitted) in &self.admitted {
            assert_eq!(used(limiter, policy, name).await, *admitted, "{name}");
        }
    }
}
