//! Sentences about stores: each is a test of every store.
//!
//! They are boxed, and are about any store: a program of tests then has each of them once, not once for each store. It
//! is compiled in half the time.

use std::{pin::Pin, sync::Arc};

use sluicegate::{Limiter, Store, test_util::TestClock};
use tokio::runtime::Builder;

use super::{contract::patient, history::START_MS};

/// What a sentence does.
pub(crate) type Sentence<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Tests a sentence about what a store answers.
pub(crate) fn about_a_store<S: Store, N: Future<Output = (S, TestClock)>>(
    new: fn() -> N,
    sentence: for<'a> fn(&'a Arc<dyn Store>, TestClock) -> Sentence<'a>,
) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, clock) = new().await;
        clock.set(START_MS);
        let store: Arc<dyn Store> = Arc::new(store);
        sentence(&store, clock).await;
    });
}

/// Tests a sentence about what a limiter decides, on several threads.
pub(crate) fn about_a_limiter<S: Store, N: Future<Output = (S, TestClock)>>(
    new: fn() -> N,
    sentence: for<'a> fn(&'a Limiter, TestClock) -> Sentence<'a>,
) {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, clock) = new().await;
        clock.set(START_MS);
        sentence(&patient(store), clock).await;
    });
}
