use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    MakeRejection,
    plan::{Deciding, Verdict},
    service::Shared,
};
use crate::decision::Decision;

pin_project! {
    /// Response future for [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        shared: Arc<Shared<R>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Deciding {
            #[pin]
            deciding: Deciding,
            waiting: Option<(S, Parts, B)>,
        },
        Serving {
            #[pin]
            response: F,
            decision: Option<Decision>,
        },
    }
}

impl<S: Service<Request<B>>, B, R> ResponseFuture<S, B, R> {
    pub(super) const fn new(
        deciding: Deciding,
        waiting: (S, Parts, B),
        shared: Arc<Shared<R>>,
    ) -> Self {
        Self {
            state: State::Deciding {
                deciding,
                waiting: Some(waiting),
            },
            shared,
        }
    }
}

impl<S, ReqB, ResB, R> Future for ResponseFuture<S, ReqB, R>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    R: MakeRejection<ResB>,
{
    type Output = Result<Response<ResB>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding { deciding, waiting } => {
                    let outcome = ready!(deciding.poll(cx));
                    let Some((service, head, body)) = waiting.take() else {
                        panic!("polled after completion");
                    };
                    match this.shared.plan.verdict(outcome) {
                        Verdict::Pass(decision) => serve(service, head, body, decision),
                        Verdict::Refuse(rejection) => {
                            return Poll::Ready(Ok(this.shared.refuse(rejection, &head)));
                        }
                    }
                }
                StateProj::Serving { response, decision } => {
                    let mut response = ready!(response.poll(cx))?;
                    if let Some(decision) = decision.take() {
                        this.shared.complete(&mut response, decision);
                    }
                    return Poll::Ready(Ok(response));
                }
            };
            this.state.set(next);
        }
    }
}

fn serve<S: Service<Request<B>>, B>(
    mut service: S,
    mut head: Parts,
    body: B,
    decision: Option<Decision>,
) -> State<S, B, S::Future> {
    if let Some(decision) = &decision {
        head.extensions.insert(decision.clone());
    }
    State::Serving {
        response: service.call(Request::from_parts(head, body)),
        decision,
    }
}

impl<S: Service<Request<B>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Deciding { .. } => "deciding",
            State::Serving { .. } => "serving",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
