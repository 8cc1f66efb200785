//! A store that fails, hangs or is late, as a test says for each call.

use std::fmt;

use super::prelude::*;

/// A call of a store.
#[derive(Debug)]
pub enum Asked<'a> {
    Check(&'a Check),
    Execute(&'a Operation),
    Call(&'a [Operation]),
}

/// The course of a call.
#[derive(Debug)]
pub enum Fate {
    Answered,
    /// Nothing is executed.
    Fails(StoreError),
    /// The same, so much later.
    FailsLate(Duration),
    /// Nothing is executed, and there is no answer.
    Hangs,
    /// Executed, and the caller gets an error.
    LosesAnswer,
    /// Executed at once, and answered so much later.
    Late(Duration),
    /// Executed at once, and answered when this is notified.
    Held(Arc<Notify>),
    /// Executed when this is notified.
    Delayed(Arc<Notify>),
    /// Travels for so long in each direction, and arrives even if the caller has left.
    Travels(Duration, Duration),
}

impl Fate {
    /// Late, if there is a latency.
    pub fn late(latency: Duration) -> Self {
        if latency.is_zero() {
            Self::Answered
        } else {
            Self::Late(latency)
        }
    }

    pub fn unavailable() -> Self {
        Self::Fails(unavailable())
    }
}

type Decide = dyn Fn(&Asked<'_>) -> Fate + Send + Sync;

/// A store within, and the fate of each call. Clones share both.
#[derive(Clone)]
pub struct Fated<S = MemoryStore> {
    pub store: S,
    fate: Arc<Decide>,
    one_by_one: bool,
}

impl<S: Store + Clone> Fated<S> {
    /// Asks for the fate of each operation of a call.
    pub fn new(store: S, fate: impl Fn(&Asked<'_>) -> Fate + Send + Sync + 'static) -> Self {
        Self {
            store,
            fate: Arc::new(fate),
            one_by_one: true,
        }
    }

    /// Asks for the fate of a call as a whole.
    pub fn by_call(store: S, fate: impl Fn(&Asked<'_>) -> Fate + Send + Sync + 'static) -> Self {
        Self {
            one_by_one: false,
            ..Self::new(store, fate)
        }
    }

    fn meet<T: Send + 'static>(
        &self,
        asked: &Asked<'_>,
        act: impl FnOnce(&S) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let store = self.store.clone();
        match (self.fate)(asked) {
            Fate::Answered => act(&store),
            Fate::Fails(error) => StoreFuture::ready(Err(error)),
            Fate::FailsLate(after) => StoreFuture::pending(async move {
                sleep(after).await;
                Err(unavailable())
            }),
            Fate::Hangs => StoreFuture::pending(pending()),
            Fate::LosesAnswer => {
                let answer = act(&store);
                StoreFuture::pending(async {
                    answer.await?;
                    Err(unavailable())
                })
            }
            Fate::Late(after) => {
                let answer = act(&store);
                StoreFuture::pending(async move {
                    sleep(after).await;
                    answer.await
                })
            }
            Fate::Held(answers) => {
                let answer = act(&store);
                StoreFuture::pending(async move {
                    answers.notified().await;
                    answer.await
                })
            }
            Fate::Delayed(arrives) => StoreFuture::pending(async move {
                arrives.notified().await;
                act(&store).await
            }),
            Fate::Travels(there, back) => {
                let answer = tokio::spawn(async move {
                    sleep(there).await;
                    let answer = act(&store).await;
                    sleep(back).await;
                    answer
                });
                StoreFuture::pending(async { answer.await.unwrap() })
            }
        }
    }
}

impl<S: Store + Clone> Store for Fated<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let sent = check.clone();
        self.meet(&Asked::Check(check), move |store| store.check(&sent))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let sent = operation.clone();
        self.meet(&Asked::Execute(&operation), move |store| {
            store.execute(sent)
        })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        if self.one_by_one {
            return OneByOne(self.clone()).call(operations);
        }
        let sent = operations.clone();
        self.meet(&Asked::Call(&operations), move |store| store.call(sent))
    }
}

/// Has the default way to call.
#[derive(Debug)]
struct OneByOne<S>(Fated<S>);

impl<S: Store + Clone> Store for OneByOne<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.0.execute(operation)
    }
}

impl<S> fmt::Debug for Fated<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fated")
    }
}
