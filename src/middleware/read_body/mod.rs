//! [`ReadBodyLayer`]: reads the bodies of requests, for limits and costs that depend on them.

mod collecting;
mod service;

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use bytes::Bytes;
use http::request::Parts;
use tower_layer::Layer;

pub use self::service::ReadBody;
#[cfg(feature = "axum")]
use super::respond::{AxumRejection, Rejection};
use super::respond::{BodyError, ProblemJson};

#[doc(hidden)]
pub use self::service::ReadBodyFuture;

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Reads the body of each request once, and parses it, so that the layers and the handler inside know its content: in
/// [costs](crate::RateLimitLayer::cost), in [extractors](crate::extract), and in
/// [`charge_async`](crate::RateLimitLayer::charge_async).
///
/// The inner service gets the same bytes, and a [`ParsedBody`] in the request's extensions. A request without a body
/// passes unread, as one does that you [leave out](Self::only); it has no `ParsedBody`.
///
/// The layer takes axum's body as it is, and any other that implements `From<Bytes>`. For hyper, convert hyper's `Incoming`
/// outside: `ServiceBuilder::new().map_request(|request: Request<Incoming>| request.map(axum::body::Body::new))`.
///
/// | the request | the response, by default as `application/problem+json` |
/// |---|---|
/// | has more bytes than you allow, or than a layer outside does | 413, before the body is read if the head says so |
/// | has a `Content-Encoding`, so that the bytes mean something else | 415 |
/// | your function cannot parse | 400, with the error that it returned |
/// | breaks off, or has another length than its head says | 400 |
/// | is slower than the [time limit](Self::time_limit) | 408 |
///
/// None of these is charged; [`rejection`](Self::rejection) sets another form. Trailers of a body that is read are dropped.
///
/// The layer is always ready. It first reads the body and then waits until the inner service is ready, so that a slow
/// client holds no place there.
///
/// **Put a limit by address outside.** Anybody can make this layer keep as many bytes as you allow, for as long as the
/// time limit, and then until the inner service has taken the request: load shedding belongs inside.
///
/// ```
/// use axum::{Json, Router, http::request::Parts, routing::post};
/// use sluicegate::{
///     Header, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
///     middleware::{BodyError, ParsedBody, ReadBodyLayer},
/// };
///
/// struct Words(u64);
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let by_address = RateLimitLayer::new(limiter.clone()).limit(Policy::parse("ip", "60/1m")?, PeerIp);
/// let words = RateLimitLayer::new(limiter)
///     .limit(Policy::parse("words", "10000/1h")?, Header::new("x-user"))
///     .cost(|head, _| ParsedBody::<Words>::of(head).map_or(u64::MAX, |words| words.0));
/// let read = ReadBodyLayer::new(65_536, |_: &Parts, body| match std::str::from_utf8(body) {
///     Ok(text) => Ok(Words(text.split_whitespace().count() as u64)),
///     Err(_) => Err(BodyError::new("The body is not UTF-8.")),
/// });
/// let app: Router = Router::new()
///     .route("/translate", post(async |text: String| text.to_uppercase()))
///     .layer(words)
///     .layer(read)                                                    // around the limit that needs it
///     .layer(by_address);                                             // around the buffer
/// # let _ = app;
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[must_use]
pub struct ReadBodyLayer<T, M = ProblemJson> {
    shared: Arc<Shared<T, M>>,
}

struct Shared<T, M> {
    most: usize,
    time_limit: Duration,
    only: Option<Arc<Only>>,
    parse: Arc<Parse<T>>,
    rejection: Arc<M>,
}

type Only = dyn Fn(&Parts) -> bool + Send + Sync;
type Parse<T> = dyn Fn(&Parts, &Bytes) -> Result<T, BodyError> + Send + Sync;

/// The value of a body that [`ReadBodyLayer`] has read. Cheap to clone.
pub struct ParsedBody<T>(Arc<T>);

impl<T: Send + Sync + 'static> ParsedBody<T> {
    /// Returns the value; `None` if the body was not read, or as another type.
    #[must_use]
    pub fn of(head: &Parts) -> Option<&T> {
        head.extensions.get::<Self>().map(|parsed| &*parsed.0)
    }
}

impl ReadBodyLayer<()> {
    /// Creates a layer that reads bodies of at most `most` bytes. `parse` gets the head and all bytes, and returns a
    /// value, or an error that is shown to the client.
    pub fn new<T>(
        most: usize,
        parse: impl Fn(&Parts, &Bytes) -> Result<T, BodyError> + Send + Sync + 'static,
    ) -> ReadBodyLayer<T> {
        ReadBodyLayer {
            shared: Arc::new(Shared {
                most,
                time_limit: TIME_LIMIT,
                only: None,
                parse: Arc::new(parse),
                rejection: Arc::default(),
            }),
        }
    }

    /// Creates a layer that reads bodies of at most `most` bytes as JSON, whatever their content type. The error names
    /// the line and the column, unless serde loses them as in untagged enums, and never the content.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use sluicegate::{
    ///     Header, MemoryStore, Policy, RateLimitLayer, middleware::{ParsedBody, ReadBodyLayer},
    /// };
    ///
    /// #[derive(Deserialize)]
    /// struct Chat {
    ///     max_tokens: u64,
    /// }
    ///
    /// let read = ReadBodyLayer::json::<Chat>(1 << 20);
    /// let tokens = RateLimitLayer::new(MemoryStore::new())
    ///     .limit(Policy::parse("tokens", "100000/1d")?, Header::new("x-user"))
    ///     .cost(|head, _| ParsedBody::<Chat>::of(head).map_or(u64::MAX, |chat| chat.max_tokens));
    /// # let _ = (read, tokens);
    /// # Ok::<(), sluicegate::error::ConfigError>(())
    /// ```
    #[cfg(feature = "json")]
    pub fn json<T: serde::de::DeserializeOwned>(most: usize) -> ReadBodyLayer<T> {
        Self::new(most, |_, body| {
            serde_json::from_slice(body).map_err(|error| BodyError::of_json(&error))
        })
    }
}

impl<T, M> ReadBodyLayer<T, M> {
    /// Sets for how long a body may take. The default is 10 s.
    pub fn time_limit(self, limit: Duration) -> Self {
        self.change(|shared| shared.time_limit = limit)
    }

    /// Reads only the bodies of requests for which this returns `true`: by their method, path or content type. Others
    /// pass as they are. The default is to read all.
    ///
    /// Leave nothing out that the inner service accepts: a limit that needs the body does not see the others.
    pub fn only(self, reads: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.only = Some(Arc::new(reads)))
    }

    /// Sets the responses to requests whose body cannot be read, with a
    /// [`MakeRejection`](crate::middleware::MakeRejection) as
    /// [`RateLimitLayer::rejection`](crate::RateLimitLayer::rejection) takes one: that of the limit, or another. It gets
    /// [`Rejection::Unread`](crate::middleware::Rejection::Unread).
    ///
    /// ```
    /// # #[cfg(feature = "json")] {
    /// use sluicegate::middleware::{OpenAiJson, ReadBodyLayer};
    ///
    /// let read = ReadBodyLayer::json::<serde_json::Value>(1 << 20).rejection(OpenAiJson);
    /// # let _ = read;
    /// # }
    /// ```
    pub fn rejection<N>(self, make: N) -> ReadBodyLayer<T, N> {
        ReadBodyLayer {
            shared: Arc::new(self.shared.with(Arc::new(make))),
        }
    }

    /// Sets these responses with an axum handler, as [`RateLimitLayer::reject_with`](crate::RateLimitLayer::reject_with)
    /// does (feature `axum`).
    #[cfg(feature = "axum")]
    pub fn reject_with<F, A>(self, handler: F) -> ReadBodyLayer<T, AxumRejection<F>>
    where
        F: Fn(&Rejection, &Parts) -> A,
        A: axum::response::IntoResponse,
    {
        self.rejection(AxumRejection::new(handler))
    }

    fn change(mut self, change: impl FnOnce(&mut Shared<T, M>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }
}

impl<T, M> Shared<T, M> {
    /// The same settings with other responses.
    fn with<N>(&self, rejection: Arc<N>) -> Shared<T, N> {
        Shared {
            most: self.most,
            time_limit: self.time_limit,
            only: self.only.clone(),
            parse: self.parse.clone(),
            rejection,
        }
    }

    fn reads(&self, head: &Parts) -> bool {
        self.only.as_ref().is_none_or(|only| only(head))
    }
}

impl<S, T, M> Layer<S> for ReadBodyLayer<T, M> {
    type Service = ReadBody<S, T, M>;

    fn layer(&self, inner: S) -> ReadBody<S, T, M> {
        ReadBody {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T, M> Clone for Shared<T, M> {
    fn clone(&self) -> Self {
        self.with(self.rejection.clone())
    }
}

impl<T, M> Clone for ReadBodyLayer<T, M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T, M> fmt::Debug for ReadBodyLayer<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.shared;
        f.debug_struct("ReadBodyLayer")
            .field("most", &shared.most)
            .field("time_limit", &shared.time_limit)
            .finish_non_exhaustive()
    }
}

impl<T> Clone for ParsedBody<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for ParsedBody<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for ParsedBody<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParsedBody").field(&self.0).finish()
    }
}
