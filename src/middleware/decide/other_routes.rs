//! Routes of the router for which a table has no entry: an entry that no request meets may be meant for one of them.

use http::Method;

/// As many are kept as a router has that is read by people.
const MAX_ROUTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct OtherRoutes {
    routes: Vec<Box<str>>,
}

impl OtherRoutes {
    /// Whether the route is a new one.
    pub(super) fn add(&mut self, route: &str) -> bool {
        let is_new = self.routes.len() < MAX_ROUTES && !self.routes.iter().any(|it| **it == *route);
        if is_new {
            self.routes.push(route.into());
        }
        is_new
    }

    /// The route that differs from this path in the names of its captures alone.
    pub(super) fn with_other_captures(&self, path: &str) -> Option<&str> {
        let erased = erased(path);
        self.find(|route| route != path && self::erased(route) == erased)
    }

    /// The route that has a prefix which this path lacks, or the other way round, or another slash at its end.
    pub(super) fn with_other_prefix(&self, path: &str) -> Option<&str> {
        let exact = path;
        let path = erased(path.trim_end_matches('/'));
        let has_name = |path: &str| {
            path.split('/')
                .any(|it| !it.is_empty() && !it.starts_with('{'))
        };
        self.find(|route| {
            let is_same = route == exact;
            let route = erased(route.trim_end_matches('/'));
            let fits = route.ends_with(&path) || path.ends_with(&route);
            !is_same && fits && has_name(&path) && has_name(&route)
        })
    }

    fn find(&self, is_meant: impl Fn(&str) -> bool) -> Option<&str> {
        let mut routes = self.routes.iter().map(|route| &**route);
        routes.find(|route| is_meant(route))
    }
}

/// The path without the names of its captures.
fn erased(path: &str) -> String {
    let segments = path.split('/');
    let erased = segments.map(|segment| match segment {
        capture if capture.starts_with("{*") => "{*}",
        capture if capture.starts_with('{') && !capture.starts_with("{{") => "{}",
        name => name,
    });
    erased.collect::<Vec<_>>().join("/")
}

/// An entry as it is written, and the route that is probably meant.
pub(super) fn described(method: Option<&Method>, path: &str, meant: Option<&str>) -> String {
    let method = method.map_or(String::new(), |method| format!("{method} "));
    match meant {
        Some(meant) => format!("`{method}{path}` (the router has `{meant}`)"),
        None => format!("`{method}{path}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_probably_meant_is_told_from_another_one() {
        let mut others = OtherRoutes::default();
        for route in [
            "/items/{item_id}",
            "/api/health",
            "/files/{*path}",
            "/v1/users/{id}/",
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
            ("/alth", None, None),
            ("/{id}", None, None),
            ("/", None, None),
        ] {
            assert_eq!(others.with_other_captures(path), captures, "{path}");
            assert_eq!(others.with_other_prefix(path), prefix, "{path}");
        }
    }
}
