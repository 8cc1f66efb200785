//! [`ReadBody`]: the service that reads bodies, and its future.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header, request::Parts,
};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ParsedBody, Shared,
    collecting::{BoxError, Collecting, too_large},
};
use crate::middleware::{
    future::{present, taken},
    respond::{BodyError, HeaderStyle, MakeRejection, ProblemJson, Rejection},
};

/// A service whose bodies [`ReadBodyLayer`](super::ReadBodyLayer) reads.
pub struct ReadBody<S, T, M = ProblemJson> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared<T, M>>,
}

impl<S, T, M, B, R> Service<Request<B>> for ReadBody<S, T, M>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    T: Send + Sync + 'static,
    B: Body<Error: Into<BoxError>> + From<Bytes>,
    M: MakeRejection<R>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ReadBodyFuture<S, T, B, M>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.inner.clone();
        let (head, body) = request.into_parts();
        if body.is_end_stream() || !self.shared.reads(&head) {
            let request = Some(Request::from_parts(head, body));
            let state = ReadState::Unready { service, request };
            return ReadBodyFuture { state };
        }
        let most = self.shared.most;
        let refusal = if !is_plain(&head.headers) {
            let detail = "The body must have no content coding.";
            Some(BodyError::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
        } else if body.size_hint().lower().max(stated(&head)) > most as u64 {
            Some(too_large(most))
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
            state: ReadState::Reading { body, reading },
        }
    }
}

/// The length in the head; 0 if there is none. An outer layer may have wrapped the body, which then does not know it.
fn stated(head: &Parts) -> u64 {
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}

/// Whether the bytes of a body are its content.
fn is_plain(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// The response to a request whose body was not read.
fn refused<R>(error: BodyError, head: &Parts, make: &impl MakeRejection<R>) -> Response<R> {
    let rejection = Rejection::Unread(error);
    let status = rejection.status();
    let mut response = rejection.response_by(make, head, HeaderStyle::NONE);
    let (name, value) = match status {
        // RFC 9110, 12.5.3: the response to an unsupported coding names those that are supported.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (header::ACCEPT_ENCODING, "identity"),
        // RFC 9110, 15.5.9. HTTP/2 has no such header.
        StatusCode::REQUEST_TIMEOUT if head.version < Version::HTTP_2 => {
            (header::CONNECTION, "close")
        }
        _ => return response,
    };
    let headers = response.headers_mut();
    headers.insert(name, HeaderValue::from_static(value));
    response
}

pin_project! {
    /// Response future for [`ReadBody`].
    pub struct ReadBodyFuture<S, T, B, M = ProblemJson>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: ReadState<S, T, B, M>,
    }
}

pin_project! {
    #[project = Projected]
    enum ReadState<S, T, B, M>
    where
        S: Service<Request<B>>,
    {
        Reading {
            #[pin]
            body: B,
            reading: Option<Box<Reading<S, T, M>>>,
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
struct Reading<S, T, M> {
    head: Parts,
    service: S,
    shared: Arc<Shared<T, M>>,
    collecting: Collecting,
    /// Set if there is no need to read.
    refusal: Option<BodyError>,
}

impl<S, T: Send + Sync + 'static, M> Reading<S, T, M> {
    fn poll<B: Body<Error: Into<BoxError>>>(
        &mut self,
        body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bytes, BodyError>> {
        if let Some(refusal) = self.refusal.take() {
            return Poll::Ready(Err(refusal));
        }
        let bytes = ready!(self.collecting.poll(body, cx))?;
        if !bytes.is_empty() {
            let parsed = (self.shared.parse)(&self.head, &bytes)?;
            self.head.extensions.insert(ParsedBody(Arc::new(parsed)));
        }
        Poll::Ready(Ok(bytes))
    }
}

impl<S, T, M, B, R> Future for ReadBodyFuture<S, T, B, M>
where
    S: Service<Request<B>, Response = Response<R>>,
    T: Send + Sync + 'static,
    B: Body<Error: Into<BoxError>> + From<Bytes>,
    M: MakeRejection<R>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Reading { body, reading } => {
                    let read = ready!(present(reading).poll(body, cx));
                    let Reading {
                        head,
                        service,
                        shared,
                        ..
                    } = *taken(reading);
                    // The body before the service: a slow client must hold no place there.
                    match read {
                        Ok(bytes) => {
                            let request = Some(Request::from_parts(head, B::from(bytes)));
                            ReadState::Unready { service, request }
                        }
                        Err(error) => {
                            return Poll::Ready(Ok(refused(error, &head, &*shared.rejection)));
                        }
                    }
                }
                Projected::Unready { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    ReadState::Called {
                        response: service.call(taken(request)),
                    }
                }
                Projected::Called { response } => return response.poll(cx),
            };
            state.set(next);
        }
    }
}

impl<S: Clone, T, M> Clone for ReadBody<S, T, M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, T, M> fmt::Debug for ReadBody<S, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBody")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S: Service<Request<B>>, T, B, M> fmt::Debug for ReadBodyFuture<S, T, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBodyFuture").finish_non_exhaustive()
    }
}
