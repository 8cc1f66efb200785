//! [`Obey`]: the service around a client, and its future.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};
use tower_service::Service;

use super::{
    Shared,
    answer::{Answer, Notice},
};
use crate::{
    domain::{block::BlockRequest, key::Key},
    middleware::{future::taken, respond::Rejection},
};

/// A client around which [`ObeyLayer`](super::ObeyLayer) reads the answers.
#[derive(Clone, Debug)]
pub struct Obey<S> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared>,
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for Obey<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
{
    type Response = Response<ResB>;
    type Error = S::Error;
    type Future = ObeyFuture<S::Future, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (head, body) = request.into_parts();
        let accounts = self.shared.accounts(&head).into_iter().collect();
        let left = Instant::now();
        ObeyFuture {
            answer: self.inner.call(Request::from_parts(head, body)),
            under_way: UnderWay { accounts, left },
            shared: self.shared.clone(),
            pausing: None,
        }
    }
}

/// The accounts of a request, and when it left.
struct UnderWay {
    accounts: SmallVec<[Key; 1]>,
    left: Instant,
}

/// Ends when the store has the pause.
type Pausing = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// Response future for [`Obey`].
    pub struct ObeyFuture<F, B> {
        #[pin]
        answer: F,
        under_way: UnderWay,
        shared: Arc<Shared>,
        pausing: Option<(Pausing, Response<B>)>,
    }
}

impl<F, B, E> Future for ObeyFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.pausing.is_none() {
            let response = ready!(this.answer.as_mut().poll(cx))?;
            match obey(this.shared, this.under_way, &response) {
                Some(pausing) => *this.pausing = Some((pausing, response)),
                None => return Poll::Ready(Ok(response)),
            }
        }
        // A retry must not leave before all replicas can see the pause.
        if let Some((pausing, _)) = this.pausing {
            ready!(pausing.as_mut().poll(cx));
        }
        Poll::Ready(Ok(taken(this.pausing).1))
    }
}

/// Reads an answer. Returns the calls that store a pause.
fn obey<B>(shared: &Shared, under_way: &UnderWay, response: &Response<B>) -> Option<Pausing> {
    // A layer of ours within this one has rejected the request, not the other service.
    if under_way.accounts.is_empty() || response.extensions().get::<Rejection>().is_some() {
        return None;
    }
    let answer = Answer::read(response.status(), response.headers(), SystemTime::now());
    match answer {
        Answer::Refused(notice) if notice.wait.is_some() || shared.backs_off => {
            return pause(shared, under_way, &notice);
        }
        Answer::LastOne(notice) => {
            under_way.served(shared);
            return pause(shared, under_way, &notice);
        }
        Answer::Served => under_way.served(shared),
        Answer::Refused(_) | Answer::Failed => {}
    }
    None
}

impl UnderWay {
    fn served(&self, shared: &Shared) {
        for key in &self.accounts {
            shared.backoff.served(key, self.left);
        }
    }
}

fn pause(shared: &Shared, under_way: &UnderWay, notice: &Notice) -> Option<Pausing> {
    let (backoff, reason) = (&shared.backoff, notice.reason());
    let calls = under_way.accounts.iter().filter_map(|key| {
        let length = match notice.wait {
            Some(wait) => wait,
            None => backoff.next(key, under_way.left, shared.max_pause)?,
        };
        let length = length.min(shared.max_pause);
        backoff.paused(key, length);
        let request = BlockRequest::pause_up_to(length, shared.max_pause).reason(&reason);
        let label = shared.label.as_deref();
        let (is_longer, store) = shared.limiter.pause(key, label, request);
        is_longer.then_some(store)
    });
    let calls: SmallVec<[_; 1]> = calls.collect();
    if calls.is_empty() {
        return None;
    }
    let storing = async move {
        for call in calls {
            // The limiter has reported an error, and the pause holds here all the same.
            let _ = call.await;
        }
    };
    // In a task, the calls are made even if the caller leaves.
    let (stored, end) = oneshot::channel::<()>();
    shared.limiter.in_background(async move {
        storing.await;
        drop(stored);
    });
    Some(Box::pin(async move { drop(end.await) }))
}

impl<F, B> fmt::Debug for ObeyFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObeyFuture").finish_non_exhaustive()
    }
}
