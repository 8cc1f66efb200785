//! The response future: decides, calls the inner service, and settles the charge.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    ops::ControlFlow::{Break, Continue},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    AtHead, Decisions, Ending, Follow, MakeRejection, admit::Step, settle::Unsettled,
    shared::Shared,
};
use crate::domain::decision::Decision;

pin_project! {
    /// Response future for [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B, R, E = AtHead>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future, S::Response>,
        shared: Arc<Shared<R>>,
        end: PhantomData<fn() -> E>,
    }

    impl<S, B, R, E> PinnedDrop for ResponseFuture<S, B, R, E>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            this.abandon();
        }
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F, T> {
        Deciding {
            undecided: Option<Box<Undecided<S, B>>>,
        },
        Rejected {
            response: Option<Box<T>>,
        },
        Serving {
            #[pin]
            response: F,
            admitted: Option<Decisions>,
            ending: Option<Ending>,
        },
        Settling {
            unsettled: Option<Box<Unsettled<T>>>,
        },
    }
}

/// A request that waits for its decision, with the service that was polled ready for that request.
struct Undecided<S, B> {
    step: Step,
    service: S,
    head: Parts,
    body: B,
}

impl<S, B, R, E, T> ResponseFuture<S, B, R, E>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    R: MakeRejection<T>,
{
    /// Passes a request on or rejects it if the decision is ready at once. Otherwise the ready `service` moves into the
    /// future with the request, and its clone stays behind.
    pub(super) fn new(shared: &Arc<Shared<R>>, service: &mut S, request: Request<B>) -> Self {
        let (head, body) = request.into_parts();
        let state = match Step::begin(&shared.plan, &head) {
            Break(Ok(decision)) => serve(shared, service, head, body, decision),
            Break(Err(rejection)) => {
                take_ready(service);
                State::Rejected {
                    response: Some(Box::new(shared.reject(rejection, &head))),
                }
            }
            Continue(step) => State::Deciding {
                undecided: Some(Box::new(Undecided {
                    step,
                    service: take_ready(service),
                    head,
                    body,
                })),
            },
        };
        Self {
            state,
            shared: shared.clone(),
            end: PhantomData,
        }
    }
}

/// Takes the service that was polled ready, and leaves a clone, which may not be ready. See
/// <https://docs.rs/tower-service/0.3/tower_service/trait.Service.html#be-careful-when-cloning-inner-services>
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

impl<S: Service<Request<B>>, B, R, E> ResponseFuture<S, B, R, E> {
    /// Called when the caller is gone, or has the response.
    fn abandon(self: Pin<&mut Self>) {
        let mut this = self.project();
        match this.state.as_mut().project() {
            StateProj::Deciding { .. } | StateProj::Rejected { .. } => {}
            StateProj::Serving {
                admitted, ending, ..
            } => {
                let (admitted, ending) = (admitted.take(), ending.take());
                if ending.is_some() {
                    // The handler's future ends first: its destructors may still meter, and use the slot.
                    this.state.set(State::Settling { unsettled: None });
                }
                drop(ending); // what was metered wins over a refund
                if let Some(admitted) = admitted {
                    this.shared.unanswered(admitted.innermost());
                }
            }
            StateProj::Settling { unsettled } => {
                if let Some(unsettled) = unsettled.take() {
                    this.shared.continue_settling(unsettled.settling);
                }
            }
        }
    }
}

impl<S, ReqB, ResB, R, E> Future for ResponseFuture<S, ReqB, R, E>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    R: MakeRejection<ResB>,
    E: Follow<ResB>,
{
    type Output = Result<Response<E::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding { undecided } => {
                    let Some(mut waiting) = undecided.take() else {
                        panic!("polled after completion");
                    };
                    let Undecided { step, head, .. } = &mut *waiting;
                    let Poll::Ready(admission) = step.poll(&this.shared.plan, head, cx) else {
                        *undecided = Some(waiting);
                        return Poll::Pending;
                    };
                    let Undecided {
                        mut service,
                        head,
                        body,
                        ..
                    } = *waiting;
                    match admission {
                        Ok(decision) => serve(this.shared, &mut service, head, body, decision),
                        Err(rejection) => {
                            let response = this.shared.reject(rejection, &head);
                            return Poll::Ready(Ok(E::follow(response, None)));
                        }
                    }
                }
                StateProj::Rejected { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(E::follow(*response, None))),
                    None => panic!("polled after completion"),
                },
                StateProj::Serving {
                    response,
                    admitted,
                    ending,
                } => {
                    let mut response = ready!(response.poll(cx));
                    let shared = &this.shared;
                    if let Ok(response) = &mut response {
                        shared.see_cost(response, admitted.as_ref());
                    }
                    // `admitted` is still in the state, so that a panic in your closure counts as no response.
                    let settling = match (&mut response, admitted.as_ref()) {
                        (Ok(response), Some(admitted)) => shared.settle(response, admitted),
                        _ => None,
                    };
                    let ending = ending.take();
                    let Some(admitted) = admitted.take() else {
                        return Poll::Ready(response.map(|response| E::follow(response, ending)));
                    };
                    let mut response = match response {
                        Ok(response) => response,
                        Err(error) => {
                            drop(ending);
                            shared.unanswered(admitted.innermost());
                            return Poll::Ready(Err(error));
                        }
                    };
                    let Some(settling) = settling else {
                        shared.complete(&mut response, &admitted, None);
                        return Poll::Ready(Ok(E::follow(response, ending)));
                    };
                    let unsettled = Unsettled {
                        settling,
                        response,
                        admitted,
                        ending,
                    };
                    State::Settling {
                        unsettled: Some(Box::new(unsettled)),
                    }
                }
                StateProj::Settling { unsettled } => {
                    let Some(mut waiting) = unsettled.take() else {
                        panic!("polled after completion");
                    };
                    let Poll::Ready(left) = waiting.settling.as_mut().poll(cx) else {
                        *unsettled = Some(waiting);
                        return Poll::Pending;
                    };
                    let Unsettled {
                        mut response,
                        admitted,
                        ending,
                        ..
                    } = *waiting;
                    let settled = left.map(Decision::Allowed);
                    this.shared.complete(&mut response, &admitted, settled);
                    return Poll::Ready(Ok(E::follow(response, ending)));
                }
            };
            this.state.set(next);
        }
    }
}

/// Inlined, because heads are large to move.
#[inline(always)]
fn serve<S: Service<Request<B>>, B, R>(
    shared: &Shared<R>,
    service: &mut S,
    mut head: Parts,
    body: B,
    decision: Option<Decision>,
) -> State<S, B, S::Future, S::Response> {
    let admitted = match decision {
        Some(decision) => Some(shared.admit(&mut head.extensions, decision)),
        None => {
            shared.pass(&mut head.extensions);
            None
        }
    };
    let ending = shared.meter(&mut head, admitted.as_ref());
    let mut calling = Calling {
        shared,
        admitted,
        ending,
    };
    State::Serving {
        response: service.call(Request::from_parts(head, body)),
        admitted: calling.admitted.take(),
        ending: calling.ending.take(),
    }
}

/// A call that has not returned its future yet. If the call panics, dropping this counts as no response.
struct Calling<'a, R> {
    shared: &'a Shared<R>,
    admitted: Option<Decisions>,
    ending: Option<Ending>,
}

impl<R> Drop for Calling<'_, R> {
    fn drop(&mut self) {
        drop(self.ending.take());
        if let Some(admitted) = &self.admitted {
            self.shared.unanswered(admitted.innermost());
        }
    }
}

impl<S: Service<Request<B>>, B, R, E> fmt::Debug for ResponseFuture<S, B, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Deciding { .. } => "deciding",
            State::Rejected { .. } => "rejected",
            State::Serving { .. } => "serving",
            State::Settling { .. } => "settling",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
