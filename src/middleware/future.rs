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
    admit::{Admission, Pass},
    respond::{Decisions, MakeRejection},
    response_end::{AtHead, Follow, RequestGuard},
    shared::{Settings, Shared},
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
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F, T> {
        Deciding {
            undecided: Option<Box<Undecided<S, B>>>,
        },
        Rejected {
            response: Option<T>,
        },
        Serving {
            #[pin]
            response: F,
            admitted: Option<Decisions>,
            // Dropped after the handler's future, whose destructors may still meter, and use the slot.
            ending: Option<RequestGuard>,
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

/// A response that waits for its settlement, which goes on if the caller leaves.
struct Unsettled<T> {
    response: T,
    admitted: Decisions,
    ending: RequestGuard,
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
        let settings = &shared.settings;
        let state = match Admission::begin(&settings.config, &head) {
            Break(Ok(pass)) => serve(settings, service, head, body, pass),
            Break(Err(rejection)) => {
                take_ready(service);
                State::Rejected {
                    response: Some(shared.reject(rejection, &head)),
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

impl<S, ReqB, ResB, R, E> Future for ResponseFuture<S, ReqB, R, E>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    R: MakeRejection<ResB>,
    E: Follow<ResB>,
{
    type Output = Result<Response<E::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let settings = &this.shared.settings;
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding { undecided } => {
                    let waiting = present(undecided);
                    let admitted =
                        ready!(waiting.admission.poll(&settings.config, &waiting.head, cx));
                    // Out of the state first: after a panic in the service, no poll decides the request again.
                    let mut it = *taken(undecided);
                    match admitted {
                        Ok(pass) => serve(settings, &mut it.service, it.head, it.body, pass),
                        Err(rejection) => {
                            let response = this.shared.reject(rejection, &it.head);
                            return Poll::Ready(Ok(E::follow(response, None)));
                        }
                    }
                }
                StateProj::Rejected { response } => {
                    return Poll::Ready(Ok(E::follow(taken(response), None)));
                }
                StateProj::Serving {
                    response,
                    admitted,
                    ending,
                } => {
                    // After an error the request ends now, however long the caller keeps this future.
                    let response = ready!(response.poll(cx)).inspect_err(|_| *ending = None)?;
                    match answered(settings, response, admitted, ending) {
                        Ok(response) => {
                            return Poll::Ready(Ok(E::follow(response, ending.take())));
                        }
                        Err(unsettled) => State::Settling {
                            unsettled: Some(unsettled),
                        },
                    }
                }
                StateProj::Settling { unsettled } => {
                    let waiting = present(unsettled);
                    // The headers show what is left afterwards, and a client's next request must find it.
                    let settled = ready!(waiting.ending.poll_settled(cx)).map(Decision::Allowed);
                    settings.complete(&mut waiting.response, &waiting.admitted, settled);
                    let it = *taken(unsettled);
                    return Poll::Ready(Ok(E::follow(it.response, Some(it.ending))));
                }
            };
            this.state.set(next);
        }
    }
}

/// Completes the inner service's response, unless a settlement has to be waited for.
#[inline]
fn answered<T>(
    settings: &Settings,
    mut response: Response<T>,
    admitted: &mut Option<Decisions>,
    ending: &mut Option<RequestGuard>,
) -> Result<Response<T>, Box<Unsettled<Response<T>>>> {
    let mut settles = false;
    if let (Some(cost_of), Some(ending)) = (&settings.settles, ending.as_mut()) {
        let (head, body) = response.into_parts();
        // `ending` is still in the state, so that a panic in your closure counts as no response.
        settles = ending.settle_early(|charge| cost_of(&head, charge));
        response = Response::from_parts(head, body);
    }
    settings.see_cost(&mut response, admitted.as_ref());
    if let Some(ending) = ending {
        ending.answered(&response);
    }
    if settles {
        return Err(Box::new(Unsettled {
            response,
            admitted: taken(admitted),
            ending: taken(ending),
        }));
    }
    if let Some(admitted) = admitted {
        settings.complete(&mut response, admitted, None);
    }
    Ok(response)
}

pub(super) fn present<T>(value: &mut Option<T>) -> &mut T {
    match value {
        Some(value) => value,
        None => panic!("polled after completion"),
    }
}

pub(super) fn taken<T>(value: &mut Option<T>) -> T {
    match value.take() {
        Some(value) => value,
        None => panic!("polled after completion"),
    }
}

/// Inlined, because heads are large to move.
#[inline(always)]
fn serve<S: Service<Request<B>>, B>(
    settings: &Settings,
    service: &mut S,
    mut head: Parts,
    body: B,
    pass: Pass,
) -> State<S, B, S::Future, S::Response> {
    let (admitted, late) = match pass {
        Pass::Decided(decision) => (Some(settings.admit(&mut head.extensions, decision)), None),
        Pass::Undecided(late) => {
            settings.pass(&mut head.extensions);
            (None, late)
        }
    };
    let ending = settings.guard(&mut head, admitted.as_ref(), late.as_ref());
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
