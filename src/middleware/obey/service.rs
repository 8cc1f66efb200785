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
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    Shared,
    answer::{Answer, Notice},
};
use crate::{
    limiter::{Ask, Sent},
    middleware::respond::Rejection,
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
        let sent = self.shared.send(&head);
        ObeyFuture {
            answer: self.inner.call(Request::from_parts(head, body)),
            sent,
            shared: self.shared.clone(),
            pausing: None,
        }
    }
}

/// Ends when the store has the pause.
type Pausing = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// Response future for [`Obey`].
    pub struct ObeyFuture<F, B> {
        #[pin]
        answer: F,
        sent: SmallVec<[Sent; 1]>,
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
            let answer = ready!(this.answer.as_mut().poll(cx));
            // However it ended, the next request may leave.
            let sent = std::mem::take(this.sent);
            let response = answer?;
            match obey(this.shared, &sent, &response) {
                Some(pausing) => *this.pausing = Some((pausing, response)),
                None => return Poll::Ready(Ok(response)),
            }
        }
        // A retry must not leave before all replicas can see the pause.
        if let Some((pausing, _)) = this.pausing {
            ready!(pausing.as_mut().poll(cx));
        }
        match this.pausing.take() {
            Some((_, response)) => Poll::Ready(Ok(response)),
            None => panic!("polled after completion"),
        }
    }
}

/// Reads an answer. Returns the calls that store a pause.
fn obey<B>(shared: &Shared, sent: &[Sent], response: &Response<B>) -> Option<Pausing> {
    // A layer of ours within this one has rejected the request, not the other service.
    if sent.is_empty() || response.extensions().get::<Rejection>().is_some() {
        return None;
    }
    let answer = Answer::read(response.status(), response.headers(), SystemTime::now());
    match answer {
        Answer::Refused(notice) if notice.wait.is_some() || shared.backs_off => {
            return pause(shared, sent, &notice, false);
        }
        Answer::LastOne(notice) => return pause(shared, sent, &notice, true),
        Answer::Served => sent.iter().for_each(Sent::succeeded),
        Answer::Refused(_) | Answer::Failed => {}
    }
    None
}

fn pause(shared: &Shared, sent: &[Sent], notice: &Notice, is_served: bool) -> Option<Pausing> {
    let ask = Ask {
        wait: notice.wait,
        reason: &notice.reason(),
        label: shared.label.as_deref(),
        is_served,
    };
    let sent = sent.iter();
    let calls = sent.filter_map(|sent| sent.asked_to_wait(ask, &shared.backoff));
    let calls: SmallVec<[_; 1]> = calls.collect();
    if calls.is_empty() {
        return None;
    }
    let storing = async move {
        for call in calls {
            call.await;
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
