#![doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/outbound.md"))]

mod answer;
mod backoff;
mod grpc;
mod meaning;
mod quota;
mod service;
mod times;

use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;
use tower_layer::Layer;

use crate::{
    domain::block::MAX_PAUSE,
    extract::{KeyExtractor, Keys},
    limiter::{FOR_EVER, Limiter},
    observe::{Event, RequestOutcome},
};

use self::backoff::Backoff;
pub use service::Obey;
#[doc(hidden)]
pub use service::ObeyFuture;

/// A layer around a client that reads the answers of another service, and [pauses](crate::block#pauses) your account
/// there when the service asks you to wait.
///
/// The layer itself delays and denies nothing: its requests and responses pass unchanged. Put a
/// [`RateLimitLayer`](crate::RateLimitLayer) with [`max_wait`](crate::RateLimitLayer::max_wait) around this layer, or
/// call [`Limiter::acquire`] before each request, with the same limiter and the same key. See [the guide](self).
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use http::{Request, Response};
/// use sluicegate::{FailurePolicy, Key, Limiter, MemoryStore, RateLimitLayer, middleware::ObeyLayer};
/// # use tower::{ServiceBuilder, service_fn};
///
/// # let client = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
/// let limiter = Limiter::new(MemoryStore::new());                     // or the store that all replicas share
/// let account = Key::new("account", "api.example.com");
/// let client = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(limiter.clone()).deny_blocked(account.clone()).max_wait(Duration::from_secs(30)))
///     .layer(ObeyLayer::new(limiter, account))
///     .service(client);
/// # let _ = client;
/// ```
///
/// # Fields that are read
///
/// These fields are read, `Retry-After` first and quotas last; each may have a number of seconds, a number since the epoch from
/// a billion on (in ms, 10^12), a duration such as `1m30s`, or a date:
///
/// - `Retry-After`, `Retry-After-Ms`, `X-Ms-Retry-After-Ms` (Azure), `X-Amz-Retry-After` in ms (AWS), `X-RateLimit-Retry-After`
///   (Symfony), `X-Rate-Limit-Retry-After-Seconds` (OpenSky, Bucket4j)
/// - `RateLimit`, drafts 7 to 11: Cloudflare, this crate
/// - `RateLimit-Remaining`, `-Reset`: GitLab, Twitch
/// - `X-RateLimit-Remaining`, `-Reset` or `-Reset-After`: GitHub, Atlassian, Discord
/// - `X-Rate-Limit-Remaining`, `-Reset`: X, Okta
/// - `X-RateLimit-Remaining-Requests`, `-Reset-Requests`, the same for `Tokens`: OpenAI, Groq
/// - `X-RateLimit-Requests-Remaining`, `-Reset`: Linear, RapidAPI; `X-RateLimit-Complexity-Remaining`, `-Reset`: Linear
/// - `Anthropic-RateLimit-Requests-Remaining`, `-Reset`, the same for `Tokens`, `Input-Tokens`, `Output-Tokens`
/// - `Grpc-Retry-Pushback-Ms`, and `RetryInfo` with the feature `tonic`, if the response has trailers alone
#[derive(Clone, Debug)]
#[must_use]
pub struct ObeyLayer {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    limiter: Limiter,
    keys: Arc<dyn KeyExtractor>,
    label: Option<Box<str>>,
    backoff: Backoff,
    /// The longest pause.
    max_pause: Duration,
    /// Whether a refusal without a time pauses.
    backs_off: bool,
}

impl ObeyLayer {
    /// Creates a layer that pauses this account: a [`Key`](crate::Key), or an extractor if accounts differ by request.
    ///
    /// Requests for which the extractor returns an error or no key pass, and their answers are not read.
    ///
    /// # Panics
    ///
    /// When the limiter does not [enforce blocks](Limiter::enforce_blocks): no check would see a pause.
    #[track_caller]
    pub fn new(limiter: Limiter, account: impl KeyExtractor) -> Self {
        assert!(
            limiter.enforces_blocks(),
            "pauses are blocks: create the limiter without `enforce_blocks(false)`"
        );
        let shared = Shared {
            limiter,
            keys: Arc::new(account),
            label: None,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
            max_pause: MAX_PAUSE,
            backs_off: true,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Sets a label for the account in the warning of a pause, and in [`Event::Pause`]:
    /// such as the name of the other service. By default there is none, and both name the kind of the key alone, since a
    /// key may be a secret.
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into().into_boxed_str();
        self.change(|shared| shared.label = Some(label))
    }

    /// Sets the longest pause from an answer on; longer times are cut. The default is 5 minutes.
    ///
    /// # Panics
    ///
    /// When `most` is zero.
    #[track_caller]
    pub fn max_pause(self, most: Duration) -> Self {
        assert!(!most.is_zero(), "a pause of zero is none");
        self.change(|shared| shared.max_pause = most.min(FOR_EVER))
    }

    /// Sets the pauses for a service that refuses a request without a time: `first`, then twice as long each time, up
    /// to `most`. The defaults are 1 s and 60 s.
    ///
    /// Requests that were under way together double the pause once, even if the service refuses all of them. Each
    /// success halves the next pause, even a success that announces an empty quota.
    ///
    /// # Panics
    ///
    /// When `first` is zero, or longer than `most`.
    #[track_caller]
    pub fn backoff(self, first: Duration, most: Duration) -> Self {
        assert!(!first.is_zero(), "a pause of zero is none");
        assert!(first <= most, "the first pause is longer than the longest");
        self.change(|shared| {
            (shared.backoff.first, shared.backoff.most) = (first, most);
            shared.backs_off = true;
        })
    }

    /// Leaves a refusal without a time alone, such as a 429 that names none: it pauses nothing, and counts as no
    /// success. Use this if your retries wait without it. By default the layer [backs off](Self::backoff).
    pub fn without_backoff(self) -> Self {
        self.change(|shared| shared.backs_off = false)
    }

    fn change(mut self, change: impl FnOnce(&mut Shared)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }
}

impl Shared {
    /// The accounts of a request.
    fn accounts(&self, head: &Parts) -> Keys {
        self.keys.extract(head).unwrap_or_else(|error| {
            self.limiter.events().report(|| Event::MissingKey {
                policy: None,
                shadow: false,
                error: &error,
                outcome: RequestOutcome::Passed,
            });
            Keys::skip()
        })
    }
}

impl<S> Layer<S> for ObeyLayer {
    type Service = Obey<S>;

    fn layer(&self, inner: S) -> Obey<S> {
        Obey {
            inner,
            shared: self.shared.clone(),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("limiter", &self.limiter)
            .field("label", &self.label)
            .field("backoff", &(self.backoff.first, self.backoff.most))
            .field("max_pause", &self.max_pause)
            .field("backs_off", &self.backs_off)
            .finish_non_exhaustive()
    }
}
