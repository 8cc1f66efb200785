//! Requests without a break while something happens to a server.

use std::{collections::HashMap, sync::atomic::Ordering::Relaxed};

use tokio::task::JoinHandle;

use crate::prelude::*;

/// The results of several users.
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
        let mut load = Self {
            is_over: Arc::default(),
            decided: Arc::default(),
            tasks: Vec::new(),
        };
        for name in users {
            let charges = policies.map(|policy| charge(policy, name, 1)).to_vec();
            let (is_over, decided) = (load.is_over.clone(), load.decided.clone());
            let story = story(limiter.clone(), charges, name.clone(), is_over, decided);
            load.tasks.push(tokio::spawn(story));
        }
        load
    }

    /// Waits until requests are decided again. This must take less than a second.
    pub(crate) async fn recovers(&self) {
        let enough = self.decided.load(Relaxed) + 100;
        let are_decided = async || {
            sleep(Duration::from_millis(1)).await;
            self.decided.load(Relaxed) >= enough
        };
        assert!(until("requests are decided", are_decided).await < SOON);
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
    use StoreErrorKind::{CircuitOpen, Refused, Timeout, Unavailable};
    let (mut admitted, mut errors) = (0, Vec::new());
    while !is_over.load(Relaxed) {
        let start = Instant::now();
        let result = limiter.check(charges.clone()).await;
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        match result {
            Ok(decision) => {
                decided.fetch_add(1, Relaxed);
                admitted += u64::from(decision.is_allowed());
            }
            Err(error) => errors.push(error.kind()),
        }
        sleep(Duration::from_millis(2)).await;
    }
    let is_outage = |kind| matches!(kind, &Unavailable | &Refused | &Timeout | &CircuitOpen);
    assert!(errors.iter().all(is_outage), "{errors:?}");
    Story {
        admitted: [(name, admitted)].into(),
        errors,
    }
}

impl Story {
    /// There were errors.
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
