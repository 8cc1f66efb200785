//! The router's routes without an entry in the table: an entry that no request meets may be meant for one of them.

use http::Method;

/// The maximum number of routes to remember, more than most routers have.
const MAX_ROUTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct OtherRoutes(Vec<Template>);

/// A route of the router, or the path of an entry.
#[derive(Debug)]
pub(super) struct Template {
    path: Box<str>,
    /// The path without the names of its captures.
    erased: String,
}

impl OtherRoutes {
    /// Adds a route, and returns whether the route is new.
    pub(super) fn add(&mut self, path: &str) -> bool {
        let is_known = || self.0.iter().any(|route| *route.path == *path);
        let is_new = self.0.len() < MAX_ROUTES && !is_known();
        if is_new {
            self.0.push(Template::of(path));
        }
        is_new
    }

    pub(super) fn all(&self) -> &[Template] {
        &self.0
    }
}

impl Template {
    pub(super) fn of(path: &str) -> Self {
        let segments = path
            .split('/')
            .map(|segment| match around_capture(segment) {
                Some((before, star, after)) => format!("{before}{{{star}}}{after}"),
                None => segment.to_owned(),
            });
        Self {
            path: path.into(),
            erased: segments.collect::<Vec<_>>().join("/"),
        }
    }

    /// Whether the entry is probably meant for this route.
    pub(super) fn is_meant(&self, entry: &Self, by_prefix: bool) -> bool {
        let is_another = self.path != entry.path;
        let other_captures = self.erased == entry.erased;
        is_another && (other_captures || (by_prefix && self.has_other_prefix(&entry.erased)))
    }

    /// Whether path and route differ by a prefix, or by a slash at the end.
    fn has_other_prefix(&self, erased: &str) -> bool {
        let path = erased.trim_end_matches('/');
        let route = self.erased.trim_end_matches('/');
        let fits = route.ends_with(path) || path.ends_with(route);
        fits && has_name(path) && has_name(route)
    }
}

fn has_name(erased: &str) -> bool {
    let mut segments = erased.split('/');
    segments.any(|segment| !matches!(segment, "" | "{}" | "{*}"))
}

/// The text around the only capture in a segment of a template, and the star of a capture of the rest of the path:
/// `("v", "", ".json")` for `v{x}.json`.
pub(super) fn around_capture(segment: &str) -> Option<(&str, &str, &str)> {
    let mut begin = segment.find('{')?;
    // An escaped brace is no capture.
    while segment[begin + 1..].starts_with('{') {
        begin += 2 + segment[begin + 2..].find('{')?;
    }
    let end = begin + segment[begin..].find('}')?;
    let star = if segment[begin + 1..].starts_with('*') {
        "*"
    } else {
        ""
    };
    Some((&segment[..begin], star, &segment[end + 1..]))
}

/// An entry as written in the code, and the route that is probably meant.
pub(super) fn described(method: Option<&Method>, path: &str, meant: Option<&Template>) -> String {
    let method = method.map_or(String::new(), |method| format!("{method} "));
    match meant {
        Some(meant) => format!("`{method}{path}` (the router has `{}`)", meant.path),
        None => format!("`{method}{path}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_probably_meant_is_found() {
        let mut others = OtherRoutes::default();
        for route in [
            "/items/{item_id}",
            "/api/health",
            "/files/{*path}",
            "/v1/users/{id}/",
            "/v{version}/health",
            "/reports/{name}.json",
            "/api/{name}.csv",
        ] {
            assert!(others.add(route) && !others.add(route), "{route}");
        }
        for (path, captures, prefix) in [
            (
                "/items/{id}",
                Some("/items/{item_id}"),
                Some("/items/{item_id}"),
            ),
            ("/items/{item_id}", None, None),
            ("/items/{*rest}", None, None),
            (
                "/files/{*rest}",
                Some("/files/{*path}"),
                Some("/files/{*path}"),
            ),
            ("/health", None, Some("/api/health")),
            ("/outer/api/health", None, Some("/api/health")),
            ("/users/{user}", None, Some("/v1/users/{id}/")),
            (
                "/v{x}/health",
                Some("/v{version}/health"),
                Some("/v{version}/health"),
            ),
            ("/w{x}/health", None, None),
            ("/reports/{id}", None, None),
            (
                "/reports/{id}.json",
                Some("/reports/{name}.json"),
                Some("/reports/{name}.json"),
            ),
            ("/{id}.csv", None, Some("/api/{name}.csv")),
            ("/alth", None, None),
            ("/{id}", None, None),
            ("/", None, None),
        ] {
            let meant = |by_prefix| {
                let mut routes = others.all().iter();
                let route = routes.find(|route| route.is_meant(&Template::of(path), by_prefix));
                route.map(|route| &*route.path)
            };
            assert_eq!((meant(false), meant(true)), (captures, prefix), "{path}");
        }
    }
}
