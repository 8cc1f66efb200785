//! The response to a rejected request. Headers are added last, so that your response cannot drop them.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};

use super::{Decisions, HeaderStyle, Headers, MakeRejection, ProblemJson, Rejection};
use crate::{domain::decision::Decision, limiter::DEFAULT_INTERVAL, limiter::jitter};

/// A slot may be returned at any time: clients may ask soon, but must not storm.
const DEFAULT_SLOT_WAIT: Duration = Duration::from_secs(1);

/// The settings of responses: those of a layer, or of a handler that rejects a request by itself.
#[derive(Clone)]
pub(in crate::middleware) struct Answers {
    pub(in crate::middleware) headers: Headers,
    pub(in crate::middleware) jitter: Duration,
    /// How long a client waits that found no slot.
    pub(in crate::middleware) slot_wait: Duration,
    /// Whether a request that found no slot gets a 503.
    pub(in crate::middleware) unavailable_without_slot: bool,
    pub(in crate::middleware) are_of_layer: bool,
}

impl Answers {
    pub(in crate::middleware) const fn new(headers: Headers) -> Self {
        Self {
            headers,
            jitter: Duration::ZERO,
            slot_wait: DEFAULT_SLOT_WAIT,
            unavailable_without_slot: false,
            are_of_layer: false,
        }
    }

    /// The response to a rejected request. `retry_interval` says when to ask a service again that could not decide.
    pub(in crate::middleware) fn rejection<B>(
        &self,
        mut rejection: Rejection,
        head: &Parts,
        make: &impl MakeRejection<B>,
        retry_interval: Duration,
    ) -> Response<B> {
        let decision = rejection.decision();
        // The body must show the same wait as the headers, so make the rejection from the delayed decision.
        let shown = decision.as_ref().map(|whole| self.shown_denial(whole));
        if let Some(Cow::Owned(later)) = &shown {
            rejection = Rejection::of(later).unwrap_or(rejection);
        }
        // A limit of no slots stays a denial: waiting does not help.
        if self.unavailable_without_slot
            && let Rejection::Denied(denial) = &rejection
            && denial.is_by_slots()
        {
            rejection = Rejection::NoSlot(denial.clone());
        }
        let mut response = make.make_rejection(&rejection, head);
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        add_challenge(&mut response, &rejection);
        if let Some(shown) = shown {
            let status = response.status();
            self.headers
                .add(response.headers_mut(), status, &shown, &mut None);
        }
        if rejection.status() == StatusCode::SERVICE_UNAVAILABLE {
            let wait = || retry_interval.saturating_add(jitter::random_up_to(self.jitter));
            self.headers.add_wait(response.headers_mut(), wait);
        }
        let outer = head.extensions.get::<Decisions>().cloned();
        let denied = decision.map(|denied| Decisions::new(denied, false, false));
        let decisions = match (denied, outer) {
            (Some(denied), Some(outer)) => Some(denied.within(outer)),
            (denied, outer) => denied.or(outer),
        };
        if let Some(mut decisions) = decisions {
            decisions.is_of_rejection = self.are_of_layer;
            response.extensions_mut().insert(decisions);
        }
        response.extensions_mut().insert(rejection);
        response
    }

    /// The denial as shown to the client.
    fn shown_denial<'a>(&self, decision: &'a Decision) -> Cow<'a, Decision> {
        match decision.with_slot_wait(self.slot_wait) {
            Some(sooner) => Cow::Owned(self.shown(&sooner).into_owned()),
            None => self.shown(decision),
        }
    }

    /// The decision as shown to the client: with jitter.
    pub(in crate::middleware) fn shown<'a>(&self, decision: &'a Decision) -> Cow<'a, Decision> {
        if self.jitter.is_zero() {
            return Cow::Borrowed(decision);
        }
        Cow::Owned(decision.later(jitter::random_up_to(self.jitter)))
    }
}

/// RFC 9110 requires a challenge with each 401. A better one in your response stays.
fn add_challenge<B>(response: &mut Response<B>, rejection: &Rejection) {
    if response.status() == StatusCode::UNAUTHORIZED
        && let Rejection::MissingKey(error) = rejection
        && let Some(challenge) = error.challenge()
        && let Ok(challenge) = HeaderValue::try_from(challenge.as_bytes())
    {
        let headers = response.headers_mut();
        headers.entry(header::WWW_AUTHENTICATE).or_insert(challenge);
    }
}

impl HeaderStyle {
    /// Writes the headers of a decision that you have made yourself into those of a response of your own: the quota, and
    /// `Retry-After` if the decision is a denial. For a denial, [`Rejection::response`] makes the whole response.
    ///
    /// If a layer is around the handler, and the response is no denial, the layer adds its own items to the lists of
    /// [`DRAFT_11`](Self::DRAFT_11), and replaces the headers for one rule.
    ///
    /// ```
    /// use http::Response;
    /// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, middleware::HeaderStyle};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::parse("tokens", "1000/1m")?;
    /// let decision = limiter.check([Charge::new(&tokens, Key::new("user", "alice"), 100)]).await?;
    ///
    /// let mut response = Response::new("hello");
    /// HeaderStyle::default().write(&decision, response.headers_mut());
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""tokens";q=1000;w=60"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        let answers = Answers::new(self.prepare(None));
        let shown = answers.shown_denial(decision);
        let headers_of = &answers.headers;
        headers_of.add(headers, StatusCode::OK, &shown, &mut None);
    }
}

impl Rejection {
    /// Returns the rejection for this decision; `None` if allowed.
    ///
    /// For handlers that check requests on their own: see [`response`](Self::response).
    #[must_use]
    pub fn of(decision: &Decision) -> Option<Self> {
        match decision {
            Decision::Allowed(_) => None,
            Decision::Denied(denial) => Some(Self::Denied(denial.clone())),
            Decision::Blocked(blocked) => Some(Self::Blocked(blocked.clone())),
        }
    }

    fn decision(&self) -> Option<Decision> {
        match self {
            Self::Denied(denial) | Self::NoSlot(denial) => Some(Decision::Denied(denial.clone())),
            Self::Blocked(blocked) => Some(Decision::Blocked(blocked.clone())),
            _ => None,
        }
    }

    /// Makes the response that a [layer](crate::RateLimitLayer) with this style would send, with the status, headers
    /// and body. Use this in a handler that checks on its own, because it alone knows the cost of a request. For a cost
    /// that stands in the body, see [`ReadBodyLayer`](crate::middleware::ReadBodyLayer). `head` is the head of the request.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{
    ///     Json, Router, extract::State, http::request::Parts, response::Response, routing::post,
    /// };
    /// use serde::Deserialize;
    /// use sluicegate::{
    ///     Charge, Key, Limiter, MemoryStore, Policy,
    ///     middleware::{HeaderStyle, Rejection},
    /// };
    ///
    /// #[derive(Deserialize)]
    /// struct Report { days: u64 }
    ///
    /// async fn report(
    ///     State((limiter, rows)): State<(Limiter, Policy)>,
    ///     head: Parts,
    ///     Json(report): Json<Report>,
    /// ) -> Result<&'static str, Response> {
    ///     let cost = report.days.saturating_mul(100);                    // rows, as the database estimates them
    ///     let charge = Charge::new(&rows, Key::new("user", "alice"), cost);
    ///     match limiter.check([charge]).await {
    ///         Ok(decision) => match Rejection::of(&decision) {
    ///             Some(rejection) => Err(rejection.response(&head, HeaderStyle::default())),
    ///             None => Ok("hello"),
    ///         },
    ///         // The store could not decide: this one passes. `Rejection::Undecided(error)` answers with a 503.
    ///         Err(_) => Ok("hello"),
    ///     }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let state = (Limiter::new(MemoryStore::new()), Policy::parse("rows", "1000/1m")?);
    /// let app = Router::new().route("/report", post(report)).with_state(state);
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// tokio::spawn(axum::serve(listener, app).into_future());
    ///
    /// # use http_body_util::Full;
    /// # use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    /// # let client = Client::builder(TokioExecutor::new()).build_http();
    /// # let post = |body: &'static str| {
    /// #     let request = http::Request::post(format!("http://{address}/report"));
    /// #     let request = request.header("content-type", "application/json");
    /// #     client.request(request.body(Full::<axum::body::Bytes>::from(body)).unwrap())
    /// # };
    /// assert_eq!(post(r#"{"days":9}"#).await?.status(), 200);
    /// let denied = post(r#"{"days":2}"#).await?;
    /// assert_eq!(denied.status(), 429);
    /// assert_eq!(denied.headers()["ratelimit-policy"], r#""rows";q=1000;w=60"#);
    /// assert_eq!(denied.headers()["content-type"], "application/problem+json");
    /// assert!(denied.headers().contains_key("retry-after"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// A layer around the handler leaves such a response unchanged.
    #[must_use]
    pub fn response<B: From<String>>(self, head: &Parts, style: HeaderStyle) -> Response<B> {
        self.response_by(&ProblemJson::default(), head, style)
    }

    /// Like [`response`](Self::response), with your own response instead of [`ProblemJson`]'s.
    #[must_use]
    pub fn response_by<B>(
        self,
        make: &impl MakeRejection<B>,
        head: &Parts,
        style: HeaderStyle,
    ) -> Response<B> {
        let answers = Answers::new(style.prepare(None));
        answers.rejection(self, head, make, DEFAULT_INTERVAL)
    }
}
