//! The layer calls the inner service that was ready, and only after the decision to call it.

use std::{future::Ready, task::Waker};
use tokio::sync::oneshot;
use tower::limit::ConcurrencyLimit;

use crate::prelude::*;

fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    support::layer(limiter).limit(policy("all", "10/1m"), everybody())
}

fn request() -> Request<String> {
    to("/")
}

/// Whether the service is ready now.
fn is_ready(service: &mut impl Service<Request<String>, Error = Infallible>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    service.poll_ready(&mut cx).is_ready()
}

/// Panics if called before it was ready. Clones are not ready.
#[derive(Default)]
struct Strict {
    is_ready: bool,
    polls: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            is_ready: false,
            polls: self.polls.clone(),
            calls: self.calls.clone(),
        }
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.polls.fetch_add(1, SeqCst);
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(self.is_ready, "called without having been ready");
        self.is_ready = false;
        self.calls.fetch_add(1, SeqCst);
        ready(Ok(Response::new("hello".into())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_called() {
    let inner = Strict::default();
    let (polls, calls) = (inner.polls.clone(), inner.calls.clone());
    let mut service = layer(Scripted::allowing()).layer(inner);
    for n in 1..=3 {
        let response = service.ready().await.unwrap().call(request()).await;
        assert_eq!(response.unwrap().status(), 200);
        assert_eq!(polls.load(SeqCst), n, "polled once for each request");
        assert_eq!(calls.load(SeqCst), n);
    }
}

#[tokio::test]
async fn the_inner_service_is_not_called_before_the_decision() {
    let (decide, decided) = oneshot::channel::<()>();
    let decided = Mutex::new(Some(decided));
    let store = Scripted::new(move |check| {
        let (check, decided) = (check.clone(), decided.lock().unwrap().take().unwrap());
        StoreFuture::pending(async move {
            decided.await.unwrap();
            allowed(&check)
        })
    });
    let inner = Strict::default();
    let calls = inner.calls.clone();
    let mut service = layer(store).layer(inner);

    let mut response = Box::pin(service.ready().await.unwrap().call(request()));
    assert!(futures::poll!(&mut response).is_pending());
    assert_eq!(calls.load(SeqCst), 0);

    decide.send(()).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test]
async fn a_concurrency_limit_within_is_obeyed_and_its_permits_come_back() {
    let (entered, mut enters) = mpsc::unbounded_channel();
    let inner = service_fn(move |_: Request<String>| {
        let (leave, left) = oneshot::channel::<()>();
        entered.send(leave).unwrap();
        async {
            left.await.unwrap();
            Ok::<_, Infallible>(answer(200))
        }
    });
    let inner = ConcurrencyLimit::new(inner, 1);
    let mut service = layer(Scripted::allowing()).layer(inner);
    let first = tokio::spawn(service.ready().await.unwrap().call(request()));
    let leave = enters.recv().await.unwrap();
    assert!(!is_ready(&mut service), "its permit is taken");
    leave.send(()).unwrap();
    first.await.unwrap().unwrap();

    let second = tokio::spawn(service.ready().await.unwrap().call(request()));
    enters.recv().await.unwrap().send(()).unwrap();
    assert_eq!(second.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_rejection_frees_the_permit_of_the_service_that_was_ready() {
    let inner = ConcurrencyLimit::new(hello(), 1);
    let mut service = layer(Scripted::denying_for(1_000)).layer(inner);
    for _ in 0..3 {
        let rejected = service.ready().await.unwrap().call(request());
        // Keep the response until the end of the round: the permit must be free before the response is dropped.
        let mut rejected = Box::pin(rejected);
        let response = rejected.as_mut().await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(is_ready(&mut service));
    }
}

#[tokio::test]
async fn a_dropped_request_frees_the_permit_and_the_answer_that_it_waited_for() {
    let held = Arc::new(());
    let in_store = held.clone();
    let store = Scripted::new(move |_| {
        let held = in_store.clone();
        StoreFuture::pending(async move {
            pending::<()>().await;
            drop(held);
            unreachable!()
        })
    });
    let inner = ConcurrencyLimit::new(hello(), 1);
    let mut service = layer(store).layer(inner);
    let mut response = Box::pin(service.ready().await.unwrap().call(request()));
    assert!(futures::poll!(&mut response).is_pending());
    assert_eq!(Arc::strong_count(&held), 3);
    assert!(!is_ready(&mut service), "its permit is taken");

    drop(response);
    assert_eq!(Arc::strong_count(&held), 2);
    assert!(is_ready(&mut service));
}

#[tokio::test]
async fn an_inner_service_that_cannot_be_ready_says_so_itself() {
    #[derive(Clone)]
    struct Broken;

    impl Service<Request<String>> for Broken {
        type Response = Response<String>;
        type Error = &'static str;
        type Future = Ready<Result<Response<String>, &'static str>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Err("broken"))
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            panic!("called without having been ready");
        }
    }

    let store = Scripted::allowing();
    let mut service = layer(store.clone()).layer(Broken);
    assert_eq!(service.ready().await.err(), Some("broken"));
    assert!(store.checks().is_empty());
}
