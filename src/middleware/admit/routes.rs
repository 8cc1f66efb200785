//! [`Routes`]: a policy for each route.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use http::{Method, request::Parts};

use super::{
    normal_path::normal_form,
    other_routes::{OtherRoutes, Template, around_capture, described},
    policy_selector::{Chosen, IntoPolicySelector, PolicySelector, PolicySource},
};
use crate::{
    domain::{
        error::{ConfigError, ExtractError},
        policies::PoliciesRead,
    },
    extract::watch::{WATCHED, Watch},
    warning,
};

/// A policy for each route, by method and path: use this as the first argument of a
/// [`limit`](crate::RateLimitLayer::limit).
///
/// You write a route as a path, or as a method and a path. The path is the *template* that the router has matched, with
/// the prefixes of all nested routers: `/api/items/{id}`. One entry then covers all items, and a client cannot choose
/// among entries by spelling a path differently. This needs the feature `axum` and a layer *inside* the router
/// (`Router::layer`, `Router::route_layer`).
///
/// If no router has matched, as in a fallback, the table compares the path that the client sent; without the feature,
/// the path as nested routers have left it. A path without an entry is compared once more in its normal form:
/// `/%6Cogin`, `//login`, `/./login` and `/login/` are limited like `/login`. Only an entry that [skips](Route::skip)
/// must match the path exactly: a client must not escape a limit by spelling a path differently. Upper and lower case
/// differ, as in most services: if your service has a fallback that ignores case, choose a default that limits.
///
/// **An entry that no request meets** has a typo, or is rarely requested. You get one warning: at once if a route
/// differs only in the names of its captures (`/items/{id}` beside the router's `/items/{item_id}`); after 1 000
/// requests if a route without an entry differs by a prefix or a slash (`/health` beside `/api/health`); after 10 000
/// requests for all other entries.
///
/// **Outside the router** the template is unknown: on a tower stack around the router, and around a `nest_service`.
/// Entries without captures still apply. A request that might match an entry *with* captures cannot be decided: the
/// response is a 500, but the request passes if all policies of the table are [shadows](crate::Policy::shadow); a
/// warning appears once.
///
/// An entry for the request's method takes precedence over one for any method. A `HEAD` request uses the entry for
/// `GET`, unless you add one for `HEAD`. A request without an entry is limited by the default of [`new`](Self::new):
/// nothing is unlimited by accident.
///
/// Policies of one name share their counts, those of different names do not: use one policy for routes that you limit
/// together, possibly with different [weights](Route::weight).
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
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Routes {
    default: Route,
    by_path: HashMap<Box<str>, Vec<Row>>,
    watch: Watch<OtherRoutes>,
    /// The first mistake, of a table in this one, too.
    pub(super) mistake: Option<ConfigError>,
}

#[derive(Debug)]
struct Row {
    /// `None` for any method.
    method: Option<Method>,
    route: Route,
    /// Whether a request has met the entry, or a warning has named it.
    is_settled: AtomicBool,
}

/// How many entries a warning names.
const MAX_NAMED: usize = 16;

/// After this many requests, a missing prefix is likely.
const PROBABLE: u32 = 1_000;

/// The limit of one route.
#[derive(Clone, Debug)]
#[must_use]
pub struct Route {
    /// `None` if requests are not counted.
    selector: Option<PolicySelector>,
    /// The factor of the cost, if it was set.
    weight: Option<u64>,
}

impl Route {
    /// Requests are charged under this policy.
    pub fn new(policy: impl IntoPolicySelector) -> Self {
        Self {
            selector: Some(policy.into_selector()),
            weight: None,
        }
    }

    /// Requests pass this limit without being counted.
    pub const fn skip() -> Self {
        Self {
            selector: None,
            weight: None,
        }
    }

    /// Multiplies the cost of a request on this route. The default is 1; 0 checks without charging. Under
    /// a [concurrency policy](crate::Rule::concurrent), a request holds one slot at any weight.
    ///
    /// A route that [skips](Self::skip) must not have a weight: you get an error when you add the limit.
    pub fn weight(mut self, weight: u64) -> Self {
        self.weight = Some(weight);
        self
    }

    fn choose(&self, head: &Parts, read: &mut PoliciesRead) -> Result<Chosen<'_>, ExtractError> {
        let Some(selector) = &self.selector else {
            return Ok(None);
        };
        let weight = self.weight.unwrap_or(1);
        let choice = selector.choose(head, read)?;
        Ok(choice.map(|(policy, inner)| (policy, inner.saturating_mul(weight))))
    }

    fn mistake(&self) -> Option<ConfigError> {
        match (&self.selector, self.weight) {
            (Some(selector), _) => selector.mistake(),
            (None, None) => None,
            (None, Some(_)) => {
                let problem = "has no weight: its requests are not counted";
                Some(ConfigError::of_name("Route::skip()", problem))
            }
        }
    }
}

impl<P: Into<PolicySelector>> From<P> for Route {
    fn from(policy: P) -> Self {
        Self::new(policy)
    }
}

impl Routes {
    /// Creates an empty table: `default` limits all requests.
    pub fn new(default: impl Into<Route>) -> Self {
        let default = default.into();
        Self {
            mistake: default.mistake(),
            default,
            by_path: HashMap::new(),
            watch: Watch::default(),
        }
    }

    /// Adds an entry: `/items/{id}` for any method, or `GET /items/{id}` for one.
    ///
    /// The name must be a path, or a method and a path, and not yet in the table. Write methods in capitals (HTTP
    /// methods are case-sensitive), and captures as `{id}` or `{*rest}`, not as `/items/:id`. On the first invalid
    /// name, [`try_limit`](crate::RateLimitLayer::try_limit) with this table returns an error, and
    /// [`limit`](crate::RateLimitLayer::limit) panics.
    pub fn route(mut self, name: &str, route: impl Into<Route>) -> Self {
        let route = route.into();
        let mistake = route.mistake();
        let added = self.add(name, route);
        let misnamed = added
            .err()
            .map(|problem| ConfigError::of_name(name, problem));
        self.mistake = self.mistake.or(misnamed).or(mistake);
        self
    }

    fn add(&mut self, name: &str, route: Route) -> Result<(), &'static str> {
        let (method, path) = read(name)?;
        let entries = self.by_path.entry(path.into()).or_default();
        if entries.iter().any(|twin| twin.method == method) {
            return Err("is a route that has an entry already");
        }
        entries.push(Row {
            method,
            route,
            is_settled: AtomicBool::new(false),
        });
        Ok(())
    }

    pub(super) fn choose(
        &self,
        head: &Parts,
        read: &mut PoliciesRead,
    ) -> Result<Chosen<'_>, ExtractError> {
        let matched = matched_path(head);
        let found = match matched {
            Some(path) => self.find(&head.method, path),
            None => self.find_unmatched(&head.method, sent_path(head))?,
        };
        self.note(found, matched);
        let route = found.map_or(&self.default, |entry| &entry.route);
        route.choose(head, read)
    }

    /// The sources of the policies of all routes.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PolicySource> {
        let entries = self.by_path.values().flatten().map(|entry| &entry.route);
        let selectors = entries.chain([&self.default]);
        let selectors = selectors.filter_map(|route| route.selector.as_ref());
        selectors.flat_map(PolicySelector::sources)
    }

    /// Warns of entries that no request meets. Watches the first requests only.
    fn note(&self, found: Option<&Row>, matched: Option<&str>) {
        let suspects = self.watch.note(|others, requests| {
            let is_new = match (found, matched) {
                (Some(entry), _) => {
                    entry.is_settled.store(true, Relaxed);
                    false
                }
                // If other methods have an entry, the table knows the route, and no entry is meant for it.
                (None, Some(route)) if !self.by_path.contains_key(route) => others.add(route),
                (None, _) => false,
            };
            let suspects = self.suspects(others, is_new, requests);
            (!suspects.is_empty()).then_some((suspects, requests))
        });
        if let Some((suspects, requests)) = suspects {
            warning::unmet_routes(&suspects, requests);
        }
    }

    /// The entries that no request has met, each once, with the route that each is probably meant for.
    fn suspects(&self, others: &OtherRoutes, is_new: bool, requests: u32) -> Vec<String> {
        let ends = requests == WATCHED;
        if !is_new && requests != PROBABLE && !ends {
            return Vec::new();
        }
        let mut suspects = Vec::new();
        for (path, entries) in &self.by_path {
            let mut unmet = entries
                .iter()
                .filter(|entry| !entry.is_settled.load(Relaxed))
                .peekable();
            if unmet.peek().is_none() {
                continue;
            }
            let written = Template::of(path);
            let is_meant = |route: &&Template| route.is_meant(&written, requests >= PROBABLE);
            let meant = others.all().iter().find(is_meant);
            if meant.is_none() && !ends {
                continue;
            }
            for entry in unmet {
                entry.is_settled.store(true, Relaxed);
                suspects.push(described(entry.method.as_ref(), path, meant));
            }
        }
        suspects.sort_unstable();
        if suspects.len() > MAX_NAMED {
            let more = suspects.split_off(MAX_NAMED).len();
            suspects.push(format!("and {more} more"));
        }
        suspects
    }

    fn find(&self, method: &Method, path: &str) -> Option<&Row> {
        let entries = self.by_path.get(path)?;
        let of =
            |method: Option<&Method>| entries.iter().find(|entry| entry.method.as_ref() == method);
        of(Some(method))
            .or_else(|| of(Some(&Method::GET)).filter(|_| method == Method::HEAD))
            .or_else(|| of(None))
    }

    /// The entry for a request that no router has matched.
    fn find_unmatched(&self, method: &Method, path: &str) -> Result<Option<&Row>, ExtractError> {
        let found = self.find(method, path);
        let mut templates = self.by_path.keys().filter(|path| path.contains('{'));
        let is_meant =
            |template: &str| fits(template, path) && self.find(method, template).is_some();
        if found.is_none() && templates.any(|template| is_meant(template)) {
            return Err(NOT_MATCHED);
        }
        Ok(found.or_else(|| self.find_normal(method, path)))
    }

    /// The entry for the path in its normal form.
    fn find_normal(&self, method: &Method, path: &str) -> Option<&Row> {
        let normal = normal_form(path)?;
        let entry = self.find(method, &normal)?;
        entry.route.selector.is_some().then_some(entry)
    }
}

const NOT_MATCHED: ExtractError = ExtractError::misconfigured(
    "the table of routes has entries with captures, as in /items/{id}, and this layer does not see which route was \
     matched: enable sluicegate's feature `axum`, and add the layer to the `Router` whose routes they are, not around \
     it or around a `nest_service`",
);

const FORM: &str = "is not a route: write /items/{id}, or GET /items/{id}";

fn read(name: &str) -> Result<(Option<Method>, &str), &'static str> {
    let (method, path) = match name.split_once(' ') {
        Some((method, path)) => (Some(read_method(method)?), path),
        None => (None, name),
    };
    if !path.starts_with('/') {
        return Err(FORM);
    }
    if !path.split('/').all(is_segment) {
        return Err("is not a route: captures are written {id} or {*rest}");
    }
    Ok((method, path))
}

/// Whether a router accepts the segment: `:id` and `*rest` belong to other versions, and `{{` is an escaped brace.
fn is_segment(segment: &str) -> bool {
    let segment = segment.replace("{{", "").replace("}}", "");
    let (mut is_open, mut is_empty) = (false, false);
    for char in segment.chars() {
        match char {
            '{' if is_open => return false,
            '}' if !is_open || is_empty => return false,
            '{' | '}' => is_open = !is_open,
            _ => {}
        }
        is_empty = char == '{' || (char == '*' && is_empty);
    }
    !is_open && !segment.starts_with([':', '*'])
}

/// Rejects lower-case methods: an entry for `get` would never apply.
fn read_method(method: &str) -> Result<Method, &'static str> {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("is not a route: methods are written in capitals, as in GET /items/{id}");
    }
    method.parse().map_err(|_| FORM)
}

/// Whether a router could match a path with this template.
fn fits(template: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for part in template.split('/') {
        let Some(segment) = segments.next() else {
            return false;
        };
        let fits = match around_capture(part) {
            Some((before, "*", _)) => {
                let rest = segment.strip_prefix(before);
                return rest.is_some_and(|rest| !rest.is_empty() || segments.next().is_some());
            }
            Some((before, _, after)) => {
                let rest = segment.strip_prefix(before);
                let captured = rest.and_then(|rest| rest.strip_suffix(after));
                captured.is_some_and(|captured| !captured.is_empty())
            }
            None => part == segment,
        };
        if !fits {
            return false;
        }
    }
    segments.next().is_none()
}

#[cfg(feature = "axum")]
fn matched_path(head: &Parts) -> Option<&str> {
    let matched = head.extensions.get::<axum::extract::MatchedPath>();
    matched.map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
const fn matched_path(_: &Parts) -> Option<&str> {
    None
}

/// A nested router removes its prefix from the URI, and its fallback has no matched path: there, `/health` may stand
/// for `/api/health`.
#[cfg(feature = "axum")]
fn sent_path(head: &Parts) -> &str {
    let original = head.extensions.get::<axum::extract::OriginalUri>();
    original.map_or(&head.uri, |uri| &uri.0).path()
}

#[cfg(not(feature = "axum"))]
fn sent_path(head: &Parts) -> &str {
    head.uri.path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_fits_the_paths_that_a_router_could_match_with_it() {
        for (template, path, expected) in [
            ("/items/{id}", "/items/7", true),
            ("/items/{id}", "/items/", false),
            ("/items/{id}", "/items", false),
            ("/items/{id}", "/items/7/", false),
            ("/items/{id}", "/things/7", false),
            ("/{tenant}/items", "/acme/items", true),
            ("/{tenant}/items", "/acme/things", false),
            ("/files/{*path}", "/files/a", true),
            ("/files/{*path}", "/files/a/b/", true),
            ("/files/{*path}", "/files/", false),
            ("/files/{*path}", "/files", false),
            ("/{{id}}", "/7", false),
            ("/v{version}/items", "/v2/items", true),
            ("/v{version}/items", "/v/items", false),
            ("/v{version}/items", "/2/items", false),
            ("/{name}.json", "/a.json", true),
            ("/{name}.json", "/.json", false),
            ("/{name}.json", "/a.txt", false),
            ("/img-{id}.png", "/img-7.png", true),
            ("/items/{id}:reset", "/items/7:reset", true),
            ("/items/{id}:reset", "/items/7", false),
            ("/a{*rest}", "/a/b", true),
            ("/a{*rest}", "/b/b", false),
        ] {
            assert_eq!(read(template), Ok((None, template)));
            assert_eq!(fits(template, path), expected, "{template} {path}");
        }
    }
}
