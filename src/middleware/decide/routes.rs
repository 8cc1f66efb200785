use std::{collections::HashMap, fmt};

use http::{Method, request::Parts};

use super::policy_selector::{Choice, Choose, PolicySelector};
use crate::{error::ExtractError, policy::Policy};

/// A policy for each route, by method and path: the first argument of a [`limit`](crate::RateLimitLayer::limit).
///
/// A route is written as its path, or as a method and a path. The path is the *template* that the router has matched,
/// with the prefixes of all nested routers: `/api/items/{id}`. So one entry is for all items, and a client cannot
/// choose among entries by how it writes a path. This needs the feature `axum` and a layer *inside* the router
/// (`Router::layer`, `Router::route_layer`). Where no router has matched, as in a fallback, the path that the client
/// sent is compared as it is; without the feature, what nested routers have left of it.
///
/// An entry for the request's method takes precedence over one for any method. A `HEAD` request uses the entry for
/// `GET`, as it is served, unless it has an entry of its own. A request without an entry is limited by the default of
/// [`new`](Self::new): nothing is unlimited by accident.
///
/// Policies of one name share their counts, those of different names do not: routes that are limited together have the
/// same policy, possibly with different [weights](Route::weight).
///
/// ```
/// use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, middleware::{Route, Routes}};
///
/// let all = Policy::parse("all", "100/1m")?;
/// let routes = Routes::new(all.clone())
///     .route("/health", Route::skip())
///     .route("GET /search", Route::new(all).weight(5))
///     .route("POST /items/{id}", Policy::parse("writes", "10/1m")?);
/// let layer = RateLimitLayer::new(MemoryStore::new()).limit(routes, PeerIp);
/// # let _ = layer;
/// # Ok::<(), sluicegate::error::PolicyError>(())
/// ```
pub struct Routes {
    default: Route,
    by_path: HashMap<Box<str>, Vec<(Option<Method>, Route)>>,
}

/// How one route is limited.
#[derive(Clone, Debug)]
pub struct Route {
    limit: Option<(PolicySelector, u64)>,
}

impl Route {
    /// Requests are charged under this policy.
    #[must_use]
    pub fn new(policy: impl Into<PolicySelector>) -> Self {
        Self {
            limit: Some((policy.into(), 1)),
        }
    }

    /// Requests pass this limit without being counted.
    #[must_use]
    pub const fn skip() -> Self {
        Self { limit: None }
    }

    /// Sets how many times its cost a request is charged here. The default is 1; 0 looks without charging.
    #[must_use]
    pub fn weight(mut self, weight: u64) -> Self {
        if let Some((_, it)) = &mut self.limit {
            *it = weight;
        }
        self
    }

    fn choose(&self, head: &Parts) -> Result<Choice<'_>, ExtractError> {
        let Some((source, weight)) = &self.limit else {
            return Ok(None);
        };
        let choice = source.choose(head)?;
        Ok(choice.map(|(policy, inner)| (policy, inner.saturating_mul(*weight))))
    }

    fn known(&self) -> Vec<Policy> {
        let source = self.limit.as_ref().map(|(source, _)| source.known());
        source.unwrap_or_default()
    }
}

impl<P: Into<PolicySelector>> From<P> for Route {
    fn from(policy: P) -> Self {
        Self::new(policy)
    }
}

impl Routes {
    /// Creates a table without entries: all requests are limited by `default`.
    #[must_use]
    pub fn new(default: impl Into<Route>) -> Self {
        Self {
            default: default.into(),
            by_path: HashMap::new(),
        }
    }

    /// Adds an entry: `/items/{id}` for any method, or `GET /items/{id}` for one.
    ///
    /// # Panics
    ///
    /// When `name` is not a path, or a method and a path, or has an entry already; or when the method has lower-case
    /// letters: methods are case-sensitive in HTTP, and `get` is not one.
    #[must_use]
    pub fn route(mut self, name: &str, route: impl Into<Route>) -> Self {
        let (method, path) =
            read(name).unwrap_or_else(|why| panic!("`{name}` is not a route: {why}"));
        let entries = self.by_path.entry(path.into()).or_default();
        assert!(
            entries.iter().all(|(twin, _)| *twin != method),
            "the route `{name}` has an entry already"
        );
        entries.push((method, route.into()));
        self
    }

    fn find(&self, method: &Method, path: &str) -> &Route {
        let entries = self.by_path.get(path).map_or(&[][..], Vec::as_slice);
        let of = |method: Option<&Method>| {
            let entry = entries.iter().find(|(it, _)| it.as_ref() == method);
            entry.map(|(_, route)| route)
        };
        of(Some(method))
            .or_else(|| of(Some(&Method::GET)).filter(|_| method == Method::HEAD))
            .or_else(|| of(None))
            .unwrap_or(&self.default)
    }
}

impl Choose for Routes {
    fn choose(&self, head: &Parts) -> Result<Choice<'_>, ExtractError> {
        self.find(&head.method, path(head)).choose(head)
    }

    fn known(&self) -> Vec<Policy> {
        let entries = self.by_path.values().flatten().map(|(_, route)| route);
        entries
            .chain([&self.default])
            .flat_map(Route::known)
            .collect()
    }
}

impl From<Routes> for PolicySelector {
    fn from(routes: Routes) -> Self {
        Self::chosen(routes)
    }
}

const FORM: &str = "write /items/{id}, or GET /items/{id}";

fn read(name: &str) -> Result<(Option<Method>, &str), &'static str> {
    let (method, path) = match name.split_once(' ') {
        Some((method, path)) => (Some(read_method(method)?), path),
        None => (None, name),
    };
    let is_path = path.starts_with('/');
    is_path.then_some((method, path)).ok_or(FORM)
}

/// An entry for `get` would never apply.
fn read_method(method: &str) -> Result<Method, &'static str> {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("methods are written in capitals, as in GET /items/{id}");
    }
    method.parse().map_err(|_| FORM)
}

/// A nested router removes its prefix from the URI, and its fallback has no matched path: `/health` may be
/// `/api/health` there.
#[cfg(feature = "axum")]
fn path(head: &Parts) -> &str {
    use axum::extract::{MatchedPath, OriginalUri};
    if let Some(matched) = head.extensions.get::<MatchedPath>() {
        return matched.as_str();
    }
    let original = head.extensions.get::<OriginalUri>();
    original.map_or(&head.uri, |uri| &uri.0).path()
}

#[cfg(not(feature = "axum"))]
fn path(head: &Parts) -> &str {
    head.uri.path()
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes")
            .field("by_path", &self.by_path)
            .field("default", &self.default)
            .finish()
    }
}
