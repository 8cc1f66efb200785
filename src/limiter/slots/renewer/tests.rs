//! The end of a process while the renewer has given a slot away, and no task has it yet.

use std::{pin::pin, time::Duration};

use futures::poll;
use tokio::time::advance;

use super::*;
use crate::{
    domain::{charge::Charge, key::Key, policy::Policy},
    limiter::{Limiter, Slot},
    store::MemoryStore,
};

fn job() -> [Charge; 1] {
    let jobs = Policy::parse("jobs", "1/30s@concurrent").unwrap();
    [Charge::new(&jobs, Key::new("user", "alice"), 1)]
}

async fn acquire(limiter: &Limiter) -> Option<Slot> {
    let slot = limiter.acquire_slot(job(), Duration::ZERO).await.unwrap();
    slot.ok().flatten()
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_process_waits_for_a_renewal_that_is_about_to_begin() {
    let limiter = Limiter::new(MemoryStore::new());
    limiter.inner.jobs.renewer.lock().has_task = true; // this test renews
    let slot = acquire(&limiter).await.unwrap();
    advance(Duration::from_secs(10)).await;
    let Next::Renew(due) = limiter.inner.jobs.renewer.next() else {
        panic!("a slot is due");
    };
    assert_eq!(due.len(), 1);

    let mut end = pin!(limiter.return_slots());
    assert!(poll!(end.as_mut()).is_pending());
    let next = Early::random();
    due.into_iter()
        .for_each(|due| drop(tokio::spawn(due.renew(next))));
    end.await;
    assert!(!slot.is_held());
    assert!(acquire(&limiter).await.is_some());
}
