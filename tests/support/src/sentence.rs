//! Sentences about stores: each is a test of every store.
//!
//! They are boxed and independent of the type of the store, so a test program contains each of them once. This halves
//! the time to compile it.

use std::{pin::Pin, sync::Arc};

use sluicegate::{Limiter, Store, manual_clock::ManualClock};
use tokio::runtime::Builder;

use super::{
    contract::patient,
    history::START_MS,
    rows::{self, Row},
    runtime,
};

/// The body of a sentence.
pub type Sentence = Pin<Box<dyn Future<Output = ()>>>;

/// Makes a test of each sentence of a module about a store or a limiter: `contributors[]: …`, with `[&]` if the
/// sentences borrow it.
#[macro_export]
macro_rules! sentences {
    ($about:ident $new:path, $module:ident $borrows:tt: $($sentence:ident)*) => {
        $($crate::sentences! { @one $about $new, $module $borrows $sentence })*
    };
    (@one $about:ident $new:path, $module:ident [$($borrows:tt)?] $sentence:ident) => {
        #[test]
        fn $sentence() {
            $crate::sentence::$about($new, |store, clock| {
                Box::pin(async move { $crate::$module::$sentence($($borrows)? store, clock).await })
            });
        }
    };
}

/// Makes the tests of several contracts of a store: `contracts!(new: contract calls)`.
#[macro_export]
macro_rules! contracts {
    ($new:path: $($contract:ident)*) => { $($crate::$contract!($new);)* };
}

/// Tests a sentence about the answers of a store.
pub fn about_a_store<S: Store, N: Future<Output = (S, ManualClock)>>(
    new: fn() -> N,
    sentence: fn(Arc<dyn Store>, ManualClock) -> Sentence,
) {
    runtime().block_on(async {
        let (store, clock) = new().await;
        clock.set(START_MS);
        sentence(Arc::new(store), clock).await;
    });
}

/// Tests each row with a store of its own, and names all that do not hold.
pub fn of_each_row<S: Store>(new: impl AsyncFn() -> (S, ManualClock), rows: &[Row]) {
    rows::each_holds(rows, |row| {
        runtime().block_on(async {
            let (store, clock) = new().await;
            let store: Arc<dyn Store> = Arc::new(store);
            rows::play(&store, &clock, row).await;
        });
    });
}

/// Tests a sentence about the decisions of a limiter, on several threads.
pub fn about_a_limiter<S: Store, N: Future<Output = (S, ManualClock)>>(
    new: fn() -> N,
    sentence: fn(Limiter, ManualClock) -> Sentence,
) {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, clock) = new().await;
        clock.set(START_MS);
        sentence(patient(store), clock).await;
    });
}
