//! [`ReadBody`]: the service that reads bodies, and its future.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ParsedBody, Shared,
    collecting::{BoxError, Collecting},
    is_plain,
    refusal::Refusal,
};
use crate::middleware::future::{present, taken};

/// A service whose bodies [`ReadBodyLayer`](super::ReadBodyLayer) reads.
pub struct ReadBody<S, T> {
    inner: S,
    shared: Arc<Shared<T>>,
}

impl<S, T> ReadBody<S, T> {
    pub(super) const fn new(inner: S, shared: Arc<Shared<T>>) -> Self {
        Self { inner, shared }
    }
}

impl<S, T, B, R> Service<Request<B>> for ReadBody<S, T>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    T: Send + Sync + 'static,
    B: Body<Error: Into<BoxError>> + From<Bytes>,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ReadBodyFuture<S, T, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.inner.clone();
        let (head, body) = request.into_parts();
        if body.is_end_stream() || !self.shared.reads(&head) {
            let request = Some(Request::from_parts(head, body));
            let state = State::Unready { service, request };
            return ReadBodyFuture { state };
        }
        let most = self.shared.most;
        let refusal = if !is_plain(&head.headers) {
            Some(Refusal::Encoded)
        } else if body.size_hint().lower().max(stated(&head)) > most as u64 {
            Some(Refusal::TooLarge(most))
        } else {
            None
        };
        let reading = Reading {
            head,
            service,
            shared: Arc::clone(&self.shared),
            collecting: Collecting::new(most, self.shared.time_limit),
            refusal,
        };
        let reading = Some(Box::new(reading));
        ReadBodyFuture {
            state: State::Reading { body, reading },
        }
    }
}

/// The length in the head; 0 if there is none. An outer layer may have wrapped the body, which then does not know it.
fn stated(head: &Parts) -> u64 {
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}

pin_project! {
    /// Response future for [`ReadBody`].
    pub struct ReadBodyFuture<S, T, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, T, B>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<S, T, B>
    where
        S: Service<Request<B>>,
    {
        Reading {
            #[pin]
            body: B,
            reading: Option<Box<Reading<S, T>>>,
        },
        // Not ready yet.
        Unready {
            service: S,
            request: Option<Request<B>>,
        },
        Called {
            #[pin]
            response: S::Future,
        },
    }
}

/// A request whose body is read.
struct Reading<S, T> {
    head: Parts,
    service: S,
    shared: Arc<Shared<T>>,
    collecting: Collecting,
    /// Set if there is no need to read.
    refusal: Option<Refusal>,
}

impl<S, T: Send + Sync + 'static> Reading<S, T> {
    fn poll<B: Body<Error: Into<BoxError>>>(
        &mut self,
        body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bytes, Refusal>> {
        if let Some(refusal) = self.refusal.take() {
            return Poll::Ready(Err(refusal));
        }
        let bytes = ready!(self.collecting.poll(body, cx))?;
        if !bytes.is_empty() {
            let parsed = (self.shared.parse)(&self.head, &bytes).map_err(Refusal::Unparsed)?;
            self.head.extensions.insert(ParsedBody(Arc::new(parsed)));
        }
        Poll::Ready(Ok(bytes))
    }
}

impl<S, T, B, R> Future for ReadBodyFuture<S, T, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    T: Send + Sync + 'static,
    B: Body<Error: Into<BoxError>> + From<Bytes>,
    R: From<String>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Reading { body, reading } => {
                    let read = ready!(present(reading).poll(body, cx));
                    let Reading { head, service, .. } = *taken(reading);
                    // The body before the service: a slow client must hold no place there.
                    match read {
                        Ok(bytes) => {
                            let request = Some(Request::from_parts(head, B::from(bytes)));
                            State::Unready { service, request }
                        }
                        Err(refusal) => return Poll::Ready(Ok(refusal.response(&head))),
                    }
                }
                Projected::Unready { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    State::Called {
                        response: service.call(taken(request)),
                    }
                }
                Projected::Called { response } => return response.poll(cx),
            };
            state.set(next);
        }
    }
}

impl<S: Clone, T> Clone for ReadBody<S, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, T> fmt::Debug for ReadBody<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBody")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S: Service<Request<B>>, T, B> fmt::Debug for ReadBodyFuture<S, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBodyFuture").finish_non_exhaustive()
    }
}
