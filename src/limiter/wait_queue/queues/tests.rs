//! Tests of the wait queue's bookkeeping.

use std::{
    pin::pin,
    task::{Context, Waker},
};

use crate::{
    domain::{charge::Charge, check::Check, key::Key, policy::Policy},
    limiter::{FOR_EVER, Limiter, WhereOpen},
    store::MemoryStore,
};

#[tokio::test(start_paused = true)]
async fn a_queue_is_forgotten_when_the_last_one_leaves() {
    let limiter = Limiter::new(MemoryStore::new());
    let policies = ["api", "all"].map(|name| Policy::parse(name, "1/1h").unwrap());
    let charge = |policy, key| Charge::new(policy, Key::new("user", key), 1);
    let check = Check::new([
        charge(&policies[0], "alice"),
        charge(&policies[1], "alice"),
        charge(&policies[1], "everybody"),
    ])
    .unwrap();
    let decision = limiter
        .wait(&check, FOR_EVER, WhereOpen::AskAgain)
        .await
        .into_result();
    assert!(decision.unwrap().is_allowed());
    let keys = || limiter.inner.queues.by_key.lock().unwrap().len();
    assert_eq!(keys(), 0);
    {
        let mut waiting =
            [0, 1].map(|_| Box::pin(limiter.wait(&check, FOR_EVER, WhereOpen::AskAgain)));
        let mut context = Context::from_waker(Waker::noop());
        for caller in &mut waiting {
            assert!(pin!(caller).poll(&mut context).is_pending());
        }
        assert_eq!(keys(), 2);
    }
    assert_eq!(keys(), 0);
}
