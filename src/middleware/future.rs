//! The response future: decides, calls the inner service, and settles the charge.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    ops::ControlFlow::{self, Break, Continue},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    AtHead, Decisions, Ending, Follow, MakeRejection, admit::Admission, settle::Unsettled,
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
            // Dropped after the handler's future, whose destructors may still meter, and use the slot.
            ending: Option<Ending>,
        },
        Settling {
            unsettled: Option<Box<Unsettled<T>>>,
        },
    }
}

/// A request that waits for its decision, with the service that was polled ready for that request.
struct Undecided<S, B> {
    admission: Admission,
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
        let state = match Admission::begin(&shared.config, &head) {
            Break(Ok(decision)) => serve(shared, service, head, body, decision),
            Break(Err(rejection)) => {
                take_ready(service);
                State::Rejected {
                    response: Some(Box::new(shared.reject(rejection, &head))),
                }
            }
            Continue(admission) => State::Deciding {
                undecided: Some(Box::new(Undecided {
                    admission,
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
        if let StateProj::Settling { unsettled } = this.state.as_mut().project()
            && let Some(unsettled) = unsettled.take()
        {
            this.shared.continue_settling(unsettled.settling);
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
        let shared = &**this.shared;
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding { undecided } => ready!(decided(shared, undecided, cx)),
                StateProj::Rejected { response } => Break(Ok((*taken(response), None))),
                StateProj::Serving {
                    response,
                    admitted,
                    ending,
                } => answered(shared, ready!(response.poll(cx)), admitted, ending),
                StateProj::Settling { unsettled } => {
                    Break(Ok(ready!(settled(shared, unsettled, cx))))
                }
            };
            match next {
                Break(Ok((response, ending))) => {
                    return Poll::Ready(Ok(E::follow(response, ending)));
                }
                Break(Err(error)) => return Poll::Ready(Err(error)),
                Continue(state) => this.state.set(state),
            }
        }
    }
}

/// A response, and the ending that follows its body.
type Answer<T> = (Response<T>, Option<Ending>);

/// The next state; or the answer, or the error of the inner service.
type Next<S, B, F, T, E> = ControlFlow<Result<Answer<T>, E>, State<S, B, F, Response<T>>>;

fn taken<T>(value: &mut Option<T>) -> T {
    match value.take() {
        Some(value) => value,
        None => panic!("polled after completion"),
    }
}

/// Waits for the decision about a request, and serves or rejects the request.
fn decided<S, B, F, T, R, E>(
    shared: &Shared<R>,
    undecided: &mut Option<Box<Undecided<S, B>>>,
    cx: &mut Context<'_>,
) -> Poll<Next<S, B, F, T, E>>
where
    S: Service<Request<B>, Response = Response<T>, Error = E, Future = F>,
    R: MakeRejection<T>,
{
    let mut waiting = taken(undecided);
    let Undecided {
        admission, head, ..
    } = &mut *waiting;
    let Poll::Ready(admitted) = admission.poll(&shared.config, head, cx) else {
        *undecided = Some(waiting);
        return Poll::Pending;
    };
    let Undecided {
        mut service,
        head,
        body,
        ..
    } = *waiting;
    Poll::Ready(match admitted {
        Ok(decision) => Continue(serve(shared, &mut service, head, body, decision)),
        Err(rejection) => Break(Ok((shared.reject(rejection, &head), None))),
    })
}

/// Completes the answer of the inner service, unless the charge has to be settled first.
fn answered<S, B, F, T, R, E>(
    shared: &Shared<R>,
    mut response: Result<Response<T>, E>,
    admitted: &mut Option<Decisions>,
    ending: &mut Option<Ending>,
) -> Next<S, B, F, T, E> {
    if let Ok(response) = &mut response {
        shared.see_cost(response, admitted.as_ref());
    }
    // `ending` is still in the state, so that a panic in your closure counts as no response.
    let settling = match (&mut response, admitted.as_ref()) {
        (Ok(response), Some(admitted)) => shared.settle(response, admitted),
        _ => None,
    };
    let ending = ending.take();
    if let (Ok(response), Some(ending)) = (&response, &ending) {
        ending.answered(response.status());
    }
    let Some(admitted) = admitted.take() else {
        return Break(response.map(|response| (response, ending)));
    };
    match (response, settling) {
        (Ok(response), Some(settling)) => Continue(State::Settling {
            unsettled: Some(Box::new(Unsettled {
                settling,
                response,
                admitted,
                ending,
            })),
        }),
        (Ok(mut response), None) => {
            shared.complete(&mut response, &admitted, None);
            Break(Ok((response, ending)))
        }
        (Err(error), _) => Break(Err(error)),
    }
}

/// Waits for the settlement of an answer, and completes the answer.
fn settled<R, T>(
    shared: &Shared<R>,
    unsettled: &mut Option<Box<Unsettled<Response<T>>>>,
    cx: &mut Context<'_>,
) -> Poll<Answer<T>> {
    let mut waiting = taken(unsettled);
    let Poll::Ready(usage) = waiting.settling.as_mut().poll(cx) else {
        *unsettled = Some(waiting);
        return Poll::Pending;
    };
    let Unsettled {
        mut response,
        admitted,
        ending,
        ..
    } = *waiting;
    shared.complete(&mut response, &admitted, usage.map(Decision::Allowed));
    Poll::Ready((response, ending))
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
    State::Serving {
        response: service.call(Request::from_parts(head, body)),
        admitted,
        ending,
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
